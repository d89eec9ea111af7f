"""The target of all lanes of a device, as kernels see it: a log density, its gradient, lengths and random numbers.

It is written as if for one device. What must be added up over devices is added up in here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from phalanx.kernels.lanes import Lanes
from phalanx.kernels.vector import Vector
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.random_numbers import Words, threefry, uniforms_from
from phalanx.mesh.total import Total

if TYPE_CHECKING:
    from jaxtyping import Float

DECIDES = 0xFFFFFFFF
"""The number under which a lane's own uniforms are made; coordinates have lower ones."""

CHOOSES = 0xFFFFFFFE
"""The number under which the key is made that a lane chooses rows with."""

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class LaneTarget:
    """What a kernel may ask. Use it inside of the compiled block.

    Attributes:
        lanes: the lanes, and the target they move in.

    Keys are two words of 32 bits for each lane. Normals and uniforms of one key are unrelated to one another, and those
    of one `number` to those of any other.
    """

    lanes: Lanes

    @classmethod
    def of(cls, lanes: Lanes) -> LaneTarget:
        """The target of lanes."""
        lanes.count_coordinates()
        return cls(lanes)

    @property
    def count(self) -> int:
        """Lanes on this device."""
        return self.lanes.count

    @property
    def coordinates(self) -> int:
        """Coordinates of a position, over all devices."""
        return self.lanes.coordinates

    @property
    def dtype(self) -> Any:
        """Type of the coordinates."""
        return self.lanes.dtype

    def value_and_grad(self, position: Vector) -> tuple[Total, Vector]:
        """The log density `(lanes,)` and its gradient; one sum over devices for both."""
        value, gradient = self.lanes.value_and_grad(position.parts)
        return value, Vector(gradient)

    def estimate(self, position: Vector, key: Words, number: int | Array = 0) -> tuple[Total, Vector]:
        """Estimates of the log density `(lanes,)` and its gradient, right on average, from a batch of each lane's own.

        The kernel's `batch_size` says of how many rows. One sum over devices for both.
        """
        chooses = threefry(key, jnp.asarray(number, jnp.uint32), jnp.uint32(CHOOSES))
        value, gradient = self.lanes.estimate(position.parts, chooses)
        return value, Vector(gradient)

    def value(self, position: Vector) -> Total:
        """The log density `(lanes,)`."""
        return self.lanes.value(position.parts)

    def inner_product(self, x: Vector, y: Vector) -> Float[Array, "{self.count}"]:
        """The sum of x * y over coordinates and devices, `(lanes,)`."""
        return self.inner_products((x, y))[0]

    def inner_products(self, *pairs: tuple[Vector, Vector]) -> list[Float[Array, "*_levels {self.count}"]]:
        """`inner_product` of each pair; one sum over devices for all."""
        return self.lanes.inner_products(*((x.parts, y.parts) for x, y in pairs))

    def normal(self, key: Words, number: int | Array = 0) -> Vector:
        """Independent standard normals for every coordinate of every lane."""
        return Vector(self.lanes.normals(key, number))

    def uniform(self, key: Words, number: int = 0) -> Float[Array, "{self.count}"]:
        """A uniform on [0, 1) for each lane."""
        word, _ = threefry(key, jnp.uint32(number), jnp.uint32(DECIDES))
        return uniforms_from((word, jnp.zeros_like(word)), jnp.float32)

    def mean_over_chains(self, values: Tree) -> Tree:
        """The mean over all chains of all devices, whose arrays have one lane in place of all."""
        return jax.tree.map(lambda part: lax.pmean(part.mean(-1, keepdims=True), CHAIN), values)
