"""Placement of the members of an ensemble: groups of members, each with as many members on every device.

Members that share a device are unrolled one after the other in one program, or batched by `vmap`. On a CPU they are
unrolled: a batch of convolutions is slower there than one after the other. An accelerator needs a batch to be busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from phalanx.mesh.compatibility.jax_release import check_jax
from phalanx.mesh.compatibility.workarounds import Workaround
from phalanx.mesh.devices import CHAIN, make_mesh, use_every_core
from phalanx.mesh.processes import all_to_devices, to_host
from phalanx.mesh.specs import PyTree

if TYPE_CHECKING:
    from jaxtyping import Integer

WRITTEN_OUT = 8
"""Greatest number of members of a device that one program unrolls: each adds to the time of compiling."""

DATA = "data"
"""Axis over which the rows of a batch are sharded."""

MEMBERS = "members of the ensemble"
"""Axis of devices. It is not called `chain`: a network that averages over `chain` would average over devices."""


@dataclass(frozen=True)
class Placement:
    """Placement of members on devices.

    Attributes:
        count: number of members.
        mesh: the devices, along members and, for each member, along the rows of its batches.
        width: members of a device in one group.
    """

    count: int
    mesh: Mesh
    width: int

    @classmethod
    def of(cls, count: int, mesh: Mesh | None) -> Placement:
        """Return the placement of members on the devices of a mesh; None for all, on a CPU one for each core."""
        if mesh is None:
            use_every_core()  # no effect where JAX has started with one device, whose program then has all cores
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
        num_devices = min(count, chains)
        axes = sorted(range(len(mesh.axis_names)), key=lambda i: mesh.axis_names[i] != CHAIN)
        devices = mesh.devices.transpose(axes).reshape(chains, shards)[np.arange(num_devices) * chains // num_devices]
        _check_processes(devices, count)
        each = -(-count // len(devices))
        apart = devices[0, 0].platform == "cpu" and Workaround.MEMBERS_APART.is_on
        return cls(count, Mesh(devices, (MEMBERS, DATA)), 1 if apart else each)

    @property
    def devices(self) -> int:
        """Number of devices along members."""
        return self.mesh.shape[MEMBERS]

    @property
    def shards(self) -> int:
        """Number of devices over which the rows of a batch are sharded."""
        return self.mesh.shape[DATA]

    @property
    def groups(self) -> int:
        """Number of groups of members; the last may be filled up with copies of the last member."""
        return -(-self.count // (self.devices * self.width))

    @property
    def bare(self) -> bool:
        """True if a group is one member on one device: its arrays are the member's, without leading dimensions.

        Leading dimensions cost a tenth of the time of a small network: a reshape keeps XLA from fusing across it.
        """
        return self.devices == self.width == 1

    @property
    def members(self) -> PartitionSpec:
        """Partition spec of the arrays of a group."""
        return PartitionSpec() if self.bare else PartitionSpec(MEMBERS)

    def numbers(self, group: int) -> Integer[np.ndarray, "devices width"]:
        """Return the numbers of a group's members; places beyond the last member repeat it."""
        size = self.devices * self.width
        numbers = np.arange(group * size, (group + 1) * size).reshape(self.devices, self.width)
        return np.minimum(numbers, self.count - 1)

    def runs(self) -> Iterator[slice]:
        """Yield runs of groups that one program advances: of equal lengths or one less, so that few programs differ."""
        runs = -(-self.groups // WRITTEN_OUT)
        for run in range(runs):
            yield slice(run * self.groups // runs, (run + 1) * self.groups // runs)

    def in_turn(self, results: PyTree) -> PyTree:
        """Return the results of a run, after waiting for them where runs sum over devices.

        Runs are independent, so the devices of a CPU may begin them in different orders, and deadlock in their sums.
        """
        several = self.groups > WRITTEN_OUT or jax.process_count() > 1
        return jax.block_until_ready(results) if self.shards > 1 and several else results

    def take(self, groups: Sequence[PyTree], member: int) -> PyTree:
        """Return the arrays of one member, from those of the groups."""
        group, place = divmod(member, self.devices * self.width)
        if self.bare:
            return groups[group]
        return jax.tree.map(lambda leaf: leaf[divmod(place, self.width)], groups[group])

    def place(self, values: PyTree) -> PyTree:
        """Put arrays of a group, `(devices, width, ...)` or bare, on their devices."""
        return all_to_devices(values, NamedSharding(self.mesh, self.members))

    def everywhere(self, values: PyTree) -> PyTree:
        """Put arrays on every device."""
        return all_to_devices(values, NamedSharding(self.mesh, PartitionSpec()))

    def split(self, members: PyTree) -> list[PyTree]:
        """Return arrays `(members, ...)` as those of the groups, on their devices."""

        def of(group: int) -> PyTree:
            numbers = self.numbers(group)
            return jax.tree.map(lambda leaf: leaf[numbers[0, 0]] if self.bare else leaf[numbers], members)

        return [self.place(of(group)) for group in range(self.groups)]

    def join(self, groups: Sequence[PyTree]) -> PyTree:
        """Return the arrays of the groups as arrays `(members, ...)`, on the host."""

        def together(*leaves: Array) -> np.ndarray:
            parts = [to_host(leaf)[None, None] if self.bare else to_host(leaf) for leaf in leaves]
            size = self.devices * self.width
            return np.concatenate([part.reshape(size, *part.shape[2:]) for part in parts])[: self.count]

        return jax.tree.map(together, *groups)

    def each(self, f: Callable[..., Any], *arguments: PyTree) -> PyTree:
        """Return `f` of every member of a group on one device; arrays in `arguments` are `(1, width, ...)`, or bare."""
        if self.bare:
            return jax.tree.map(_strong, f(*arguments))
        if self.width == 1:
            result = f(*jax.tree.map(lambda leaf: leaf[0, 0], arguments))
            return jax.tree.map(lambda leaf: _strong(leaf)[None, None], result)
        result = jax.vmap(f)(*jax.tree.map(lambda leaf: leaf[0], arguments))
        return jax.tree.map(lambda leaf: _strong(leaf)[None], result)

    def rows(self, batch: PyTree) -> PyTree:
        """Shard the rows of a member's batch over its devices, where the number of devices divides theirs.

        The program that follows is one on all rows: XLA inserts the sums over devices.
        """
        if self.shards == 1:
            return batch
        over = NamedSharding(jax.sharding.get_abstract_mesh(), PartitionSpec(DATA))

        def sharded(leaf: Array) -> Array:
            even = jnp.ndim(leaf) and leaf.shape[0] % self.shards == 0
            return jax.lax.with_sharding_constraint(leaf, over) if even else leaf

        return jax.tree.map(sharded, batch)

    def on_mesh(
        self, f: Callable[..., Any], in_specs: PyTree, out_specs: PyTree, donate: tuple[int, ...] = ()
    ) -> Callable[..., Any]:
        """Return `f`, jitted, as a function of the members of all devices."""
        on_devices = jax.shard_map(
            f,
            mesh=self.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=False,
            axis_names={MEMBERS} if self.shards > 1 else {MEMBERS, DATA},
        )
        # states are replicated over the devices of one member: without this XLA might shard them
        layouts = jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), out_specs)
        return jax.jit(on_devices, donate_argnums=donate, out_shardings=layouts)


def _check_processes(devices: np.ndarray, count: int) -> None:
    """Raise if a process has no device of an ensemble: it could not take part in its steps."""
    processes = {device.process_index for device in devices.flat}
    members = f"{count} members leave" if count > 1 else "1 member leaves"
    if missing := sorted(set(range(jax.process_count())) - processes):
        raise ValueError(
            f"ensemble: {members} process {', '.join(map(str, missing))} without a member. Train at least "
            f"as many members as there are processes, or give the rows of batches to more devices: "
            f"phx.make_mesh(data=...)."
        )


def _strong(leaf: ArrayLike) -> Array:
    """Return an array without a weak type, which the first step would change, so that the second compiles again."""
    array = jnp.asarray(leaf)
    return array.astype(array.dtype) if jax.typeof(array).weak_type else array
