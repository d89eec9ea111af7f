"""Variables written whole and spread over an axis that no data lie along: the answers are those of one device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax
from tests.mesh.agreement import assert_agree

import phalanx as phx
from phalanx.programs.declared_axis import rows_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 3)).astype(np.float32)
Y = np.tanh(X.sum(1)).astype(np.float32)


def two_layers(x, y):
    """A network whose hidden units are spread: of each there are its weights in, its shift and its weight out."""
    into = phx.sample("into", dist.Normal(0.0, 1.0).expand([8, 3]), axis="model")
    shift = phx.sample("shift", dist.Normal(jnp.zeros(8), jnp.linspace(0.5, 1.0, 8)), axis="model")
    out = phx.sample("out", dist.Normal(0.0, 0.5).expand([8]).to_event(1), axis="model")
    noise = phx.sample("noise", dist.HalfNormal(1.0))
    hidden = jnp.tanh(into @ x.T + shift[:, None])
    mean = phx.deterministic("mean", lax.psum(out @ hidden, "model"))
    phx.sample("y", dist.Normal(mean, noise), obs=y)


SIZES = {
    "over 4": (1, 1, 4),
    "over 2, data over 2": (1, 2, 2),
    "over 8": (1, 1, 8),
    "over 2, chains over 2, data over 2": (2, 2, 2),
}


def placed(mesh, data):
    return phx.shard(data, mesh) if mesh.shape["data"] > 1 else data


def run(mesh, num_samples=6, model=two_layers, **options):
    kernel = phx.hmc(num_steps=5, step_size=0.05)
    return phx.mcmc(
        model, placed(mesh, {"x": X, "y": Y}), kernel=kernel, mesh=mesh, num_chains=2, num_warmup=5,
        num_samples=num_samples, progress=False, **options,
    )  # fmt: skip


SOME = [
    pytest.param(sizes, id=name, marks=[pytest.mark.slow] if name != "over 4" else []) for name, sizes in SIZES.items()
]


@pytest.mark.parametrize("sizes", SOME)
def test_log_density_and_gradient(sizes, mesh_of):
    truth = phx.Target(two_layers, {"x": X, "y": Y})
    position = truth.initial_position(jax.random.key(2))
    mesh = mesh_of(*sizes)
    target = phx.Target(two_layers, placed(mesh, {"x": X, "y": Y}), mesh=mesh, check="strict")
    assert_agree(target, position, *truth.value_and_grad(position))
    assert {name: target.sharding(name).local_rows for name in ("into", "shift", "out")} == dict.fromkeys(
        ("into", "shift", "out"), 8 // sizes[2]
    )


@pytest.mark.slow
def test_hmc_draws_what_one_device_draws(mesh_of):
    one, many = run(mesh_of(1, 1), 3), run(mesh_of(1, 1, 4), 3)
    for name, draws in one.draws.items():
        np.testing.assert_allclose(many.draws[name], draws, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SOME)
def test_all_comes_back_whole(sizes, mesh_of):
    one, many = run(mesh_of(1, 1)), run(mesh_of(*sizes), reducers={"m": phx.reducers.moments()})
    assert many.draws["into"].shape == (2, 6, 8, 3)
    for name, draws in one.draws.items():
        np.testing.assert_allclose(many.draws[name], draws, rtol=1e-3, atol=1e-4, err_msg=name)
    mean = many.draws["into"].mean((0, 1))
    np.testing.assert_allclose(many.reduced["m"]["into"].mean, mean, rtol=1e-4, atol=1e-5)
    for name, draws in one.predictive(seed=1).items():
        np.testing.assert_allclose(many.predictive(seed=1)[name], draws, rtol=1e-2, atol=1e-3, err_msg=name)


@pytest.mark.slow
def test_what_is_kept_gone_on_with_and_begun_at_is_whole(mesh_of):
    mesh = mesh_of(1, 1, 4)
    longer = run(mesh, 9)
    np.testing.assert_array_equal(run(mesh).continue_run(3).draws["into"], longer.draws["into"])
    np.testing.assert_array_equal(run(mesh, 9, keep=["out"]).draws["out"], longer.draws["out"])
    begun = {"into": np.full((8, 3), 0.1, np.float32) * np.arange(8)[:, None]}
    one, many = run(mesh_of(1, 1), init=begun), run(mesh, init=begun)
    np.testing.assert_allclose(many.draws["into"], one.draws["into"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("handler", [phx.condition, pytest.param(phx.substitute, marks=pytest.mark.slow)])
def test_a_variable_that_is_given_is_cut_as_well(handler, mesh_of):
    value = RNG.normal(size=(8, 3)).astype(np.float32)
    given = handler(two_layers, {"into": value})
    truth = phx.Target(given, {"x": X, "y": Y})
    position = truth.initial_position(jax.random.key(2))
    target = phx.Target(given, {"x": X, "y": Y}, mesh=mesh_of(1, 1, 4))
    assert_agree(target, position, *truth.value_and_grad(position))


def correlated():
    w = phx.sample("w", dist.Normal(jnp.arange(8.0), jnp.linspace(0.5, 2.0, 8)), axis="model")
    phx.sample("total", dist.Normal(lax.psum(jnp.sum(w), "model"), 1.0), obs=40.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel", [phx.nuts(), phx.chees(), phx.mams(), phx.laps()], ids=lambda k: k.name.split("(")[0]
)
def test_kernels_that_adapt_reach_the_exact_posterior(kernel, mesh_of):
    """A linear Gaussian model. Ten standard errors, of 8 means and 8 variances: failures are not to be expected."""
    prior_mean, variance = np.arange(8.0), np.linspace(0.5, 2.0, 8) ** 2
    gain = variance / (variance.sum() + 1.0)
    mean = prior_mean + gain * (40.0 - prior_mean.sum())
    posterior = phx.mcmc(
        correlated, kernel=kernel, mesh=mesh_of(2, 1, 4), num_chains=8, num_warmup=300, num_samples=1000,
        progress=False,
    )  # fmt: skip
    summary = posterior.summary().filter(like="w[", axis=0)
    assert len(summary) == 8
    np.testing.assert_array_less(np.abs(summary["mean"] - mean), 10 * summary["mcse_mean"])
    np.testing.assert_allclose(summary["sd"] ** 2, variance - gain * variance, rtol=0.2)


DISTRIBUTIONS = {
    "scalars expanded": lambda: dist.Normal(0.3, 2.0).expand([8]),
    "one parameter by row": lambda: dist.Normal(jnp.arange(8.0), 2.0),
    "columns": lambda: dist.Normal(jnp.arange(8.0)[:, None], jnp.array([[1.0, 2.0, 3.0]])),
    "rows under expand": lambda: dist.Normal(jnp.arange(8.0)[:, None], 1.0).expand([8, 3]),
    "to_event": lambda: dist.Gamma(jnp.arange(1.0, 9.0), 2.0).to_event(1),
    "to_event of columns": lambda: dist.StudentT(5.0, 0.0, jnp.ones((8, 3))).to_event(1),
    "to_event of all": lambda: dist.Laplace(0.0, jnp.arange(1.0, 25.0).reshape(8, 3)).to_event(2),
    "log normal": lambda: dist.LogNormal(jnp.arange(8.0) / 8, 0.5),
    "half normal": lambda: dist.HalfNormal(jnp.arange(1.0, 9.0)),
    "beta": lambda: dist.Beta(jnp.arange(1.0, 9.0), 2.0),
    "uniform": lambda: dist.Uniform(-jnp.arange(1.0, 9.0), 2.0),
    "simplices": lambda: dist.Dirichlet(jnp.arange(1.0, 25.0).reshape(8, 3)),
    "simplices expanded": lambda: dist.Dirichlet(jnp.ones(3)).expand([8]),
    "vectors": lambda: dist.MultivariateNormal(jnp.arange(24.0).reshape(8, 3), scale_tril=jnp.eye(3)),
    "masked": lambda: dist.Normal(jnp.arange(8.0), 1.0).mask(jnp.arange(8) % 2 == 0),
    "transformed": lambda: dist.TransformedDistribution(
        dist.Normal(jnp.arange(8.0), 1.0), dist.transforms.AffineTransform(1.0, 2.0)
    ),
    "counts": lambda: dist.Poisson(jnp.arange(1.0, 9.0)),
    "classes": lambda: dist.Categorical(logits=jnp.arange(24.0).reshape(8, 3)),
}


QUICK = ("one parameter by row", "to_event of all", "simplices", "masked")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in DISTRIBUTIONS]
)
def test_rows_have_their_own_density(name):
    with jax.numpy_rank_promotion("allow"):
        whole = DISTRIBUTIONS[name]()
        value = whole.sample(jax.random.key(0))
        parts = []
        for device in range(4):
            part = rows_of(whole, device * 2, 2)
            assert part.shape() == (2, *whole.shape()[1:])
            parts.append(np.asarray(part.log_prob(value[2 * device : 2 * device + 2])))
        expected = np.asarray(whole.log_prob(value))
    found = np.concatenate(parts) if expected.ndim else np.sum(parts)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def one_event(y):
    w = phx.sample("w", dist.MultivariateNormal(jnp.zeros(8), jnp.eye(8)), axis="model")
    phx.sample("y", dist.Normal(lax.psum(w.sum(), "model"), 1.0), obs=y)


def shifted_by_an_array(y):
    transform = dist.transforms.AffineTransform(jnp.arange(8.0), 1.0)
    w = phx.sample("w", dist.TransformedDistribution(dist.Normal(0.0, 1.0).expand([8]), transform), axis="model")
    phx.sample("y", dist.Normal(lax.psum(w.sum(), "model"), 1.0), obs=y)


def ten_rows(y):
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([10]), axis="model")
    phx.sample("y", dist.Normal(lax.psum(w.sum(), "model"), 1.0), obs=y)


REFUSED = [
    (one_event, "Variable 'w': axis='model' cannot shard its 8 rows over 4 devices: they are one event of "
                "MultivariateNormal. Leave out axis=, or give it independent rows, as in "
                "dist.Normal(0.0, 1.0).expand([8])."),
    (shifted_by_an_array, "Variable 'w': axis='model' cannot shard its 8 rows over 4 devices: its transforms have "
                          "arrays for parameters. Leave out axis=, or give it independent rows, as in "
                          "dist.Normal(0.0, 1.0).expand([8])."),
    (ten_rows, "Variable 'w': axis='model' shards its 10 rows over 4 devices, and they do not divide evenly. Give it a "
               "number of rows divisible by 4, or leave out axis=."),
]  # fmt: skip


@pytest.mark.parametrize("model, words", REFUSED, ids=lambda value: getattr(value, "__name__", ""))
def test_what_cannot_be_spread_is_refused_by_name(model, words, mesh_of):
    phx.Target(model, {"y": Y})
    with pytest.raises(ValueError) as error:
        phx.Target(model, {"y": Y}, mesh=mesh_of(1, 1, 4))
    assert str(error.value) == words
