"""Mesh of virtual devices on one real device: `vmap` with named axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from phalanx.mesh.space import RowSharding
from phalanx.mesh.specs import PyTree


def on_virtual_mesh(f: Callable[..., Any], sizes: Mapping[str, int]) -> Callable[..., Any]:
    """Return `f` run on a virtual mesh on one real device; its results are those of the first virtual device."""
    for axis, size in sizes.items():
        f = _over(f, axis, size)
    return f


def alone(f: Callable[[], Any], axes: Iterable[str]) -> PyTree:
    """Return `f()` with these mesh axes in scope, of one device each, so that sums over them have one term."""
    return on_virtual_mesh(f, dict.fromkeys(axes, 1))()


def rows_here(leaf: Array, sharding: RowSharding) -> Array:
    """Return the rows of this device; as in `phx.shard`, the last row is repeated as padding."""
    return leaf[jnp.minimum(sharding.row_numbers(), leaf.shape[0] - 1)] if sharding.axes else leaf


def all_rows(leaf: Array, sharding: RowSharding) -> Array:
    """Return the rows of all devices without padding."""
    for axis in reversed(sharding.axes):  # one by one: `vmap` does not gather over two axes that both have the array
        leaf = lax.all_gather(leaf, axis, tiled=True)
    return leaf[: sharding.rows] if sharding.axes else leaf


def _over(f: Callable[..., Any], axis: str, size: int) -> Callable[..., Any]:
    def mapped(*args: PyTree) -> PyTree:
        out = jax.vmap(lambda _: f(*args), axis_name=axis, axis_size=size)(jnp.zeros(size))
        return jax.tree.map(lambda leaf: leaf[0], out)

    return mapped
