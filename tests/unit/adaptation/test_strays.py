"""Chains that have settled in the wrong place: who is moved, and who is not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.adaptation.strays import SETTLED, Strays


def seen(centres, scales, log_densities, draws=100, size=3):
    """What is told of chains that each draw from a normal distribution."""
    random, count = np.random.default_rng(0), len(centres)
    strays = Strays(count, size)
    rows = [c + s * random.normal(size=(draws, size)) for c, s in zip(centres, scales, strict=True)]
    height = [
        p - 0.5 * (((x - c) / s) ** 2).sum(1) for x, c, s, p in zip(rows, centres, scales, log_densities, strict=True)
    ]
    chain = np.repeat(np.arange(count), draws)
    half = np.concatenate([np.arange(draws) < draws // 2] * count)
    for part in (half, ~half):  # in two rounds
        strays.see([np.concatenate(rows)[part]], np.concatenate(height)[part], chain[part])
    return strays


def test_the_mass_of_regions_is_told_up_to_a_constant():
    # of a normal density with height exp(p) and scale s in 3 dimensions, the mass goes with s^3 exp(p)
    strays = seen([0.0, 50.0], [1.0, 0.01], [0.0, 3.0], draws=4000)
    mass = strays.log_mass()
    assert mass[1] - mass[0] == pytest.approx(3.0 + 3 * np.log(0.01), abs=0.2)


def test_a_chain_whose_region_has_no_mass_goes_on_beside_another():
    strays = seen([0.0, 50.0, 0.0], [1.0, 1.0, 1.0], [0.0, -40.0, 0.0])
    np.testing.assert_array_equal(strays.sources(), [0, 0, 2])


@pytest.mark.parametrize("scales, heights", [((1.0, 1e-4), (0.0, 25.0)), ((1.0, 1.0), (0.0, -8.0))])
def test_a_narrow_peak_and_a_lesser_mode_move_no_one(scales, heights):
    assert seen([0.0, 50.0], scales, heights).sources() is None


def test_a_chain_that_stands_still_is_moved():
    np.testing.assert_array_equal(seen([0.0, 1.0], [1.0, 1e-200], [0.0, 0.0]).sources(), [0, 0])


def test_few_draws_tell_nothing():
    assert seen([0.0, 50.0], [1.0, 1.0], [0.0, -900.0], draws=SETTLED - 1).sources() is None


def test_a_chain_too_slow_to_tell_its_region_is_judged_by_its_density():
    random, strays = np.random.default_rng(0), Strays(3, 2)
    chain = np.repeat([0, 1, 2], [60, 60, 2])
    rows = random.normal(size=(len(chain), 2))
    strays.see([rows], np.where(chain == 2, -90.0, -1.0), chain)
    assert strays.sources().tolist() == [0, 1, 0]


def two_modes(gap):
    """Modes at -30 and 30; the second has a mass that is exp(-gap) of the first's."""

    def model():
        x = phx.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
        heights = jnp.stack([dist.Normal(-30.0, 1.0).log_prob(x), dist.Normal(30.0, 1.0).log_prob(x) - gap])
        phx.factor("modes", jnp.logaddexp(heights[0], heights[1]))

    return model


@pytest.mark.parametrize("chains, data", [(8, 1), (4, 2)])
@pytest.mark.parametrize("kernel", [phx.nuts(), phx.hmc(5)], ids=["nuts", "hmc"])
def test_warm_up_leaves_no_chain_in_a_mode_without_mass(kernel, chains, data):
    posterior = phx.mcmc(
        two_modes(40.0), num_chains=8, num_warmup=200, num_samples=100, kernel=kernel, progress=False,
        mesh=phx.make_mesh(data=data, devices=jax.devices()[:chains]),
    )  # fmt: skip
    assert 1 <= posterior.record.moved_chains <= 7
    assert "moved beside another" in str(posterior.verdict())
    assert (posterior.draws["x"] < 0).all()
    assert len(np.unique(posterior.draws["x"][:, 0])) == 8  # beside one another, not on the same way


def test_two_modes_that_both_count_keep_their_chains():
    posterior = phx.mcmc(two_modes(2.0), num_chains=8, num_warmup=200, num_samples=50, progress=False)
    assert posterior.record.moved_chains == 0 and not posterior.record.findings
    assert (posterior.draws["x"] < 0).any() and (posterior.draws["x"] > 0).any()
