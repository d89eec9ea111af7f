"""What a user gets wrong, and the words that help."""

from __future__ import annotations

import re

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx

Y = np.array([1.0, 2.0, 4.0], np.float32)


def model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 10.0))
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)


def refuses(error, words, *args, **kwargs):
    with pytest.raises(error, match=re.escape(words)):
        phx.mcmc(*args, **{"kernel": phx.rwmh(0.5), "progress": False, "num_warmup": 2, "num_samples": 2, **kwargs})


def test_a_model_without_random_variables():
    refuses(ValueError, "The model <lambda> has no random variables to infer. "
            "Call phx.sample(name, distribution) in it.", lambda: None)  # fmt: skip


def test_a_model_with_nothing_latent():
    refuses(
        ValueError,
        "The model <lambda> has no latent variables to infer: all of 'y' are observed or computed. "
        "phx.predictive(model, data) returns their values without inference.",
        lambda: phx.sample("y", dist.Normal(0.0, 1.0), obs=1.0),
    )


def test_a_variable_of_one_possible_value():
    refuses(
        ValueError,
        "The model <lambda> has no coordinates to move: its latent variables have shape 'p' (1,), and no element or "
        "one possible value each. phx.predictive(model, data) returns their values without inference.",
        lambda: phx.sample("p", dist.Dirichlet(jnp.ones(1))),
    )


def test_a_variable_named_as_the_log_density_in_tables():
    refuses(
        ValueError,
        "Variable 'log_density': tables have the log density of each draw in a row of this name. Rename the variable.",
        lambda: phx.sample("log_density", dist.Normal(0.0, 1.0)),
    )


def test_two_variables_of_one_name():
    def twice():
        phx.sample("x", dist.Normal(0.0, 1.0))
        phx.sample("x", dist.Normal(0.0, 1.0))

    refuses(ValueError, "Two variables are named 'x'. Inference distinguishes variables by their names: rename one of "
                        "them.",
            twice)  # fmt: skip


def test_an_observation_of_the_wrong_shape():
    def wrong(y):
        mean = phx.sample("mean", dist.Normal(0.0, 1.0).expand([2]))
        phx.sample("y", dist.Normal(mean, 1.0), obs=y)

    refuses(
        ValueError,
        "Variable 'y': the value has shape (3,), but its distribution Normal needs shape (2,) (batch (2,) + event ())",
        wrong, {"y": Y},
    )  # fmt: skip


@pytest.mark.parametrize("bad, value", [pytest.param(np.nan, "nan", marks=pytest.mark.slow), (-np.inf, "-inf")])
def test_a_log_density_that_is_not_finite_at_the_start_names_the_variables(bad, value):
    def broken():
        phx.sample("x", dist.Normal(0.0, 1.0))
        phx.factor("penalty", jnp.asarray(bad))

    refuses(
        ValueError,
        "Chain 0: the log density is not finite at the start, at 21 random positions ever closer to zero on the "
        f"unconstrained scale. The variables responsible: 'penalty' ({value}). Check their data, and priors under "
        "which the likelihood of a start is zero.",
        broken,
    )


def test_nan_in_the_data_is_named():
    refuses(
        ValueError,
        "data: y has 1 NaN value (the first: y[1]). With it the log density of variable 'y' is not finite at any "
        "starting position, and with a finite number instead it is. Drop such rows from all arguments",
        model, {"y": np.array([1.0, np.nan])},
    )  # fmt: skip


def test_nan_in_a_covariate_is_named():
    def regression(x, y):
        slope = phx.sample("slope", dist.Normal(0.0, 1.0))
        phx.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    refuses(ValueError, "data: x has 1 NaN value (the first: x[1]).", regression,
            {"x": np.array([1.0, np.nan]), "y": Y[:2]})  # fmt: skip


def test_observations_outside_the_support():
    def counts(y):
        rate = phx.sample("rate", dist.Gamma(1.0, 1.0))
        phx.sample("y", dist.Poisson(rate), obs=y)

    refuses(ValueError, "Variable 'y': 2 observed values lie outside the support of its distribution. Check the data",
            counts, {"y": np.array([1, -1, 2, -5])})  # fmt: skip


@pytest.mark.slow
def test_a_gradient_that_is_not_finite():
    def kinked():
        x = phx.sample("x", dist.Normal(0.0, 1.0))
        phx.factor("penalty", -jnp.sqrt(x * 0.0))

    refuses(ValueError, "Chain 0: the log density is finite but its gradient is not", kinked, kernel=phx.hmc(1))


