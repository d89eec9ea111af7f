"""Minibatches: gradients are those of all rows in expectation, and no row crosses devices."""

from __future__ import annotations

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.distributions import constraints

import phalanx as phx
from phalanx.variational.guides.guide_and_model import for_steps
from phalanx.variational.methods.step import FitState, Steps

ROWS, DRAWS = 48, 4000
RANDOM = np.random.default_rng(2)
DATA = {"x": RANDOM.normal(size=(ROWS, 2)).astype(np.float32), "y": RANDOM.normal(size=ROWS).astype(np.float32)}
SHORT = {"num_steps": 5, "until": False, "progress": False}


def shared(x, y):
    """Rows in a variable, in a factor, and in one that sees only how many there are."""
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))
    scale = phx.sample("scale", dist.LogNormal(0.0, 0.5))
    phx.sample("y", dist.Normal(x @ w, scale), obs=y)
    phx.factor("more", -0.1 * (x[:, 0] * w[0]) ** 2)
    phx.factor("count", -0.01 * y.shape[0] * scale)


def local(x, y):
    scale = phx.sample("scale", dist.LogNormal(0.0, 0.5))
    z = phx.sample("z", dist.Normal(0.0, scale).expand([len(y)]))
    phx.sample("y", dist.Normal(x[:, 0] + z, 0.5), obs=y)


def amortised(x, y):
    phx.sample("scale", dist.LogNormal(phx.param("level", 0.1), 0.2))
    slope, spread = phx.param("slope", 0.3), phx.param("spread", 0.5, constraints.positive)
    phx.sample("z", dist.Normal(slope * (y - x[:, 0]), spread))


CASES = {"shared": (shared, phx.guides.mean_field(init_scale=0.2)), "amortised": (local, amortised)}


def gradients(fit):
    steps = Steps(for_steps(fit.pair), phx.guides.elbo(), None, 2)
    found, _ = jax.jit(jax.vmap(lambda key: steps.gradient(fit.free, key, fit.arrays)))(
        random.split(random.key(3), DRAWS)
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("shared", marks=pytest.mark.slow), "amortised"])
def test_the_gradient_is_that_of_all_rows_in_expectation(name):
    """Each coordinate is off by 4.5 standard errors with probability 7e-6."""
    model, guide = CASES[name]
    part = phx.fit(model, guide, DATA, batch_size=6, **SHORT)
    assert part.pair is not None
    problem = replace(part.pair.problem, minibatch=None)
    pair = replace(part.pair, problem=problem)  # pyright: ignore[reportArgumentType]  # every pair is a dataclass
    of_part, of_whole = gradients(part), gradients(replace(part, pair=pair))
    for key in of_part:
        a, b = np.asarray(of_part[key], float), np.asarray(of_whole[key], float)
        error = np.sqrt((a.var(0) + b.var(0)) / DRAWS)
        assert np.all(np.abs(a.mean(0) - b.mean(0)) < 4.5 * error), key


@pytest.mark.slow
def test_a_fit_of_minibatches_is_one_of_all_rows():
    rows = {"x": np.tile(DATA["x"], (20, 1)), "y": np.tile(DATA["y"], 20)}
    options = {"num_steps": 3000, "until": False, "progress": False}
    whole = phx.fit(shared, phx.guides.mean_field(), rows, **options)
    part = phx.fit(shared, phx.guides.mean_field(), rows, batch_size=96, optimizer=0.02, **options)
    scale = whole.params["w.scale"]
    np.testing.assert_allclose((part.params["w.loc"] - whole.params["w.loc"]) / scale, 0.0, atol=0.5)
    np.testing.assert_allclose(part.params["w.scale"], scale, rtol=0.2)
    assert np.isnan(part.losses.error).all()


@pytest.mark.slow
def test_no_row_crosses_devices(mesh_of):
    """What is sent is the gradient of what is shared: a sum over devices, and nothing else."""
    mesh = mesh_of(1, 4)
    fit = phx.fit(
        shared, phx.guides.mean_field(init_scale=0.2), phx.shard(DATA, mesh), batch_size=8, mesh=mesh, **SHORT
    )
    assert fit.pair is not None and fit.free is not None
    steps = Steps(for_steps(fit.pair), phx.guides.elbo(), None, 2)
    compiled = jax.jit(steps.gradient).lower(fit.free, random.key(0), fit.arrays).compile()
    text = compiled.as_text()
    assert text is not None
    assert not re.search(r"all-gather|all-to-all|collective-permute|reduce-scatter", text)
    assert "all-reduce" in text
    assert FitState.of(fit.free, ()).step == 0 and jnp.isfinite(fit.losses.elbo).all()


def mixes(x, y):
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))
    phx.sample("y", dist.Normal((x - x.mean(0)[None]) @ w, 1.0), obs=y)


BAD = {
    "too many": (shared, {"batch_size": 49}, "batch_size=49 is larger than the data, which have 48 rows"),
    "none": (shared, {"batch_size": 0}, "batch_size must be a whole number of rows"),
    "mixed": (mixes, {"batch_size": 6}, "batch_size"),
    "local": (local, {"batch_size": 6}, "variable 'z' has an element for each row"),
}


@pytest.mark.parametrize(
    "model, options, message",
    [pytest.param(*case, id=name, marks=pytest.mark.slow if name == "mixed" else []) for name, case in BAD.items()],
)
def test_models_that_batches_cannot_teach_are_refused(model, options, message):
    with pytest.raises(ValueError, match=message):
        phx.fit(model, phx.guides.mean_field(), DATA, **SHORT, **options)


def test_rows_that_do_not_divide_are_refused(mesh_of):
    mesh = mesh_of(1, 4)
    with pytest.raises(ValueError, match="both numbers must be divisible by 4"):
        phx.fit(shared, phx.guides.mean_field(), phx.shard(DATA, mesh), batch_size=6, mesh=mesh, **SHORT)
