"""Observed values and parameters that cannot be: found before a run, named with place and value, and no others."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.programs.validity import VALUE, find_invalid

Y = np.abs(np.random.default_rng(0).normal(size=12)).astype(np.float32) + 0.1
SPREAD = np.where(np.arange(12) == 7, -2.0, 1.0).astype(np.float32)


def observed(make, y: np.ndarray = Y):
    def model(y, spread):
        m = phx.sample("m", dist.Normal(0.0, 1.0))
        phx.sample("y", make(m, spread), obs=y)

    return model, {"y": y, "spread": SPREAD}


WRONG = [
    pytest.param(observed(lambda m, s: dist.Normal(m, -1.0)), "scale", 1, (), -1.0, "positive", marks=pytest.mark.slow),
    (observed(lambda m, s: dist.Normal(m, s)), "scale", 1, (7,), -2.0, "positive"),
    (observed(lambda m, s: dist.Gamma(-1.5, jnp.exp(m))), "concentration", 1, (), -1.5, "positive"),
    (observed(lambda m, s: dist.Normal(m, s).to_event(1)), "scale", 1, (7,), -2.0, "positive"),
    (observed(lambda m, s: dist.Laplace(m, -3.0).expand([12])), "scale", 1, (), -3.0, "positive"),
    (observed(lambda m, s: dist.LogNormal(m, -1.0)), "scale", 1, (), -1.0, "positive"),
    (observed(lambda m, s: dist.Bernoulli(1.5 + 0 * s), Y > 1), "probs", 12, (0,), 1.5, "between 0 and 1"),
    (observed(lambda m, s: dist.Poisson(jnp.exp(m)), np.array([1, -1, 2, -5])), VALUE, 2, (1,), -1, "a whole number"),
    (observed(lambda m, s: dist.Gamma(2.0, jnp.exp(m)), -Y), VALUE, 12, (0,), -Y[0], "positive"),
]

RIGHT = [
    observed(lambda m, s: dist.Normal(m, jnp.abs(s))),
    observed(lambda m, s: dist.Normal(0.0, m)),  # wrong in places, which the sampler avoids
    observed(lambda m, s: dist.Normal(m, s).mask(s > 0)),  # what is masked may be anything
    observed(lambda m, s: dist.Categorical(probs=jnp.full(3000, 1 / 3000)), np.zeros(4, int)),  # rounding
    observed(lambda m, s: dist.MultivariateNormal(m * jnp.ones(12), jnp.eye(12))),
    observed(lambda m, s: dist.Uniform(-1.0, 100 + m)),
    observed(lambda m, s: dist.ZeroInflatedPoisson(0.3, jnp.exp(m)), np.arange(12)),
]


@pytest.mark.parametrize("case, parameter, count, index, value, allowed", WRONG)
def test_impossible_values_are_found_and_placed(case, parameter, count, index, value, allowed):
    target = phx.Target(*case)
    (key, wrong), *others = find_invalid(target.program, target.arguments, target.mesh, target.place_arrays()).items()
    assert key == ("y", parameter) and not others
    assert (wrong.count, wrong.index) == (count, index) and wrong.value == pytest.approx(value)
    assert wrong.allowed.startswith(allowed)
    density = target.on_device(target.place_arrays())
    assert sum(int(number) for number in density.invalid().values()) == count


@pytest.mark.parametrize("case", RIGHT)
def test_possible_values_are_left_alone(case):
    target = phx.Target(*case)
    assert find_invalid(target.program, target.arguments, target.mesh, target.place_arrays()) == {}


def test_rows_on_devices_are_counted_once(mesh_of):
    model, data = observed(lambda m, s: dist.Normal(m, s))
    data = {name: values[:11] for name, values in data.items()}
    target = phx.Target(model, phx.shard(data, mesh_of(1, 4)))
    wrong = find_invalid(target.program, target.arguments, target.mesh, target.place_arrays())["y", "scale"]
    assert (wrong.count, wrong.index, wrong.value) == (1, (7,), -2.0)


def test_a_run_is_refused_with_the_parameter():
    message = r"^Variable 'm': its scale is -1\.0, but for a Normal it must be positive\. Give a valid one"
    with pytest.raises(ValueError, match=message):
        phx.mcmc(lambda: phx.sample("m", dist.Normal(0.0, -1.0)), kernel=phx.rwmh(0.5), progress=False)
