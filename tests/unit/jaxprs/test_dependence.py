"""What varies from device to device, read off programs of many forms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from phalanx.jaxprs.canonical import form_of
from phalanx.jaxprs.dependence import uses_collective, varying_axes
from phalanx.jaxprs.walking import constants_within

D, M = frozenset({"data"}), frozenset({"model"})
NOWHERE = frozenset()


def varies(f, *inputs):
    """Axes that the outputs of f vary over, f taking one vector of three for each of `inputs`."""
    args = [jnp.ones(3)] * len(inputs)
    return varying_axes(jax.make_jaxpr(f, axis_env=[("data", 4), ("model", 2)])(*args), inputs)


@jax.jit
def helper(x, w):
    return x * w, w * 2


@jax.custom_jvp
def cubed(x):
    return x**3


cubed.defjvp(lambda p, t: (p[0] ** 3, 3 * p[0] ** 2 * t[0]))


@jax.custom_vjp
def doubled(x, w):
    return 2 * x, 2 * w


doubled.defvjp(lambda x, w: ((2 * x, 2 * w), None), lambda _, g: g)


def scan_from_zeros(x, w):
    return lax.scan(lambda c, row: (c + row, w), 0.0, x)


def scan_that_passes_it_on(x, w):
    """The first carry takes the second's old value: only on the second trip does it vary."""
    (a, b, c), _ = lax.scan(lambda t, _: ((t[1], t[2], x.sum()), None), (0.0, 0.0, 0.0), None, length=3)
    return a, b, c, w


def while_with_local_trips(x, w):
    return lax.while_loop(lambda t: t[0] < x.sum(), lambda t: (t[0] + 1, t[1] + w), (0.0, w))


def while_with_global_trips(x, w):
    return lax.while_loop(lambda t: t[0] < 3, lambda t: (t[0] + 1, t[1] * x), (0.0, w))


def cond_on_local(x, w):
    return lax.cond(x[0] > 0, lambda: (w, 0.0), lambda: (w * 2, 0.0))


def cond_on_global(x, w):
    return lax.cond(w[0] > 0, lambda: (x, w, 0.0), lambda: (jnp.zeros(3), w, 0.0))


def loop_with_own_mean(x, w):
    return lax.fori_loop(0, 3, lambda i, t: t + lax.pmean(x.sum(), "data") * w, jnp.zeros(3))


def grouped_sum(x, w):
    return lax.psum(x, "data", axis_index_groups=[[0, 1], [2, 3]]), w


CASES = {
    "products": (lambda x, w: (x * w, w + 1, 3.0), [D, NOWHERE, NOWHERE]),
    "only the shape is seen": (lambda x, w: jnp.zeros(x.shape[0]) + w, [NOWHERE]),
    "jitted helper": (helper, [D, NOWHERE]),
    "custom_jvp": (lambda x, w: (cubed(x), cubed(w)), [D, NOWHERE]),
    "custom_vjp": (doubled, [D, NOWHERE]),
    "remat": (lambda x, w: jax.checkpoint(helper)(x, w), [D, NOWHERE]),
    "scan from zeros": (scan_from_zeros, [D, NOWHERE]),
    "scan that passes it on": (scan_that_passes_it_on, [D, D, D, NOWHERE]),
    "while loop, local trips": (while_with_local_trips, [D, D]),
    "while loop, global trips": (while_with_global_trips, [NOWHERE, D]),
    "cond on a local value": (cond_on_local, [D, D]),
    "cond on a global value": (cond_on_global, [D, NOWHERE, NOWHERE]),
    "own pmean": (lambda x, w: (lax.pmean(x, "data"), lax.psum(x * w, "data"), x), [NOWHERE, NOWHERE, D]),
    "own pmax and gather": (lambda x, w: (lax.pmax(x, "data"), lax.all_gather(x, "data"), w), [NOWHERE] * 3),
    "sum over the other axis": (lambda x, w: lax.psum(x, "model"), [D]),
    "sum over groups": (grouped_sum, [D, NOWHERE]),
    "own mean in a loop": (loop_with_own_mean, [NOWHERE]),
    "device number": (lambda x, w: (lax.axis_index("model") * w[0], w), [M, NOWHERE]),
    "sent around": (lambda x, w: lax.ppermute(w, "data", [(0, 1), (1, 2), (2, 3), (3, 0)]), [D]),
    "scattered sum": (lambda x, w: lax.psum_scatter(jnp.tile(w, 4), "data", tiled=True), [D]),
    "vmapped": (lambda x, w: jax.vmap(lambda a, b: (a * b, b))(x, w), [D, NOWHERE]),
    "indexed by a local value": (lambda x, w: w[x.astype(int)], [D]),
}


@pytest.mark.parametrize("name", CASES)
def test_axes_over_which_values_vary(name):
    f, expected = CASES[name]
    assert varies(f, D, NOWHERE) == expected


def test_axes_add_up():
    assert varies(lambda x, y: (x * y, lax.psum(x * y, "data"), lax.psum(x * y, ("data", "model"))), D, M) == [
        D | M, M, NOWHERE,
    ]  # fmt: skip


@pytest.mark.parametrize("f, expected", [
    (lambda x: x * 2, False),
    (lambda x: lax.psum(x, "data"), True),
    (lambda x: lax.psum(x, "model"), False),
    (lambda x: lax.axis_index("data") * x, False),
    (lambda x: lax.scan(lambda c, r: (c + lax.pmean(r, "data"), None), 0.0, x)[0], True),
    (lambda x: jax.jit(lambda x: lax.all_gather(x, "data"))(x), True),
])  # fmt: skip
def test_collectives_are_found_at_any_depth(f, expected):
    jaxpr = jax.make_jaxpr(f, axis_env=[("data", 4), ("model", 2)])(jnp.ones(3))
    assert uses_collective(jaxpr, "data") is expected


def closing_over(value, how):
    """A program with two entries of `value` as a constant, inside or not."""
    constant = np.full(2, value, np.float32)
    forms = {
        "outside": lambda x: x * constant,
        "jit": jax.jit(lambda x: x * constant),
        "scan": lambda x: lax.scan(lambda c, _: (c * constant, None), x, None, length=2)[0],
        "jit in cond": lambda x: lax.cond(x[0] > 0, jax.jit(lambda x: x * constant), lambda x: x, x),
    }
    return jax.make_jaxpr(forms[how])(jnp.ones(2))


@pytest.mark.parametrize("how", ["outside", "jit", "scan", "jit in cond"])
def test_constants_of_programs_are_part_of_them(how):
    one, again, two = (closing_over(value, how) for value in (1.0, 1.0, 2.0))
    assert form_of(one) == form_of(again) != form_of(two)
    assert [np.asarray(c).tolist() for c in constants_within(two)] == [[2.0, 2.0]]
