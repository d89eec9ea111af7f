"""Functions of a run that do not advance chains, such as `begin` and `constrain`, and the partition of their arguments.

Each is one `shard_map` over the mesh, compiled ahead of time unless few runs need it, such as `snapshot` and
`restore`. Data, seed, tuning and length are arguments, so that a new seed, new data of the same shape or another length
do not recompile. These programs do not call back to the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from phalanx.adaptation.metric import LowRankMetric
from phalanx.adaptation.tuner import Sums, VectorMoments
from phalanx.density.target import Target
from phalanx.kernels.protocol.adapter import KernelAdapter, Snapshot, lane_specs
from phalanx.kernels.protocol.kernel import Kernel, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.chains import HeldChains, lane_chains, over_lanes
from phalanx.mesh.compatibility.workarounds import Workaround
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.position import ByVariable, Vector, VectorLayout
from phalanx.mesh.random_numbers import INITIAL_POSITION, Keys, as_key, rolled_hashes
from phalanx.mesh.specs import PyTree
from phalanx.mesh.total import Total
from phalanx.programs.centring import CENTRING, Residuals, first_centring
from phalanx.programs.sites import Latent
from phalanx.programs.traced_program import TracedProgram
from phalanx.run.device.recorder import Recorder, RowLayout, Rows
from phalanx.run.device.sink import SinceKept
from phalanx.run.device.summing import Summing
from phalanx.run.find_finite_start import Given, climbed, finite_start, is_far

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped

BLOCK_BYTES = 4 * 2**20
"""Memory of a process's devices for the draws of a block; exceeded only if one draw of each chain takes more."""

BLOCK_DRAWS = 512
"""Maximal number of draws of each chain in a block."""

BATCH_ROWS = 256
"""Number of positions, over all chains, that one call of `Blocks.evaluated_at` evaluates; at least one per chain."""


# The fields of these records are Any, since they hold arrays, their shapes, or their partitions.


class InitResult(NamedTuple):
    """Chains at their initial positions, and the results of checks there.

    Attributes:
        chains: the `ChainState`.
        rows: positions and gradients, laid out as recorded draws, from which a metric learns; empty without a metric.
        sums: sums over them, as `Summing` makes them.
        finite: true for chains with a usable initial position.
        far: true for chains that must climb first: their log density is so large that rounding it would hold them.
        misfits: by variable, true for chains whose initial value is outside of the support.
        invalid: number of values outside of their support, by site and parameter.
    """

    chains: Any
    rows: Any
    sums: Any
    finite: Any
    far: Any
    misfits: Any
    invalid: Any


class AtPositions(NamedTuple):
    """Log density at positions, its gradient, and the residuals of partially centred variables by name."""

    log_density: Any
    gradient: Any
    residuals: Any


class ChainState(NamedTuple):
    """State of the chains between two blocks.

    Attributes:
        lanes: a `LaneState` on the devices, a `Snapshot` in a form that depends on no mesh.
        since: totals of each chain since its last kept draw.
    """

    lanes: Any
    since: Any


