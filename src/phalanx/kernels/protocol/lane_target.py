"""Target of all lanes of a device, as kernels see it: a log density, its gradient, inner products and random numbers.

Kernels use it as if there were one device; sums over devices are made in here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from phalanx.density.density import Density
from phalanx.jaxprs.lanes_last import lanes_last
from phalanx.mesh.compatibility.workarounds import Workaround
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.position import ByVariable, Vector, VectorLayout, inner_products
from phalanx.mesh.random_numbers import Bits, as_key, standard_normals_from, threefry, uniforms_from
from phalanx.mesh.specs import PyTree
from phalanx.mesh.total import Total

if TYPE_CHECKING:
    from jaxtyping import Float

DECISION_WORD = 0xFFFFFFFF
"""Counter of a lane's uniforms; those of coordinates are lower."""

CHOICE_WORD = 0xFFFFFFFE
"""Counter of the key with which a lane chooses rows."""

MANY_LANES = 64
"""Lanes from which on they are the last axis of everything that a density computes: fewer do not fill a CPU's vectors.
Value and gradient of 5,000 rows of a logistic regression took 3.3 times as long for 4 lanes, as long for 32, 0.6 for
64, and 0.3 for 256 (`benchmarks/lanes_last.py`)."""

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class LaneTarget:
    """Functions of the target that a kernel may call, inside the compiled block.

    Attributes:
        density: the target on this device.
        count: lanes on this device.
        per_lane_data: arrays of the data that differ by lane, by number, lanes last; see `phx.mcmc(each=)`.

    Keys are two words of 32 bits for each lane. Normals and uniforms of one key are independent, and so are random
    numbers of different values of `number`.
    """

    density: Density
    count: int
    per_lane_data: Mapping[int, Array] = field(default_factory=dict)

    @property
    def layout(self) -> VectorLayout:
        """Layout of a position."""
        return self.density.sites.layout

    @property
    def coordinates(self) -> int:
        """Coordinates of a position, over all devices, without those of padded rows."""
        return self.layout.coordinates

    @property
    def dtype(self) -> jnp.dtype:
        """Type of the coordinates."""
        return self.layout.dtype

    def value_and_grad(self, position: Vector) -> tuple[Total, Vector]:
        """Return the log density `(lanes,)` and its gradient, with one sum over devices for both."""
        return self._of_all(lambda density, at: self._with_vector(density.value_and_grad(at)), position)

    def estimate(self, position: Vector, key: Bits, number: int | Array = 0) -> tuple[Total, Vector]:
        """Return unbiased estimates of the log density `(lanes,)` and its gradient, from a batch of each lane's own.

        A batch has the kernel's `batch_size` rows; there is one sum over devices for both. Errors of chains that saw
        the same rows would be correlated, and no comparison of chains would reveal them. The price is that rows are
        gathered for each lane, and that lanes no longer share a product with the data.
        """
        assert self.density.minibatch is not None
        chooses = threefry(key, jnp.asarray(number, jnp.uint32), jnp.uint32(CHOICE_WORD))
        rows = jax.vmap(self.density.minibatch.rows, out_axes=-1)(as_key(chooses))

        def one(rows: Array, *parts: Array) -> tuple[Total, Vector]:
            position = Vector(parts, self.layout).by_variable()
            return self._with_vector(self.density.of_rows(rows).value_and_grad(position))

        return self._vectorised(one)(rows, *position.parts)

    def value(self, position: Vector) -> Total:
        """Return the log density `(lanes,)`."""
        return self._of_all(Density.total, position)

    def likelihood(self, position: Vector) -> Total:
        """Return the log likelihood `(lanes,)`, whatever the temperature."""
        return self._of_all(Density.likelihood, position)

    def inner_product(self, x: Vector, y: Vector) -> Float[Array, "{self.count}"]:
        """Return the sum of x * y over coordinates and devices, `(lanes,)`."""
        return self.inner_products((x, y))[0]

    def inner_products(self, *pairs: tuple[Vector, Vector]) -> list[Float[Array, "*_levels {self.count}"]]:
        """Return the `inner_product` of each pair, with one sum over devices for all."""
        return inner_products(self.layout.groups, *pairs)

    def normal(self, key: Bits, number: int | Array = 0) -> Vector:
        """Return independent standard normals for every coordinate of every lane."""
        return self.normals_of(self.bits(key, number))

    def bits(self, key: Bits, number: int | Array) -> list[Bits]:
        """Return two words of random bits for every coordinate of every lane, by group; `number` may differ by lane."""
        key = (key[0][None], key[1][None])
        high = jnp.asarray(number, jnp.uint32)[None]
        return [threefry(key, high, numbers[:, None]) for numbers in self._numbers.parts]

    def normals_of(self, bits: Sequence[Bits]) -> Vector:
        """Return standard normals made of random bits."""
        normals = tuple(standard_normals_from(pair, self.dtype) for pair in bits)
        if self._real is None:
            return Vector(normals, self.layout)
        return Vector(tuple(x * real[:, None] for x, real in zip(normals, self._real.parts, strict=True)), self.layout)

    def uniform(self, key: Bits, number: int = 0) -> Float[Array, "{self.count}"]:
        """Return a uniform on [0, 1) for each lane."""
        word, _ = threefry(key, jnp.uint32(number), jnp.uint32(DECISION_WORD))
        return uniforms_from((word, jnp.zeros_like(word)), jnp.float32)

    def mean_over_chains(self, values: Tree) -> Tree:
        """Return the mean over all chains of all devices, in arrays with a single lane, by one sum over devices."""
        return lax.pmean(jax.tree.map(lambda part: part.mean(-1, keepdims=True), values), CHAIN)

    def cache_coordinate_numbers(self) -> None:
        """Cache the numbers of the coordinates: call it before branches and loops, where cached tracers would leak."""
        _ = self._numbers, self._real

    @cached_property
    def _numbers(self) -> Vector:
        return self.layout.numbers()

    @cached_property
    def _real(self) -> Vector | None:
        """Zero for coordinates in padded rows, else one; None without sharded coordinates."""
        return self.layout.real() if any(self.layout.groups) else None

    @property
    def lane_data_first(self) -> dict[int, Array]:
        """The arrays of which each lane has its own, with lanes first."""
        return {number: jnp.moveaxis(array, -1, 0) for number, array in self.per_lane_data.items()}

    def _with_vector(self, total_and_gradient: tuple[Total, ByVariable]) -> tuple[Total, Vector]:
        return total_and_gradient[0], self.layout.vector(total_and_gradient[1])

    def _of_all(self, one: Callable[[Density, ByVariable], Any], position: Vector) -> PyTree:
        """Return a function of one lane's density and position, evaluated for all lanes."""
        count = len(position.parts)

        def of_parts(*parts: Array) -> PyTree:
            density = self.density.with_lane_data(dict(zip(self.per_lane_data, parts[count:], strict=True)))
            return one(density, Vector(parts[:count], self.layout).by_variable())

        parts = (*position.parts, *self.per_lane_data.values())
        if self.count == 1:  # a batch of one turns a plain matrix product into a batched one, which is slower
            return jax.tree.map(lambda leaf: leaf[..., None], of_parts(*(part[..., 0] for part in parts)))
        return self._vectorised(of_parts)(*parts)

    def _vectorised(self, one: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of one lane as one of all lanes, which are the last axis of its arguments and results.

        On accelerators it is `vmap`: their batched products are fast, and do not need lanes last to fill vectors (by
        reasoning, not by measurement).
        """
        on_cpu = jax.default_backend() == "cpu"
        if self.count >= MANY_LANES and on_cpu and Workaround.LANES_LAST.is_on:
            return lanes_last(one)
        every = jax.vmap(one, in_axes=-1, out_axes=-1)
        if on_cpu and Workaround.ROWS_OF_LANES.is_on:
            return lambda *parts: every(*(lax.optimization_barrier(part.T).T for part in parts))
        return every
