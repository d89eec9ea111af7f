import re

import numpy as np
import pytest
from scipy.stats import f

from phalanx.diagnostics import nested_rhat, rhat


def transcribed(draws, superchains):
    """Nested R-hat of one scalar as the paper writes it, sum by sum."""
    groups = np.split(draws, superchains)
    means, within = [], []
    for group in groups:
        chain_means = [chain.mean() for chain in group]
        mean = sum(chain_means) / len(group)
        means.append(mean)
        between_chains = sum((m - mean) ** 2 for m in chain_means) / (len(group) - 1) if len(group) > 1 else 0
        within_chains = 0
        if draws.shape[1] > 1:
            for chain, m in zip(group, chain_means, strict=True):
                within_chains += sum((x - m) ** 2 for x in chain) / (len(chain) - 1) / len(group)
        within.append(between_chains + within_chains)
    overall = sum(means) / superchains
    between = sum((m - overall) ** 2 for m in means) / (superchains - 1)
    return np.sqrt(1 + between / (sum(within) / superchains))


@pytest.mark.parametrize("chains, draws, superchains", [(4, 10, 4), (4, 10, 2), (12, 1, 3), (12, 2, 4), (64, 5, 8)])
def test_it_is_what_the_paper_writes(chains, draws, superchains):
    values = np.random.default_rng(0).normal(size=(chains, draws, 2, 3)) + np.arange(chains)[:, None, None, None]
    found = nested_rhat(values, superchains)
    assert found.shape == (2, 3)
    for element in np.ndindex(2, 3):
        np.testing.assert_allclose(found[element], transcribed(values[:, :, *element], superchains), rtol=1e-12)


def test_nested_rhat_of_independent_draws_follows_the_f_distribution():
    # With one normal draw per chain, M B / W is F-distributed; fails once in a million runs.
    superchains, members = 8, 32
    values = np.random.default_rng(5).normal(size=(superchains * members, 1))
    ratio = members * (nested_rhat(values, superchains) ** 2 - 1)
    low, high = f.ppf([5e-7, 1 - 5e-7], superchains - 1, superchains * (members - 1))
    assert low < ratio < high


def test_short_chains_that_have_converged_pass_though_rhat_does_not():
    # Chains of eight draws that are nearly one: R-hat cannot distinguish them from chains that do not mix.
    random = np.random.default_rng(1)
    values = random.normal(size=(4096, 1)) + 0.3 * random.normal(size=(4096, 8))
    assert rhat(values) > 1.5
    assert nested_rhat(values, 4) < 1.01


def test_superchains_that_remember_where_they_started_do_not_pass():
    random = np.random.default_rng(2)
    starts = np.repeat(random.normal(size=4), 256)
    assert nested_rhat(starts[:, None] + 0.5 * random.normal(size=(1024, 8)), 4) > 1.5


def test_groups_of_chains_with_starts_of_their_own_tell_nothing():
    still = np.repeat(np.random.default_rng(3).normal(size=(1024, 1)), 8, axis=1)
    assert nested_rhat(still, 4) < 1.02


def test_chains_of_a_superchain_are_neighbours():
    values = np.repeat([0.0, 0.0, 1.0, 1.0], 5).reshape(4, 5) + 1e-3 * np.arange(5)
    assert nested_rhat(values, 2) > 100


def test_quantity_that_cannot_be_measured_is_nan_and_spares_its_neighbours():
    values = np.random.default_rng(0).normal(size=(8, 3, 3))
    values[..., 0], values[2, 1, 1] = 0.1, np.inf
    np.testing.assert_array_equal(np.isfinite(nested_rhat(values, 4)), [False, False, True])


@pytest.mark.parametrize(
    "shape, superchains, message",
    [
        ((4, 5), 1, "nested_rhat: superchains must be at least 2; got 1."),
        (
            (10, 5),
            4,
            "nested_rhat: 10 chains cannot be divided evenly among 4 superchains; give a divisor of the number",
        ),
        ((4, 1), 4, "nested_rhat: one chain of one draw has no spread to compare with; give more draws or fewer"),
        ((4, 0), 2, "draws: there are no draws to summarise: 4 chains of 0 draws."),
    ],
)
def test_groups_that_cannot_be_compared_are_an_error(shape, superchains, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        nested_rhat(np.zeros(shape), superchains)


def test_superchains_are_counted_in_whole_numbers():
    with pytest.raises(TypeError, match=r"^nested_rhat: superchains must be a whole number; got 2\.0\.$"):
        nested_rhat(np.zeros((4, 5)), 2.0)  # pyright: ignore[reportArgumentType]