def test_data_that_are_no_dict():
    refuses(TypeError, "data must be a dict of the model's keyword arguments, such as {'x': x, 'y': y}; got ndarray.",
            model, Y)  # fmt: skip


def test_data_that_are_given_one_by_one():
    words = "The data go in one dict, by the names of the model's arguments, as in phx.mcmc(model, {'x': x, 'y': y});"
    refuses(TypeError, f"phx.mcmc: too many positional arguments. {words}", model, 8, Y, y=Y)
    refuses(TypeError, f"phx.mcmc: got an unexpected keyword argument 'y'. {words}", model, y=Y)


def test_arguments_of_another_kind():
    refuses(TypeError, "seed must be a whole number, such as seed=0, and not a key", model, {"y": Y},
            seed=jax.random.key(0))  # fmt: skip
    refuses(TypeError, "got 'nuts'; give kernel=phx.nuts().", model, {"y": Y}, kernel="nuts")
    refuses(TypeError, "give kernel=phx.hmc().", model, {"y": Y}, kernel=phx.hmc)
    refuses(TypeError, "mesh must be made by phx.make_mesh, such as phx.make_mesh(devices=jax.devices()[:1]);",
            model, {"y": Y}, mesh=jax.devices()[:1])  # fmt: skip


def test_data_the_model_does_not_take():
    refuses(TypeError, "data does not fit the model model(y): got an unexpected keyword argument 'z'. "
            "data gives 'y', 'z'.", model, {"y": Y, "z": 1})  # fmt: skip
    refuses(TypeError, "missing a required argument: 'y'. data gives nothing.", model, {})


def test_empty_data():
    refuses(ValueError, "data: y has shape (0,): it is empty. Give it at least one row.", model, {"y": np.ones(0)})


def test_a_mesh_that_does_not_fit_the_devices():
    with pytest.raises(
        ValueError, match=re.escape("chain * data * model = 3 * 4 * 1 = 12 devices were asked for, but there are 8")
    ):
        phx.make_mesh(chain=3, data=4)
    with pytest.raises(ValueError, match=re.escape("8 devices cannot be split into groups of data * model = 3 * 1")):
        phx.make_mesh(data=3)


def test_chains_that_do_not_divide_over_the_mesh(mesh_of):
    refuses(ValueError, "num_chains=6 cannot be split evenly over 4 devices along the mesh's 'chain' axis; use 4 or 8 "
            "chains, or another mesh.", model, {"y": Y}, num_chains=6, mesh=mesh_of(4, 1))  # fmt: skip
    refuses(ValueError, "use 4 chains, or another mesh", model, {"y": Y}, num_chains=2, mesh=mesh_of(4, 1))


def test_data_on_another_mesh(mesh_of):
    data = phx.shard({"y": Y}, mesh_of(1, 2))
    refuses(ValueError, "mesh: the data were placed with phx.shard on a mesh of shape {'chain': 1, 'data': 2, 'model': "
                        "1}, "
            "but the run has {'chain': 2, 'data': 1, 'model': 1}. Use one mesh for both.",
            model, data, mesh=mesh_of(2, 1))  # fmt: skip


@pytest.mark.parametrize(
    "name, value, least", [("num_chains", 0, 1), ("num_warmup", -1, 0), ("num_samples", 1.5, 1), ("thin", 0, 1)]
)
def test_sizes(name, value, least):
    refuses(
        ValueError, f"{name} must be a whole number, at least {least}; got {value!r}.", model, {"y": Y}, **{name: value}
    )


def test_thinning_that_keeps_nothing():
    refuses(ValueError, "thin=5 keeps none of num_samples=2 draws; give a smaller thin.", model, {"y": Y}, thin=5)


def test_unknown_kernel_options():
    with pytest.raises(TypeError, match="unexpected keyword argument 'stepsize'"):
        phx.hmc(stepsize=0.1)  # pyright: ignore
    with pytest.raises(ValueError, match=re.escape("hmc: num_steps must be a whole number, at least 1; got 0.")):
        phx.hmc(num_steps=0)
    with pytest.raises(ValueError, match=re.escape("rwmh: step_size must be a positive number, got -1.")):
        phx.rwmh(step_size=-1)
    with pytest.raises(ValueError, match=re.escape("hmc: target_acceptance must lie between 0 and 1, got 1.2.")):
        phx.hmc(target_acceptance=1.2)


