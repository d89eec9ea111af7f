"""Discrete variables summed out: exact sums of known models, recovery, refusals."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from tests.unit.marginals.brute_force import compare

import phalanx as phx

Y = jnp.array([-1.2, 0.9, 0.3, 2.0])


def mixture(y):
    mean = phx.sample("mean", dist.Normal(0.0, 5.0).expand([2]))
    group = phx.sample("group", dist.CategoricalProbs(jnp.tile(jnp.array([0.3, 0.7]), (y.shape[0], 1))))
    phx.deterministic("own_mean", mean[group])
    phx.deterministic("gap", mean[1] - mean[0])
    phx.sample("y", dist.Normal(mean[group], 1.0), obs=y)
    return {"group": group, "mean": mean}


def hidden_markov(y):
    rows = phx.sample("rows", dist.Dirichlet(jnp.ones((2, 2))))
    mean = phx.sample("mean", dist.Normal(0.0, 3.0).expand([2]))
    z = 0
    for t in range(y.shape[0]):
        z = phx.sample(f"z{t}", dist.CategoricalProbs(rows[z]))
        phx.sample(f"y{t}", dist.Normal(mean[z], 1.0), obs=y[t])


def change_point(y):
    rate = phx.sample("rate", dist.LogNormal(0.0, 1.0).expand([2]))
    day = phx.sample("day", dist.DiscreteUniform(0, y.shape[0] - 1))
    phx.sample("y", dist.Poisson(jnp.where(jnp.arange(y.shape[0]) < day, rate[0], rate[1])), obs=y)


def capture_recapture(seen):
    """Cormack, Jolly, Seber: each animal, once seen, survives from one occasion to the next, and is seen or not."""
    survival = phx.sample("survival", dist.Uniform(0.0, 1.0))
    capture = phx.sample("capture", dist.Uniform(0.0, 1.0))
    animals, occasions = seen.shape
    alive = jnp.ones(animals, jnp.int32)
    met = jnp.zeros(animals, bool)
    for t in range(occasions):
        if t:
            alive = phx.sample(f"alive{t}", dist.Bernoulli(jnp.where(met, survival * alive, 1.0)))
        phx.sample(f"seen{t}", dist.Bernoulli(capture * alive).mask(met), obs=seen[:, t])
        met = met | (seen[:, t] == 1)


def vector_chain(y):
    """A chain written at once: flat variables, and a factor for each pair of neighbours."""
    rows = phx.sample("rows", dist.Dirichlet(jnp.ones((3, 3))))
    mean = phx.sample("mean", dist.Normal(0.0, 3.0).expand([3]))
    z = phx.sample("z", dist.CategoricalProbs(jnp.ones(3) / 3).expand(y.shape))
    phx.factor("steps", jnp.log(rows[z[:-1], z[1:]]))
    phx.sample("y", dist.Normal(mean[z], 1.0), obs=y)


ROWS = np.array([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.3, 0.3, 0.4]])
CHAIN = {f"z{t}": (2, ()) for t in range(4)}


def test_mixture_is_exact():
    compare(mixture, {"mean": [-1.0, 1.5]}, {"group": (2, (4,))}, y=Y)


def test_hidden_markov_model_is_exact():
    compare(hidden_markov, {"rows": ROWS[:2, :2] / ROWS[:2, :2].sum(1, keepdims=True), "mean": [-1.0, 1.0]}, CHAIN, y=Y)


def test_chain_of_one_vector_is_exact():
    compare(vector_chain, {"rows": ROWS, "mean": [-1.0, 0.0, 1.0]}, {"z": (3, (5,))}, y=jnp.append(Y, 0.4))


def test_change_point_is_exact():
    compare(change_point, {"rate": [0.7, 2.0]}, {"day": (5, ())}, y=jnp.array([0, 1, 0, 3, 2]))


def test_capture_recapture_is_exact():
    seen = jnp.array([[1, 0, 1, 0], [0, 1, 0, 0]])
    compare(
        capture_recapture, {"survival": 0.8, "capture": 0.4}, {f"alive{t}": (2, (2,)) for t in (1, 2, 3)}, seen=seen
    )


def test_capture_recapture_agrees_with_its_closed_form():
    """p(1 0 0) = 1 - s + s (1 - p) (1 - s + s (1 - p)) after the first sight."""
    s, p = 0.8, 0.4
    found = phx.log_joint(phx.marginalize(capture_recapture))(
        {"survival": s, "capture": p}, seen=jnp.array([[1, 0, 0]])
    )
    never = 1 - s + s * (1 - p)
    assert found.item() == pytest.approx(np.log(1 - s + s * (1 - p) * never), abs=1e-5)


def test_observed_variable_carries_the_mixture_row_by_row():
    tape = phx.trace(phx.substitute(phx.marginalize(mixture), {"mean": jnp.array([-1.0, 1.0])}))(Y)
    assert list(tape) == ["mean", "gap", "y"]
    exact = jnp.logaddexp(
        jnp.log(0.3) + dist.Normal(-1.0, 1.0).log_prob(Y), jnp.log(0.7) + dist.Normal(1.0, 1.0).log_prob(Y)
    )
    np.testing.assert_allclose(tape["y"].log_prob(), exact, rtol=1e-5)
    assert tape["y"].observed


def test_result_is_returned_without_what_is_summed_over():
    program = phx.substitute(phx.marginalize(mixture), {"mean": jnp.array([-1.0, 1.0])})
    result = program(Y)
    assert result["group"] is None and result["mean"].shape == (2,)


def test_continuous_variables_below_discrete_ones_are_summed_over_too():
    def spike_and_slab(y):
        on = phx.sample("on", dist.Bernoulli(0.4).expand([3]))
        w = phx.sample("w", dist.Normal(0.0, jnp.where(on == 1, 2.0, 0.1)))
        phx.sample("y", dist.Normal(w.sum(), 1.0), obs=y)

    compare(spike_and_slab, {"w": [0.1, 1.0, -2.0]}, {"on": (2, (3,))}, y=0.3)


def test_groups_selected_by_data():
    """A class for each group; the rows of a group share it."""
    group = jnp.array([0, 2, 2, 1])

    def model(y, group):
        mean = phx.sample("mean", dist.Normal(0.0, 1.0).expand([2]))
        scale = phx.sample("scale", dist.LogNormal(0.0, 1.0).expand([2]))
        kind = phx.sample("kind", dist.CategoricalProbs(jnp.array([0.3, 0.7])).expand([3]))
        phx.sample("y", dist.Normal(mean[kind[group]], scale[kind[group]]), obs=y)

    compare(model, {"mean": [0.0, 1.0], "scale": [1.0, 2.0]}, {"kind": (2, (3,))}, y=Y, group=group)


def test_values_of_several_observations_along_another_dimension():
    def model(y):
        mean = phx.sample("mean", dist.Normal(0.0, 1.0).expand([2]))
        group = phx.sample("group", dist.Bernoulli(0.3).expand([y.shape[1]]))
        phx.sample("y", dist.Normal(jnp.tile(mean[group][None], (2, 1)), 1.0), obs=y)

    compare(model, {"mean": [0.0, 1.0]}, {"group": (2, (3,))}, y=jnp.arange(6.0).reshape(2, 3) / 4)


def test_one_variable_above_a_plate():
    def model(y):
        kind = phx.sample("kind", dist.Bernoulli(0.3))
        group = phx.sample("group", dist.CategoricalProbs(jnp.array([[0.3, 0.7], [0.5, 0.5]])[kind]).expand(y.shape))
        mean = phx.sample("mean", dist.Normal(0.0, 1.0).expand([2]))
        phx.sample("y", dist.Normal(mean[group] + kind, 1.0), obs=y)

    compare(model, {"mean": [0.0, 1.0]}, {"kind": (2, ()), "group": (2, (4,))}, y=Y)


def test_numpyro_models_and_their_annotations():
    def model(y):
        mean: Any = numpyro.sample("mean", dist.Normal(0.0, 5.0).expand([2]))
        with numpyro.plate("rows", y.shape[0]):
            group: Any = numpyro.sample(
                "group", dist.CategoricalProbs(jnp.array([0.3, 0.7])), infer={"enumerate": "parallel"}
            )
            numpyro.sample("y", dist.Normal(mean[group], 1.0), obs=y)

    compare(model, {"mean": [-1.0, 1.5]}, {"group": (2, (4,))}, y=Y)


def test_forbidden_transitions_have_finite_gradients():
    def model(y):
        stay = phx.sample("stay", dist.Uniform(0.0, 1.0))
        step = jnp.log(jnp.array([[1.0, 1.0], [0.0, 1.0]]))
        z = phx.sample("z", dist.CategoricalProbs(jnp.ones(2) / 2).expand(y.shape))
        phx.factor("steps", step[z[:-1], z[1:]] + jnp.where(z[:-1] == z[1:], jnp.log(stay), jnp.log1p(-stay)))
        phx.sample("y", dist.Normal(z, 1.0), obs=y)

    value, gradient = jax.jit(jax.value_and_grad(lambda s: phx.log_joint(phx.marginalize(model))({"stay": s}, Y)))(0.7)
    assert np.isfinite(value) and np.isfinite(gradient)


def test_recovered_values_have_the_exact_distribution():
    """2,000 draws given one value; a false failure with probability 1e-5 per entry."""
    marginal, n = phx.marginalize(mixture), 2000
    mean = jnp.array([-0.5, 0.8])
    drawn = jax.jit(jax.vmap(lambda key: marginal.recover({"mean": mean}, key, Y)))(
        jax.random.split(jax.random.key(1), n)
    )
    weights = np.log([[0.3, 0.7]]) - 0.5 * np.asarray(mean[None] - Y[:, None]) ** 2
    exact = np.asarray(jax.nn.softmax(weights)[:, 1])
    assert np.all(np.abs(drawn["group"].mean(0) - exact) < 4.5 * np.sqrt(exact * (1 - exact) / n))
    np.testing.assert_array_equal(drawn["own_mean"], mean[drawn["group"]])


def test_runs_under_a_seed_as_the_model_does():
    tape = phx.trace(phx.seed(phx.marginalize(mixture), 0))(Y)
    assert list(tape) == ["mean", "group", "own_mean", "gap", "y"]
    prior = phx.predictive(phx.marginalize(mixture), {"y": Y}, num_draws=5)
    assert prior["group"].shape == (5, 4)


def test_a_posterior_recovers_and_predicts():
    posterior = phx.mcmc(
        phx.marginalize(mixture), {"y": Y}, num_chains=2, num_warmup=50, num_samples=50, progress=False
    )
    assert set(posterior.draws) == {"mean", "gap"}
    found = phx.recover(posterior)
    assert found["group"].shape == (2, 50, 4)
    own = np.take_along_axis(posterior.draws["mean"], found["group"], axis=-1)
    np.testing.assert_array_equal(found["own_mean"], own)
    assert posterior.predictive()["y"].shape == (2, 50, 4)


def test_only_named_variables_are_summed_out():
    def model(y):
        kind = phx.sample("kind", dist.Bernoulli(0.3))
        phx.sample("count", dist.Poisson(2.0))
        phx.sample("y", dist.Normal(kind, 1.0), obs=y)

    tape = phx.trace(phx.substitute(phx.marginalize(model, ["kind"]), {"count": 2}))(0.5)
    assert list(tape) == ["count", "kind"]
    with pytest.raises(ValueError, match=r"'count' \(Poisson\) has no finite list of values"):
        phx.log_joint(phx.marginalize(model))({}, 0.5)


def test_too_many_joint_values_are_refused_with_their_number():
    def model(y):
        z = phx.sample("z", dist.CategoricalProbs(jnp.ones(3) / 3).expand([12]))
        phx.sample("y", dist.Normal(jnp.sum(z), 1.0), obs=y)

    with pytest.raises(ValueError, match=r"12 discrete variables of 3 values .*'z'.* 531,441 runs"):
        phx.log_joint(phx.marginalize(model))({}, 0.5)


def test_crossed_plates_are_refused_by_name():
    def model(y):
        row = phx.sample("row", dist.Bernoulli(0.5).expand([30, 1]))
        column = phx.sample("column", dist.Bernoulli(0.5).expand([1, 40]))
        phx.sample("y", dist.Normal(row + column, 1.0), obs=y)

    with pytest.raises(ValueError, match="'row' and 'column' depend on each other along different dimensions"):
        phx.log_joint(phx.marginalize(model))({}, jnp.zeros((30, 40)))


@pytest.mark.parametrize(
    ("names", "message"),
    [(["grop"], "no latent variable 'grop' to sum out.*Did you mean 'group'"), (["mean"], "'mean' is continuous")],
)
def test_wrong_names(names, message):
    with pytest.raises(ValueError, match=message):
        phx.log_joint(phx.marginalize(mixture, names))({"mean": jnp.zeros(2)}, Y)


def test_bad_arguments():
    with pytest.raises(TypeError, match="phx.marginalize: model"):
        phx.marginalize(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="names must be a list"):
        phx.marginalize(mixture, "group")
    with pytest.raises(ValueError, match="no discrete latent variable to sum out; its variables are 'x'"):
        phx.log_joint(phx.marginalize(lambda: phx.sample("x", dist.Normal(0.0, 1.0))))({"x": 0.0})


def test_values_given_outside_are_refused():
    def model():
        z = phx.sample("z", dist.Bernoulli(0.5))
        phx.sample("x", dist.Normal(z, 1.0))

    with pytest.raises(ValueError, match=r"'x' is given a value outside.*phx.marginalize\(phx.condition"):
        phx.log_joint(phx.condition(phx.marginalize(model), {"x": 0.3}))({})


def test_supports_that_depend_on_discrete_variables_are_refused():
    def model():
        z = phx.sample("z", dist.Bernoulli(0.5))
        phx.sample("x", dist.Uniform(0.0, 1.0 + z))

    with pytest.raises(ValueError, match="the support of variable 'x' depends on a discrete variable"):
        phx.log_joint(phx.marginalize(model))({"x": 0.3})


@pytest.mark.slow
def test_recover_refuses_other_posteriors():
    posterior = phx.mcmc(
        lambda: phx.sample("x", dist.Normal(0.0, 1.0)), num_chains=1, num_warmup=2, num_samples=2, progress=False
    )
    with pytest.raises(ValueError, match="is not one of phx.marginalize"):
        phx.recover(posterior)
    with pytest.raises(TypeError, match="expected a phx.Posterior; got dict"):
        phx.recover({})  # pyright: ignore[reportArgumentType]
