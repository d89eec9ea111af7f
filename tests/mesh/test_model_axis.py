"""Variables sharded over an axis that no data are sharded over: the answers are those of one device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax
from tests.mesh.agreement import assert_agree, compare_with_one_device

import phalanx as phx

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


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SOME)
def test_log_density_and_gradient(sizes, mesh_of):
    truth = phx.Target(two_layers, {"x": X, "y": Y})
    position = truth.initial_position(jax.random.key(2))
    mesh = mesh_of(*sizes)
    target = phx.Target(two_layers, placed(mesh, {"x": X, "y": Y}), mesh=mesh)
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
def test_stored_continued_and_initial_values_are_whole(mesh_of):
    mesh = mesh_of(1, 1, 4)
    longer = run(mesh, 9)
    np.testing.assert_array_equal(run(mesh).continue_run(3).draws["into"], longer.draws["into"])
    np.testing.assert_array_equal(run(mesh, 9, keep=["out"]).draws["out"], longer.draws["out"])
    begun = {"into": np.full((8, 3), 0.1, np.float32) * np.arange(8)[:, None]}
    one, many = run(mesh_of(1, 1), init=begun), run(mesh, init=begun)
    np.testing.assert_allclose(many.draws["into"], one.draws["into"], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
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
    "shifted by an array": lambda: dist.TransformedDistribution(
        dist.Normal(0.0, 1.0).expand([8]), dist.transforms.AffineTransform(jnp.arange(8.0), 1.0)
    ),
    "ten rows": lambda: dist.Normal(jnp.arange(10.0), 1.0),
    "five rows": lambda: dist.Dirichlet(jnp.arange(1.0, 16.0).reshape(5, 3)),
    "one row": lambda: dist.Normal(jnp.ones((1, 3)), 1.0),
}


def of_distributions(names):
    def model(y):
        value = jnp.zeros(1)
        for name in names:
            value = phx.sample(name, DISTRIBUTIONS[name](), axis="model")
            phx.factor(f"cubes of {name}", -(jnp.sum(value, 0) ** 2).sum() - (value[-1] ** 3).sum())
            phx.deterministic(f"halves of {name}", value / 2)
        phx.sample("y", dist.Normal(value.sum(), 1.0), obs=y)

    return model


QUICK = ["simplices", "ten rows"]


@pytest.mark.parametrize(
    "names, sizes",
    [
        pytest.param(QUICK, (1, 1, 4), id="some"),
        *(pytest.param([*DISTRIBUTIONS], (1, n, 4), id=f"all {n}x4", marks=pytest.mark.slow) for n in (1, 2)),
    ],
)
def test_rows_of_any_distribution(names, sizes, mesh_of):
    model = of_distributions(names)
    with jax.numpy_rank_promotion("allow"):
        compare_with_one_device(model, {"y": Y}, mesh_of(*sizes))
        rows = phx.Target(model, {"y": Y}, mesh=mesh_of(*sizes)).sites.positions
    assert {rows[name].axes for name in names} == {("model",)}
