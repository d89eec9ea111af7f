"""Kernels on gradients of a few rows: estimates that are right on average, what runs say of them, what is refused."""

from __future__ import annotations

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx

N = 48
Y = np.random.default_rng(0).normal(0.7, 1.0, N).astype(np.float32)
SD = (N + 1) ** -0.5
"""Standard deviation of the conjugate posterior of a mean with prior N(0, 1)."""

LONG, STEP = 0.5 * SD**2, 0.5 * SD


def model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)


# -- estimates --------------------------------------------------------------------------------------------------------

FEW = {"x": np.arange(8.0, dtype=np.float32) / 4, "y": Y[:8]}


def all_kinds_of_terms(x, y):
    """A model whose terms depend on rows, on their number, and on neither."""
    slope = phx.sample("slope", dist.Normal(0.0, 1.0))
    scale = phx.sample("scale", dist.LogNormal(0.0, 1.0))
    phx.factor("norm", -y.shape[0] * jnp.log(scale))
    phx.factor("squares", -0.5 * jnp.sum(((y - slope * x) / scale) ** 2))
    phx.factor("soft", -0.5 * (slope - 5.0) ** 2)
    phx.sample("y", dist.Normal(slope * x, 1.0), obs=y)


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_estimates_from_all_batches_there_are_average_to_what_all_rows_say(devices, mesh_of):
    mesh, size = mesh_of(1, devices), 2 * devices
    target = phx.Target(all_kinds_of_terms, FEW if devices == 1 else phx.shard(FEW, mesh), mesh=mesh)
    estimated, own = target.in_batches(size), len(Y[:8]) // devices
    batches = jnp.array(list(product(range(own), repeat=2)))  # the same on each device: expectations add up
    position = {"slope": jnp.float32(0.3), "scale": jnp.float32(-0.2)}

    def on_device(arrays):
        density = estimated.on_device(arrays)
        one = jax.vmap(lambda rows: density.of_rows(rows).value_and_grad(position))(batches)
        return jax.tree.map(lambda leaf: leaf.mean(0), one), density.value_and_grad(position)

    specs = {"in_specs": (target.array_specs(),), "out_specs": jax.sharding.PartitionSpec()}
    run = jax.jit(jax.shard_map(on_device, mesh=mesh, **specs, check_vma=False))
    (value, gradient), (whole, of_whole) = run(target.place_arrays())
    np.testing.assert_allclose(value.value, whole.value, rtol=1e-5)
    for name in position:
        np.testing.assert_allclose(gradient[name], of_whole[name], rtol=1e-4)


def number_of_rows_in_an_array(first):
    def by_array(y):
        w = phx.sample("w", dist.Normal(0.0, 1.0))
        phx.factor("f", jnp.sum(-w * np.array([first, y.shape[0]], np.float32)))
        phx.sample("y", dist.Normal(w, 1.0), obs=y)

    return by_array


def test_a_number_of_rows_in_an_array_adds_up_or_is_refused():
    target = phx.Target(number_of_rows_in_an_array(0.0), {"y": Y[:8]}).in_batches(2)
    assert target.minibatch is not None and target.minibatch.weights == {"f": 4.0, "y": 4.0}
    with pytest.raises(ValueError, match="batch_size: the rows of 'f' mix in the model, or depend on their number"):
        phx.Target(number_of_rows_in_an_array(1.0), {"y": Y[:8]}).in_batches(2)


def test_a_term_that_is_finite_nowhere_is_refused():
    """Its numbers show neither that it adds up over rows nor that it is independent of them."""

    def never_finite(y):
        w = phx.sample("w", dist.LogNormal(0.0, 1.0))
        phx.factor("f", len(y) * jnp.sqrt(-w))
        phx.sample("y", dist.Normal(w, 1.0), obs=y)

    with pytest.raises(ValueError, match="the rows of 'f' mix in the model, or depend on their number"):
        phx.Target(never_finite, {"y": Y[:8]}).in_batches(2)


