"""Reductions over positional and mesh axes, with the value and gradient of the unsharded reduction.

`jax.lax` sums over a mesh axis but has no derivative for its maximum, and a logsumexp written by hand loses either
stability or the gradient. These four take positional axes, mesh axes or both. They work under `jax.shard_map`, checked
or not: checked, the gradient is that of the value (equal on all devices); unchecked, of the sum of the devices' copies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

AxisNames = str | Sequence[str] | None
Dims = int | Sequence[int] | None


def reduce_sum(x: Array, dims: Dims = None, axes: AxisNames = None) -> Array:
    """Return the sum over positional `dims` (all by default) and mesh `axes`."""
    return _psum(jnp.sum(x, dims), _names(axes))


def reduce_mean(x: Array, dims: Dims = None, axes: AxisNames = None) -> Array:
    """Return the mean over positional `dims` (all by default) and mesh `axes`; devices hold equally many elements."""
    return reduce_sum(x, dims, axes) / math.prod(lax.axis_size(axis) for axis in _names(axes)) / _count(x, dims)


def reduce_max(x: Array, dims: Dims = None, axes: AxisNames = None) -> Array:
    """Return the maximum over positional `dims` (all by default) and mesh `axes`; tied maxima share the gradient."""
    names = _names(axes)
    top = _pmax(jnp.max(lax.stop_gradient(x), dims, keepdims=True), names)
    is_top = x == top
    winners = _psum(jnp.sum(is_top, dims), names)
    return _psum(jnp.sum(jnp.where(is_top, x, 0), dims), names) / winners


def reduce_min(x: Array, dims: Dims = None, axes: AxisNames = None) -> Array:
    """Return the minimum over positional `dims` (all by default) and mesh `axes`; tied minima share the gradient."""
    return -reduce_max(-x, dims, axes)


def reduce_logsumexp(x: Array, dims: Dims = None, axes: AxisNames = None) -> Array:
    r"""Return $\log \sum \exp x$ over positional `dims` (all by default) and mesh `axes`, without overflow."""
    names = _names(axes)
    top = _pmax(jnp.max(lax.stop_gradient(x), dims, keepdims=True), names)
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    total = _psum(jnp.sum(jnp.exp(x - top), dims), names)
    return jnp.log(total) + jnp.reshape(top, total.shape)


def _names(axes: AxisNames) -> tuple[str, ...]:
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)


def _psum(x: Array, names: tuple[str, ...]) -> Array:
    return lax.psum(x, names) if names else x


def _pmax(x: Array, names: tuple[str, ...]) -> Array:
    return lax.pmax(x, names) if names else x


def _count(x: Array, dims: Dims) -> int:
    dims = range(x.ndim) if dims is None else (dims,) if isinstance(dims, int) else dims
    return math.prod(x.shape[dim] for dim in dims)
