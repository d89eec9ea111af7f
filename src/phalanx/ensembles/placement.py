"""Where the members of an ensemble are: so many groups, in each a few members on every device.

Members that share a device are written out one after the other in one program, or batched by `vmap`. On a CPU they are
written out: a batch of convolutions is slower there than one after the other. An accelerator is filled by a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from phalanx.mesh.compatibility.jax_release import check_jax
from phalanx.mesh.compatibility.workarounds import Workaround
from phalanx.mesh.devices import CHAIN, make_mesh, use_every_core

WRITTEN_OUT = 8
"""Members of a device that are written out in one program at most: compiling takes longer with each."""

DATA = "data"
"""The axis over which the rows of a batch lie."""

MEMBERS = "members of the ensemble"
"""The axis of devices. It is not called `chain`: over that, networks would average by devices and not by members."""


@dataclass(frozen=True)
class Placement:
    """Members on devices.

    Attributes:
        count: members.
        mesh: the devices, along members and, for each member, along the rows of its batches.
        width: members of a device in one group.
    """

    count: int
    mesh: Mesh
    width: int

    @classmethod
    def of(cls, count: int, mesh: Mesh | None) -> Placement:
        """The placement of `count` members on the devices of a mesh, or on all: of a CPU a device for each core."""
        if mesh is None:
            use_every_core()  # where JAX has started with one device, that one's program has all cores
            mesh = make_mesh()
        if not isinstance(mesh, Mesh):
            raise TypeError(f"phx.ensemble: mesh must be one of phx.make_mesh's, got {type(mesh).__name__}.")
        check_jax(mesh.devices.flat[0].platform)
        chains, shards = (mesh.shape.get(axis, 1) for axis in (CHAIN, DATA))
        if mesh.size != chains * shards:
            raise ValueError(
                f"ensemble: members lie along the mesh's 'chain' axis and rows of batches along 'data', but the mesh "
                f"is {dict(mesh.shape)}. Use phx.make_mesh(data=...)."
            )
        devices = _chain_first(mesh).reshape(chains, shards)[: min(count, chains)]
        each = -(-count // len(devices))
        apart = devices[0, 0].platform == "cpu" and Workaround.MEMBERS_APART.is_on
        return cls(count, Mesh(devices, (MEMBERS, DATA)), 1 if apart else each)

    @property
    def devices(self) -> int:
        """How many there are along members."""
        return self.mesh.shape[MEMBERS]

    @property
    def shards(self) -> int:
        """Over how many devices the rows of a batch lie."""
        return self.mesh.shape[DATA]

    @property
    def groups(self) -> int:
        """Groups of members, each as many on every device; places of the last may be empty."""
        return -(-self.count // (self.devices * self.width))

    @property
    def bare(self) -> bool:
        """Whether a group is one member on one device: its arrays are the member's, without dimensions in front.

        They would cost a tenth of the time of a small network: what only reshapes still stands between operations.
        """
        return self.devices == self.width == 1

    @property
    def members(self) -> PartitionSpec:
        """How arrays of a group are laid out: members lie along the mesh."""
        return PartitionSpec() if self.bare else PartitionSpec(MEMBERS)

    def numbers(self, group: int) -> np.ndarray:
        """Numbers of a group's members, `(devices, width)`. Places beyond the last member repeat it."""
        size = self.devices * self.width
        numbers = np.arange(group * size, (group + 1) * size).reshape(self.devices, self.width)
        return np.minimum(numbers, self.count - 1)

    def runs(self) -> Iterator[slice]:
        """Groups that go through one program together: as many in each, or one less, so that few programs differ."""
        runs = -(-self.groups // WRITTEN_OUT)
        for run in range(runs):
            yield slice(run * self.groups // runs, (run + 1) * self.groups // runs)

    def in_turn(self, made: Any) -> Any:
        """What a run has made, waited for where runs sum over devices: under way at once they may wait for each other.

        They do not depend on each other, and a CPU's devices may begin them in different orders.
        """
        return jax.block_until_ready(made) if self.shards > 1 and self.groups > WRITTEN_OUT else made

    def take(self, groups: Sequence[Any], member: int) -> Any:
        """The arrays of one member, from those of the groups."""
        group, place = divmod(member, self.devices * self.width)
        if self.bare:
            return groups[group]
        return jax.tree.map(lambda leaf: leaf[divmod(place, self.width)], groups[group])

    def place(self, values: Any) -> Any:
        """Arrays of a group, `(devices, width, ...)` or bare, on their devices."""
        return jax.device_put(values, NamedSharding(self.mesh, self.members))

    def everywhere(self, values: Any) -> Any:
        """Arrays on every device."""
        return jax.device_put(values, NamedSharding(self.mesh, PartitionSpec()))

    def split(self, members: Any) -> list[Any]:
        """Arrays `(members, ...)` as those of the groups."""

        def of(group: int) -> Any:
            numbers = self.numbers(group)
            return jax.tree.map(lambda leaf: leaf[numbers[0, 0]] if self.bare else leaf[numbers], members)

        return [self.place(of(group)) for group in range(self.groups)]

    def join(self, groups: Sequence[Any]) -> Any:
        """The inverse of `split`, on the host."""

        def together(*leaves: Array) -> np.ndarray:
            parts = [np.asarray(leaf)[None, None] if self.bare else np.asarray(leaf) for leaf in leaves]
            size = self.devices * self.width
            return np.concatenate([part.reshape(size, *part.shape[2:]) for part in parts])[: self.count]

        return jax.tree.map(together, *groups)

    def each(self, f: Any, *mapped: Any) -> Any:
        """`f` of every member of a group, on one device; arrays of `mapped` are `(1, width, ...)`, or bare."""
        if self.bare:
            return jax.tree.map(_strong, f(*mapped))
        if self.width == 1:
            result = f(*jax.tree.map(lambda leaf: leaf[0, 0], mapped))
            return jax.tree.map(lambda leaf: _strong(leaf)[None, None], result)
        result = jax.vmap(f)(*jax.tree.map(lambda leaf: leaf[0], mapped))
        return jax.tree.map(lambda leaf: _strong(leaf)[None], result)

    def rows(self, batch: Any) -> Any:
        """A member's batch, its rows over the devices that work on it; as it is where they do not come out even.

        What follows is one program on all of the rows: the compiler adds up over devices.
        """
        if self.shards == 1:
            return batch
        over = NamedSharding(jax.sharding.get_abstract_mesh(), PartitionSpec(DATA))

        def spread(leaf: Array) -> Array:
            even = jnp.ndim(leaf) and leaf.shape[0] % self.shards == 0
            return jax.lax.with_sharding_constraint(leaf, over) if even else leaf

        return jax.tree.map(spread, batch)

    def on_mesh(self, f: Any, in_specs: Any, out_specs: Any, donate: tuple[int, ...] = ()) -> Any:
        """`f` for the members of every device, jitted."""
        mapped = jax.shard_map(
            f, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False,
            axis_names={MEMBERS} if self.shards > 1 else {MEMBERS, DATA},
        )  # fmt: skip
        # networks are whole on each of the devices that work on one: the compiler might leave them in parts
        places = jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), out_specs)
        return jax.jit(mapped, donate_argnums=donate, out_shardings=places)


def _chain_first(mesh: Mesh) -> np.ndarray:
    """The devices of a mesh, those of a chain together."""
    axes = sorted(range(len(mesh.axis_names)), key=lambda i: mesh.axis_names[i] != CHAIN)
    return mesh.devices.transpose(axes)


def _strong(leaf: Any) -> Array:
    """An array whose type is its own: of a Python number's it would change, and what is compiled with it, in a step."""
    array = jnp.asarray(leaf)
    return array.astype(array.dtype) if jax.typeof(array).weak_type else array