@pytest.mark.slow
def test_a_scale_that_terms_of_the_number_of_rows_decide():
    """Without their weight it is three times as large."""
    y = np.random.default_rng(1).normal(0.0, 2.9, 240).astype(np.float32)

    def by_hand(y):
        log_scale = phx.sample("log_scale", dist.Normal(0.0, 3.0))
        phx.factor("norm", -y.shape[0] * log_scale)
        phx.factor("squares", -0.5 * jnp.sum(y**2) * jnp.exp(-2 * log_scale))

    found = phx.mcmc(by_hand, {"y": y}, kernel=phx.sgld(1e-4, 24), num_warmup=1000, num_samples=500, progress=False)
    assert np.exp(found.draws["log_scale"].mean()) == pytest.approx(np.sqrt((y.astype(float) ** 2).mean()), rel=0.05)


# -- what runs do with them -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_verdict_says_what_it_cannot_see():
    options = {"num_warmup": 100, "num_samples": 2000, "progress": False}
    run = phx.mcmc(model, {"y": Y}, kernel=phx.sghmc(STEP, 12), **options)
    verdict = run.verdict()
    assert not verdict.good and [finding.topic for finding in verdict.findings] == ["approximate kernel"]
    assert "biased by the step size" in str(verdict) and "batches of 12 rows" in str(verdict)
    assert np.isnan(run.stats["acceptance_rate"]).all() and np.isfinite(run.stats["log_density"]).all()
    reducers = {"m": phx.reducers.moments(), "r": phx.reducers.rhat(), "e": phx.reducers.ess()}
    reduced = phx.mcmc(model, {"y": Y}, kernel=phx.sghmc(STEP, 12), keep=[], reducers=reducers, **options)
    np.testing.assert_allclose(reduced.reduced["m"]["mean"].mean, run.draws["mean"].mean(), rtol=1e-4)
    assert [finding.topic for finding in reduced.verdict().findings] == ["approximate kernel"]


@pytest.mark.slow
def test_another_step_size_compiles_nothing():
    sizes = {"num_warmup": 0, "num_samples": 5, "progress": False}
    kernels = phx.sgld(0.01, 6), phx.sgld(0.02, 6, cycle=3, temperature=0.5), phx.sgld(0.01, 12)
    first, other, larger = (phx.mcmc(model, {"y": Y}, kernel=kernel, **sizes).timing for kernel in kernels)
    assert first.compilations and not other.compilations and larger.compilations


@pytest.mark.slow
def test_a_temperature_is_told():
    run = phx.mcmc(model, {"y": Y}, kernel=phx.sgld(LONG, N, temperature=0.25), num_samples=400, progress=False)
    assert "The temperature is 0.25" in run.verdict().findings[0].problem
    assert run.draws["mean"].std() < 0.7 * SD


@pytest.mark.slow
def test_steps_beyond_all_bounds_are_divergences_and_no_draws():
    sizes = {"num_chains": 2, "num_warmup": 0, "num_samples": 100, "progress": False}
    run = phx.mcmc(model, {"y": Y}, kernel=phx.sgld(100 * LONG, 12), **sizes)
    assert run.stats["diverging"].any() and np.isfinite(run.draws["mean"]).all()
    assert "divergences" in [finding.topic for finding in run.verdict().findings]


@pytest.mark.slow
def test_a_network_of_random_weights():
    """The gradient of a network from a few images at a time, and what its draws predict together."""
    x = np.random.default_rng(2).normal(size=(60, 3)).astype(np.float32)
    labels = (x[:, 0] > 0).astype(np.int32)

    def init(key):
        return {"w": jnp.zeros((3, 4)), "v": jnp.zeros((4, 2))}

    def apply(params, x):
        return jnp.tanh(x @ params["w"]) @ params["v"]

    def network(x, labels):
        logits = phx.deterministic("logits", phx.random_network("net", init, apply)(x))
        phx.sample("labels", dist.CategoricalLogits(logits), obs=labels)

    run = phx.mcmc(
        network, {"x": x, "labels": labels}, kernel=phx.sghmc(0.05, 15, cycle=20),
        num_warmup=30, num_samples=20, progress=False,
    )  # fmt: skip
    assert set(run.draws) == {"net.w", "net.v"}  # the logits of all rows at every draw would cost more than its step
    chance = run.predict(lambda draw: jax.nn.softmax(apply({"w": draw["net.w"], "v": draw["net.v"]}, x))).mean((0, 1))
    assert (chance.argmax(-1) == labels).mean() > 0.9


