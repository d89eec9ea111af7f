"""A mesh of virtual devices on one real device, and how rows go to its devices and come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from phalanx.mesh.space import RowSharding


def rows_here(leaf: Any, sharding: RowSharding) -> Any:
    """Return the rows of this device, the last row repeated where there are too few, as `phx.shard` does."""
    if not sharding.axes:
        return leaf
    numbers = jnp.minimum(sharding.row_numbers(), leaf.shape[0] - 1)
    return leaf[numbers]


def all_rows(leaf: Any, sharding: RowSharding) -> Any:
    """Return all devices' rows, without the padding."""
    return lax.all_gather(leaf, sharding.axes, tiled=True)[: sharding.rows] if sharding.axes else leaf


def sum_over(value: Any, axes: tuple[str, ...]) -> Any:
    """Return the sum over the devices along these axes."""
    return lax.psum(value, axes) if axes else value


def on_virtual_mesh(f: Callable[..., Any], sizes: Mapping[str, int]) -> Callable[..., Any]:
    """Run `f` with the mesh's axes in scope, on one real device; returns what the first virtual device returns."""
    for axis, size in sizes.items():
        f = _over(f, axis, size)
    return f


def _over(f: Callable[..., Any], axis: str, size: int) -> Callable[..., Any]:
    def mapped(*args: Any) -> Any:
        out = jax.vmap(lambda _: f(*args), axis_name=axis, axis_size=size)(jnp.zeros(size))
        return jax.tree.map(lambda leaf: leaf[0], out)

    return mapped
