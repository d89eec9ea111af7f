"""Discrete variables inside of loops of `numpyro.contrib.control_flow.scan`: exact sums, recovery, refusals."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import cond, scan
from tests.unit.marginals.brute_force import all_values, compare

import phalanx as phx
from phalanx.marginals.factors import Elimination

Y = jnp.array([-1.2, 0.9, 0.3, 2.0])
ROWS = jnp.array([[0.6, 0.4], [0.2, 0.8]])


def sample(name: str, distribution: Any, **kwargs: Any) -> Any:
    return numpyro.sample(name, distribution, **kwargs)


def python_scan(step: Any, init: Any, rows: Any, reverse: bool = False) -> None:
    """Run the steps in Python, with variables named by their step."""
    length = len(jax.tree.leaves(rows)[0])
    for t in reversed(range(length)) if reverse else range(length):
        with numpyro.handlers.scope(prefix=str(t), divider="", hide_types=["plate"]):
            init, _ = step(init, jax.tree.map(lambda x, t=t: x[t], rows))


def markov(loop):
    def model(y):
        mean = phx.sample("mean", dist.Normal(0.0, 3.0).expand([2]))

        def step(z, y):
            z = sample("z", dist.Categorical(ROWS[z]))
            sample("y", dist.Normal(mean[z], 1.0), obs=y)
            return z, None

        loop(step, 0, y)

    return model


def backwards(loop):
    """From the last row to the first, with a discrete variable before the loop and one above it."""

    def model(y):
        mean = phx.sample("mean", dist.Normal(0.0, 3.0).expand([2]))
        kind = sample("kind", dist.Bernoulli(0.3))
        start = sample("start", dist.Bernoulli(0.6))

        def step(z, y):
            z = phx.sample("z", dist.Bernoulli(jnp.where(kind == 1, ROWS[z, 1], 0.5)))
            sample("y", dist.Normal(mean[z] + kind, 1.0), obs=y)
            return z, None

        loop(step, start, y, reverse=True)

    return model


def second_order(loop):
    """A step depends on two states before it, on the row before, on a covariate, and on the number of the step."""

    def model(y):
        mean = phx.sample("mean", dist.Normal(0.0, 3.0).expand([2]))

        def step(carry, row):
            (before, last), y_before, t = carry
            y, x = row
            z = sample("z", dist.Bernoulli(logits=mean[before] + 0.5 * last * x - 0.1 * t))
            sample("y", dist.Normal(mean[z] + 0.3 * y_before, 1.0), obs=y)
            return ((z, before), y, t + 1), None

        loop(step, ((0, 1), 0.0, 0), (y, jnp.arange(4.0)))

    return model


def in_plates(loop):
    """Sequences of different lengths, two states of each in a step, and a first state outside: as in NumPyro's tour."""

    def model(y):
        mean = phx.sample("mean", dist.Normal(0.0, 3.0).expand([2]))
        lengths = jnp.array([3, 2])
        with numpyro.plate("sequences", 2, dim=-2):
            start = sample("start", dist.Bernoulli(0.3).expand([2, 1]))

        def step(carry, y):
            z, t = carry
            with (
                numpyro.plate("sequences", 2, dim=-2),
                numpyro.handlers.mask(mask=(t < lengths)[:, None]),
            ):
                z = sample("z", dist.Categorical(ROWS[z]))
                with numpyro.plate("tones", 2, dim=-1):
                    sample("y", dist.Normal(mean[z], 1.0), obs=y)
            return (z, t + 1), None

        loop(step, (start, 0), y)

    return model


SCALARS = {f"{t}z": (2, ()) for t in range(4)}
LOOPS = [
    (markov, SCALARS, Y),
    (backwards, {"kind": (2, ()), "start": (2, ()), **SCALARS}, Y),
    (second_order, SCALARS, Y),
    (
        in_plates,
        {"start": (2, (2, 1)), **{f"{t}z": (2, (2, 1)) for t in range(3)}},
        jnp.arange(12.0).reshape(3, 2, 2) / 5,
    ),
]
CASES = [  # other tests sum over the loops of two of them
    pytest.param(*case, id=case[0].__name__, marks=[pytest.mark.slow] * (case[0] in (markov, backwards, second_order)))
    for case in LOOPS
]


