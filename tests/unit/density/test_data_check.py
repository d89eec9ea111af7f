"""Indices in the data that point outside of what a model picks from: refused with the line, however they are used."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import phalanx as phx
from phalanx.density.data_check import DataCheck
from phalanx.inputs.arguments import split_arguments
from phalanx.programs.traced_program import TracedProgram

G, Y = np.array([1, 2, 3]), np.zeros(3, np.float32)
TABLE = np.arange(12.0, dtype=np.float32).reshape(3, 4)


def model_with(pick):
    def model(y, g):
        w = phx.sample("w", dist.Normal(0.0, 1.0).expand([3]))
        phx.sample("y", dist.Normal(pick(w, g), 1.0), obs=y)

    return model


def check(model, data):
    """What a run does first: a mesh changes nothing about it."""
    arguments = split_arguments(model, data)
    whole = TracedProgram.of_whole(model, arguments, {"data": 1})
    DataCheck(whole.at_zero, len(whole.position)).check_indices(arguments)


@jax.jit
def jitted(w, g):
    return w[g]


@jax.jit
def jitted_with_a_constant(w, g):
    return (w + TABLE[:, 0])[g]


@jax.custom_jvp
def of_a_constant(w, g):
    return w * TABLE[:, 0]


jax.custom_jvp.defjvp(of_a_constant, lambda given, slopes: (of_a_constant(*given), slopes[0] * TABLE[:, 0]))

OUTSIDE = {
    "subscript": lambda w, g: w[g],
    "take": lambda w, g: jnp.take(w, g),
    "take_along_axis": lambda w, g: jnp.take_along_axis(w, g, 0),
    "of a matrix": lambda w, g: (w[:, None] * TABLE)[g, 1],
    "of a constant": lambda w, g: w * jnp.asarray(TABLE)[g, 1],
    "computed": lambda w, g: w[2 * g - g],
    "too far below": lambda w, g: w[-g - 1],
    "one number": lambda w, g: w[g[2]] * jnp.ones(3),
    "in jit": jitted,
    "in jit, of a constant": jitted_with_a_constant,
    "in remat": lambda w, g: jax.checkpoint(lambda v: v[g])(w),
    "in vmap": lambda w, g: jax.vmap(lambda i: w[i])(g),
    "in scan": lambda w, g: lax.scan(lambda total, i: (total + w[i], w[i]), 0.0, g)[1],
    "in a carry": lambda w, g: lax.scan(lambda i, _: (i + 1, w[i]), g[0], None, length=3)[1],
    "in map": lambda w, g: lax.map(lambda i: w[i], g),
    "in fori_loop": lambda w, g: lax.fori_loop(0, 3, lambda i, total: total + w[g[i]], 0.0) * jnp.ones(3),
    "in while_loop": lambda w, g: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] + w[g]), (0, 0 * w))[1],
    "in the branch taken": lambda w, g: lax.cond(g[0] > 0, lambda: w[g], lambda: w),
    "added to": lambda w, g: jnp.zeros(3).at[g].add(w),
    "set": lambda w, g: w.at[g].set(0.0),
    "summed by segment": lambda w, g: jax.ops.segment_sum(w, g, num_segments=3),
    "a slice": lambda w, g: lax.dynamic_slice(w, (g[2],), (1,)) * jnp.ones(3),
}
INSIDE = {
    "less one": lambda w, g: w[g - 1],
    "from the end": lambda w, g: w[-g],
    "clipped": lambda w, g: jnp.take(w, g, mode="clip"),
    "filled": lambda w, g: w.at[g].get(mode="fill", fill_value=0.0),
    "dropped": lambda w, g: w.at[g].add(1.0, mode="drop"),
    "segments dropped": lambda w, g: jax.ops.segment_sum(w, g, num_segments=3, mode="drop"),
    "chosen by a variable": lambda w, g: w[jnp.argmax(w) + 0 * g],
    "in the branch not taken": lambda w, g: lax.cond(g[0] < 0, lambda: w[g], lambda: w),
    "made to fit": lambda w, g: w[jnp.minimum(g, 2)],
    "in scan": lambda w, g: lax.scan(lambda total, i: (total + w[i], w[i]), 0.0, g - 1)[1],
    # What functions within close over is theirs, and goes in with them.
    "a constant in jit": jax.jit(lambda w, g: w * TABLE[:, 0]),
    "a constant in nested jit": jax.jit(lambda w, g: jax.jit(lambda v: v + TABLE[:, 0])(w) * TABLE[:, 1]),
    "a constant in remat": jax.checkpoint(jax.jit(lambda w, g: w * TABLE[:, 0])),
    "a constant in scan": lambda w, g: lax.scan(lambda c, _: (c + TABLE[:, 0], None), w, None, length=2)[0],
    "a constant in while_loop": lambda w, g: lax.while_loop(lambda v: v[0] < TABLE.sum(), lambda v: v + TABLE[:, 1], w),
    "a constant in cond": lambda w, g: lax.cond(
        w[0] > 0, lambda v: v * TABLE[:, 0], jax.jit(lambda v: v + TABLE[:, 1]), w
    ),
    "a constant in custom_jvp": of_a_constant,
    # JAX's own functions point outside on purpose, and drop what they write there.
    "nonzero": lambda w, g: w[jnp.nonzero(g > 1, size=3)[0]],
    "unique": lambda w, g: w[jnp.unique(g, size=3) - 1],
    "interp": lambda w, g: jnp.interp(g * 10.0, g * 1.0, w),
    "histogram": lambda w, g: jnp.histogram(g, bins=3)[0] * w,
    "map_coordinates": lambda w, g: jax.scipy.ndimage.map_coordinates(w, [g - 5.0], 1),
    "sorted": lambda w, g: w[jnp.argsort(g)],
}


@pytest.mark.parametrize("how", OUTSIDE)
def test_indices_out_of_range_are_refused_with_their_line(how):
    pick = OUTSIDE[how]
    with pytest.raises(ValueError, match="JAX would read another entry, or drop an update, without") as caught:
        check(model_with(pick), {"y": Y, "g": G})
    wrong = -4 if how == "too far below" else 3
    where = r"\d+" if how.startswith("in jit") else pick.__code__.co_firstlineno
    assert re.search(
        rf"{wrong} is outside 0\.\.2, in test_data_check\.py:{where}; it is (computed from )?g", str(caught.value)
    )


@pytest.mark.parametrize("how", INSIDE)
def test_indices_in_range_or_with_a_mode_run(how):
    check(model_with(INSIDE[how]), {"y": Y, "g": G})


def test_the_whole_message():
    line = OUTSIDE["subscript"].__code__.co_firstlineno
    words = (
        f"w[g]: 3 is outside 0..2, in test_data_check.py:{line}; it is g[2]. JAX would read another entry, or drop "
        f"an update, without a warning. Entries are numbered from 0, and g from 1: give g - 1."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        phx.mcmc(model_with(OUTSIDE["subscript"]), {"y": Y, "g": G}, progress=False)


@pytest.mark.parametrize("rows", [8, 11])
def test_rows_on_devices_are_looked_at_too(rows):
    """Evenly spread, and padded: the padding is no row."""
    mesh = phx.make_mesh(chain=1, data=8)
    codes = np.arange(rows) % 3
    model = model_with(lambda w, g: w[g])
    check(model, phx.shard({"y": np.zeros(rows), "g": codes}, mesh))
    codes[-2] = 3
    with pytest.raises(ValueError, match=re.escape("3 is outside 0..2, in test_data_check.py:")) as caught:
        check(model, phx.shard({"y": np.zeros(rows), "g": codes}, mesh))
    assert f"it is g[{rows - 2}]" in str(caught.value)


def test_observed_categories_are_judged_by_their_support():
    """A distribution looks its value up, too; its own words are better."""

    def model(g):
        p = phx.sample("p", dist.Dirichlet(np.ones(3)))
        phx.sample("g", dist.CategoricalProbs(p), obs=g)

    check(model, {"g": G})


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.lists(st.integers(-7, 7), min_size=1, max_size=6))
def test_it_is_refused_exactly_when_numpy_refuses(size, codes):
    def model(g):
        w = phx.sample("w", dist.Normal(0.0, 1.0).expand([size]))
        phx.factor("f", w[g])

    try:
        np.zeros(size)[codes]
    except IndexError:
        with pytest.raises(ValueError, match=r"is outside 0\.\."):
            check(model, {"g": np.array(codes)})
    else:
        check(model, {"g": np.array(codes)})
