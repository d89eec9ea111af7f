"""Maximum likelihood: `phx.fit(model, None, data)`, of a model without latent variables."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from jax.sharding import PartitionSpec
from numpyro.distributions import constraints

import phalanx as phx

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(32, 4)).astype(np.float32)
DATA = {"x": X, "y": (X @ np.array([1.0, -1.0, 0.5, 0.0]) + 0.3 * RANDOM.normal(size=32)).astype(np.float32)}
NETWORK = phx.networks.from_functions(
    lambda key: {"w": 0.5 * jax.random.normal(key, (4, 8)), "v": 0.5 * jax.random.normal(key, (8,))},
    lambda p, x: jax.numpy.tanh(x @ p["w"]) @ p["v"],
    spec=lambda path, shape: {"w": (None, "model"), "v": ("model",)}[path],
)
SHORT = {"num_steps": 15, "optimizer": optax.adam(1e-2), "progress": False}


def regression(x, y):
    noise = phx.param("noise", 1.0, constraints.positive)
    phx.sample("y", dist.Normal(x @ phx.param("w", np.zeros(4)), noise), obs=y)


def of_network(x, y):
    phx.sample("y", dist.Normal(phx.network("net", NETWORK)(x), 1.0), obs=y)


@pytest.fixture(scope="module")
def fitted():
    return phx.fit(regression, None, DATA, num_steps=2000, optimizer=0.01, progress=False)


def test_it_finds_the_least_squares(fitted):
    w, residuals, *_ = np.linalg.lstsq(DATA["x"], DATA["y"], rcond=None)
    np.testing.assert_allclose(fitted.params["w"], w, atol=2e-3)
    assert fitted.params["noise"] == pytest.approx(np.sqrt(residuals[0] / 32), rel=5e-3)
    wanted = dist.Normal(DATA["x"] @ w, np.sqrt(residuals[0] / 32)).log_prob(DATA["y"]).sum()
    assert fitted.losses.elbo[-1] == pytest.approx(float(wanted), abs=1e-2)
    assert fitted.steps == fitted.timing.gradient_evaluations == 2000


@pytest.mark.slow
def test_there_is_no_posterior(fitted):
    for ask in (fitted.posterior, fitted.evidence, fitted.sample, fitted.covariance, lambda: fitted.report("x.html")):
        with pytest.raises(ValueError, match="maximum likelihood and has no guide to draw from"):
            ask()
    with pytest.raises(ValueError, match="maximum likelihood and has no guide"):
        phx.mcmc(lambda x, y: phx.sample("z", dist.Normal(0.0, 1.0)), DATA, init=fitted, progress=False)


def test_its_verdict_says_what_it_is_and_it_can_be_kept(fitted, tmp_path):
    verdict = fitted.verdict()
    assert [finding.topic for finding in verdict.findings] == [
        "not settled"
    ] and "maximum likelihood" in verdict.passed[0]
    again = phx.Fit.load(fitted.save(tmp_path / "fit.npz"))
    np.testing.assert_array_equal(again.params["w"], fitted.params["w"])


@pytest.mark.slow
def test_rows_over_data_and_weights_over_model(mesh_of):
    alone = phx.fit(of_network, None, DATA, **SHORT)
    mesh = mesh_of(1, 2, 4)
    spread = phx.fit(of_network, None, phx.shard(DATA, mesh), mesh=mesh, **SHORT)
    np.testing.assert_allclose(spread.losses.elbo, alone.losses.elbo, rtol=1e-4)
    assert spread.free is not None
    pieces = jax.tree.map(lambda leaf: {s.data.shape for s in leaf.addressable_shards}, spread.free["net"])
    assert pieces == {"w": {(4, 2)}, "v": {(2,)}}


@pytest.mark.slow
def test_a_few_rows_at_a_time():
    drawn = phx.fit(of_network, None, DATA, batch_size=8, **SHORT)
    assert np.isfinite(drawn.losses.elbo).all() and drawn.losses.elbo.std() > 0
    halves = [{name: value[i : i + 16] for name, value in DATA.items()} for i in (0, 16)]
    streamed = phx.fit(of_network, None, halves, num_rows=32, **{**SHORT, "num_steps": 2, "optimizer": optax.sgd(0.0)})
    whole = phx.fit(of_network, None, DATA, **{**SHORT, "num_steps": 1})
    assert streamed.losses.elbo.mean() == pytest.approx(whole.losses.elbo[0], rel=1e-5)


def test_a_mesh_of_chains_is_refused_with_one_that_is_none(mesh_of):
    with pytest.raises(ValueError, match=r"mesh: guide=None has no draws.*phx.make_mesh\(chain=1, data=2\)"):
        phx.fit(regression, None, DATA, mesh=mesh_of(2, 1), **SHORT)


@pytest.mark.parametrize("rate", [np.float32(0.01), np.array(0.01), jnp.float32(0.01)], ids=["float32", "array", "jax"])
def test_a_rate_is_a_number_of_any_kind(rate):
    options = {**SHORT, "optimizer": float(rate)}
    expected = phx.fit(regression, None, DATA, **options).losses.elbo
    np.testing.assert_array_equal(phx.fit(regression, None, DATA, **{**SHORT, "optimizer": rate}).losses.elbo, expected)


def test_rows_that_are_mixed_are_refused():
    def mixing(x, y):
        phx.sample("y", dist.Normal(phx.param("a", 1.0) * (x - x.mean(0, keepdims=True))[:, 0], 1.0), obs=y)

    with pytest.raises(ValueError, match="the rows of 'y' mix in the model"):
        phx.fit(mixing, None, DATA, batch_size=8, **SHORT)


@pytest.mark.parametrize(
    "model, arguments, message",
    [
        (lambda: phx.sample("z", dist.Normal(phx.param("a", 0.0), 1.0)), {}, "'z' of the model <lambda> has no value"),
        (lambda: phx.param("a", 0.0), {}, "no observed variable"),
        (regression, {"objective": phx.guides.forward_kl()}, "objective: guide=None learns by maximum likelihood"),
        (regression, {"optimizer": "lbfgs"}, "optimizer='lbfgs' needs draws from a guide"),
    ],
)
def test_meaningless_options_are_refused(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        phx.fit(model, None, DATA if model is regression else None, progress=False, **arguments)


def test_with_a_guide_a_model_needs_latent_variables():
    with pytest.raises(ValueError, match="has no latent variables to fit a guide to"):
        phx.fit(regression, lambda: None, DATA, progress=False)


def test_a_tree_of_specs_must_be_like_the_value(mesh_of):
    def model(y):
        w = phx.param("w", {"a": np.ones(4), "b": np.ones(2)}, spec={"a": PartitionSpec("model")})
        phx.sample("y", dist.Normal(w["a"].sum() + w["b"].sum(), 1.0), obs=y)

    with pytest.raises(ValueError, match="Parameter 'w': spec= must be a function .* or a tree like its value"):
        phx.fit(model, None, {"y": DATA["y"]}, mesh=mesh_of(1, 1, 2), **SHORT)


LEVEL = {"y": np.array([1.0, 3.0, 5.0, 7.0], np.float32)}


def level(y):
    phx.sample("y", dist.Normal(phx.param("level", 0.0), 1.0), obs=y)


def latent_level(y):
    phx.sample("y", dist.Normal(phx.sample("level", dist.Normal(0.0, 10.0)), 1.0), obs=y)


def descended(steps: int, rate: float = 0.05, start: float = 0.0) -> float:
    """Return the level after steps of gradient descent: each shrinks the distance from the mean, 4."""
    return 4.0 + (start - 4.0) * (1.0 - 4.0 * rate) ** steps


BY_DESCENT = {"optimizer": optax.sgd(0.05), "progress": False}


@pytest.mark.parametrize("until", [None, False])
def test_the_parameters_are_those_of_the_last_step(until):
    fit = phx.fit(level, None, LEVEL, num_steps=8, until=until, **BY_DESCENT)
    assert fit.params["level"] == pytest.approx(descended(8), rel=1e-5) and fit.last is None
    mean = phx.fit(level, None, LEVEL, num_steps=8, average=True, **BY_DESCENT)
    assert mean.params["level"] == pytest.approx((descended(7) + descended(8)) / 2, rel=1e-5)


@pytest.mark.parametrize("average", [None, True])
def test_a_continued_fit_begins_at_the_last_step(average, tmp_path):
    first = phx.fit(level, None, LEVEL, num_steps=8, average=average, **BY_DESCENT)
    read = phx.Fit.load(first.save(tmp_path / "fit.npz"))
    again = phx.fit(level, None, LEVEL, num_steps=0, init=read, progress=False)
    assert again.params["level"] == first.params["level"]
    for begun in (first, read, again):
        assert phx.fit(level, None, LEVEL, num_steps=8, init=begun, **BY_DESCENT).params["level"] == pytest.approx(
            descended(16), rel=1e-5
        )


@pytest.mark.slow
def test_a_guide_has_the_average_unless_the_last_step_is_asked_for():
    sizes = {"num_steps": 40, "until": False, "progress": False}
    mean = phx.fit(latent_level, phx.guides.mean_field(), LEVEL, **sizes)
    last = phx.fit(latent_level, phx.guides.mean_field(), LEVEL, average=False, **sizes)
    assert last.last is None and mean.last is not None
    assert mean.last["level.loc"] == pytest.approx(last.params["level.loc"], rel=1e-5)
    assert abs(mean.params["level.scale"] - last.params["level.scale"]) > 1e-5
    stays = {**sizes, "optimizer": 1e-9}  # another rate of the default optimiser does not compile
    again = phx.fit(latent_level, phx.guides.mean_field(), LEVEL, init=mean, average=False, **stays)
    assert again.params["level.scale"] == pytest.approx(mean.last["level.scale"], rel=1e-6)


def test_fits_of_many_data_sets_return_last_steps_and_averages_too():
    data, sizes = {"y": np.stack([LEVEL["y"], LEVEL["y"] + 1])}, {"num_steps": 8, "each": {"y": 0}}
    last = phx.fit(level, None, data, **sizes, **BY_DESCENT)
    mean: Any = phx.fit(level, None, data, average=True, **sizes, **BY_DESCENT)
    assert last.params["level"][0] == pytest.approx(descended(8), rel=1e-5)
    assert mean.params["level"][0] == pytest.approx((descended(7) + descended(8)) / 2, rel=1e-5)
    assert mean.of(0).last["level"] == pytest.approx(descended(8), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"average": 1}, "average: expected True, False or None; got 1"),
        ({"average": True, "num_steps": 0}, "average: with num_steps=0 there are no steps"),
        ({"average": True, "training": phx.training()}, "average: with training= the parameters are those of the best"),
    ],
)
def test_an_average_that_has_no_meaning_is_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        phx.fit(level, None, LEVEL, progress=False, **options)


@pytest.mark.parametrize(
    ("optimizer", "rate"),
    [
        (None, 0.05),
        (0.01, 0.01),
        (optax.adam(0.1), None),
        (optax.inject_hyperparams(optax.sgd)(learning_rate=0.2), 0.2),
    ],
)
def test_reports_have_the_rate_that_is_known(optimizer, rate):
    reports = []
    phx.fit(level, None, LEVEL, num_steps=4, optimizer=optimizer, on_block=reports.append, progress=False)
    assert reports[-1].learning_rate == (None if rate is None else pytest.approx(rate))


def test_a_checkpoint_of_last_steps_is_not_continued_with_averages(tmp_path):
    options = {"num_steps": 8, "checkpoint": tmp_path, **BY_DESCENT}
    fit = phx.fit(level, None, LEVEL, **options)
    assert phx.fit(level, None, LEVEL, **options).params["level"] == fit.params["level"]
    with pytest.raises(ValueError, match="holds another fit: average is False there, and None here"):
        phx.fit(level, None, LEVEL, average=True, **options)