@dataclass(frozen=True)
class Blocks:
    """Functions that a run compiles into programs of all devices, such as `begin`, `constrain` and `snapshot`.

    It has no arrays: what a program computes with is passed in each call. The methods named `*_specs` return the
    partition of arguments and results over the mesh. `Advance` is the function that advances chains, and `Executables`
    are the compiled programs.

    Attributes:
        target: the model and the shapes of its data.
        kernel: the Markov kernel.
        num_chains: chains in all.
        names: variables to store.
        slots: maximal number of draws of a chain that one block records.
        groups: number of groups of chains, in the order of chains, each with its own data, seed, step size and metric;
            None if all chains have the same.
    """

    target: Target
    kernel: Kernel
    num_chains: int
    names: tuple[str, ...]
    slots: int
    groups: int | None = None

    @property
    def count(self) -> int:
        """Chains per device."""
        return self.num_chains // self.target.mesh.shape[CHAIN]

    @property
    def chains_of_group(self) -> int:
        """Chains of each group."""
        return self.num_chains // (self.groups or 1)

    @cached_property
    def held_chains(self) -> HeldChains:
        """The chains that each process holds."""
        return HeldChains.of(self.target.mesh, self.num_chains)

    @property
    def layout(self) -> VectorLayout:
        """Layout of positions."""
        return self.target.sites.layout

    @cached_property
    def adapter(self) -> KernelAdapter:
        """Adapter of the kernel's machine."""
        return KernelAdapter(self.kernel.machine)

    @cached_property
    def row_layout(self) -> RowLayout:
        """Layout of recorded draws."""
        parts = 2 if self.kernel.learns_moments else 1
        return RowLayout(self.layout, parts, (*self.kernel.statistics, "log_density"))

    @property
    def recorder(self) -> Recorder:
        """Sink that records draws."""
        one_by_one = self.on_cpu and Workaround.WRITTEN_ROWS.is_on
        return Recorder(self.slots, self.row_layout, one_by_one)

    @property
    def summing(self) -> Summing:
        """Sums of recorded draws."""
        return Summing(self.row_layout, self.groups and self.chains_of_group)

    @property
    def on_cpu(self) -> bool:
        """True if the devices are CPUs."""
        return self.target.mesh.devices.flat[0].platform == "cpu"

    # -- programs of a device -----------------------------------------------------------------------------------

    @rolled_hashes()
    def begin(self, seed: Array, arrays: Sequence[Array], start_values: Given) -> InitResult:
        """Search an initial position for every chain; `finite` says where the log density there is finite."""
        target = self.lanes(arrays)
        keys = self.keys(seed)

        def find(key: Array, values: PyTree, lane_data: dict[int, Array]) -> PyTree:
            uses_gradient = self.kernel.machine.uses_gradient
            return finite_start(
                target.density.with_lane_data(lane_data), uses_gradient, key, start_values._replace(values=values)
            )

        first = as_key(keys.of_draw(jnp.int32(INITIAL_POSITION)))
        at, finite, misfits = over_lanes(find, self.count)(first, start_values.values, target.lane_data_first)
        far = finite & is_far(at.log_density.value) & self.may_climb
        return InitResult(*self._started(target, at, keys), finite, far, misfits, self.invalid(target))

    @property
    def may_climb(self) -> bool:
        """True if chains may climb: a kernel without gradients cannot, and the start of a program is not changed."""
        return self.kernel.machine.uses_gradient and getattr(self.target.program, "start", None) is None

    @rolled_hashes()
    def climb(self, seed: Array, arrays: Sequence[Array], start_values: Given, result: InitResult) -> InitResult:
        """Return the result of `begin` after the chains that are far have climbed."""
        target = self.lanes(arrays)
        at = result.chains.lanes.at

        def climb(start: Point, far: Array, values: PyTree, lane_data: dict[int, Array]) -> Point:
            return climbed(target.density.with_lane_data(lane_data), start, far, start_values._replace(values=values))

        starts = Point(at.position.T, at.log_density, at.gradient.T)
        at = over_lanes(climb, self.count)(starts, result.far, start_values.values, target.lane_data_first)
        chains, rows, sums = self._started(target, at, self.keys(seed))
        return result._replace(chains=chains, rows=rows, sums=sums)

    def _started(self, target: LaneTarget, at: Point, keys: Keys) -> tuple[ChainState, Any, Any]:
        """Return chains at positions, and rows from which a metric learns, with their sums."""
        lanes = self.adapter.init(at, jnp.int32(INITIAL_POSITION + 1), keys, target)
        chains = ChainState(lanes, SinceKept.none(self.count))
        if not self.kernel.learns_moments:
            return chains, (), ()
        rows = self.recorder.first(lanes.at, target)
        with jax.enable_x64(True):
            return chains, rows, self.summing(rows, jnp.int32(0), jnp.int32(1))

    def contributions(self, arrays: Sequence[Array], chains: ChainState) -> dict[str, Float[Array, "lanes"]]:
        """Return each variable's terms of the log density at the chains' positions."""
        position = chains.lanes.at.position.T.by_variable()
        target = self.lanes(arrays)
        return over_lanes(target.density.contributions, self.count)(position)

    def log_density_at(self, arrays: Sequence[Array], position: Vector) -> Total:
        """Return the log density at one position for each chain, `(chain, coordinate)`."""
        return self.lanes(arrays).value(position.T)

    def evaluated_at(self, arrays: Sequence[Array], positions: Vector) -> AtPositions:
        """Return the log density, its gradient and residuals at positions for each chain, `(batch, chain, ...)`."""

        def one(position: Vector) -> AtPositions:
            target = self.lanes(arrays)
            log_density, gradient = target.value_and_grad(position.T)
            residuals = over_lanes(target.density.residuals, self.count)(position.by_variable())
            return AtPositions(log_density, gradient.T, residuals)

        return lax.map(one, positions)

    def constrain(self, arrays: Sequence[Array], rows: Rows) -> dict[str, Shaped[Array, "slots lanes *shape"]]:
        """Return the variables to store, given recorded draws; under `CENTRING` the log-Jacobian of the centring."""
        target = self.lanes(arrays)

        def one(u: ByVariable, lane_data: dict[int, Array]) -> dict[str, Array]:
            density = target.density.with_lane_data(lane_data)
            values = density.constrain(u)
            more = {CENTRING: density.centring_jacobian(u)} if self.is_centred else {}
            return {name: values[name] for name in self.names} | more

        position = self.row_layout.vector(rows, 0).by_variable()
        return jax.vmap(jax.vmap(one), (0, None))(position, target.lane_data_first)

    def snapshot(self, chains: ChainState) -> ChainState:
        """Return the chains at the starts of their current draws, in a form that depends on no mesh."""
        return chains._replace(lanes=self.adapter.snapshot(chains.lanes))

    def restore(self, seed: Array, arrays: Sequence[Array], chains: ChainState) -> ChainState:
        """Invert `snapshot`: return chains that make the same draws."""
        return chains._replace(lanes=self.adapter.restore(chains.lanes, self.keys(seed), self.lanes(arrays)))

    def lanes(self, arrays: Sequence[Array], chains: Int[Array, "lanes"] | None = None) -> LaneTarget:
        """Return the target for all lanes of this device, or for those with some of its chains."""
        count = self.count if chains is None else len(chains)
        lane_data = {}
        if self.target.per_lane_data:
            groups = self._groups_of(lane_chains(self.count) if chains is None else chains)
            lane_data = {number: jnp.moveaxis(arrays[number][groups], 0, -1) for number in self.target.per_lane_data}
        return LaneTarget(self.target.on_device(arrays, count), count, lane_data)

    def keys(self, seed: Array, chains: Int[Array, "lanes"] | None = None) -> Keys:
        """Return the keys of all lanes of this device, or of those with some of its chains.

        Those of a group are the keys of a run of the group alone with `seed` plus the group's number.
        """
        chains = lane_chains(self.count) if chains is None else chains
        if self.groups is None:
            return Keys.of_chains(seed, chains)
        numbers = (chains // self.chains_of_group).astype(jnp.uint32)
        return Keys.of_chains(jnp.asarray(seed, jnp.uint32) + numbers, chains % self.chains_of_group)

    def invalid(self, target: LaneTarget) -> dict[tuple[str, str], Int[Array, "*lanes"]]:
        """Return the number of values outside of their support, by site and parameter; of groups, for each lane."""
        if self.groups is None:
            return target.density.invalid()
        return jax.vmap(lambda lane_data: target.density.with_lane_data(lane_data).invalid())(target.lane_data_first)

    def of_lanes(self, tuning: PyTree, chains: Int[Array, "lanes"]) -> PyTree:
        """Return the tuning, or the step size `BlockArguments.later`, of the lanes with some chains of this device.

        A variance of the metric of groups becomes `(coordinates, lanes)`.
        """
        if self.groups is None:
            return tuning
        groups = self._groups_of(chains)

        def of_groups(leaf: Array) -> Array:
            return jnp.moveaxis(leaf[groups], 0, -1)

        if not hasattr(tuning, "_fields"):  # `BlockArguments.later`
            return of_groups(tuning)
        if (metric := getattr(tuning, "metric", None)) is not None:
            tuning = tuning._replace(metric=metric._replace(variance=jax.tree.map(of_groups, metric.variance)))
        return tuning._replace(step_size=of_groups(tuning.step_size))

    def _groups_of(self, chains: Int[Array, "lanes"]) -> Int[Array, "lanes"]:
        """Return the number on this device of each chain's group."""
        return chains // self.chains_of_group - lax.axis_index(CHAIN) * (self.count // self.chains_of_group)

    # -- partitions over the mesh -----------------------------------------------------------------------------

    def on_mesh(self, f: Callable[..., Any], in_specs: PyTree, out_specs: PyTree) -> Callable[..., Any]:
        """Return `f` as a function that runs on every device.

        `check_vma` is off: ordinary models raise errors under it. Gradients are correct nevertheless, since no
        collective is differentiated: the rules of placement are applied to the traced gradient.
        """
        return jax.shard_map(f, mesh=self.target.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    def jit(self, f: Callable[..., Any], in_specs: PyTree, out_specs: PyTree, donate: tuple[int, ...] = ()) -> Any:
        """Return `f` as a program of all devices, of arguments and results that are partitioned so."""
        # explicit shardings: the compiler would otherwise drop those of arrays without elements
        in_shardings, out_shardings = (shardings(self.target.mesh, specs) for specs in (in_specs, out_specs))
        on_mesh = self.on_mesh(f, in_specs, out_specs)
        return jax.jit(on_mesh, in_shardings=in_shardings, out_shardings=out_shardings, donate_argnums=donate)

    def init_specs(self) -> InitResult:
        """Return the partition of chains at their initial positions."""
        chains = PartitionSpec(CHAIN)
        learns = self.kernel.learns_moments
        rows = self.recorder.specs if learns else ()
        sums = self.summing.specs if learns else ()
        return InitResult(self.chain_specs(), rows, sums, chains, chains, chains, self.group_spec)

    def given_specs(self) -> Given:
        """Return the partition of initial values."""
        return Given(self.target.position_specs(CHAIN), PartitionSpec())

    def given_shapes(self) -> Given:
        """Return the shapes of initial values on all devices."""
        sizes = self.target.mesh.shape

        def shape(latent: Latent) -> jax.ShapeDtypeStruct:
            rows = math.prod(sizes[axis] for axis in latent.sharding.axes)
            local = (latent.shape[0] * rows, *latent.shape[1:]) if latent.sharding.axes else latent.shape
            return jax.ShapeDtypeStruct((self.num_chains, *local), latent.dtype)

        values = {latent.name: shape(latent) for latent in self.target.sites.latents}
        return Given(values, dict.fromkeys(values, jax.ShapeDtypeStruct((), bool)))

    def snapshot_specs(self) -> ChainState:
        """Return the partition of the result of `snapshot`."""
        return ChainState(self.layout.chain_specs(self.snapshot_shapes), PartitionSpec(CHAIN))

    def chain_specs(self) -> ChainState:
        """Return the partition of the chains' state."""
        return ChainState(lane_specs(self._lane_state), PartitionSpec(CHAIN))

    def value_specs(self) -> dict[str, PartitionSpec]:
        """Return the partition of stored variables, `(slot, chain, ...)`."""
        more = {CENTRING: PartitionSpec(None, CHAIN)} if self.is_centred else {}
        return {name: self.target.sharding(name).spec(None, CHAIN) for name in self.names} | more

    @property
    def is_centred(self) -> bool:
        """True if the program has partially centred variables."""
        return bool(first_centring(self.target.program))

    def batch_specs(self) -> Vector:
        """Return the partition of the positions that `evaluated_at` takes."""
        return Vector(self.layout.specs(None, CHAIN), self.layout)

    def batch_shapes(self) -> Vector:
        """Return the shapes of the positions that `evaluated_at` takes, on all devices: some for each chain."""
        batch = max(1, BATCH_ROWS // self.num_chains)
        of_groups = self.layout.whole_lengths
        shapes = (jax.ShapeDtypeStruct((batch, self.num_chains, size), self.layout.dtype) for size in of_groups)
        return Vector(tuple(shapes), self.layout)

    def evaluated_specs(self) -> AtPositions:
        """Return the partition of the result of `evaluated_at`."""
        names = first_centring(self.target.program)
        by_name = {name: Residuals(*[self.target.sharding(name).spec(None, CHAIN)] * 3) for name in names}
        return AtPositions(PartitionSpec(None, CHAIN), self.batch_specs(), by_name)

    def tuning_specs(self, tuning: PyTree) -> PyTree:
        """Return the partition of a tuning: a metric is sharded as positions are, all else is replicated.

        The step size and the variances of a metric of groups are sharded as the groups are.
        """

        def is_metric(node: object) -> bool:
            return isinstance(node, LowRankMetric)

        def specs_of(node: PyTree) -> PyTree:
            if not is_metric(node):
                return PartitionSpec()
            if self.groups is None:
                return LowRankMetric.specs(self.layout)
            metric_specs = jax.tree.map(lambda _: PartitionSpec(), node)
            return metric_specs._replace(variance=tuple(PartitionSpec(CHAIN, None) for _ in node.variance))

        specs = jax.tree.map(specs_of, tuning, is_leaf=is_metric)
        return specs if self.groups is None or is_metric(tuning) else specs._replace(step_size=self.group_spec)

    def no_sums(self) -> Sums:
        """Return sums over no draws; of groups, with an entry for each."""
        sizes = self.layout.whole_lengths
        groups = self.groups
        if groups is None:
            return Sums.nothing(sizes)
        none = tuple(
            VectorMoments(np.zeros(groups, int), np.zeros((groups, size)), np.zeros((groups, size))) for size in sizes
        )
        return Sums(np.zeros(groups, int), {}, np.zeros(groups), none, none)

    @property
    def group_spec(self) -> PartitionSpec:
        """Partition of numbers of which each group has its own; replicated if all chains have the same."""
        return PartitionSpec() if self.groups is None else PartitionSpec(CHAIN)

    @cached_property
    def _lane_state(self) -> PyTree:
        """Shapes of the state of a device's lanes; found without tracing the log density."""

        def start(arrays: Sequence[Array]) -> PyTree:
            zeros = self.layout.zeros(self.count)
            height = jnp.zeros(self.count, jnp.result_type(*zeros.values()))
            gradient = self.layout.vector(zeros if self.kernel.machine.uses_gradient else {})
            at = Point(self.layout.vector(zeros), Total(height, height), gradient)
            keys = self.keys(jnp.uint32(0))
            return self.adapter.init(at, jnp.int32(INITIAL_POSITION + 1), keys, self.lanes(arrays))

        return self._on_device(start, self.target.local_shapes())

    @cached_property
    def snapshot_shapes(self) -> Snapshot:
        """Shapes of the result of `snapshot` on one device."""
        return self._on_device(self.adapter.snapshot, self._lane_state)

    def _on_device(self, f: Callable[..., Any], *arguments: PyTree) -> PyTree:
        """Return the shapes of the results of `f` on a device."""
        axis_env = list(self.target.mesh.shape.items())
        return jax.make_jaxpr(f, axis_env=axis_env, return_shape=True)(*arguments)[1]


def shardings(mesh: Mesh, specs: PyTree) -> PyTree:
    """Return partitions as shardings over a mesh."""
    return jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=lambda s: isinstance(s, PartitionSpec))


def planned(target: Target, kernel: Kernel, num_chains: int, names: tuple[str, ...], whole: TracedProgram) -> Blocks:
    """Return the blocks of a run, with as many slots as fit into `BLOCK_BYTES`."""
    target = target.without_arrays()  # cached blocks would keep the data in memory
    one = Blocks(target, kernel, num_chains, names, slots=1)
    num_elements = {v.name: math.prod(v.shape) for v in target.sites.latents}  # elements on one device
    for name, value in whole.deterministic.items():
        rows = target.sharding(name)
        num_elements[name] = (
            math.prod(value.shape) * rows.local_rows // rows.rows if rows.axes else math.prod(value.shape)
        )
    width = sum(one.row_layout.widths) + sum(num_elements[name] for name in names)
    return replace(one, slots=max(1, min(BLOCK_DRAWS, BLOCK_BYTES // (4 * one.held_chains.most * width))))
