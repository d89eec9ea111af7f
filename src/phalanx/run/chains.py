"""The chains of a run, on the devices: where they are, how they are tuned, and the one way in which they go on."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from phalanx.adaptation.tuner import Sums
from phalanx.kernels.metric.low_rank import LowRank
from phalanx.kernels.protocol.adapter import Rest, Start
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.processes import all_to_devices, to_devices, to_host
from phalanx.run.checks import check_beginning
from phalanx.run.device.advance import Advanced, Order, Sunk
from phalanx.run.device.blocks import Underway
from phalanx.run.device.executables import Executables, order_of, shardings
from phalanx.run.device.thinning import SinceKept
from phalanx.run.host.draw_buffer import Latest
from phalanx.run.host.portable import on_mesh, portable
from phalanx.run.init_values import Initial
from phalanx.run.state import RunState


class Chains:
    """The chains of a run.

    Args:
        executables: the compiled blocks.
        seed: of the run.
        arrays: the data on the devices.
    """

    def __init__(self, executables: Executables, seed: int, arrays: tuple[Array, ...]):
        self.executables, self.blocks = executables, executables.blocks
        self.seed, self.arrays = np.uint32(seed), arrays
        self._sent_seed = executables.sent.array(self.seed, PartitionSpec())
        self.mean_steps = 1.0
        """Ticks of a draw, on average."""
        self.first = np.ones(self.blocks.num_chains, np.int64)
        """The number of each chain's first draw in sampling."""
        self._underway: Underway | None = None
        self._tuning: Any = None
        self._sent_tuning: Any = None
        self._metric: Any = None
        self._placed_metric: Any = None
        self._began = 0.0
        """When the latest block did."""

    # -- where they are ---------------------------------------------------------------------------------------------

    def begin(self, initial: Initial) -> Sums:
        """Find where to begin, and what positions and gradients there add up to."""
        begun = self.executables.start(self.seed, self.arrays, initial)
        initial.check(begun.misfits)
        check_beginning(self.blocks, begun, self.arrays, tuple(initial.values))
        self._underway = begun.underway
        rows = begun.rows
        if initial.superchains:
            leaders = initial.leaders(self.blocks.num_chains)
            self.put_beside(leaders)
            rows = tuple(_taken(part, leaders, 1) for part in rows)
        return self.executables.summed(rows, 0, 1) if rows else Sums.nothing()

    def resume(self, state: RunState) -> None:
        """Be where the chains of a state were, tuned as they were; the inverse of `rest`."""
        layout, mesh = self.blocks.layout, self.blocks.target.mesh
        self.tune(on_mesh(state.tuning, layout))
        self.mean_steps = state.mean_steps
        rest, since = layout.placed(state.rest, mesh), layout.placed(state.since, mesh)
        self._underway = Underway(self.executables.resume(self.seed, self.arrays, rest), since)
        self.first = np.asarray(state.rest.draw, np.int64) - state.thin * state.stored.counts

    def rest(self) -> tuple[Rest, SinceKept]:
        """Where chains are between two draws, whole and by variable, and what they did since the draw last kept."""
        assert self._underway is not None
        rest = self.executables.rest(self._underway)
        return self.blocks.layout.fetched(rest), jax.tree.map(to_host, self._underway.since)

    def rest_after(self, latest: Latest, draws: np.ndarray) -> tuple[Rest, SinceKept]:
        """Where chains were when they had made so many draws, of which the last are known."""
        nothing = np.zeros(self.blocks.num_chains, np.int32)
        at = Start(latest.position.by_variable(), latest.log_density, latest.gradient.by_variable())
        rest = Rest((self.first + draws).astype(np.int32), at, ())
        return rest, SinceKept(nothing, nothing, nothing.astype(bool))

    def positions(self, count: int) -> list[dict[str, np.ndarray]]:
        """Where the first chains are, whole and by variable."""
        assert self._underway is not None
        return positions_of(self._underway, count)

    def count_draws(self) -> None:
        """Have the draws of sampling numbered from here."""
        assert self._underway is not None
        self.first = np.asarray(to_host(self._underway.machine.draw), np.int64)

    @property
    def replays(self) -> bool:
        """Whether what is stored of a draw is all that the next one needs."""
        has_gradient = self.blocks.row_layout.parts == 2 or not self.blocks.kernel.machine.uses_gradient
        return has_gradient and not self.blocks.machine.is_of_one_chain

    def put_beside(self, sources: np.ndarray) -> None:
        """Have each chain go on where another is."""
        assert self._underway is not None
        machine = self.blocks.machine.moved(self._underway.machine, lambda leaf, axis: _taken(leaf, sources, axis))
        self._underway = self._underway._replace(machine=machine)

    # -- how they are tuned -----------------------------------------------------------------------------------------

    def tune(self, tuning: Any) -> bool:
        """Use a tuning from now on, where no trajectory is under way, and return whether its metric is new.

        A metric is placed on the devices once, not in every round.
        """
        metric = getattr(tuning, "metric", None)
        is_new = metric is not self._metric
        if isinstance(metric, LowRank):
            if is_new:
                layout = shardings(self.blocks.target.mesh, self.blocks.tuning_specs(metric))
                self._metric, self._placed_metric = metric, all_to_devices(metric, layout)
            tuning = tuning._replace(metric=self._placed_metric)
        self._tuning = jax.tree.map(lambda leaf: leaf if isinstance(leaf, Array) else np.asarray(leaf), tuning)
        self._sent_tuning = self.executables.sent(self._tuning, PartitionSpec())
        return is_new

    @property
    def tuning(self) -> Any:
        """Hyperparameters in use, as a value of no mesh."""
        return portable(self._tuning, self.blocks.layout)

    @property
    def step_size(self) -> np.ndarray:
        """The step size in use."""
        return np.asarray(self._tuning.step_size)

    # -- how they go on ---------------------------------------------------------------------------------------------

    def record(
        self, draws: np.ndarray, ticks: int, sunk: Sunk | None = None, *, thin: int = 1, ahead: int = 0,
        later: Any = None, rests: bool = False,
    ) -> Advanced:  # fmt: skip
        """Move on until every chain has so many draws or the ticks are used up, and record the draws.

        Args:
            draws: of each chain, those that `sunk` holds included.
            ticks: the most ticks.
            sunk: the draws before; None begins anew.
            thin: draws of the kernel per draw that is kept.
            ahead: draws that a chain may make beyond `draws`.
            later: the tuning of those; None is the tuning in use.
            rests: whether lanes that are to make no draw rest for a tick.
        """
        known: Sunk = self._without_draws(self.executables.no_records) if sunk is None else sunk
        later = self._tuning if later is None else later
        order = order_of(draws, ticks, thin, ahead=ahead, later=later, rests=rests)
        return self._advance(self.executables.record, order, known)

    def fold(
        self, draws: np.ndarray, ticks: int, sunk: Sunk | None, *, thin: int = 1, before: int = 0, rests: bool = False
    ) -> Advanced:
        """Move on in the same way, and reduce the draws; where `sunk` is None they follow `before` others."""
        known: Sunk = self._without_draws(self.executables.empty, before) if sunk is None else sunk
        order = order_of(draws, ticks, thin, later=self._tuning, rests=rests)
        return self._advance(self.executables.fold, order, known)

    def _without_draws(self, program: Any, before: int = 0) -> Sunk:
        return program(self.arrays, self.executables.sent.array(np.int32(before), PartitionSpec()))

    def rest_a_tick(self, samples: bool) -> None:
        """Compute the lanes' first trajectory states where draws compute them: another program may round otherwise."""
        folds = self.executables.record is None or (samples and not self.executables.stores_draws)
        self.wait((self.fold if folds else self.record)(np.zeros(self.blocks.num_chains), 1, None, rests=True))

    def end_trajectories(self) -> None:
        """Have every chain make a draw that is dropped, so that none is within a trajectory."""
        goal, sunk = np.ones(self.blocks.num_chains), None
        while sunk is None or not to_host(sunk.count).all():
            sunk = self.fold(goal, self.executables.pace.ticks, sunk).sunk

    def _advance(self, program: Any, order: Order, known: Sunk) -> Advanced:
        self._began = time.perf_counter()
        specs = Order(*[PartitionSpec()] * len(order))._replace(draws=PartitionSpec(CHAIN))
        sent = Order(*map(self.executables.sent.array, order, specs))
        advanced = program(self._sent_seed, self.arrays, self._sent_tuning, sent, self._underway, known)
        self._underway = advanced.underway
        return advanced

    def wait(self, advanced: Advanced) -> int:
        """Wait for the end of a block; returns its ticks."""
        ticks = int(to_host(advanced.ticks).max())
        self.executables.pace.learn(ticks, time.perf_counter() - self._began)
        return ticks


def positions_of(underway: Underway, count: int) -> list[dict[str, np.ndarray]]:
    """Where the first chains are, whole and by variable."""
    position = jax.tree.map(lambda part: to_host(part[:, :count]).T, underway.machine.at.position).by_variable()
    chains = min(count, len(underway.machine.draw))
    return [{name: values[chain] for name, values in position.items()} for chain in range(chains)]


def _taken(leaf: Array, sources: np.ndarray, axis: int) -> Array:
    """Entries of an array in another order, laid out as before. It is small, and rarely done: on the host."""
    return to_devices(np.take(to_host(leaf), sources, axis), leaf.sharding)
