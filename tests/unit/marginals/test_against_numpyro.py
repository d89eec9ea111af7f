"""Marginal log densities against NumPyro's enumeration, which needs funsor."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan

import phalanx as phx

Y = jnp.array([-1.2, 0.9, 0.3, 2.0, 2.4, -0.7])


def sample(name: str, distribution: Any, **kwargs: Any) -> Any:
    return numpyro.sample(name, distribution, **kwargs)


def discrete(name: str, distribution: Any) -> Any:
    return numpyro.sample(name, distribution, infer={"enumerate": "parallel"})


def mixture():
    share = sample("share", dist.Dirichlet(jnp.ones(3)))
    mean = sample("mean", dist.Normal(0.0, 5.0).expand([3]).to_event(1))
    with numpyro.plate("rows", len(Y)):
        group = discrete("group", dist.Categorical(share))
        sample("y", dist.Normal(mean[group], 1.0), obs=Y)


def hidden_markov():
    """Several sequences of different lengths, as in NumPyro's example of hidden Markov models."""
    rows = sample("rows", dist.Dirichlet(0.9 * jnp.eye(3) + 0.1).to_event(1))
    tones = sample("tones", dist.Beta(0.1, 0.9).expand([3, 4]).to_event(2))
    seen = jnp.asarray(np.random.default_rng(0).integers(0, 2, (5, 2, 4)))  # step, sequence, tone
    lengths = jnp.array([5, 3])

    def step(carry: Any, y: Any) -> Any:
        state, t = carry
        with numpyro.plate("sequences", 2, dim=-2), numpyro.handlers.mask(mask=(t < lengths)[:, None]):
            state = discrete("state", dist.Categorical(rows[state]))
            with numpyro.plate("tone", 4, dim=-1):
                sample("y", dist.Bernoulli(tones[state.squeeze(-1)]), obs=y)
        return (state, t + 1), None

    scan(step, (jnp.zeros((2, 1), jnp.int32), 0), seen)


def capture_recapture():
    """Cormack, Jolly and Seber, for animals that were all marked on the first occasion."""
    survival = sample("survival", dist.Uniform(0.0, 1.0))
    capture = sample("capture", dist.Uniform(0.0, 1.0))
    seen = jnp.array([[1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]])

    def step(alive: Any, seen: Any) -> Any:
        with numpyro.plate("animals", 4, dim=-1):
            alive = discrete("alive", dist.Bernoulli(survival * alive))
            sample("seen", dist.Bernoulli(capture * alive), obs=seen)
        return alive, None

    scan(step, jnp.ones(4, jnp.int32), seen.T)


def change_point():
    rate = sample("rate", dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    day = discrete("day", dist.Categorical(jnp.ones(5) / 5))
    with numpyro.plate("days", 5):
        mean = jnp.where(jnp.arange(5) < day, rate[0], rate[1])
        sample("count", dist.Poisson(mean), obs=jnp.array([0, 1, 0, 3, 2]))


MODELS = [
    pytest.param(mixture, 1, marks=pytest.mark.slow),
    pytest.param(hidden_markov, 2, marks=pytest.mark.slow),
    pytest.param(capture_recapture, 1, marks=pytest.mark.slow),
    (change_point, 1),
]
"""Models, each with its number of nested plates."""


SIMPLEX = ("share", "rows")
"""Variables whose gradients count along the simplex alone."""


@pytest.fixture(autouse=True)
def _promotion():
    """Let ranks be promoted, which these models and funsor do."""
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize(
    ("model", "plates"), MODELS, ids=["mixture", "hidden_markov", "capture_recapture", "change_point"]
)
def test_density_and_gradient(model, plates):
    pytest.importorskip("funsor", reason="NumPyro enumerates by funsor, which is not installed")
    from numpyro.contrib.funsor import config_enumerate, enum, log_density

    values = {
        name: site.value
        for name, site in phx.trace(phx.seed(model, 1))().items()
        if site.is_latent and not jnp.issubdtype(site.dtype, jnp.integer)
    }

    def theirs(values: Any) -> Any:
        return log_density(enum(config_enumerate(model), -1 - plates), (), {}, values)[0]

    def at_logits(log_density: Any) -> Any:
        def at(values: Any) -> Any:
            return log_density({name: simplex(x) if name in SIMPLEX else x for name, x in values.items()})

        return jax.jit(jax.value_and_grad(at))

    simplex = jax.nn.softmax  # off the simplex, a density may be extended in any way
    values = {name: jnp.log(x) if name in SIMPLEX else x for name, x in values.items()}
    found, gradient = at_logits(phx.log_joint(phx.marginalize(model)))(values)
    expected, their_gradient = at_logits(theirs)(values)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for name in values:
        np.testing.assert_allclose(gradient[name], their_gradient[name], rtol=2e-3, atol=1e-4, err_msg=name)
