"""Lines of users' code that operations come from."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp

from phalanx.jaxprs.source_lines import source_line_of


def test_a_line_of_pythons_own_library_is_not_the_users():
    def f(x):
        with contextlib.ExitStack() as stack:
            stack.callback(jax.lax.sin, x)
        return x

    (equation,) = jax.make_jaxpr(f)(jnp.zeros(())).jaxpr.eqns
    assert str(source_line_of(equation)).startswith("test_source_lines.py:")
