"""The Bayesian neighbours of an ensemble against answers that are known."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import phalanx as phx
from phalanx.ensembles import laplace
from phalanx.ensembles.minibatch import terms_of_rows

N = 200
Y = np.random.default_rng(0).normal(0.7, 1.0, N).astype(np.float32)
MEAN, SD = Y.sum() / (N + 1), (N + 1) ** -0.5
"""Of the conjugate posterior of a mean with prior N(0, 1)."""


def model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [N, 50])
@pytest.mark.parametrize("name", ["sghmc", "sgld"])
def test_a_conjugate_posterior(name, batch):
    """64 chains. Minibatches add the noise of the gradient, some 4% of the variance here; steps, as much again."""
    options = {"sgld": {"step_size": 2e-4}, "sghmc": {"step_size": 2e-5, "friction": 0.2}}[name]
    learner = getattr(phx.ensembles, name)(model, {"y": Y[:batch]}, num_rows=N, **options)
    ensemble = phx.ensemble(learner.init, learner.update, num_members=64)
    draws = [
        ensemble.members.position["mean"]
        for _ in ensemble.train({"y": Y}, batch_size=batch, num_epochs=400 * batch // N)
    ]
    draws = np.array(draws[len(draws) // 4 :])
    error = SD * np.sqrt(1 / 64)  # at least as good as one draw of each chain
    assert abs(draws.mean() - MEAN) < 5 * error
    assert draws.std() == pytest.approx(SD, rel=0.25)


def test_draws_at_the_ends_of_cycles_are_from_the_posterior():
    """4,000 chains: the standard error of a variance is 2.2% of it; steps that are not small add some 5%."""
    chains, cycle, begin, cycles = 4000, 50, 5, 10
    learner = phx.ensembles.sghmc(
        model, {"y": Y}, num_rows=N, step_size=(0.2 * SD) ** 2, friction=0.05, cycle=cycle
    )  # fmt: skip
    begun = jax.vmap(learner.init)(jax.random.split(jax.random.key(0), chains))

    def step(states, key):
        states, _ = jax.vmap(learner.update, (0, None, 0))(states, {"y": Y}, jax.random.split(key, chains))
        return states, states.position["mean"]

    keys = jax.random.split(jax.random.key(1), cycle * cycles)
    _, drawn = jax.jit(lambda begun: jax.lax.scan(step, begun, keys))(begun)
    ends = np.asarray(drawn)[cycle - 1 :: cycle][begin:]  # chains begin at draws from the prior, far away
    np.testing.assert_allclose(ends.var(axis=1) / SD**2, 1.0, atol=0.05 + 5 * 0.022)
    assert (abs(ends.mean(axis=1) - MEAN) < 5 * SD / np.sqrt(chains)).all()


def test_densities_of_batches_are_that_of_all_rows_on_average():
    learner = phx.ensembles.sgld(model, {"y": Y[:20]}, num_rows=N, step_size=1e-3)
    state = learner.init(jax.random.key(1))
    batches = [{"y": Y[i : i + 20]} for i in range(0, N, 20)]
    update = jax.jit(learner.update)
    values = [update(state, batch, jax.random.key(0))[1]["log_density"] for batch in batches]
    whole = phx.log_joint(model)({"mean": state.position["mean"]}, Y)
    np.testing.assert_allclose(np.mean(values), whole, rtol=1e-4)


def test_gradients_of_batches_are_that_of_all_rows_on_average():
    learner = phx.ensembles.sgld(model, {"y": Y[:20]}, num_rows=N, step_size=1e-3, temperature=0.0)
    state = learner.init(jax.random.key(1))
    mean = float(state.position["mean"])
    batches = [{"y": Y[i : i + 20]} for i in range(0, N, 20)]
    update = jax.jit(learner.update)
    moves = [float(update(state, batch, jax.random.key(0))[0].position["mean"]) - mean for batch in batches]
    np.testing.assert_allclose(np.mean(moves), 0.5e-3 * (np.sum(Y - mean) - mean), rtol=1e-3)


def test_terms_that_see_no_rows_count_once():
    def with_a_factor(y):
        x = phx.sample("x", dist.Normal(0.0, 1.0))
        phx.factor("soft", -0.5 * (x - 5.0) ** 2)
        phx.sample("y", dist.Normal(x, 1.0), obs=y)

    learner = phx.ensembles.sgld(with_a_factor, {"y": Y[:20]}, num_rows=N, step_size=1e-3)
    state = learner.init(jax.random.key(1))
    batches = [{"y": Y[i : i + 20]} for i in range(0, N, 20)]
    update = jax.jit(learner.update)
    values = [update(state, batch, jax.random.key(0))[1]["log_density"] for batch in batches]
    whole = phx.log_joint(with_a_factor)({"x": state.position["x"]}, Y)
    np.testing.assert_allclose(np.mean(values), whole, rtol=1e-4)


def test_variables_of_rows_cannot_be_drawn_from_batches():
    def by_shape(y):
        rows = phx.sample("rows", dist.Normal(0.0, 1.0).expand([y.shape[0]]))
        phx.sample("y", dist.Normal(rows, 1.0), obs=y)

    def by_dependence(y):
        rows = phx.sample("rows", dist.Normal(y, 1.0))
        phx.factor("f", rows.sum())

    for program in (by_shape, by_dependence):
        with pytest.raises(ValueError, match="variable 'rows' lives with the rows of the data"):
            phx.ensembles.sgld(program, {"y": Y[:20]}, num_rows=N, step_size=1e-3)


def test_steps_fall_along_a_cycle_and_begin_anew():
    from phalanx.ensembles.langevin import _size

    sizes = np.array([_size(0.1, 10, jnp.int32(step)) for step in range(21)])
    assert sizes[0] == sizes[10] == sizes[20] == pytest.approx(0.1) and (np.diff(sizes[:10]) < 0).all()
    assert sizes[9] < 0.01


@pytest.mark.parametrize(
    "options, words",
    [
        ({"step_size": 0.0}, "step_size must be a positive number"),
        ({"step_size": 0.1, "cycle": 0}, "cycle must be"),
        ({"step_size": "small"}, "step_size must be a positive number"),
        ({"step_size": 0.1, "cycle": True}, "cycle must be"),
        ({"step_size": 0.1, "temperature": -1.0}, "temperature must be"),
        ({"step_size": 0.1, "temperature": np.nan}, "temperature must be"),
        ({"step_size": 0.1, "num_rows": 0}, "num_rows must be"),
    ],
)
def test_what_makes_no_sense_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        phx.ensembles.sgld(model, {"y": Y}, **{"num_rows": N, **options})
    with pytest.raises(ValueError, match=words):
        phx.ensembles.sghmc(model, {"y": Y}, **{"num_rows": N, **options})


def test_friction_out_of_range():
    with pytest.raises(ValueError, match="friction must lie"):
        phx.ensembles.sghmc(model, {"y": Y}, num_rows=N, step_size=0.1, friction=0.0)


LEARNER_OF_ONES = phx.ensembles.learner(
    lambda key: jnp.ones(2), lambda w, x: x @ w, lambda out, y: jnp.mean(out), optax.sgd(0.05)
)

# -- SWAG -------------------------------------------------------------------------------------------------------------


def quadratic():
    """SGD with the gradients of single rows around the least-squares solution."""
    return phx.ensembles.learner(
        lambda key: jnp.zeros(2), lambda w, x: x @ w, lambda out, y: 0.5 * jnp.mean((out - y) ** 2), optax.sgd(0.05)
    )


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
    monkeypatch.setattr(laplace, "BLOCK", 16)
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
    covariance = np.linalg.inv(hessian)
    exact = np.random.default_rng(1).multivariate_normal(np.asarray(weights.T.ravel()), covariance, draws)
    logits = np.einsum("nf,dcf->dnc", np.asarray(features[:2]), exact.reshape(-1, 4, 3))
    np.testing.assert_allclose(probabilities, jax.nn.softmax(logits, -1).mean(0), atol=5 * 0.5 * (2 / draws) ** 0.5)


def test_laplace_refuses():
    with pytest.raises(ValueError, match="features .rows, features. and weights"):
        phx.ensembles.last_layer_laplace(jnp.ones((5, 3)), jnp.ones((4, 2)), 1.0)
    with pytest.raises(ValueError, match="prior_precision must be positive"):
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


@pytest.mark.slow
def test_the_same_program_serves_langevin_dynamics():
    x, y = np.ones((8, 2), np.float32), np.zeros(8, np.float32)
    learner = phx.ensembles.sgld(
        network, {"x": x, "y": y}, 8, step_size=1e-3,
        apply=lambda values, x: jnp.stack([x @ values["net.first.w"][:, 0], x[:, 0]], 1),
    )  # fmt: skip
    ensemble = phx.ensemble(learner.init, learner.update, 2)
    list(ensemble.train({"x": x, "y": y}, batch_size=4))
    assert ensemble.predict(learner.apply, x).mean.shape == (8, 2)
    values = phx.ensembles.values_of(network, {"x": x, "y": y})(ensemble.member(0))
    assert values["net.first.w"].shape == (2, 4)


def test_a_prior_of_another_shape():
    def wrong(x):
        phx.random_network("net", init, apply, prior=lambda path, shape: dist.Normal(0.0, 1.0))(x)

    with pytest.raises(ValueError, match=r"the prior of 'first.b' has shape \(\), and these weights \(4,\)"):
        phx.trace(phx.seed(wrong, 0))(jnp.ones((3, 2)))


def test_a_term_that_sees_the_number_of_rows_adds_up_over_them():
    def by_hand(y):
        log_scale = phx.sample("log_scale", dist.Normal(0.0, 1.0))
        phx.factor("norm", -y.shape[0] * log_scale)
        phx.factor("squares", -0.5 * jnp.sum(y**2) * jnp.exp(-2 * log_scale))

    found = terms_of_rows(by_hand, {"y": Y[:20]})
    assert found == {("norm", "density"), ("squares", "density")}


def test_a_term_that_is_no_sum_over_rows_is_refused():
    def by_mean(y):
        phx.factor("average", -jnp.mean((y - phx.sample("x", dist.Normal(0.0, 1.0))) ** 2))

    def by_number(y):
        phx.factor("penalty", -jnp.log(y.shape[0]) * phx.sample("x", dist.Normal(0.0, 1.0)) ** 2)

    for program, name in ((by_mean, "average"), (by_number, "penalty")):
        with pytest.raises(ValueError, match=f"the log density of '{name}' .* is no sum over them"):
            terms_of_rows(program, {"y": Y[:20]})
