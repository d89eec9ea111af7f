"""BlackJAX algorithms through the same loop."""

from __future__ import annotations

import blackjax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.conformance.agreement import assert_moments

import phalanx as phx

ALGORITHMS = {
    "hmc": lambda f: blackjax.hmc(f, 0.3, np.ones(2), 5),
    "nuts": lambda f: blackjax.nuts(f, 0.5, np.ones(2)),
    "mala": lambda f: blackjax.mala(f, 0.2),
    "rmh": lambda f: blackjax.additive_step_random_walk(f, blackjax.mcmc.random_walk.normal(jnp.ones(2) * 0.8)),
}


def model():
    phx.sample("x", dist.Normal(np.array([1.0, -1.0]), np.array([0.5, 1.0])))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "rmh" else pytest.mark.slow) for name in ALGORITHMS]
)  # MALA, which takes gradients, is covered by the conformance tests
def test_an_algorithm_of_blackjax_recovers_a_gaussian(name, mesh_of):
    posterior = phx.mcmc(
        model,
        kernel=phx.from_blackjax(ALGORITHMS[name]),
        num_chains=8,
        num_warmup=200,
        num_samples=1000,
        mesh=mesh_of(4, 1),
        progress=False,
    )
    assert_moments(posterior.draws["x"], np.array([1.0, -1.0]), np.array([0.5, 1.0]))
    assert posterior.stats["num_steps"].min() >= 1


@pytest.mark.slow
def test_a_kernel_that_is_kept_compiles_once():
    kernel = phx.from_blackjax(ALGORITHMS["mala"])
    first, second = (
        phx.mcmc(model, kernel=kernel, num_warmup=2, num_samples=2, seed=seed, progress=False) for seed in (0, 1)
    )
    assert first.timing.compilations > 0 and second.timing.compilations == 0


def test_an_algorithm_that_is_no_markov_kernel_of_one_chain_is_refused():
    model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))  # noqa: E731
    words = "from_blackjax: the state of this algorithm, PeriodicOrbitalState, does not hold the position of one chain"
    with pytest.raises(ValueError, match=words):
        phx.mcmc(model, kernel=phx.from_blackjax(lambda f: blackjax.orbital_hmc(f, 0.1, jnp.ones(1), 3)))
    with pytest.raises(TypeError, match="from_blackjax: the function must return a BlackJAX SamplingAlgorithm"):
        phx.mcmc(model, kernel=phx.from_blackjax(lambda f: f))
