"""Sums by group: on GPUs they are no contended scatter-adds, and they are the same sums."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slow import with_slow

import phalanx as phx
from phalanx.jaxprs import group_sums
from phalanx.jaxprs.group_sums import FEW_CELLS, with_group_sums

RNG = np.random.default_rng(0)


@pytest.fixture
def gpu(monkeypatch):
    """As if JAX computed on a GPU: programs are lowered for one, and run on the CPU."""
    monkeypatch.setattr(group_sums, "on_gpu", lambda: True)


def scatters(f, *args) -> tuple[int, int]:
    """Scatters in a program lowered for CUDA, and how many of them have sorted indices."""
    text = jax.jit(lambda *args: f(*args)).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    found = [line for line in text.splitlines() if '"stablehlo.scatter"(' in line]
    return len(found), sum("indices_are_sorted = true" in line for line in found)


def rows(count, groups):
    return RNG.normal(size=count).astype(np.float32), RNG.integers(groups, size=count)


def of_two(w, x, g):
    return jnp.sum(jnp.sin(w[g, g[::-1]] * x))


def in_scan(w, x, g):
    return jax.lax.scan(lambda sum_, row: (sum_ + jnp.sin(w[row[1], 0] * row[0]).sum(), None), 0.0, (x, g))[0]


FUNCTIONS = {
    "lookup": (lambda w, x, g: jnp.sum(jnp.sin(w[g, 0] * x)), (7, 2)),
    "row": (lambda w, x, g: jnp.sum(jnp.sin(w[g]) * x[:, None]), (7, 3)),
    "column": (lambda w, x, g: jnp.sum(jnp.sin(w[:, g]) * x[None]), (3, 7)),
    "two indices": (of_two, (7, 7)),
    "segment sum": (lambda w, x, g: jnp.sum(jax.ops.segment_sum(x * w[0, 0], g, 7) ** 2), (1, 1)),
    "mapped": (lambda w, x, g: jnp.sum(jax.vmap(lambda x, g: jnp.sum(jnp.cos(w[g])) * x)(x, g)), (7, 2)),
    "inner jit": (lambda w, x, g: jax.jit(lambda w: jnp.sum(jnp.sin(w[g, 0] * x)))(w), (7, 2)),
    "remat": (lambda w, x, g: jax.checkpoint(lambda w: jnp.sum(jnp.sin(w[g, 0] * x)))(w), (7, 2)),
    "scan": (lambda w, x, g: in_scan(w, x.reshape(10, -1), g.reshape(10, -1)), (7, 2)),
    "cond": (lambda w, x, g: jax.lax.cond(x[0] > 9, lambda w: 0.0, lambda w: jnp.sum(w[g, 0] * x), w), (7, 2)),
}


@pytest.mark.parametrize("name", with_slow([*FUNCTIONS], {"row", "column", "two indices", "mapped", "inner jit"}))
def test_few_groups_are_no_scatter_and_the_same_sums(gpu, name):
    f, shape = FUNCTIONS[name]
    w, (x, g) = RNG.normal(size=shape).astype(np.float32), rows(300, 7)
    plain = jax.value_and_grad(f)
    assert scatters(plain, w, x, g)[0] > 0, "there is something to replace"
    assert scatters(with_group_sums(plain), w, x, g) == (0, 0)
    for found, expected in zip(with_group_sums(plain)(w, x, g), plain(w, x, g), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_many_crowded_groups_are_sorted_and_the_same_sums(gpu):
    groups = 2 * FEW_CELLS
    w, (x, g) = RNG.normal(size=(groups, 2)).astype(np.float32), rows(100 * groups, groups)
    plain = jax.grad(lambda w: jnp.sum(jnp.sin(w[g]) * x[:, None]))
    assert scatters(with_group_sums(plain), w) == (1, 1)
    np.testing.assert_allclose(with_group_sums(plain)(w), plain(w), rtol=2e-5, atol=1e-4)
    few_each = jax.grad(lambda w: jnp.sum(jnp.sin(w[g[:groups]])))
    assert scatters(with_group_sums(few_each), w) == (1, 0), "where few meet, nothing is sorted"


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**31), groups=st.sampled_from([1, 5]), count=st.sampled_from([0, 40]),
    mode=st.sampled_from(["clip", "drop"]), add=st.sampled_from(["_add_under_masks", "_add_sorted"]),
)  # fmt: skip
def test_indices_outside_are_clipped_or_dropped_as_jax_does(seed, groups, count, mode, add):
    rng = np.random.default_rng(seed)
    table, values = (rng.normal(size=(n, 2)).astype(np.float32) for n in (groups, count))
    index = rng.integers(-3, groups + 3, size=count)
    index = np.where(index < 0, index - 10 * groups, index)  # beyond what counts from the end
    expected = jnp.asarray(table).at[index].add(values, mode=mode)
    cell = group_sums._cells_of(jnp.asarray(index)[:, None], [groups], mode == "clip")
    found = getattr(group_sums, add)(jnp.asarray(table), cell, jnp.asarray(values))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_an_infinity_stays_in_its_group(gpu):
    g, x = jnp.array([0, 1, 2, 1]), jnp.array([1.0, jnp.inf, 3.0, 4.0])
    np.testing.assert_array_equal(with_group_sums(lambda x: jax.ops.segment_sum(x, g, 3))(x), [1.0, jnp.inf, 3.0])


def test_second_derivatives_are_right(gpu):
    w, (x, g) = RNG.normal(size=5).astype(np.float32), rows(40, 5)
    plain = jax.grad(lambda w: jnp.sum(jnp.sin(w[g]) * x))
    np.testing.assert_allclose(jax.jacfwd(with_group_sums(plain))(w), jax.jacfwd(plain)(w), rtol=1e-5, atol=1e-5)


def model(g, y):
    a = phx.sample("a", dist.Normal(0.0, 1.0).expand([6]))
    phx.sample("y", dist.Normal(a[g], 1.0), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["value_and_grad", "log_density"])
def test_the_gradient_of_a_model_has_no_scatter_on_a_gpu(gpu, way):
    y, g = rows(120, 6)
    target = phx.Target(model, {"g": g, "y": y})
    density = target.on_device([jnp.asarray(array) for array in target.arguments.arrays])
    both = {"value_and_grad": lambda at: density.value_and_grad(at)[1], "log_density": jax.grad(density.log_density)}
    gradient = both[way]
    at = {"a": jnp.linspace(-1.0, 1.0, 6)}
    assert scatters(gradient, at)[0] == 0
    assert scatters(jax.vmap(gradient), {"a": jnp.ones((3, 6))})[0] == 0, "nor that of several chains"
    expected = np.array([(y[g == k] - at["a"][k]).sum() for k in range(6)]) - np.asarray(at["a"])
    np.testing.assert_allclose(gradient(at)["a"], expected, rtol=1e-4, atol=1e-4)


def test_on_a_cpu_and_where_it_is_turned_off_a_function_stays_as_it_is(gpu, monkeypatch):
    def f(x):
        return x

    assert with_group_sums(f) is not f
    monkeypatch.setattr(type(group_sums.Workaround.GROUP_SUMS), "is_on", False)
    assert with_group_sums(f) is f
    monkeypatch.undo()
    assert not group_sums.on_gpu() and with_group_sums(f) is f
