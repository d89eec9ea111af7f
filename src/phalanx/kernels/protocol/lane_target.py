"""The target of all lanes of a device, as kernels see it: a log density, its gradient, lengths and random numbers.

It is written as if for one device. What must be added up over devices is added up in here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from phalanx.density.target import Density
from phalanx.jaxprs.lanes_last import lanes_last
from phalanx.mesh.compatibility.workarounds import Workaround
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.keys import as_key
from phalanx.mesh.position import ByVariable, Vector, VectorLayout, inner_products
from phalanx.mesh.random_numbers import Words, standard_normals_from, threefry, uniforms_from
from phalanx.mesh.total import Total

if TYPE_CHECKING:
    from jaxtyping import Float

DECIDES = 0xFFFFFFFF
"""The number under which a lane's own uniforms are made; coordinates have lower ones."""

CHOOSES = 0xFFFFFFFE
"""The number under which the key is made that a lane chooses rows with."""

MANY_LANES = 64
"""From so many on, lanes are the last axis of everything a density computes: a few do not fill a CPU's vectors. Value
and gradient of 5,000 rows of a logistic regression took 3.3 times as long for 4 lanes, as long for 32, 0.6 for 64, and
0.3 for 256 (`benchmarks/lanes_last.py`)."""

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class LaneTarget:
    """What a kernel may ask. Use it inside of the compiled block.

    Attributes:
        density: the target on this device.
        count: lanes on this device.

    Keys are two words of 32 bits for each lane. Normals and uniforms of one key are unrelated to one another, and those
    of one `number` to those of any other.
    """

    density: Density
    count: int

    @property
    def layout(self) -> VectorLayout:
        """Layout of a position."""
        return self.density.shares.layout

    @property
    def coordinates(self) -> int:
        """Coordinates of a position, over all devices, those of padded rows apart."""
        return self.layout.coordinates

    @property
    def dtype(self) -> Any:
        """Type of the coordinates."""
        return self.layout.dtype

    def value_and_grad(self, position: Vector) -> tuple[Total, Vector]:
        """The log density `(lanes,)` and its gradient; one sum over devices for both."""
        return self._of_all(lambda at: self._with_vector(self.density.value_and_grad(at)), position)

    def estimate(self, position: Vector, key: Words, number: int | Array = 0) -> tuple[Total, Vector]:
        """Estimates of the log density `(lanes,)` and its gradient, right on average, from a batch of each lane's own.

        The kernel's `batch_size` says of how many rows. One sum over devices for both. Chains that saw the same rows
        would err alike, and no comparison of chains could tell. It has a price: rows are gathered for each lane, and
        lanes no longer share a product with the data.
        """
        assert self.density.estimate is not None
        chooses = threefry(key, jnp.asarray(number, jnp.uint32), jnp.uint32(CHOOSES))
        rows = jax.vmap(self.density.estimate.minibatch.rows, out_axes=-1)(as_key(chooses))

        def one(rows: Array, *parts: Array) -> tuple[Total, Vector]:
            position = Vector(parts, self.layout).by_variable()
            return self._with_vector(self.density.of_rows(rows).value_and_grad(position))

        return self._vectorised(one)(rows, *position.parts)

    def value(self, position: Vector) -> Total:
        """The log density `(lanes,)`."""
        return self._of_all(self.density.total, position)

    def inner_product(self, x: Vector, y: Vector) -> Float[Array, "{self.count}"]:
        """The sum of x * y over coordinates and devices, `(lanes,)`."""
        return self.inner_products((x, y))[0]

    def inner_products(self, *pairs: tuple[Vector, Vector]) -> list[Float[Array, "*_levels {self.count}"]]:
        """`inner_product` of each pair; one sum over devices for all."""
        return inner_products(self.layout.groups, *pairs)

    def normal(self, key: Words, number: int | Array = 0) -> Vector:
        """Independent standard normals for every coordinate of every lane."""
        return self.normals_of(self.words(key, number))

    def words(self, key: Words, number: int | Array) -> list[Words]:
        """Two random words for every coordinate of every lane, by group, given its key; `number` may be the lane's."""
        key, high = (key[0][None], key[1][None]), jnp.asarray(number, jnp.uint32)[None]
        return [threefry(key, high, numbers[:, None]) for numbers in self._numbers.parts]

    def normals_of(self, words: Sequence[Words]) -> Vector:
        """Standard normals made of random words."""
        normals = tuple(standard_normals_from(pair, self.dtype) for pair in words)
        if self._real is None:
            return Vector(normals, self.layout)
        return Vector(tuple(x * real[:, None] for x, real in zip(normals, self._real.parts, strict=True)), self.layout)

    def uniform(self, key: Words, number: int = 0) -> Float[Array, "{self.count}"]:
        """A uniform on [0, 1) for each lane."""
        word, _ = threefry(key, jnp.uint32(number), jnp.uint32(DECIDES))
        return uniforms_from((word, jnp.zeros_like(word)), jnp.float32)

    def mean_over_chains(self, values: Tree) -> Tree:
        """The mean over all chains of all devices, whose arrays have one lane in place of all."""
        return jax.tree.map(lambda part: lax.pmean(part.mean(-1, keepdims=True), CHAIN), values)

    def count_coordinates(self) -> None:
        """Number the coordinates here: what is first computed inside of a branch or a loop is not known outside."""
        _ = self._numbers, self._real

    @cached_property
    def _numbers(self) -> Vector:
        return self.layout.numbers()

    @cached_property
    def _real(self) -> Vector | None:
        """Zero for coordinates in padded rows, else one; None where none are sharded."""
        return self.layout.real() if any(self.layout.groups) else None

    def _with_vector(self, found: tuple[Total, ByVariable]) -> tuple[Total, Vector]:
        return found[0], self.layout.vector(found[1])

    def _of_all(self, one: Callable[[ByVariable], Any], position: Vector) -> Any:
        """A function of one lane's position, of all."""

        def of_parts(*parts: Array) -> Any:
            return one(Vector(parts, self.layout).by_variable())

        if self.count == 1:  # a batch of one turns a plain matrix product into a batched one, which is slower
            return jax.tree.map(lambda leaf: leaf[..., None], of_parts(*(part[:, 0] for part in position.parts)))
        return self._vectorised(of_parts)(*position.parts)

    def _vectorised(self, one: Callable[..., Any]) -> Callable[..., Any]:
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
