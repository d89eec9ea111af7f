"""One mesh axis: the moves between placements along it, and masks for rows that do not divide evenly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from phalanx.placements.placement import PARTIAL, REPLICATED, Placement, is_sharded

AxisName = str | tuple[str, ...]
"""A mesh axis, or several taken together."""

PerAxis = Mapping[Any, int]
"""A number for each axis; the keys are of type AxisName, some or all of them."""

BY_NUMBER = "rows by number"
"""Entry among the messages for rows that a device selects by their numbers, without sending any."""

Record = Callable[[str, AxisName, Array, int], None]
"""Function that gets each message: the collective, the mesh axis, this device's array and the number of copies sent."""


class MeshAxis:
    """A mesh axis of at least two devices, or several axes taken together.

    Args:
        name: its name on the mesh.
        size: its number of devices.
        record: gets each message.

    Attributes:
        is_in_loop: whether messages are sent in each turn of a loop: rows that a turn selects are gathered before it.
    """

    def __init__(self, name: AxisName, size: int, record: Record) -> None:
        self.name = name
        self.size = size
        self.is_in_loop = False
        self._record = record

    # -- rows ----------------------------------------------------------------------------------------------------------

    def rows(self, count: int) -> int:
        """Return the number of rows that each device has of `count`."""
        return -(-count // self.size)

    def is_ragged(self, count: int) -> bool:
        """Return whether some device has padded rows."""
        return count % self.size != 0

    def number(self) -> Array:
        """Return the number of this device along the axis."""
        return lax.axis_index(self.name)

    def row_numbers(self, shape: tuple[int, ...], dim: int, count: int) -> Array:
        """Return the number that each entry's row has among all `count` rows."""
        return self.number() * self.rows(count) + lax.broadcasted_iota(jnp.int32, shape, dim)

    def real_rows(self, count: int) -> Array | None:
        """Return a mask of this device's rows that are not padded; None if no device has padded rows."""
        return self.row_numbers((self.rows(count),), 0, count) < count if self.is_ragged(count) else None

    def mask(self, array: Array, dim: int, count: int, fill: Any = 0) -> Array:
        """Return this device's rows with `fill` in padded ones."""
        if not self.is_ragged(count):
            return array
        return jnp.where(self.row_numbers(array.shape, dim, count) < count, array, jnp.asarray(fill, array.dtype))

    def repeat_last(self, array: Array, dim: int, count: int) -> Array:
        """Return this device's rows with copies of the last real row in padded ones; sends one row at most."""
        if not self.is_ragged(count):
            return array
        rows = self.rows(count)
        position = count - 1 - self.number() * rows
        last = lax.dynamic_slice_in_dim(array, jnp.clip(position, 0, rows - 1), 1, dim)
        if (self.size - 1) * rows >= count:  # a device without real rows needs another's
            has_it = (position >= 0) & (position < rows)
            last = self.add(jnp.where(has_it, last, jnp.zeros((), array.dtype)))
        return jnp.where(self.row_numbers(array.shape, dim, count) < count, array, last)

    def pad(self, array: Array, dim: int, count: int) -> Array:
        """Return all rows, followed by copies of the last one up to a multiple of the number of devices."""
        missing = self.rows(count) * self.size - count
        if not missing:
            return array
        last = lax.slice_in_dim(array, count - 1, count, axis=dim)
        return jnp.concatenate([array, *[last] * missing], dim)

    def own_rows(self, array: Array, dim: int, count: int) -> Array:
        """Return this device's rows of an array that all devices have."""
        self.note_row_numbers(array)
        rows = self.rows(count)
        return lax.dynamic_slice_in_dim(self.pad(array, dim, count), self.number() * rows, rows, dim)

    def note_row_numbers(self, array: Array) -> None:
        """Record that a program selects rows by their numbers, which takes no communication.

        Minibatches need to know: row 0 of a batch is another one than row 0 of the data.
        """
        self._record(BY_NUMBER, self.name, array, 0)

    # -- messages ------------------------------------------------------------------------------------------------------

    def add(self, array: Array) -> Array:
        """Return the sum over devices."""
        self._record("all-reduce", self.name, array, 1)
        return lax.psum(array, self.name)

    def gather(self, array: Array, dim: int, count: int) -> Array:
        """Return the rows of all devices."""
        self._record("all-gather", self.name, array, self.size)
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            numbers = lax.all_gather(jax.random.key_data(array), self.name, axis=dim, tiled=True)
            everything = jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(array))
        else:
            everything = lax.all_gather(array, self.name, axis=dim, tiled=True)
        return lax.slice_in_dim(everything, 0, count, axis=dim)

    def stack(self, array: Array) -> Array:
        """Return the arrays of all devices, stacked along a new first dimension; for a few numbers per device."""
        self._record("all-gather", self.name, array, self.size)
        return lax.all_gather(array, self.name)

    def add_and_shard(self, array: Array, dim: int, count: int) -> Array:
        """Return this device's rows of the sum over devices."""
        self._record("reduce-scatter", self.name, array, 1)
        return lax.psum_scatter(self.pad(array, dim, count), self.name, scatter_dimension=dim, tiled=True)

    # -- moves ---------------------------------------------------------------------------------------------------------

    def only_first(self, array: Array) -> Array:
        """Return a replicated value as a partial sum: the first device has it, the others have zeros.

        Division by the number of devices would round integers.
        """
        return jnp.where(self.number() == 0, array, jnp.zeros((), array.dtype))

    def move(self, array: Array, placement: Placement, target: Placement, shape: tuple[int, ...]) -> Array:
        """Return a value with the placement `target`.

        Args:
            array: this device's array.
            placement: its placement along this axis.
            target: the placement of the result.
            shape: shape of the array before this axis divides it.
        """
        if placement == target:
            return array
        if is_sharded(placement):
            array = self.gather(array, placement, shape[placement])
        elif placement == PARTIAL and is_sharded(target):
            return self.add_and_shard(array, target, shape[target])
        elif placement == PARTIAL:
            return self.add(array)
        if is_sharded(target):
            return self.own_rows(array, target, shape[target])
        return array if target == REPLICATED else self.only_first(array)