@pytest.mark.parametrize(("make", "shapes", "y"), CASES)
def test_sums_are_exact(make, shapes, y):
    compare(make(scan), {"mean": [-1.0, 0.8]}, shapes, same_as=make(python_scan), y=y)


@pytest.mark.parametrize("rows", [(), (3,)], ids=["one chain", "a chain in each row"])
def test_sums_along_chains_are_those_of_rounds(rows, monkeypatch):
    """On CPUs a chain is summed along in order, on accelerators in rounds of every second variable."""
    y = jax.random.normal(jax.random.key(0), (21, *rows))

    def model(y):
        x = phx.sample("x", dist.Normal(0.0, 1.0).expand([3, 3]))
        first = sample("first", dist.CategoricalLogits(jnp.zeros((*rows, 3))))

        def step(z, y):
            z = sample("z", dist.CategoricalLogits(x[z]))
            sample("y", dist.Normal(x[0][z], 1.0), obs=y)
            return z, None

        scan(step, first, y)

    at = {"x": jax.random.normal(jax.random.key(1), (3, 3))}
    values_and_gradients = jax.value_and_grad(lambda at: phx.log_joint(phx.marginalize(model))(at, y))
    along, gradient_along = values_and_gradients(at)
    monkeypatch.setattr(Elimination, "_sum_along_chains", lambda _: None)
    in_rounds, gradient = values_and_gradients(at)
    np.testing.assert_allclose(along, in_rounds, rtol=1e-5)
    np.testing.assert_allclose(gradient_along["x"], gradient["x"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("along_chains", [True, False], ids=["along chains", "in rounds"])
def test_a_chain_is_drawn_as_a_whole(along_chains, monkeypatch):
    """Each state is likely to be that of the step before: draws of states one by one would differ from it by half.

    Of 2,000 draws, each of the 27 joint values is within 4.5 standard errors: a false failure in 5,000 runs.
    """
    if not along_chains:
        monkeypatch.setattr(Elimination, "_sum_along_chains", lambda _: None)
    stays = jnp.full((3, 3), 0.05) + 0.85 * jnp.eye(3)

    def make(loop):
        def model(y):
            def step(z, y):
                z = sample("z", dist.Categorical(stays[z]))
                sample("y", dist.Normal(0.5 * z, 1.0), obs=y)
                return z, None

            loop(step, 1, y)

        return model

    n, y = 2000, jnp.array([0.3, 0.5, 1.2])
    keys = jax.random.split(jax.random.key(2), n)
    drawn = jax.jit(jax.vmap(lambda key: phx.marginalize(make(scan)).recover({}, key, y)))(keys)["z"]
    states = all_values({f"{t}z": (3, ()) for t in range(3)})
    weights = jax.nn.softmax(jax.vmap(lambda z: phx.log_joint(make(python_scan))(z, y))(states))
    for number, weight in enumerate(np.asarray(weights)):
        is_drawn = np.all([drawn[:, t] == states[f"{t}z"][number] for t in range(3)], axis=0)
        assert abs(is_drawn.mean() - weight) < 4.5 * np.sqrt(weight * (1 - weight) / n) + 1e-3


@pytest.mark.slow
def test_recovered_states_have_the_exact_distribution():
    """2,000 draws; a false failure with probability 1e-5 per entry."""
    make, shapes, y = LOOPS[1]
    values, n = {"mean": jnp.array([-0.5, 0.8])}, 2000
    marginal = phx.marginalize(make(scan))
    drawn = jax.jit(jax.vmap(lambda key: marginal.recover(values, key, y)))(jax.random.split(jax.random.key(1), n))
    states = all_values(shapes)
    weights = jax.nn.softmax(jax.vmap(lambda z: phx.log_joint(make(python_scan))({**values, **z}, y))(states))
    exact = np.array([weights @ states[f"{t}z"] for t in range(4)])
    assert drawn["z"].shape == (n, 4)
    assert np.all(np.abs(drawn["z"].mean(0) - exact) < 4.5 * np.sqrt(exact * (1 - exact) / n))


@pytest.mark.slow
def test_a_discrete_first_state_is_a_neighbour_of_the_first_step_only():
    """Twenty states: 20**3 joint values of neighbours are within the limit, 20**4 would not be."""
    rows = jax.nn.softmax(jax.random.normal(jax.random.key(0), (20, 20)))
    y = jax.random.normal(jax.random.key(1), (30,))

    def model(y):
        z = sample("start", dist.Categorical(jnp.ones(20) / 20))

        def step(z, y):
            z = sample("z", dist.Categorical(rows[z]))
            sample("y", dist.Normal(z / 10.0, 1.0), obs=y)
            return z, z

        return scan(step, z, y)[1]

    log = jnp.full(20, -jnp.log(20.0))
    for each in y:
        log = jax.nn.logsumexp(log[:, None] + jnp.log(rows), axis=0)
        log += dist.Normal(jnp.arange(20) / 10.0, 1.0).log_prob(each)
    found = phx.log_joint(phx.marginalize(model))({}, y)
    np.testing.assert_allclose(found, jax.nn.logsumexp(log), rtol=1e-5)
    assert phx.marginalize(model)(y) is None


@pytest.mark.slow
def test_a_posterior_recovers_and_predicts():
    def model(y):
        mean = phx.sample("mean", dist.Normal(0.0, 3.0).expand([2]))

        def step(z, y):
            z = sample("z", dist.Categorical(ROWS[z]))
            numpyro.deterministic("own", mean[z])
            sample("y", dist.Normal(mean[z], 1.0), obs=y)
            return z, None

        scan(step, 0, y)

    posterior = phx.mcmc(phx.marginalize(model), {"y": Y}, num_chains=2, num_warmup=50, num_samples=50, progress=False)
    assert set(posterior.draws) == {"mean"}
    found = phx.recover(posterior)
    own = np.take_along_axis(posterior.draws["mean"], found["z"], axis=-1)
    np.testing.assert_array_equal(found["own"], own)
    drawn = posterior.predictive()
    assert drawn["y"].shape == drawn["z"].shape == (2, 50, 4)
    assert phx.predictive(phx.marginalize(model), {"y": Y}, num_draws=5)["z"].shape == (5, 4)


def test_conditions_within_the_model():
    given = numpyro.handlers.condition(markov(scan), {"z": jnp.array([0, 1, 1, 0])})
    with pytest.raises(ValueError, match="no discrete latent variable to sum out"):
        phx.log_joint(phx.marginalize(given))({"mean": jnp.array([-1.0, 0.8])}, Y)


def counting():
    scan(lambda n, _: (n + sample("z", dist.Bernoulli(0.3)), None), 0, None, length=3)


def continuous_too():
    def step(z, _):
        sample("x", dist.Normal(z, 1.0))
        return sample("z", dist.Bernoulli(0.3)), None

    scan(step, 0, None, length=3)


def in_a_branch():
    def step(z, _):
        cond(True, lambda p: sample("z", dist.Bernoulli(p)), lambda p: sample("z", dist.Bernoulli(1 - p)), 0.3)
        return z, None

    scan(step, 0, None, length=3)


def substituted():
    numpyro.handlers.substitute(markov(scan), {"z": jnp.array([0, 1, 1, 0])})(Y)


def conditioned():
    phx.condition(markov(scan), {"z": jnp.array([0, 1, 1, 0])})(Y)


def other_shape():
    def step(z, _):
        return jnp.ones(2) * sample("z", dist.Bernoulli(z)), None

    scan(step, 0.5, None, length=3)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (counting, "the carry of a loop depends on the discrete variables of all steps"),
        (continuous_too, "'x' is latent and continuous inside of a loop with the discrete variable 'z'"),
        (in_a_branch, "'z' is sampled inside of a loop, branch or other"),
        (substituted, "'z' of a loop has a value that is not data"),
        (conditioned, "'z' is sampled inside of numpyro.contrib.control_flow, .* cannot be given a value"),
        (other_shape, "a carry of other shapes than it gets"),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_refusals(model, message):
    with pytest.raises(ValueError, match=message):
        phx.log_joint(phx.marginalize(model))({"mean": jnp.array([-1.0, 0.8])})


def test_names_must_contain_the_variables_of_loops():
    with pytest.raises(ValueError, match=r"'z' is latent and discrete inside of a loop, and names= leaves it out"):
        phx.log_joint(phx.marginalize(backwards(scan), ["kind", "start"]))({"mean": jnp.array([-1.0, 0.8])}, Y)


def test_without_marginalize_the_way_out_is_named():
    with pytest.raises(ValueError, match=r"Sum over its values with phx.marginalize\(model\)"):
        phx.log_joint(markov(scan))({"mean": jnp.array([-1.0, 0.8])}, Y)
