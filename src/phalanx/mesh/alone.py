"""One device in the place of many: what a program computes that sees all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp


def alone(f: Callable[[], Any], axes: Iterable[str]) -> Any:
    """What `f()` gives with these mesh axes in scope, of one device each: its sums over them add nothing."""
    for axis in axes:
        f = _over_one(f, axis)
    return f()


def _over_one(f: Callable[[], Any], axis: str) -> Callable[[], Any]:
    def mapped() -> Any:
        out = jax.vmap(lambda _: f(), axis_name=axis, axis_size=1)(jnp.zeros(1))
        return jax.tree.map(lambda leaf: leaf[0], out)

    return mapped