# -- what is refused --------------------------------------------------------------------------------------------------


def by_row(y):
    rows = phx.sample("rows", dist.Normal(0.0, 1.0).expand([y.shape[0]]))
    phx.sample("y", dist.Normal(rows, 1.0), obs=y)


def by_mean(y):
    phx.factor("average", -jnp.mean((y - phx.sample("x", dist.Normal(0.0, 1.0))) ** 2))


def by_number(y):
    phx.factor("penalty", -jnp.log(y.shape[0]) * phx.sample("x", dist.Normal(0.0, 1.0)) ** 2)


def without_rows():
    phx.sample("x", dist.Normal(0.0, 1.0))


def discrete(y):
    phx.sample("y", dist.Normal(phx.sample("which", dist.Bernoulli(0.5)), 1.0), obs=y)


@pytest.mark.parametrize(
    "program, batch, words",
    [
        (model, N + 1, "batch_size=49 is larger than the data, which have 48 rows"),
        (by_row, 6, "variable 'rows' has an element for each row"),
        (by_mean, 6, "'average'"),
        (by_number, 6, "'penalty'"),
        (without_rows, 6, "the data have no rows to choose from"),
        (discrete, 6, "'which'"),
    ],
)
def test_terms_that_few_rows_cannot_estimate_are_refused(program, batch, words):
    data = {} if program is without_rows else {"y": Y}
    with pytest.raises(ValueError, match=words):
        phx.mcmc(program, data, kernel=phx.sgld(0.1, batch), progress=False)


def test_rows_that_do_not_divide_are_refused(mesh_of):
    mesh = mesh_of(1, 4)
    with pytest.raises(ValueError, match="both numbers must be divisible by 4"):
        phx.mcmc(model, phx.shard({"y": Y}, mesh), kernel=phx.sgld(0.1, 6), mesh=mesh, progress=False)


def test_rows_of_two_kinds_are_refused(mesh_of):
    def of_both(x, y):
        mean = phx.sample("mean", dist.Normal(0.0, 1.0))
        phx.sample("x", dist.Normal(mean, 1.0), obs=x)
        phx.sample("y", dist.Normal(mean, 1.0), obs=y)

    mesh = mesh_of(1, 2)
    with pytest.raises(ValueError, match="a batch has one kind of rows"):
        phx.mcmc(of_both, phx.shard({"x": Y[:8], "y": Y}, mesh), kernel=phx.sgld(0.1, 4), mesh=mesh, progress=False)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"step_size": 0.0}, "step_size must be a positive number"),
        ({"step_size": "small"}, "step_size must be a positive number"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
        ({"batch_size": 2.5}, "batch_size must be a whole number"),
        ({"cycle": 0}, "cycle must be"),
        ({"cycle": True}, "cycle must be"),
        ({"temperature": -1.0}, "temperature must be"),
        ({"temperature": np.nan}, "temperature must be"),
    ],
)
def test_wrong_options_are_refused(options, words):
    for make in (phx.sgld, phx.sghmc):
        with pytest.raises(ValueError, match=f"{make.__name__}: {words}"):
            make(**{"step_size": 0.1, "batch_size": 6, **options})


def test_wrong_options_of_a_motion_are_refused():
    with pytest.raises(ValueError, match="friction must be above 0"):
        phx.sghmc(0.1, 6, friction=0.0)
    with pytest.raises(ValueError, match="both the steps of a draw"):
        phx.sghmc(0.1, 6, num_steps=5, cycle=10)
    with pytest.raises(ValueError, match="num_steps must be a whole number"):
        phx.sghmc(0.1, 6, num_steps=0)


def test_a_kernel_that_is_not_made_yet_is_told_what_it_takes():
    with pytest.raises(TypeError, match=r"give kernel=phx\.sgld\(step_size=\.\.\., batch_size=\.\.\.\)"):
        phx.mcmc(model, {"y": Y}, kernel=phx.sgld)  # pyright: ignore[reportArgumentType]
