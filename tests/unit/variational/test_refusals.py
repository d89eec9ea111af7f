"""What a fit refuses names the variable, the parameter or the argument, and says what to do."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions import constraints
from tests.slow import with_slow
from tests.unit.variational.models import DATA, by_hand, regression

import phalanx as phx
from phalanx.store.policy import SavePolicy
from phalanx.variational.monitoring.watching import fit_checkpoint


def scale_model():
    phx.sample("s", dist.HalfNormal(1.0))
    phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))


def guide_of(**variables):
    """A guide of these distributions, each a function of a parameter."""

    def guide():
        loc = phx.param("loc", 0.0)
        for name, distribution in variables.items():
            phx.sample(name, distribution(loc))

    return guide


def log_normal(loc):
    return dist.LogNormal(loc, 0.1)


def pair(loc):
    return dist.Normal(loc, 0.1).expand([2])


GUIDES = {
    "missing": (guide_of(s=log_normal), "has no variable 'w', which is latent in the model scale_model"),
    "extra": (guide_of(s=log_normal, w=pair, z=pair), "samples 'z', which is not a latent variable of the model"),
    "shape": (guide_of(s=log_normal, w=log_normal), r"'w' has shape \(\) in the guide guide, and \(2,\) in the model"),
    "support": (guide_of(s=lambda loc: dist.Normal(loc, 0.1), w=pair), "'s': the guide's Normal has draws outside"),
    "range": (guide_of(s=lambda loc: dist.Uniform(-1.0 + loc, 1.0), w=pair), "'s': the guide's Uniform has draws outs"),
    "constant": (
        lambda: (phx.sample("s", dist.LogNormal(0.0, 1.0)), phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))),
        "has a parameter to learn",
    ),
}


@pytest.mark.parametrize("guide, message", with_slow(GUIDES, {"range"}))
def test_a_guide_that_does_not_fit_the_model(guide, message):
    with pytest.raises(ValueError, match=message):
        phx.fit(scale_model, guide, progress=False)


def test_a_guide_that_observes():
    def guide(x, y):
        by_hand(x)
        phx.sample("y", dist.Normal(0.0, 1.0), obs=y)

    with pytest.raises(ValueError, match="'y' of the guide guide is observed"):
        phx.fit(regression, guide, DATA, progress=False)


def test_a_guide_with_a_factor():
    def guide(x):
        by_hand(x)
        phx.factor("extra", 0.0)

    with pytest.raises(ValueError, match="'extra' of the guide guide is a factor"):
        phx.fit(regression, guide, DATA, progress=False)


def test_a_guide_that_asks_for_more_than_the_data():
    def guide(x, z):
        by_hand(x)

    with pytest.raises(TypeError, match="takes 'z', which the data do not have"):
        phx.fit(regression, guide, DATA, progress=False)


@pytest.mark.parametrize("guide", [phx.guides.mean_field(), lambda: phx.param("a", 0.0)], ids=["family", "program"])
def test_a_model_without_latent_variables(guide):
    with pytest.raises(ValueError, match="has no latent variables"):
        phx.fit(lambda y: phx.sample("y", dist.Normal(0.0, 1.0), obs=y), guide, {"y": np.ones(3)}, progress=False)


@pytest.mark.slow
def test_an_initial_value_outside_of_its_constraint():
    def guide():
        phx.sample("s", dist.LogNormal(phx.param("loc", 0.0), phx.param("scale", -1.0, constraints.positive)))
        phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))

    with pytest.raises(ValueError, match="'scale': its initial value does not satisfy its constraint"):
        phx.fit(scale_model, guide, progress=False)


OPTIONS = {
    "optimizer": ({"optimizer": "adam"}, TypeError, "optimizer must be one of optax's"),
    "uncalled": ({"optimizer": dict}, TypeError, r"call it, as in optax.dict\(1e-2\)"),
    "rate": ({"optimizer": -0.1}, ValueError, "a rate must be a number above 0"),
    "line search": ({"optimizer": optax.lbfgs()}, TypeError, "needs 'value', 'grad', and 'value_fn' too.*'lbfgs'"),
    "no rate": ({"optimizer": np.float32(np.nan)}, ValueError, "a rate must be a number above 0"),
    "steps": ({"num_steps": -1}, ValueError, "num_steps must be a whole number, at least 0"),
    "particles": ({"num_particles": 1.5}, ValueError, "num_particles must be a whole number"),
    "seed": ({"seed": -1}, ValueError, "seed must be a whole number"),
    "until": ({"until": phx.until(ess=100)}, ValueError, "a fit makes steps; give seconds= alone"),
    "condition": ({"until": 3}, TypeError, "until: expected"),
    "objective": ({"objective": "elbo"}, TypeError, "objective must be one of phx.guides"),
    "unknown": ({"init": {"nothing": 1.0}}, ValueError, "there is no parameter or variable 'nothing'"),
    "init": ({"init": 3}, TypeError, "init: expected a dict"),
    "init that is not finite": ({"init": {"w": np.nan}}, ValueError, "init: the value of 'w' has numbers that are not"),
    "guide": ({"guide": np.ones(2)}, TypeError, "guide: expected a program"),
}


@pytest.mark.parametrize("options, kind, message", with_slow(OPTIONS, {"line search"}))
def test_options_that_are_none(options, kind, message):
    with pytest.raises(kind, match=message):
        phx.fit(regression, **{"guide": phx.guides.mean_field(), "data": DATA, "progress": False, **options})


DISCRETE = {
    "importance": ({"objective": phx.guides.importance_weighted(4)}, "'z': the guide's draws cannot be differentiated"),
    "alone": ({"num_particles": 1}, "'z': .* learned by comparing particles"),
    "groups": (
        {"objective": phx.guides.importance_weighted(5)},
        r"num_particles=8: importance_weighted\(5\) groups them by 5; use 10",
    ),
}


@pytest.mark.parametrize("options, message", DISCRETE.values(), ids=DISCRETE)
def test_a_discrete_variable_without_an_estimator(options, message):
    def model():
        phx.sample("z", dist.Bernoulli(0.3))

    def guide():
        phx.sample("z", dist.Bernoulli(logits=phx.param("logits", 0.0)))

    with pytest.raises(ValueError, match=message):
        phx.fit(model, guide, progress=False, **options)


def test_an_objective_that_is_no_scalar():
    with pytest.raises(ValueError, match="the function must return a scalar"):
        own = phx.guides.objective(lambda log_p, log_q, draws: log_q - log_p)
        phx.fit(regression, by_hand, DATA, objective=own, progress=False)


def test_an_objective_that_returns_nothing():
    with pytest.raises(TypeError, match="objective: the function must return a scalar.*got None"):
        own = phx.guides.objective(cast(Any, lambda log_p, log_q, draws: None))
        phx.fit(regression, by_hand, DATA, objective=own, progress=False)


def test_a_guide_with_a_parameter_of_numpyros_is_told_ours():
    def guide():
        phx.sample("s", dist.LogNormal(numpyro.param("a", 0.0), 1.0))

    with pytest.raises(ValueError, match=r"'a' is a numpyro.param.*For phx.fit.*use phx.param\('a', init"):
        phx.fit(scale_model, guide, progress=False)


@pytest.mark.parametrize("made", ["guide", "model"])
def test_a_constraint_that_is_computed_names_the_parameter(made):
    def bounded():
        a = phx.param("a", 2.0, constraints.positive)
        return phx.param("b", 1.0, constraints.independent(constraints.interval(0.0, a), 0))

    def guide():
        phx.sample("s", dist.LogNormal(bounded(), 0.1))
        phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))

    def model():
        phx.sample("s", dist.HalfNormal(bounded()))

    given = (scale_model, guide) if made == "guide" else (model, phx.guides.mean_field())
    with pytest.raises(ValueError, match="'b': a bound of its constraint interval is computed.*unit_interval"):
        phx.fit(*given, progress=False)


def bounded_by_another():
    phx.sample("w", dist.Uniform(0.0, phx.sample("s", dist.HalfNormal(1.0))))


@pytest.mark.slow
def test_supports_with_bounds_that_are_computed_are_named_by_kind():
    guide = guide_of(s=log_normal, w=lambda loc: dist.Normal(loc, 0.1))
    with pytest.raises(ValueError, match="of the model's Uniform, interval, where"):
        phx.fit(bounded_by_another, guide, progress=False)
    fit = phx.fit(bounded_by_another, phx.guides.mean_field(), num_steps=0, progress=False)
    assert fit.record.latents["w"] == "interval ()"


@pytest.mark.parametrize(
    "count, message",
    [pytest.param(-1, "Delta has draws outside of .* Poisson", marks=pytest.mark.slow), (0.5, "outside of .* Poi")],
)
def test_a_point_outside_of_a_support(count, message):
    def model():
        phx.sample("n", dist.Poisson(2.0))
        phx.sample("z", dist.Normal(0.0, 1.0))

    guide = guide_of(n=lambda loc: dist.Delta(count), z=lambda loc: dist.Normal(loc, 1.0))
    with pytest.raises(ValueError, match=message):
        phx.fit(model, guide, progress=False)


def test_a_guide_that_is_none():
    with pytest.raises(TypeError, match="guide: expected a program, one made from the model"):
        phx.fit(regression, "mean_field", DATA, progress=False)  # pyright: ignore[reportArgumentType]


def test_particles_that_do_not_divide(mesh_of):
    with pytest.raises(ValueError, match="num_particles=3 cannot be split evenly over 2 devices"):
        phx.fit(regression, phx.guides.mean_field(), DATA, mesh=mesh_of(2, 1), num_particles=3, progress=False)


def test_a_fit_of_one_failed_step_has_a_bound_that_is_no_number():
    def model(y):
        phx.sample("y", dist.Normal(0.0, phx.sample("scale", dist.HalfNormal(1.0))), obs=y)

    fit = phx.fit(model, phx.guides.mean_field(), {"y": np.zeros(20)}, num_steps=1, progress=False)
    assert "ELBO nan" in repr(fit) and not fit.settled


@pytest.mark.slow
def test_a_loss_that_is_not_finite_names_the_step_and_the_variable_and_keeps_what_was_learned():
    """The first steps are fine: the guide has to grow until some of its draws go where there is no density."""

    def model():
        x = phx.sample("x", dist.Normal(0.0, 10.0))
        phx.factor("wall", jnp.where(x < 1.0, 3.0 * x, jnp.nan))

    with pytest.raises(phx.FitError, match="'wall'") as raised:
        phx.fit(model, phx.guides.mean_field(init_scale=0.01), init={"x": -3.0}, until=False, progress=False)
    fit = raised.value.fit
    assert "in step" in str(raised.value) and fit.steps > 10 and fit.failed >= 10
    assert np.isfinite(fit.params["x.loc"]) and np.isnan(fit.losses.elbo[-1]) and np.isfinite(fit.losses.elbo[0])


def test_a_guide_that_is_solved_learns_nothing_of_the_model():
    """What it would leave as it was, or not look at, is refused."""

    def model(y):
        noise = phx.param("noise", 3.0)
        mean = phx.sample("mean", dist.Normal(0.0, 1.0))
        phx.sample("y", dist.Normal(mean, noise), obs=y)

    for guide in (phx.guides.laplace(), phx.guides.pathfinder()):
        with pytest.raises(ValueError, match="'noise' of the model would stay at its initial value"):
            phx.fit(model, guide, {"y": np.ones(4)}, progress=False)
        with pytest.raises(ValueError, match="batch_size: the guide .* from all rows"):
            phx.fit(phx.substitute(model, {"noise": 1.0}), guide, {"y": np.ones(4)}, batch_size=2, progress=False)


def plain():
    phx.sample("x", dist.Normal(0.0, 1.0))


@pytest.mark.slow
def test_reducers_of_chains_are_refused_for_a_fit():
    fit = phx.fit(plain, phx.guides.laplace(), progress=False)
    with pytest.raises(ValueError, match="these chains start separately"):
        fit.posterior(50, reducers={"r": phx.reducers.rhat(superchains=2)})

    def fail(state):
        raise RuntimeError("no result")

    moments = phx.reducers.moments()
    mine = phx.reducers.Reducer("mine()", moments.init, moments.update, moments.merge, fail)
    posterior = fit.posterior(50, reducers={"mine": mine})
    assert posterior.reduced["mine"].reason == "finalizing, RuntimeError: no result"
    assert "reducers['mine'] failed" in str(posterior.verdict())


@pytest.mark.slow
def test_initial_values_of_another_shape_name_the_variable():
    def three(y):
        b = phx.sample("b", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        phx.sample("y", dist.Normal(b.sum() + phx.sample("p", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    data = {"y": np.ones(4, np.float32)}
    for init, words in (({"b": np.zeros(4)}, r"'b' has shape \(4,\)"), ({"p": np.zeros(2)}, r"'p' has shape \(2,\)")):
        for call in (
            lambda init=init: phx.fit(three, phx.guides.mean_field(), data, init=init, progress=False),
            lambda init=init: phx.maximize(three, data, init=init),
        ):
            with pytest.raises(ValueError, match=f"init: the value of variable {words}, and the variable"):
                call()
    assert phx.maximize(three, data, init={"b": np.zeros(3), "p": 0.5}).values["b"].shape == (3,)


def test_damaged_checkpoints_and_folders_as_logs_are_refused(tmp_path):
    (tmp_path / "fit").mkdir()
    (tmp_path / "fit" / "fit.json").write_text('{"step": 1')
    with pytest.raises(ValueError, match="log=.* is a folder"):
        phx.training(log=tmp_path)
    with pytest.raises(ValueError, match=r"checkpoint=.* is damaged: fit\.json is damaged: its fit\.json is not JSON"):
        fit_checkpoint(SavePolicy(tmp_path / "fit")).read()
    (tmp_path / "fit" / "fit.json").write_text('{"step": 1, "seconds": 0.5}')
    with pytest.raises(ValueError, match=r"checkpoint=.* is damaged: its record has no entry 'best', 'looks', 'fit'"):
        fit_checkpoint(SavePolicy(tmp_path / "fit")).read()
    (tmp_path / "fit" / "fit.json").write_text('{"version": 2}')
    with pytest.raises(ValueError, match=r"checkpoint=.* was saved by a later release of Phalanx: fit\.json has ver"):
        fit_checkpoint(SavePolicy(tmp_path / "fit")).read()


WHERE_IT_BEGINS = {
    "a number for many": (0.5, np.zeros(5), r"parameter 'k' is of shape \(5,\), and where it is learned of shape \(\)"),
    "more of them": (
        np.ones(2),
        np.ones(5),
        r"parameter 'k' is of shape \(5,\), and where it is learned of shape \(2,\)",
    ),
    "a part of a tree": ({"a": 1.0, "b": 1.0}, {"a": 1.0}, r"parameter 'k' is \{'a': .*\}, and where it is learned \{"),
}


@pytest.mark.parametrize("own, given, message", WHERE_IT_BEGINS.values(), ids=WHERE_IT_BEGINS)
def test_a_parameter_begins_at_values_like_its_own(own, given, message):
    def model(y):
        k = phx.param("k", own)
        phx.sample("y", dist.Normal(sum(jnp.sum(leaf) for leaf in jax.tree.leaves(k)), 1.0), obs=y)

    with pytest.raises(ValueError, match=f"init: the value of {message}"):
        phx.fit(model, None, {"y": np.ones(3)}, init={"k": given}, num_steps=1, progress=False)


EDGES = {
    "nonnegative": (constraints.nonnegative, 0.0),
    "unit interval": (constraints.unit_interval, np.array([0.5, 1.0])),
    "simplex": (constraints.simplex, np.array([1.0, 0.0, 0.0])),
}


@pytest.mark.parametrize("constraint, value", EDGES.values(), ids=EDGES)
def test_a_parameter_does_not_begin_on_the_edge_of_its_constraint(constraint, value):
    def model(y):
        phx.sample("y", dist.Normal(jnp.sum(phx.param("k", value, constraint)), 1.0), obs=y)

    with pytest.raises(ValueError, match="Parameter 'k': its initial value lies on the edge of its constraint"):
        phx.fit(model, None, {"y": np.ones(3)}, num_steps=1, progress=False)


def test_a_value_to_begin_with_is_of_a_variable_or_of_a_parameter():
    def model():
        phx.sample("b", dist.Normal(phx.sample("loc", dist.Normal(0.0, 1.0)), 1.0))

    with pytest.raises(
        ValueError, match=r"'loc' is both a variable of the model and a parameter of the guide full_rank\(\)"
    ):
        phx.fit(model, phx.guides.full_rank(), init={"loc": 5.0}, num_steps=1, progress=False)


# -- what a fit could not go on with, and why --------------------------------------------------------------------------


def normals(y):
    phx.sample("y", dist.Normal(phx.sample("m", dist.Normal(0.0, 1.0)), 1.0), obs=y)


def unbounded(y):
    s = phx.sample("s", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(0.0, s + 0.1), obs=y)  # s itself is refused before the fit


def unbounded_inside(y):
    p = phx.sample("p", dist.Normal(0.0, 2.0))
    phx.sample("y", dist.Laplace(0.0, p + 0.1).expand([3]).to_event(1), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "words"),
    [
        (unbounded, "Variable 'y': its scale must be positive for a Normal"),
        pytest.param(
            unbounded_inside, "Variable 'y': its scale must be positive for a Laplace", marks=pytest.mark.slow
        ),
    ],
)
@pytest.mark.parametrize("optimizer", [None, "lbfgs"])
def test_a_parameter_that_a_latent_variable_takes_out_of_bounds_is_named(program, words, optimizer):
    with pytest.raises(phx.FitError, match=f"{words}.*HalfNormal.*jnp.exp"):
        phx.fit(program, phx.guides.mean_field(init_scale=4.0), {"y": np.ones(3)}, optimizer=optimizer, progress=False)


@pytest.mark.slow
def test_a_parameter_of_a_guide_without_a_constraint_is_named():
    def guide():
        phx.sample("m", dist.Normal(phx.param("loc", 0.0), phx.param("scale", 0.4) + 0.1))

    with pytest.raises(phx.FitError, match=r"Variable 'm' of the guide guide: its scale must be positive.*constraint"):
        phx.fit(normals, guide, {"y": np.ones(3)}, optimizer=optax.sgd(0.9), num_particles=2, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [10.0, pytest.param(optax.sgd(1e4), marks=pytest.mark.slow)])
def test_a_rate_that_is_too_large_is_blamed(optimizer):
    def counts(y):
        phx.sample("y", dist.Poisson(jnp.exp(phx.sample("m", dist.Normal(0.0, 1.0)))), obs=y)

    with pytest.raises(phx.FitError, match=r"moved parameters by up to .* is too large\. Give a lower one"):
        phx.fit(counts, phx.guides.mean_field(), {"y": np.array([3, 5])}, optimizer=optimizer, progress=False)


def test_discrete_variables_and_minibatches():
    def model(y):
        k = phx.sample("k", dist.Bernoulli(0.3))
        phx.sample("y", dist.Normal(1.0 * k, 1.0), obs=y)

    def guide():
        phx.sample("k", dist.Bernoulli(logits=phx.param("logits", 0.0)))

    for of in (guide, phx.guides.mean_field()):
        with pytest.raises(ValueError, match=r"ariable 'k'.* is discrete \(Bernoulli") as error:
            phx.fit(model, of, {"y": np.ones(8)}, batch_size=2, progress=False)
        assert "kernel" not in str(error.value)


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: d.expand([3]), lambda d: d.expand([3]).to_event(1)])
def test_a_latent_point(wrap):
    def model(y):
        normals(y)
        phx.sample("point", wrap(dist.Delta(1.5)))

    data = {"y": np.ones(3)}
    for call in (
        lambda: phx.mcmc(model, data, progress=False),
        lambda: phx.fit(model, phx.guides.mean_field(), data, progress=False),
        lambda: phx.maximize(model, data),
    ):
        with pytest.raises(ValueError, match=r"'point' is a latent Delta.*phx\.deterministic"):
            call()


def test_points_in_guides_see_minibatches():
    def guide():
        phx.sample("m", dist.Delta(phx.param("at", 0.3)))

    fit = phx.fit(normals, guide, {"y": np.ones(8)}, batch_size=2, num_steps=0, progress=False)
    assert list(fit.params) == ["at"]


def test_functions_of_other_arguments():
    with pytest.raises(TypeError, match=r"objective: the function must take three arguments, log_p, log_q and draws"):
        phx.guides.objective(cast(Any, lambda log_p, log_q: log_p - log_q))
    init, apply = lambda key: {"w": jnp.ones(3)}, lambda weights, x: x @ weights["w"]
    with pytest.raises(TypeError, match=r"from_functions: init is .*expected init\(key\).*Are the two swapped\?"):
        phx.networks.from_functions(cast(Any, apply), init)
    with pytest.raises(TypeError, match="from_functions: apply is a dict, not a function"):
        phx.networks.from_functions(init, cast(Any, {}))
    phx.networks.from_functions(init, lambda weights: weights["w"])  # a table has no inputs


def test_more_directions_than_coordinates():
    data = {"y": np.ones(3)}
    with pytest.raises(ValueError, match=r"low_rank\(rank=50\) has more directions than the model has coordinates, 1"):
        phx.fit(normals, phx.guides.low_rank(rank=50), data, progress=False)
    assert phx.fit(normals, phx.guides.low_rank(), data, num_steps=0, progress=False).params["factor"].shape == (1, 1)


@pytest.mark.slow
def test_a_checkpoint_with_more_steps_than_asked_for(tmp_path):
    watched = phx.training(every=5, checkpoint=tmp_path / "fit")
    of = {"guide": phx.guides.mean_field(), "data": {"y": np.ones(3)}, "training": watched, "progress": False}
    assert phx.fit(normals, num_steps=10, **of).steps == 10
    with pytest.warns(UserWarning, match="has made 10 steps, more than num_steps=5; it is returned as it is"):
        assert phx.fit(normals, num_steps=5, **of).steps == 10


@pytest.mark.parametrize("init", [3, "prior", [1.0]])
def test_where_a_climb_begins_is_a_dict(init):
    with pytest.raises(TypeError, match="maximize: init: expected a dict of values by variable"):
        phx.maximize(plain, init=init)


HOSTILE = {
    "flow": (lambda: phx.guides.flow(hidden=cast(Any, 32)), ValueError, "hidden must be whole numbers above 0"),
    "training": (lambda: phx.training(checkpoint=cast(Any, 3)), TypeError, "checkpoint must be a path"),
    "log": (lambda: phx.training(log=cast(Any, 3)), TypeError, "log must be a path"),
    "shard": (lambda: phx.shard(np.ones(4), cast(Any, "x")), TypeError, "shard: mesh must be made by phx.make_mesh"),
    "axis": (lambda: phx.shard(np.ones(4), phx.make_mesh(), cast(Any, 3)), TypeError, "shard: axis must be the name"),
    "devices": (lambda: phx.make_mesh(devices=cast(Any, 3)), TypeError, "make_mesh: devices must be a list"),
    "substitute": (lambda: phx.substitute(cast(Any, 3), {}), TypeError, "phx.substitute: program: expected a function"),
    "condition": (lambda: phx.condition(plain, cast(Any, 3)), TypeError, "phx.condition: expected a dict"),
    "factor": (
        lambda: phx.factor("f", cast(Any, "x")),
        TypeError,
        "phx.factor: the log density of 'f' must be a number",
    ),
    "deterministic": (lambda: phx.deterministic(cast(Any, 3), 1.0), TypeError, "phx.deterministic: the first argument"),
    "importance": (lambda: phx.importance(plain, cast(Any, 3)), TypeError, "importance: proposal: expected a function"),
}


@pytest.mark.parametrize(("call", "kind", "message"), HOSTILE.values(), ids=HOSTILE)
def test_arguments_of_another_kind_are_named(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