def test_a_kernel_that_is_none():
    refuses(
        TypeError,
        "kernel: expected a kernel such as phx.hmc() or phx.rwmh(), got 'nuts'; give kernel=phx.nuts().",
        model,
        {"y": Y},
        kernel="nuts",
    )
    with pytest.raises(TypeError, match="from_blackjax: expected a function from a log density to an algorithm"):
        phx.from_blackjax(3)  # pyright: ignore


def test_a_kernel_for_one_device_on_spread_variables(mesh_of):
    def rows(y):
        level = phx.sample("level", dist.Normal(0.0, 1.0).expand([y.shape[0]]))
        phx.sample("y", dist.Normal(level, 1.0), obs=y)

    mesh = mesh_of(1, 2)
    kernel = phx.from_blackjax(lambda f: blackjax.mala(f, 0.1))
    refuses(
        ValueError,
        "this algorithm is written for one device, and 'level' is sharded over ('data',). Use phx.hmc or phx.rwmh, or "
        "data that are not sharded.",
        rows, phx.shard({"y": Y}, mesh), mesh=mesh, kernel=kernel,
    )  # fmt: skip


def test_metrics_that_do_not_fit():
    refuses(ValueError, "inverse_mass_matrix: variances were given for {'mean': (2,)}, but the model's unconstrained "
            "variables are {'mean': ()}.", model, {"y": Y},
            kernel=phx.hmc(inverse_mass_matrix={"mean": np.ones(2)}))  # fmt: skip
    refuses(ValueError, "inverse_mass_matrix: a matrix of shape (2, 2) was given, but the model has 1 unconstrained "
                        "global "
            "coordinates (mean).", model, {"y": Y}, kernel=phx.hmc(inverse_mass_matrix=np.eye(2)))  # fmt: skip
    with pytest.raises(ValueError, match="the matrix must be symmetric and positive definite"):
        phx.hmc(inverse_mass_matrix=np.array([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(ValueError, match="the variances of 'mean' must be positive and finite"):
        phx.hmc(inverse_mass_matrix={"mean": np.array(-1.0)})


def test_a_wrong_name_is_answered_with_a_near_one():
    near = "Did you mean 'mean'?"
    refuses(ValueError, near, model, {"y": Y}, keep=["maen"])
    refuses(ValueError, near, model, {"y": Y}, init={"mena": 0.0})
    reduced = phx.reducers.reduce(lambda values: values["man"], phx.reducers.moments())
    refuses(ValueError, near, model, {"y": Y}, reducers={"m": reduced})
    for handler in (phx.condition, phx.substitute, phx.do):
        with pytest.raises(ValueError, match=re.escape(near)):
            phx.trace(phx.seed(handler(model, {"Mean": 0.0}), jax.random.key(0)))(Y)


def test_unknown_names_to_keep():
    refuses(ValueError, "keep: the model has no variable 'mu'; it has 'mean'.", model, {"y": Y}, keep=["mu"])
    refuses(ValueError, "keep: the model has no variable 'mu'; it has 'mean'.", model, {"y": Y}, keep="mu")


def test_precision_and_seed():
    known = "float32, tensorfloat32, bfloat16"
    refuses(
        ValueError, f"matmul_precision must be one of {known}; got 'half'.", model, {"y": Y}, matmul_precision="half"
    )
    refuses(ValueError, "seed must be a whole number from 0 to 2**32 - 1, got -1.", model, {"y": Y}, seed=-1)


def test_draws_that_do_not_fit_in_memory(monkeypatch):
    from phalanx.run.compile import memory_estimate

    monkeypatch.setattr(memory_estimate, "free_memory", lambda: 2**20)
    refuses(ValueError, "Store fewer variables with keep=[...], or fewer draws with a larger thin= or a smaller "
                        "num_samples=. With keep=[] and reducers= no draws are stored.",
            model, {"y": Y}, num_samples=1_000_000)  # fmt: skip


def test_a_discrete_latent_variable():
    refuses(ValueError, "Variable 'k' is discrete (Poisson), and gradient-based and random-walk kernels move "
                        "continuous "
            "positions.", lambda: phx.sample("k", dist.Poisson(1.0)))  # fmt: skip
