"""The space a position lives in: which leaves are replicated on every device, and which are sharded.

Kernels are written against a `Space` as if for one device. An inner product adds the pieces of spread-out leaves
once; a random momentum is equal everywhere for a global leaf and different from device to device for a spread-out one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from phalanx.mesh.random_numbers import standard_normals, uniforms
from phalanx.mesh.total import Total

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped, UInt32

Position = Any
"""A pytree of arrays: unconstrained values of the latent variables."""

Shared = TypeVar("Shared", Array, Total)


@dataclass(frozen=True)
class RowSharding:
    """Where one leaf lives: replicated (no axes), or its rows spread over `axes`.

    Attributes:
        axes: mesh axes the leading dimension is spread over, outermost first.
        rows: rows of the whole leaf; devices hold `ceil(rows / devices)` each, the last ones padded. 0 for a term of
            a log density that needs no row left out.
        local_rows: rows one device holds.
    """

    axes: tuple[str, ...] = ()
    rows: int = 0
    local_rows: int = 0

    def row_numbers(self) -> Int[Array, "{self.local_rows}"]:
        """Numbers, in the whole leaf, of the rows this device holds."""
        return lax.axis_index(self.axes) * self.local_rows + jnp.arange(self.local_rows)

    def real_rows(self) -> Bool[Array, "{self.local_rows}"] | None:
        """Which of the rows this device holds are not padded; None where none is."""
        if not self.axes or self.rows in (0, self.local_rows * self._devices()):
            return None
        return self.row_numbers() < self.rows

    def keep_rows(self, values: Shaped[Array, "*shape"], fill: float = 0.0) -> Shaped[Array, "*shape"]:
        """`values` with padded rows replaced by `fill`; unchanged where there is no padding."""
        real = self.real_rows()
        return values if real is None else only_rows(real, values, fill)

    def _devices(self) -> int:
        return math.prod(lax.axis_size(axis) for axis in self.axes)


GLOBAL = RowSharding()


def only_rows(
    wanted: Bool[Array, "rows"], values: Shaped[Array, "rows *row"], fill: float = 0.0
) -> Shaped[Array, "rows *row"]:
    """`values` with the rows that are not wanted replaced by `fill`, in the same type."""
    return jnp.where(wanted.reshape(-1, *(1,) * (values.ndim - 1)), values, jnp.asarray(fill, values.dtype))


@dataclass(frozen=True)
class Space:
    """Geometry of positions of which some leaves are spread over a mesh.

    Attributes:
        shardings: one `RowSharding` per leaf, in the order of `jax.tree.leaves(position)`.
        axes: mesh axes anything of the target is spread over: those a sum over devices runs over.
    """

    shardings: tuple[RowSharding, ...]
    axes: tuple[str, ...] = ()

    def dot(self, x: Position, y: Position) -> Float[Array, ""]:
        r"""Inner product $\sum_i x_i y_i$ over every element of every leaf on every device; equal on all devices."""
        totals: dict[tuple[str, ...], Array] = {}
        for sharding, a, b in zip(self.shardings, jax.tree.leaves(x), jax.tree.leaves(y), strict=True):
            part = jnp.sum(a * b)
            totals[sharding.axes] = totals[sharding.axes] + part if sharding.axes in totals else part
        parts = [lax.psum(total, axes) if axes else total for axes, total in totals.items()]
        return sum(parts[1:], start=parts[0]) if parts else jnp.zeros(())

    def norm(self, x: Position) -> Float[Array, ""]:
        """Euclidean norm over every device."""
        return jnp.sqrt(self.dot(x, x))

    def axpy(self, a: Float[Array, ""] | float, x: Position, y: Position) -> Position:
        """`a * x + y`, leaf by leaf."""
        return jax.tree.map(lambda x_leaf, y_leaf: a * x_leaf + y_leaf, x, y)

    def normal(self, key: Array, like: Position) -> Position:
        """Independent standard normals shaped like `like`: global leaves equal everywhere, spread ones different."""
        return self._random(standard_normals, key, like)

    def uniform(self, key: Array, like: Position, low: float, high: float) -> Position:
        """Independent uniforms on `(low, high)` shaped like `like`, spread out as `normal` is."""
        return self._random(lambda k, where, dtype: low + (high - low) * uniforms(k, where, dtype), key, like)

    def add_shares(self, value: Shared, gradient: Position) -> tuple[Shared, Position]:
        """Add the devices' shares of a log density and of its gradient, once.

        A global leaf's gradient is the sum over all devices; a spread leaf's needs only the devices that hold the
        same rows.
        """
        if not self.axes:
            return value, gradient
        leaves, treedef = jax.tree.flatten(gradient)
        replicated = [tuple(axis for axis in self.axes if axis not in sharding.axes) for sharding in self.shardings]
        value, summed = lax.psum(
            (value, [g for g, axes in zip(leaves, replicated, strict=True) if axes == self.axes]), self.axes
        )
        everywhere = iter(summed)
        added = [
            next(everywhere) if axes == self.axes else lax.psum(g, axes) if axes else g
            for g, axes in zip(leaves, replicated, strict=True)
        ]
        return value, treedef.unflatten(added)

    @property
    def is_sharded(self) -> bool:
        """Whether any leaf is spread over devices."""
        return any(sharding.axes for sharding in self.shardings)

    def coordinate_numbers(self, shapes: Sequence[tuple[int, ...]]) -> list[UInt32[Array, "_coordinates"]]:
        """Numbers of the coordinates of each leaf of this device, flat, counted through the whole position."""
        numbers, first = [], 0
        for sharding, shape in zip(self.shardings, shapes, strict=True):
            numbers.append(first + _coordinates(sharding, shape))
            first += (sharding.rows if sharding.axes else 1) * math.prod(shape[1:] if sharding.axes else shape)
        return numbers

    def _random(self, draw: Callable, key: Array, like: Position) -> Position:
        """Random numbers for every coordinate from one call: each is a function of the key and the coordinate's number.

        Coordinates are numbered through the whole position, so one draws the same number whichever device holds it and
        however many there are. One call for all leaves matters: a hash is most of what a small model compiles.
        """
        leaves, treedef = jax.tree.flatten(like)
        if not leaves:
            return like
        numbers = self.coordinate_numbers([leaf.shape for leaf in leaves])
        flat = draw(key, jnp.concatenate(numbers), jnp.result_type(*leaves))
        sizes = itertools.accumulate(leaf.size for leaf in leaves[:-1])
        values = [part.reshape(leaf.shape) for part, leaf in zip(jnp.split(flat, list(sizes)), leaves, strict=True)]
        # padded rows have no momentum, so they stay where they are
        return treedef.unflatten([sharding.keep_rows(v) for sharding, v in zip(self.shardings, values, strict=True)])


def replicated_space(position: Position) -> Space:
    """The space of positions like `position` on one device, or replicated on all."""
    return Space((GLOBAL,) * len(jax.tree.leaves(position)))


def _coordinates(sharding: RowSharding, shape: tuple[int, ...]) -> UInt32[Array, "coordinates"]:
    """Numbers of the coordinates of this device's part of a leaf, counted in the whole leaf."""
    if not sharding.axes:
        return jnp.arange(math.prod(shape), dtype=jnp.uint32)
    per_row = math.prod(shape[1:])
    rows = sharding.row_numbers().astype(jnp.uint32)[:, None]
    return (rows * per_row + jnp.arange(per_row, dtype=jnp.uint32)[None]).ravel()
