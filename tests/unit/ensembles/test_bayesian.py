"""The Bayesian neighbours of an ensemble against answers that are known."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import phalanx as phx
from phalanx.ensembles import posteriors

LEARNER_OF_ONES = phx.ensembles.learner(
    lambda key: jnp.ones(2), lambda w, x: x @ w, lambda out, y: jnp.mean(out), optax.sgd(0.05)
)

# -- SWAG -------------------------------------------------------------------------------------------------------------


def quadratic():
    """SGD with the gradients of single rows around the least-squares solution."""
    return phx.ensembles.learner(
        lambda key: jnp.zeros(2), lambda w, x: x @ w, lambda out, y: 0.5 * jnp.mean((out - y) ** 2), optax.sgd(0.05)
    )


@pytest.mark.slow
def test_the_moments_are_those_of_the_weights_passed():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2)).astype(np.float32)
    y = (x @ [1.0, -2.0] + 0.3 * rng.normal(size=60)).astype(np.float32)
    one = quadratic()
    learner = phx.ensembles.swag(one, start=20, every=2, rank=5)
    state, passed = learner.init(jax.random.key(0)), []
    update = jax.jit(learner.update)
    for step in range(1, 61):
        row = step % 60
        state, _ = update(state, (x[row : row + 1], y[row : row + 1]), jax.random.key(0))
        if step > 20 and step % 2 == 0:
            passed.append(state.trained.params)
    passed = np.array(passed)
    assert int(state.count) == 20
    np.testing.assert_allclose(state.mean, passed.mean(0), rtol=1e-4)
    np.testing.assert_allclose(state.squares / 20, passed.var(0), rtol=1e-3)
    running = np.cumsum(passed, 0) / np.arange(1, 21)[:, None]
    np.testing.assert_allclose(np.sort(state.deviations, 0), np.sort((passed - running)[-5:], 0), rtol=1e-3, atol=1e-5)
    draws = jax.vmap(lambda key: phx.ensembles.swag_draw(state, key).mean)(jax.random.split(jax.random.key(1), 4000))
    deviations = np.asarray(state.deviations)
    exact = 0.5 * np.diag(np.asarray(state.squares) / 20) + 0.5 * deviations.T @ deviations / 4
    np.testing.assert_allclose(np.cov(np.asarray(draws).T), exact, atol=0.1 * exact.max())


def test_before_any_weights_are_taken_predictions_are_those_of_the_network():
    learner, one = phx.ensembles.swag(LEARNER_OF_ONES, start=100, every=1), LEARNER_OF_ONES
    x = jnp.ones((3, 2))
    np.testing.assert_array_equal(learner.apply(learner.init(jax.random.key(0)), x), one.apply(one.init(None), x))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "options", [{"start": -1, "every": 1}, {"start": 0, "every": 0}, {"start": 0, "every": 1, "rank": 1}]
)
def test_swag_refuses(options):
    with pytest.raises(ValueError, match="must be a whole number"):
        phx.ensembles.swag(quadratic(), **options)


# -- Laplace ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_curvature_is_the_hessian(monkeypatch):
    monkeypatch.setattr(posteriors, "BLOCK", 16)
    rng = np.random.default_rng(0)
    features, weights = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((50, 3), (3, 4)))
    labels = rng.integers(0, 4, 50)

    def loss(flat):
        logits = features @ flat.reshape(4, 3).T
        likelihood = optax.softmax_cross_entropy_with_integer_labels(logits, labels).sum()
        return likelihood + 0.5 * 2.0 * jnp.sum(flat**2)

    hessian = jax.hessian(loss)(weights.T.ravel())
    fitted = phx.ensembles.last_layer_laplace(features, weights, 2.0)
    np.testing.assert_allclose(fitted.factor @ fitted.factor.T, hessian, rtol=1e-3, atol=1e-3)
    draws = 20_000
    probabilities = phx.ensembles.last_layer_probabilities(fitted, features[:2], jax.random.key(0), draws)
    covariance = np.linalg.inv(np.asarray((hessian + hessian.T) / 2, np.float64))
    exact = np.random.default_rng(1).multivariate_normal(np.asarray(weights.T.ravel()), covariance, draws)
    logits = np.einsum("nf,dcf->dnc", np.asarray(features[:2]), exact.reshape(-1, 4, 3))
    np.testing.assert_allclose(probabilities, jax.nn.softmax(logits, -1).mean(0), atol=5 * 0.5 * (2 / draws) ** 0.5)


def test_laplace_refuses():
    with pytest.raises(ValueError, match="features .rows, features. and weights"):
        phx.ensembles.last_layer_laplace(jnp.ones((5, 3)), jnp.ones((4, 2)), 1.0)
    with pytest.raises(ValueError, match="prior_precision must be a positive number, got 0.0"):
        phx.ensembles.last_layer_laplace(jnp.ones((5, 3)), jnp.ones((3, 2)), 0.0)


# -- weights as random variables --------------------------------------------------------------------------------------


def init(key):
    return {"first": {"w": jnp.zeros((2, 4)), "b": jnp.zeros(4)}, "last": jnp.zeros((4, 1))}


def apply(params, x):
    return (jnp.tanh(x @ params["first"]["w"] + params["first"]["b"][None]) @ params["last"])[:, 0]


def network(x, y):
    f = phx.random_network("net", init, apply)
    phx.sample("y", dist.Normal(f(x), 0.5), obs=y)


def test_a_network_is_a_program():
    variables = phx.trace(phx.seed(network, 0))(np.ones((40, 2), np.float32), np.zeros(40, np.float32))
    assert list(variables) == ["net.first.b", "net.first.w", "net.last", "y"]
    assert float(variables["net.first.w"].distribution.base_dist.scale) == pytest.approx(2**-0.5)  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]


@pytest.mark.slow
def test_a_network_can_be_sampled():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2)).astype(np.float32)
    y = np.sin(x[:, 0]).astype(np.float32)
    run = phx.mcmc(network, {"x": x, "y": y}, num_warmup=150, num_samples=50, progress=False)
    w, b, last = (
        run.draws[f"net.{name}"].reshape(-1, *run.draws[f"net.{name}"].shape[2:])[::5]
        for name in ("first.w", "first.b", "last")
    )
    fitted = jax.vmap(lambda w, b, last: apply({"first": {"w": w, "b": b}, "last": last}, x))(w, b, last).mean(0)
    assert np.mean((fitted - y) ** 2) < 0.3 * y.var()


def test_a_prior_of_another_shape():
    def wrong(x):
        phx.random_network("net", init, apply, prior=lambda path, shape: dist.Normal(0.0, 1.0))(x)

    with pytest.raises(ValueError, match=r"the prior of 'first.b' has shape \(\), but these weights \(4,\)"):
        phx.trace(phx.seed(wrong, 0))(jnp.ones((3, 2)))
