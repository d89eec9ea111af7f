"""All lanes of a device as the columns of one matrix: what a kernel that moves lanes one leapfrog at a time works on.

A lane is one chain. Coordinates run down and lanes across, so that elementwise work and sums over coordinates run
along the lanes, which a CPU vectorises, and so that a model of many variables costs no more passes than one of few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from phalanx.kernels.lanes_last import lanes_last
from phalanx.mesh.keys import as_key
from phalanx.mesh.random_numbers import Words, standard_normals_from, threefry
from phalanx.mesh.total import Total
from phalanx.mesh.workarounds import Workaround
from phalanx.programs.shares import Latent
from phalanx.programs.target import Density

if TYPE_CHECKING:
    from jaxtyping import Bool

Columns = tuple[Array, ...]
"""Coordinates of every lane, `(coordinates, lanes)`: one array for the global ones and, where variables are spread over
mesh axes, one for each set of axes."""

MANY_LANES = 64
"""From so many on, lanes are the last axis of everything a density computes: a few do not fill a CPU's vectors. Value
and gradient of 5,000 rows of a logistic regression took 3.3 times as long for 4 lanes, as long for 32, 0.6 for 64, and
0.3 for 256 (`benchmarks/lanes_last.py`)."""


@dataclass(frozen=True)
class Lanes:
    """A target for all lanes of a device at once. Use it inside `shard_map`.

    Attributes:
        density: the target on this device.
        count: lanes.
    """

    density: Density
    count: int

    @cached_property
    def latents(self) -> list[Latent]:
        """The latent variables in the order of their coordinates."""
        return sorted(self.density.shares.latents, key=lambda latent: latent.name)

    @cached_property
    def groups(self) -> list[tuple[str, ...]]:
        """Sets of mesh axes coordinates are spread over; the global coordinates, spread over none, come first."""
        return groups_of(self.latents)

    def flatten(self, position: Mapping[str, Array]) -> Columns:
        """Arrays `(..., *shape)` by variable as flat ones `(..., coordinates)`, by group."""
        first = self.latents[0]
        leading = position[first.name].shape[: position[first.name].ndim - len(first.unconstrained_shape)]
        nothing = jnp.zeros((*leading, 0), self.dtype)

        def together(group: tuple[str, ...]) -> Array:
            members = [position[v.name].reshape(*leading, _size(v)) for v in self.latents if v.sharding.axes == group]
            return jnp.concatenate(members or [nothing], -1)

        return tuple(map(together, self.groups))

    def unflatten(self, flat: Columns) -> dict[str, Array]:
        """The inverse of `flatten`."""
        position = {}
        for group, values in zip(self.groups, flat, strict=True):
            members = [latent for latent in self.latents if latent.sharding.axes == group]
            if not members:  # the global group, where all variables are spread
                continue
            ends = np.cumsum([_size(latent) for latent in members], dtype=int)
            parts = jnp.split(values, ends[:-1], axis=-1)
            for latent, part in zip(members, parts, strict=True):
                position[latent.name] = part.reshape(*part.shape[:-1], *latent.unconstrained_shape)
        return {latent.name: position[latent.name] for latent in self.latents}

    def value_and_grad(self, position: Columns) -> tuple[Total, Columns]:
        """Log density `(lanes,)` and its gradient; one sum over devices for all."""
        if self.count == 1:  # a batch of one turns a plain matrix product into a batched one, which is slower
            value, gradient = self.density.value_and_grad(self.unflatten(tuple(part[:, 0] for part in position)))
            return _one_lane(value), tuple(part[:, None] for part in self.flatten(gradient))

        def one(*parts: Array) -> tuple[Total, Columns]:
            value, gradient = self.density.value_and_grad(self.unflatten(parts))
            return value, self.flatten(gradient)

        return self._for_all(one)(*position)

    def estimate(self, position: Columns, key: Words) -> tuple[Total, Columns]:
        """The same from a few rows of each lane's own, drawn with its key; one sum over devices for all.

        Chains that saw the same rows would err alike, and no comparison of chains could tell. It has a price: rows are
        gathered for each lane, and lanes no longer share a product with the data.
        """
        assert self.density.estimate is not None
        rows = jax.vmap(self.density.estimate.minibatch.rows, out_axes=-1)(as_key(key))

        def one(rows: Array, *parts: Array) -> tuple[Total, Columns]:
            value, gradient = self.density.of_rows(rows).value_and_grad(self.unflatten(parts))
            return value, self.flatten(gradient)

        return self._for_all(one)(rows, *position)

    def value(self, position: Columns) -> Total:
        """Log density `(lanes,)`."""
        if self.count == 1:
            return _one_lane(self.density.total(self.unflatten(tuple(part[:, 0] for part in position))))
        return self._for_all(lambda *parts: self.density.total(self.unflatten(parts)))(*position)

    def _for_all(self, one: Callable[..., Any]) -> Callable[..., Any]:
        """A function of one lane for all, whose arguments and results have the lanes as their last axis.

        Accelerators have no such vectors, and their batched products are fast: there it is `vmap`, by reasoning and
        not by measurement.
        """
        on_cpu = jax.default_backend() == "cpu"
        if self.count >= MANY_LANES and on_cpu and Workaround.LANES_LAST.is_on:
            return lanes_last(one)
        every = jax.vmap(one, in_axes=-1, out_axes=-1)
        if on_cpu and Workaround.ROWS_OF_LANES.is_on:
            return lambda *parts: every(*(lax.optimization_barrier(part.T).T for part in parts))
        return every

    def words(self, key: Words, draw: Array) -> list[Words]:
        """Two random words for every coordinate of every lane, by group, given its key and the number of its draw."""
        key = (key[0][None], key[1][None])
        return [threefry(key, draw.astype(jnp.uint32)[None], numbers[:, None]) for numbers in self._numbers]

    def normals_of(self, words: Sequence[Words]) -> Columns:
        """Standard normals made of random words."""
        return tuple(
            standard_normals_from(pair, self.dtype) * mask for pair, mask in zip(words, self._masks, strict=True)
        )

    def normals(self, key: Words, number: int | Array = 0) -> Columns:
        """Independent standard normals for every coordinate of every lane, given a key for each lane.

        Those of one `number` are unrelated to those of another.
        """
        words = (key[0][None], key[1][None])
        high = jnp.asarray(number, jnp.uint32)
        return tuple(
            standard_normals_from(threefry(words, high, numbers[:, None]), self.dtype) * mask
            for numbers, mask in zip(self._numbers, self._masks, strict=True)
        )

    def inner_products(self, *pairs: tuple[Columns, Columns]) -> list[Array]:
        """x·y over coordinates and devices for each pair `(..., coordinates, lanes)`; one sum over devices for all."""
        totals: list[Array] = []
        for index, axes in enumerate(self.groups):
            parts = _sums_of_products([(x[index], y[index]) for x, y in pairs])
            parts = list(lax.psum(parts, axes)) if axes else parts
            totals = [a + b for a, b in zip(totals, parts, strict=True)] if totals else parts
        return totals

    @property
    def coordinates(self) -> int:
        """How many there are on all devices, those of padded rows apart."""
        return sum(
            _size(v) // v.sharding.local_rows * v.sharding.rows if v.sharding.axes else _size(v) for v in self.latents
        )

    @property
    def dtype(self) -> Any:
        """Type of the coordinates."""
        return jnp.result_type(*(latent.dtype for latent in self.latents))

    def count_coordinates(self) -> None:
        """Number the coordinates here: what is first computed inside of a branch or a loop is not known outside."""
        _ = self._numbers, self._masks

    @cached_property
    def _numbers(self) -> Columns:
        """Numbers of the coordinates, counted through the whole position."""
        shapes = [latent.unconstrained_shape for latent in self.latents]
        numbers = zip(self.latents, self.density.space.coordinate_numbers(shapes), strict=True)
        found = self.flatten({latent.name: value.reshape(latent.unconstrained_shape) for latent, value in numbers})
        return tuple(part.astype(jnp.uint32) for part in found)  # a group without coordinates has no type of its own

    @cached_property
    def _masks(self) -> list[Any]:
        """One for a coordinate, zero for one in a padded row, which has no momentum and stays where it is."""
        if not any(self.groups):
            return [1.0] * len(self.groups)
        ones = {v.name: v.sharding.keep_rows(jnp.ones(v.unconstrained_shape, self.dtype)) for v in self.latents}
        return [part[:, None] for part in self.flatten(ones)]


def choose(condition: Bool[Array, "lanes"], a: Any, b: Any) -> Any:
    """`a` in the lanes where `condition` holds, else `b`; their arrays have lanes last."""
    return jax.tree.map(lambda x, y: jnp.where(condition.reshape((1,) * (x.ndim - 1) + condition.shape), x, y), a, b)


def groups_of(latents: Sequence[Latent]) -> list[tuple[str, ...]]:
    """Sets of mesh axes the variables are spread over, each once, the empty one first."""
    return sorted({(), *(latent.sharding.axes for latent in latents)})


def group_sizes(latents: Sequence[Latent]) -> tuple[int, ...]:
    """Coordinates of each group on one device."""
    return tuple(sum(_size(v) for v in latents if v.sharding.axes == group) for group in groups_of(latents))


def _one_lane(total: Total) -> Total:
    return jax.tree.map(lambda part: part[None], total)


def _size(latent: Latent) -> int:
    return int(np.prod(latent.unconstrained_shape, dtype=int))


def _sums_of_products(pairs: Sequence[tuple[Array, Array]]) -> list[Array]:
    """Sums over the second to last dimension of x * y; those of one shape in one pass, which is twice as fast."""
    products = [x * y for x, y in pairs]
    sums: list[Any] = [None] * len(products)
    for shape in {product.shape for product in products}:
        where = [i for i, product in enumerate(products) if product.shape == shape]
        together = [products[i] for i in where]
        zeros = [np.zeros((), product.dtype) for product in together]
        found = lax.reduce(together, zeros, lambda a, b: [x + y for x, y in zip(a, b, strict=True)], (len(shape) - 2,))
        for i, value in zip(where, found, strict=True):
            sums[i] = value
    return sums
