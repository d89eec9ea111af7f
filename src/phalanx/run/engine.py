"""Engine of a run: advances the state by one block with compiled programs.

It changes only its caches, and the current centring, which is among its arrays.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from phalanx.adaptation.metric import LowRankMetric
from phalanx.adaptation.tuner import Sums
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.forks import refuse_fork
from phalanx.mesh.position import Vector
from phalanx.mesh.processes import all_to_devices, to_devices, to_host
from phalanx.mesh.specs import PyTree
from phalanx.programs.centring import Centrings, first_centring, place_centring, recentred
from phalanx.run.checks import check_beginning
from phalanx.run.device.advance import BlockArguments, SinkState
from phalanx.run.device.blocks import AtPositions, ChainState, InitResult, shardings
from phalanx.run.device.executables import Executables, block_argument_specs, block_arguments
from phalanx.run.device.rounds import RoundArguments
from phalanx.run.host.recorded import rows_by_variable, rows_of
from phalanx.run.host.reducer_state import HostReducers
from phalanx.run.host.unshard import reshard, unshard
from phalanx.run.init_values import Initial
from phalanx.run.one_device_check import check_on_one_device
from phalanx.run.phases.phase import BlockGoal
from phalanx.run.state import Reduced, RunState

if TYPE_CHECKING:
    from jaxtyping import Integer


class Engine:
    """Compiled programs, and the data and seed of a run on the devices.

    Args:
        executables: the compiled blocks.
        seed: seed of the run.
        arrays: the data on the devices.
    """

    def __init__(self, executables: Executables, seed: int, arrays: tuple[Array, ...]):
        self.executables = executables
        self.blocks = executables.blocks
        self.seed = np.uint32(seed)
        self.arrays = arrays
        self.centring = first_centring(self.blocks.target.program)
        """Centring of the partially centred variables, which is among the arrays; see `programs.centring`."""
        self.failed: dict[int, str] = {}
        """Reasons for which groups of chains cannot start, by number; such a group runs on the data of another one."""
        self._device_seed = to_devices(self.seed, shardings(executables.blocks.target.mesh, PartitionSpec()))
        self._tuning: Any = None
        """The tuning that was placed last; `_device_tuning` is the same on the devices."""
        self._device_tuning: Any = None
        self._metric: tuple[Any, Any] = None, None
        """The metric that was placed last, on the host and on the devices."""

    # -- initial positions, and chains of a state --------------------------------------------------------------------

    def begin(self, initial: Initial) -> tuple[ChainState, Sums]:
        """Return chains at their initial positions, and sums over the positions and their gradients."""
        result = self.executables.start(self.seed, self.arrays, initial)
        initial.check(result.misfits)
        if self.blocks.groups is None:
            check_beginning(self.blocks, result, self.arrays, tuple(initial.values))
        elif failures := self._failed_groups(result):
            self.failed, self.arrays = failures, self._without_groups(failures)
            result = self.executables.start(self.seed, self.arrays, initial)
        if self.blocks.target.sites.is_divided:
            at = result.chains.lanes.at
            self.executables.once("one device", lambda: check_on_one_device(self.blocks.target, self.arrays, at))
        has_sums = self.blocks.kernel.learns_moments
        if not initial.superchains:
            return result.chains, self.blocks.summing.fetched(result.sums) if has_sums else self.blocks.no_sums()
        leaders = initial.leaders(self.blocks.num_chains)
        rows = tuple(_take_entries(part, leaders, 1) for part in result.rows)
        chains = self.put_beside(result.chains, leaders)
        return chains, self.executables.summed_start(rows) if has_sums else self.blocks.no_sums()

    def _failed_groups(self, result: InitResult) -> dict[int, str]:
        """Return why groups cannot start, by number."""
        assert self.blocks.groups is not None
        by_group = self.blocks.groups, self.blocks.chains_of_group
        bad = ~to_host(result.finite).reshape(by_group).all(1)
        reasons = {
            int(number): "the log density, or its gradient, is not finite at the start"
            for number in np.flatnonzero(bad)
        }
        for (name, parameter), counts in result.invalid.items():
            failures = to_host(counts).reshape(by_group)[:, 0]
            what = f"the parameter {parameter!r} of {name!r}" if parameter else f"a value of {name!r}"
            reasons |= {int(number): f"{what} is not valid" for number in np.flatnonzero(failures)}
        return reasons

    def _without_groups(self, failures: dict[int, str]) -> tuple[Array, ...]:
        """Return the arrays, where groups that failed have those of one that did not."""
        target = self.blocks.target
        groups = self.blocks.groups
        assert groups is not None
        source = np.arange(groups)
        good = np.setdiff1d(source, list(failures))
        if not len(good):
            raise ValueError(
                f"each: none of the {groups:,} data sets can be sampled; of the first, {failures[0]}. Run phx.mcmc on "
                f"it alone to see more."
            )
        source[list(failures)] = good[0]
        take = jax.jit(lambda array: array[source])
        return tuple(
            jax.device_put(take(array), array.sharding) if number in target.per_lane_data else array
            for number, array in enumerate(self.arrays)
        )

    def put_beside(self, chains: ChainState, sources: Integer[np.ndarray, "chains"]) -> ChainState:
        """Return chains at rest, each at the position of the chain that `sources` names."""
        at = jax.tree.map(lambda leaf: _take_entries(leaf, sources, -1), chains.lanes.at)
        return chains._replace(lanes=chains.lanes._replace(at=at))

    # -- partially centred variables -----------------------------------------------------------------------------------

    def arrays_with(self, centring: Centrings) -> tuple[Array, ...]:
        """Return the data with another centring."""
        return place_centring(self.blocks.target.arguments, self.arrays, centring, self.blocks.target.mesh)

    def use_centring(self, centring: Centrings) -> None:
        """Use another centring from here on, for positions that belong to it; keep the present one if it is empty."""
        if centring:
            self.arrays = self.arrays_with(centring)
            self.centring = centring

    def evaluated_at(self, arrays: tuple[Array, ...], position: Vector) -> AtPositions:
        """Return the log density, its gradient and residuals at host positions `(position, coordinate)`, by batches."""
        count, (batch, num_chains, _) = len(position.parts[0]), self.blocks.batch_shapes().parts[0].shape
        rows = batch * num_chains
        densities = []
        for first in range(0, count, rows):
            rows_of_batch = np.minimum(np.arange(first, first + rows), count - 1)
            part = jax.tree.map(lambda x, at=rows_of_batch: x[at].reshape(batch, num_chains, -1), position)
            densities.append(self.executables.evaluated_at(arrays, part))
        log_density, gradient, residuals = jax.tree.map(
            lambda *parts: np.concatenate([part.reshape(rows, *part.shape[2:]) for part in parts])[:count], *densities
        )
        target = self.blocks.target
        trimmed = {
            name: jax.tree.map(lambda values, of=name: target.trim(of, values, 1), of_group)
            for name, of_group in residuals.items()
        }
        return AtPositions(log_density, gradient, trimmed)

    def recentred(self, chains: ChainState, centring: Centrings) -> ChainState:
        """Return chains at rest at the same values, in positions of another centring, which is used from here on."""
        layout = self.blocks.layout
        snapshot = layout.fetched(self.executables.snapshot(chains))
        at = snapshot.lanes.at
        evaluation = self.evaluated_at(self.arrays, layout.of_whole(at.position, zero=True))
        new_position = {**at.position, **recentred(evaluation.residuals, centring, layout.dtype)}
        self.use_centring(centring)
        there = self.evaluated_at(self.arrays, layout.of_whole(new_position, zero=True))
        at = at._replace(position=new_position, log_density=there.log_density, gradient=there.gradient.by_variable())
        snapshot = snapshot._replace(lanes=snapshot.lanes._replace(at=at))
        return self.executables.restore(
            self._device_seed, self.arrays, layout.placed(snapshot, self.blocks.target.mesh)
        )

    # -- moving ------------------------------------------------------------------------------------------------------

    def advance(self, state: RunState, goal: BlockGoal, accumulates: bool) -> RunState:
        """Return the state after a block, with its draws in the sinks.

        The block overwrites the arrays of `state`.

        Args:
            state: state of the run.
            goal: draws of each chain and the maximal number of ticks.
            accumulates: true to reduce draws on the devices, false to record them.
        """
        ticks = int(min(self.executables.block_length.ticks, goal.ticks))
        later = state.tuning if goal.later is None else goal.later
        host_arguments = block_arguments(goal.draws, ticks, _thin(state), ahead=goal.ahead, later=later)
        tuning = state.tuning if goal.tuning is None else goal.tuning
        state, ticks = self._run_block(state, host_arguments, accumulates, tuning, goal.rounds)
        if state.in_warm_up:
            return state._replace(warmup=state.warmup.more(ticks))
        return state._replace(sampling=state.sampling.more(ticks))

    def rested(self, state: RunState, accumulates: bool) -> RunState:
        """Return the state after a tick without active lanes, which leaves all positions.

        So random words and kinetic energies of chains at rest are, to the last bit, those of the program that makes the
        draws; the programs that place chains may round differently. Kernels that make whole draws do not need it.
        """
        if self.blocks.kernel.machine.makes_whole_draws:
            return state
        host_arguments = block_arguments(
            np.zeros(self.blocks.num_chains), 1, _thin(state), later=state.tuning, at_least_one=True
        )
        rested, _ = self._run_block(state._replace(sinks=None), host_arguments, accumulates, state.tuning)
        return rested._replace(sinks=state.sinks, warming=state.warming)

    def _run_block(
        self,
        state: RunState,
        host_arguments: BlockArguments,
        accumulates: bool,
        tuning: PyTree,
        rounds: RoundArguments | None = None,
    ) -> tuple[RunState, int]:
        began = time.perf_counter()
        constants = self.executables.device_constants
        sinks = self._without_draws(accumulates, state.reduced.draws) if state.sinks is None else state.sinks
        device_arguments = BlockArguments(*map(constants.array, host_arguments, block_argument_specs(self.blocks)))
        arguments = self._device_seed, self.arrays, self._placed_tuning(tuning), device_arguments
        advanced: Any
        if accumulates:
            assert self.executables.accumulate is not None
            advanced = self.executables.accumulate(*arguments, state.chains, sinks)
        else:
            assert self.executables.record is not None
            rounds = self.executables.rounds.no_rounds() if rounds is None else rounds
            device_rounds = RoundArguments(*(constants.array(number, PartitionSpec()) for number in rounds))
            advanced = self.executables.record(*arguments, device_rounds, state.chains, sinks)
            if state.warming is not None:
                state = state._replace(warming=state.warming._replace(result=advanced.rounds))
        state.stored.settle()  # while the devices make the block
        ticks = int(to_host(advanced.ticks).max())  # waits for the block to end
        self.executables.block_length.learn(ticks, time.perf_counter() - began)
        return state._replace(chains=advanced.chains, sinks=advanced.sinks), ticks

    def _without_draws(self, accumulates: bool, before: int) -> SinkState:
        """Return empty sinks, given the number of draws of each chain that were reduced before."""
        program = self.executables.empty if accumulates else self.executables.no_records
        assert program is not None
        counts = np.full(self.blocks.num_chains, before if accumulates else 0, np.int32)
        return program(self.arrays, self.executables.device_constants.array(counts, PartitionSpec(CHAIN)))

    def _placed_tuning(self, tuning: PyTree) -> PyTree:
        """Return a tuning on the devices; a metric that was placed before is not copied again."""
        if tuning is self._tuning:
            return self._device_tuning
        self._tuning = tuning
        metric = getattr(tuning, "metric", None)
        if isinstance(metric, LowRankMetric):
            if metric is not self._metric[0]:
                layout = shardings(self.blocks.target.mesh, self.blocks.tuning_specs(metric))
                self._metric = metric, all_to_devices(metric, layout)
            tuning = tuning._replace(metric=self._metric[1])
        tuning = jax.tree.map(lambda leaf: leaf if isinstance(leaf, Array) else np.asarray(leaf), tuning)
        self._device_tuning = jax.tree.map(self.executables.device_constants, tuning, self.blocks.tuning_specs(tuning))
        return self._device_tuning

    def reduced(self, state: RunState, draws: int) -> Reduced:
        """Return the reducers' states after the first `draws` recorded draws of each chain in the sinks."""
        reduce = self.executables.reduce
        reduced_state = state.reduced
        assert reduce is not None and state.sinks is not None
        count, before = (
            self.executables.device_constants.array(
                np.full(self.blocks.num_chains, number, np.int32), PartitionSpec(CHAIN)
            )
            for number in (draws, reduced_state.draws)
        )
        states = jax.tree.map(to_host, reduce(self.arrays, *state.sinks.states, count, before))
        merged_state = HostReducers.of(self.executables.reducing).with_states(reduced_state, states)
        return merged_state._replace(draws=reduced_state.draws + draws)

    # -- states that depend on no mesh -------------------------------------------------------------------------------

    def fetched(self, state: RunState) -> RunState:
        """Return the state as arrays by variable on the host, without sharding or padded rows.

        Every process gets all chains, and of stored draws only the surplus, those that some chains do not have yet.
        """
        refuse_fork()
        layout = self.blocks.layout
        warming = state.warming
        sinks = state.sinks
        if warming is not None:
            warming = warming._replace(window=warming.window.fetched(self.blocks.row_layout))
        if sinks is not None:
            accumulates = len(sinks.states) > 1
            sinks = self._fetched_reducers(sinks) if accumulates else rows_by_variable(sinks, self.blocks.row_layout)
        return state._replace(
            chains=layout.fetched(self.executables.snapshot(state.chains)),
            tuning=unshard(state.tuning, layout),
            warming=unshard(warming, layout),
            sinks=sinks,
            stored=state.stored.surplus.gathered(self.blocks.held_chains),
            warmed=None if state.warmed is None else state.warmed.without_room.gathered(self.blocks.held_chains),
            settling=None if state.settling is None else state.settling.gathered(self.blocks.held_chains),
        )

    def placed(self, state: RunState) -> RunState:
        """Return a fetched state on this run's devices, which may differ in number.

        The caller has restricted `state.stored` to the chains that this process holds.
        """
        layout = self.blocks.layout
        mesh = self.blocks.target.mesh
        sinks = state.sinks
        reduced_state = state.reduced
        chains = self.executables.restore(self._device_seed, self.arrays, layout.placed(state.chains, mesh))
        if sinks is not None:
            if len(sinks.states) > 1:
                sinks, reduced_state = self._placed_reducers(sinks, reduced_state)
            else:
                sinks = rows_of(sinks, self.blocks.row_layout, self.blocks.slots)
                specs = SinkState(PartitionSpec(CHAIN), (self.blocks.recorder.specs,))
                sinks = jax.tree.map(to_devices, sinks, shardings(mesh, specs))
        warmed, settling = (
            None if one is None else one.part(self.blocks.held_chains) for one in (state.warmed, state.settling)
        )
        return state._replace(
            chains=chains,
            tuning=reshard(state.tuning, layout),
            warming=reshard(state.warming, layout),
            sinks=sinks,
            reduced=reduced_state,
            warmed=warmed,
            settling=settling,
        )

    def _fetched_reducers(self, sinks: SinkState) -> SinkState:
        counts, states = sinks.states
        states = jax.tree.map(
            lambda placement, leaf: placement.trim(to_host(leaf)), self.executables.reducing.placements, states
        )
        return SinkState(to_host(sinks.count), (jax.tree.map(to_host, counts), states))

    def _placed_reducers(self, sinks: SinkState, reduced_state: Reduced) -> tuple[SinkState, Reduced]:
        """Return the sinks on the devices and the reducers' states on the host.

        States with one entry per device cannot be placed on another number of devices: they are merged on the host.
        """
        mesh = self.blocks.target.mesh
        placements = self.executables.reducing.placements
        (counts, states), layout = sinks.states, self.blocks.layout
        of_chains = shardings(mesh, PartitionSpec(CHAIN))
        pairs = zip(jax.tree.leaves(placements), jax.tree.leaves(states), strict=True)
        if any(placement.pooled and len(leaf) != mesh.shape[CHAIN] for placement, leaf in pairs):
            before = (reduced_state.draws + sinks.count).astype(np.int32)
            reduced_state = HostReducers.of(self.executables.reducing).with_states(reduced_state, states)
            assert self.executables.empty is not None
            states = self.executables.empty(self.arrays, to_devices(before, of_chains)).states[1]
        else:
            states = jax.tree.map(
                lambda placement, leaf: to_devices(
                    placement.padded(leaf, layout.devices(placement.sharding.axes)), shardings(mesh, placement.spec)
                ),
                placements,
                states,
            )
        count, counts = jax.tree.map(lambda leaf: to_devices(leaf, of_chains), (sinks.count, counts))
        return SinkState(count, (counts, states)), reduced_state


def _take_entries(leaf: Array, sources: Integer[np.ndarray, "chains"], axis: int) -> Array:
    """Return the entries of an array that `sources` names, with its sharding; taken on the host, since it is small."""
    return to_devices(np.take(to_host(leaf), sources, axis), leaf.sharding)


def _thin(state: RunState) -> int:
    """Return the number of draws for each one that is kept; tuners learn from all."""
    return 1 if state.in_warm_up else state.arguments.thin
