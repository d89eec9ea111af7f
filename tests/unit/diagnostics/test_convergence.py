import re

import arviz
import numpy as np
import pytest

from phalanx.diagnostics import ebfmi, elements, ess, hdi, mcse, rhat


@pytest.fixture
def draws():
    """Four slowly mixing chains of a (2, 3) array."""
    noise = np.random.default_rng(1).normal(size=(4, 200, 2, 3))
    for draw in range(1, 200):
        noise[:, draw] += 0.7 * noise[:, draw - 1]
    return noise.astype(np.float32)


def test_scalars_give_scalars(draws):
    assert rhat(draws[..., 0, 0]).shape == ()
    assert ess(draws[..., 0, 0]).dtype == np.float64


def test_rhat_finds_a_chain_that_is_elsewhere(draws):
    draws[3] += 5
    assert (rhat(draws) > 1.3).all()


@pytest.mark.parametrize("statistic", [rhat, ess, mcse])
@pytest.mark.parametrize("bad", [3.0, np.inf, np.nan], ids=["constant", "infinite", "nan"])
def test_quantity_that_cannot_be_measured_is_nan_and_spares_its_neighbours(draws, statistic, bad):
    draws[:, :, 0, 1] = bad
    known = np.isfinite(statistic(draws))
    assert not known[0, 1]
    assert known.sum() == 5


@pytest.mark.parametrize("statistic", [rhat, ess, mcse])
def test_fewer_than_four_draws_are_too_few(draws, statistic):
    assert np.isnan(statistic(draws[:, :3])).all()


@pytest.mark.parametrize("chains", [2, 4])
def test_chains_that_stand_still_apart_have_no_finite_or_a_huge_rhat(chains):
    stuck = np.repeat(np.arange(float(chains))[:, None], 50, axis=1)
    assert rhat(stuck) > 1e6
    assert ess(stuck) < 3 * chains


def test_the_unit_of_measurement_does_not_matter(draws):
    for scale in (2.0**-100, 2.0**100):  # exact, for rounding decides which draws are equally far from the median
        scaled = draws.astype(np.float64) * scale
        np.testing.assert_allclose(rhat(scaled), rhat(draws), rtol=1e-9)
        np.testing.assert_allclose(ess(scaled, "tail"), ess(draws, "tail"), rtol=1e-9)
        for kind in ("mean", "sd"):
            np.testing.assert_allclose(mcse(scaled, kind) / scale, mcse(draws, kind), rtol=1e-9)


def test_many_batches_are_put_together_in_order(draws, monkeypatch):
    whole = [rhat(draws), ess(draws), hdi(draws)]
    monkeypatch.setattr(elements, "BATCH_NUMBERS", 2 * draws[..., 0, 0].size)
    for one, many in zip(whole, [rhat(draws), ess(draws), hdi(draws)], strict=True):
        np.testing.assert_array_equal(one, many)


def test_one_chain_has_an_effective_sample_size_but_no_rhat(draws):
    assert np.isnan(rhat(draws[:1])).all()
    assert np.isfinite(ess(draws[:1])).all()


def test_integers_and_booleans_are_numbers():
    random = np.random.default_rng(0)
    counts = random.integers(0, 10, size=(4, 100))
    assert np.isclose(ess(counts), arviz.ess(counts.astype(float)), rtol=1e-10)
    assert np.isfinite(rhat(random.normal(size=(4, 100)) > 0))


def test_ebfmi_of_energies_that_are_unknown_or_constant_is_nan():
    energy = np.random.default_rng(0).normal(size=(4, 100))
    energy[1] = np.nan
    energy[2] = 7.0
    energy[3, 5] = np.inf
    np.testing.assert_array_equal(np.isnan(ebfmi(energy)), [False, True, True, True])
    assert np.isnan(ebfmi(energy[:, :1])).all()


def test_hdi_is_the_narrowest_interval(draws):
    flat = draws[:, :, 0, 0].astype(np.float64).ravel()
    np.testing.assert_allclose(hdi(draws, 0.9)[0, 0], arviz.hdi(flat, 0.9))
    low, high = hdi(draws, 0.9)[0, 0]
    assert 0.9 <= np.mean((flat >= low) & (flat <= high)) < 0.92


def test_hdi_of_constants_and_of_infinities():
    draws = np.stack([np.full((2, 10), 3.0), np.full((2, 10), np.inf)], axis=-1)
    np.testing.assert_array_equal(hdi(draws), [[3.0, 3.0], [np.nan, np.nan]])


@pytest.mark.parametrize("function", [rhat, ess, mcse, hdi, ebfmi])
def test_no_draws_are_an_error(function):
    with pytest.raises(ValueError, match=r"there are no draws to summarise: 4 chains of 0 draws\."):
        function(np.zeros((4, 0)))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: rhat(np.zeros(5)), "draws: expected an array of shape (chain, draw, ...); got shape (5,)."),
        (lambda: ebfmi(np.zeros((4, 5, 2))), "energy: expected an array of shape (chain, draw); got shape (4, 5, 2)."),
        (lambda: ess(np.zeros((4, 5)), "middle"), "ess: kind must be 'bulk' or 'tail'; got 'middle'."),  # pyright: ignore[reportArgumentType]
        (lambda: mcse(np.zeros((4, 5)), "median"), "mcse: kind must be 'mean' or 'sd'; got 'median'."),  # pyright: ignore[reportArgumentType]
        (lambda: hdi(np.zeros((4, 5)), 94), "hdi: prob must be above 0 and below 1; got 94."),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()
