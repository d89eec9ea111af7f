"""Laws that every guide keeps, ours and a stranger's: a new one joins by being listed here."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.distributions import constraints
from tests.slow import with_slow

import phalanx as phx
from phalanx.variational.guides.guide_and_model import moved as moved_by

Y = np.array([1.0, 2.5, 0.5], np.float32)


def model(y):
    """One coordinate, positive: draws on the real line and draws of values both have a density to integrate."""
    x = phx.sample("x", dist.LogNormal(0.0, 1.0))
    phx.sample("y", dist.Normal(x, 1.0), obs=y)


def program():
    x = phx.param("loc", 0.2), phx.param("scale", 0.5, constraints.positive)
    phx.sample("x", dist.LogNormal(*x))


class StudentT(phx.guides.Guide):
    """A guide as somebody else writes it, with the defaults of `phx.guides.Guide`."""

    name = "student_t()"

    def parameters(self, problem):
        found = {}
        for latent in problem.latents:
            found[f"{latent.name}.middle"] = phx.guides.Parameter(None, constraints.real)
            found[f"{latent.name}.width"] = phx.guides.Parameter(None, constraints.positive)
        return found

    def begin(self, start):
        values = {}
        for latent in start.latents:
            values[f"{latent.name}.middle"] = jnp.zeros(latent.unconstrained_shape)
            values[f"{latent.name}.width"] = jnp.full(latent.unconstrained_shape, 0.5)
        return phx.guides.Beginning(values)

    def noise(self, key, latents):
        keys = random.split(key, len(latents))
        return {v.name: random.t(k, 5.0, v.unconstrained_shape) for v, k in zip(latents, keys, strict=True)}

    def draw(self, params, noise, latents):
        return {v.name: params[f"{v.name}.middle"] + params[f"{v.name}.width"] * noise[v.name] for v in latents}

    def log_prob(self, params, draw, latents):
        totals = [
            dist.StudentT(5.0, params[f"{v.name}.middle"], params[f"{v.name}.width"]).log_prob(draw[v.name]).sum()
            for v in latents
        ]
        return jnp.sum(jnp.stack(totals))


GUIDES = {
    "mean_field": phx.guides.mean_field,
    "full_rank": phx.guides.full_rank,
    "low_rank": lambda: phx.guides.low_rank(rank=1),
    "structured": phx.guides.structured,
    "flow": phx.guides.flow,
    "inverse autoregressive flow": lambda: phx.guides.flow(transform="inverse_autoregressive"),
    "laplace": phx.guides.laplace,
    "pathfinder": lambda: phx.guides.pathfinder(num_paths=2),
    "program": lambda: program,
    "a stranger's": StudentT,
}
names = pytest.mark.parametrize("name", with_slow([*GUIDES], {*GUIDES} - {"program"}))


@cache
def fitted(name) -> Any:
    return phx.fit(model, GUIDES[name](), {"y": Y}, num_steps=60, until=False, progress=False)


@names
def test_every_guide_has_the_members(name):
    guide = fitted(name).pair.guide
    assert isinstance(guide, phx.guides.Guide)
    assert fitted(name).record.kernel == f"fit({guide.name}, elbo())"


@names
def test_draws_are_those_of_the_density(name):
    """The distribution function of the density, at draws, is uniform: a Kolmogorov-Smirnov distance of 1e-6."""
    fit = fitted(name)
    pair, params = fit.pair, fit.pair.learned.constrain(fit.free)
    grid = np.linspace(1e-3, 12.0, 24_000, dtype=np.float32)
    if not pair.program_guide:
        grid = np.linspace(-9.0, 6.0, 24_000, dtype=np.float32)
    log_prob = jax.jit(jax.vmap(lambda x: pair.log_guide(params, {"x": x}, {"y": Y})))
    density = np.exp(np.asarray(log_prob(grid), np.float64))
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(grid))])
    assert mass[-1] == pytest.approx(1.0, abs=0.01)  # of heavy tails the grid leaves out 0.001 or so
    draws = jax.vmap(lambda key: pair.draw(params, pair.noise(key), {"y": Y}))(random.split(random.key(1), 2000))["x"]
    at = np.sort(np.interp(np.asarray(draws), grid, mass / mass[-1]))
    distance = np.abs(at - (np.arange(2000) + 0.5) / 2000).max()
    assert distance < np.sqrt(-np.log(1e-6 / 2) / (2 * 2000)) + 0.005


@names
def test_density_from_the_way_of_drawing_is_the_same(name):
    fit = fitted(name)
    pair, params = fit.pair, fit.pair.learned.constrain(fit.free)
    for held in (True, False):
        draw, found = pair.draw_weighted(params, pair.noise(random.key(2)), {"y": Y}, held)
        assert float(found) == pytest.approx(float(pair.log_guide(params, draw, {"y": Y})), rel=1e-4, abs=1e-4)


@names
def test_parameters_go_to_the_real_line_and_back(name):
    fit = fitted(name)
    learned = fit.pair.learned
    assert list(fit.params) == list(learned.parameters)
    again = learned.constrain(learned.free(fit.params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), fit.params, again)
    still = jax.tree.map(jnp.zeros_like, fit.free)
    if not fit.pair.guide.traits.is_solved:
        moved = moved_by(fit.pair, fit.free, still)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), fit.free, moved)


@names
def test_the_same_seed_draws_the_same(name):
    fit = fitted(name)
    np.testing.assert_array_equal(fit.sample(seed=3, n=20)["x"], fit.sample(seed=3, n=40)["x"][:20])
    assert not np.array_equal(fit.sample(seed=3, n=20)["x"], fit.sample(seed=4, n=20)["x"])


@pytest.mark.slow
def test_a_strangers_guide_does_what_others_do():
    """It is learned, judged, sampled and weighted; what it does not declare is refused by name."""
    fit = phx.fit(model, StudentT(), {"y": Y}, progress=False)
    exact = phx.fit(model, phx.guides.full_rank(), {"y": Y}, progress=False).evidence()
    assert fit.settled
    assert fit.evidence().log_evidence == pytest.approx(exact.log_evidence, abs=4 * (exact.error + 0.01))
    assert fit.posterior(100).draws["x"].shape == (1, 100)
    with pytest.raises(ValueError, match=r"the guide student_t\(\) is not a transform of standard normals"):
        phx.reparameterize(model, fit)
    with pytest.raises(ValueError, match=r"phx.guides.full_rank\(\); got student_t\(\)"):
        phx.fit(model, StudentT(), {"y": Y}, optimizer="batch-and-match", progress=False)
