"""The method of fits of many data sets: steps of all lanes together, windows and rates of each data set.

All lanes are at the same step, so that a block ends where a window of some data set begins or ends. Lanes of data sets
that have settled stand still; where three quarters do, the others go on in a program with fewer lanes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax import Array

from phalanx.errors.message_text import count as counted
from phalanx.learning.loop import Stop
from phalanx.mesh.processes import to_host
from phalanx.mesh.specs import PyTree
from phalanx.run.compile.block_length import BlockLength
from phalanx.variational.drawing import change_between
from phalanx.variational.each.programs import LaneOrder, LanePrograms, room_of
from phalanx.variational.methods.settling import TOLERANCE, Settling
from phalanx.variational.methods.step import PATIENCE, FitState, Losses, StepBounds, Steps
from phalanx.variational.methods.stochastic import draws_to_compare

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

FEWER = 4
"""Lanes go on in a smaller program if at most one in so many moves; each halving would compile twice as often."""


class Bounds(NamedTuple):
    """The bounds of a block: the steps before it, the data set of each lane, bounds and errors `(step, lane)`."""

    first: int
    sets: Int[np.ndarray, "lanes"]
    step_bounds: StepBounds


class SetsProgress(NamedTuple):
    """State of the fits of many data sets.

    Attributes:
        step: steps made by the lanes that move.
        state: the lanes on the devices.
        sets: number of each lane's data set.
        moves: which lanes move; the others have ended, or fill the devices up.
        arrays: the data of the lanes.
        settling: windows and rates of each data set.
        free: parameters of each data set on the real line: averages over its last window, if one has ended.
        last: parameters of each data set after the last step of its last window.
        quartiles: quartiles of each data set's guide at its last two windows, the latest first; NaN before.
        steps, failed: steps that each data set has made, and how many of them were left out.
        elbo, error: the bound of each data set, averaged over its last window, and its error; NaN before.
        gave_up: data sets whose loss was not finite for many steps in a row.
        bounds: bounds of all blocks.
    """

    step: int
    state: FitState
    sets: Int[np.ndarray, "lanes"]
    moves: Bool[np.ndarray, "lanes"]
    arrays: tuple[Array, ...]
    settling: tuple[Settling, ...]
    free: dict[str, Any]
    last: dict[str, Any]
    quartiles: tuple[Any, Any]
    steps: Int[np.ndarray, "sets"]
    failed: Int[np.ndarray, "sets"]
    elbo: Float[np.ndarray, "sets"]
    error: Float[np.ndarray, "sets"]
    gave_up: frozenset[int] = frozenset()
    bounds: tuple[Bounds, ...] = ()

    def losses(self, number: int) -> Losses:
        """Return the bounds of a data set at each of its steps."""
        of_set = [
            StepBounds(*(part[:, lanes[0]] for part in block.step_bounds))
            for block in self.bounds
            if len(lanes := np.flatnonzero(block.sets == number))
        ]
        return Losses(*(part[: self.steps[number]] for part in Losses.of(of_set)))


@dataclass(frozen=True)
class SetsReport:
    """Progress of fits of many data sets.

    Attributes:
        phase: "fitting".
        done, total: steps so far, and at most.
        sets: number of data sets.
        moving: number of them that have not ended.
    """

    phase: str
    done: int
    total: int
    sets: int
    moving: int

    @property
    def what(self) -> str:
        """Name of the iterations, shown before their count."""
        return "steps"

    def __str__(self) -> str:
        return f"{self.sets - self.moving:,} of {counted(self.sets, 'data set')} have ended"


@dataclass
class LearningOfSets:
    """The method of the fits, for the learning loop.

    Attributes:
        programs: the programs over lanes.
        steps: the steps of one fit.
        seeds: the seed of each data set.
        rate: factor on the optimiser's changes.
        settling: the rule for windows and rates, at its start.
    """

    programs: LanePrograms
    steps: Steps
    seeds: Any
    rate: float
    settling: Settling
    _block_length: BlockLength = field(default_factory=BlockLength)

    def init(self, start: SetsProgress) -> SetsProgress:
        """Return the state to begin with."""
        return start

    def init_progress(
        self, free: dict[str, Any], sets: np.ndarray, arrays: tuple[Array, ...], without: frozenset[int]
    ) -> SetsProgress:
        """Return the state of all fits before the first step.

        Args:
            free: initial parameters of the lanes, on the real line.
            sets: number of the data set of each lane; later lanes may repeat data sets, to fill the devices up.
            arrays: the data of the lanes.
            without: numbers of the data sets that cannot be fitted, whose lanes do not move.
        """
        count = len(self.seeds)
        moves = (np.arange(len(sets)) < count) & ~np.isin(sets, list(without))
        of_sets = jax.tree.map(lambda leaf: to_host(leaf)[:count].copy(), free)
        return SetsProgress(
            0,
            jax.vmap(self.steps.init_state)(free),
            sets,
            moves,
            arrays,
            (self.settling,) * count,
            of_sets,
            of_sets,
            (None, None),
            np.zeros(count, int),
            np.zeros(count, int),
            np.full(count, np.nan),
            np.full(count, np.nan),
        )

    def step(self, state: SetsProgress, say: Callable[[str], None]) -> Iterator[SetsProgress]:
        """Make a block of steps, and compare the windows that have ended."""
        progress = state
        began = time.perf_counter()
        rules = [progress.settling[number] for number in progress.sets]
        ends = min(rule.end_of(progress.step) for rule, moves in zip(rules, progress.moves, strict=True) if moves)
        most = min(self._block_length.ticks, room_of(len(rules)), ends - progress.step)
        rates = np.array([self.rate * rule.rate for rule in rules], np.float32)
        anew = np.array([rule.window.begin == progress.step for rule in rules])
        order = LaneOrder(np.int32(most), progress.moves, rates, anew)
        lanes, of_steps = self.programs.block(
            self.steps, progress.state, self.seeds[progress.sets], progress.arrays, order
        )
        steps = progress.steps.copy()
        steps[progress.sets[progress.moves]] += most
        bounds = (*progress.bounds, Bounds(progress.step, progress.sets, of_steps))
        progress = progress._replace(step=progress.step + most, state=lanes, steps=steps, bounds=bounds)
        yield progress
        self._block_length.learn(most, time.perf_counter() - began)
        yield self._with_fewer_lanes(self._without_ended(self._compared(progress)))

    def done(self, state: SetsProgress) -> bool:
        """Return whether no data set moves any more."""
        return not state.moves.any()

    def report(self, state: SetsProgress) -> SetsReport:
        """Return the progress."""
        moving = int(state.moves.sum())
        return SetsReport("fitting", state.step, self.settling.num_steps, len(self.seeds), moving)

    def stop(self, state: SetsProgress, reason: Stop) -> str:
        """Return a line about a fit that was stopped."""
        progress_text = f"{state.step:,} of {self.settling.num_steps:,} steps"
        return f"Interrupted: returning what was learned in {progress_text}." if reason is Stop.INTERRUPTED else ""

    def outcome(self, progress: SetsProgress) -> SetsProgress:
        """Return the state with the parameters to return of data sets that were stopped: the best averages."""
        moving = np.flatnonzero(progress.moves)
        if not len(moving):
            return progress
        rules = [progress.settling[number] for number in progress.sets[moving]]
        enough = np.array([max((rule.window.end - rule.window.begin) // 2, 1) for rule in rules])
        is_averaged = to_host(progress.state.averaged)[moving] >= enough
        never = ~is_averaged & ~np.array([rule.compared for rule in rules])
        free = progress.free
        for lanes, best in ((moving[is_averaged], progress.state.mean), (moving[never], progress.state.free)):
            free = _with(free, progress.sets[lanes], _lanes_of(best, lanes))
        elbo = progress.elbo.copy()
        error = progress.error.copy()
        for number in progress.sets[moving]:
            if np.isnan(elbo[number]) and progress.step:
                elbo[number], error[number] = progress.losses(number).mean
        last = _with(progress.last, progress.sets[moving], _lanes_of(progress.state.free, moving))
        return progress._replace(free=free, last=last, elbo=elbo, error=error)

    def _compared(self, progress: SetsProgress) -> SetsProgress:
        """Return the state after the ends of windows, given their averages and those of the two windows before."""
        rules = [progress.settling[number] for number in progress.sets]
        at_window_end = np.array([rule.window.end == progress.step for rule in rules]) & progress.moves
        lanes = np.flatnonzero(at_window_end)
        numbers = progress.sets[at_window_end]
        if not len(lanes):
            return progress
        free = _with(progress.free, numbers, _lanes_of(progress.state.mean, lanes))
        last = _with(progress.last, numbers, _lanes_of(progress.state.free, lanes))
        changes = np.full((2, len(lanes)), np.inf)
        quartiles = progress.quartiles
        if self.settling.stops:
            now = self._quartiles(progress, lanes)
            none = np.full((len(self.seeds), *now.shape[1:]), np.nan, now.dtype)
            quartiles = tuple(none if then is None else then for then in quartiles)
            ratios = np.stack([change_between(then[numbers], now) for then in quartiles]) / TOLERANCE
            is_known = np.stack([np.isfinite(then[numbers]).any((1, 2)) for then in quartiles])
            changes = np.where(is_known, ratios, np.inf)
            quartiles = _with(quartiles[0], numbers, now), _with(quartiles[1], numbers, quartiles[0][numbers])
        settling = list(progress.settling)
        elbo = progress.elbo.copy()
        error = progress.error.copy()
        for lane, number, change, across in zip(lanes, numbers, *changes, strict=True):
            rule = settling[number]
            bounds = _bounds_of(progress, lane, rule.window.begin)
            settling[number] = rule.look(progress.step, bounds.elbo, float(change), float(across))
            elbo[number], error[number] = bounds.mean
        return progress._replace(
            settling=tuple(settling), free=free, last=last, quartiles=quartiles, elbo=elbo, error=error
        )

    def _quartiles(
        self, progress: SetsProgress, lanes: Int[np.ndarray, "ended"]
    ) -> Float[np.ndarray, "ended 3 coordinate"]:
        """Return the quartiles of the guides of some lanes, by a program for so many lanes, or up to four times more.

        Windows end at different steps, and all lanes would take as long each time.
        """
        size = self.programs.lanes_for(1)
        while size < len(lanes):
            size *= FEWER
        full_lanes = np.resize(lanes, size)
        mean = progress.state.mean
        arrays = progress.arrays
        if size < len(progress.sets):
            mean = jax.tree.map(lambda leaf: to_host(leaf)[full_lanes], mean)
            arrays = self.programs.arrays(progress.sets[full_lanes])
        else:
            full_lanes = np.arange(len(progress.sets))
        count = draws_to_compare(jax.tree.map(lambda leaf: leaf[0], progress.free))
        quartiles = self.programs.quartiles(count, mean, self.seeds[progress.sets[full_lanes]], arrays)
        return quartiles[: len(lanes)] if size < len(progress.sets) else quartiles[lanes]

    def _without_ended(self, progress: SetsProgress) -> SetsProgress:
        """Return the state where data sets that have settled, or gave up, do not move."""
        gave_up = (to_host(progress.state.failing) >= PATIENCE) & progress.moves
        is_settled = np.array([progress.settling[number].settled for number in progress.sets])
        over = progress.step >= self.settling.num_steps
        failures = progress.failed.copy()
        failures[progress.sets[progress.moves]] = to_host(progress.state.failed)[progress.moves]
        return progress._replace(
            moves=progress.moves & ~(gave_up | is_settled | over),
            failed=failures,
            gave_up=progress.gave_up | {int(number) for number in progress.sets[gave_up]},
        )

    def _with_fewer_lanes(self, progress: SetsProgress) -> SetsProgress:
        """Return the state without the lanes that have ended, if few still move."""
        moving = np.flatnonzero(progress.moves)
        count = self.programs.lanes_for(len(moving))
        if not len(moving) or count * FEWER > len(progress.sets):
            return progress
        lanes = np.resize(moving, count)
        state = jax.tree.map(lambda leaf: to_host(leaf)[lanes], progress.state)
        sets = progress.sets[lanes]
        arrays = self.programs.arrays(sets)
        return progress._replace(state=state, sets=sets, moves=np.arange(count) < len(moving), arrays=arrays)


def _bounds_of(progress: SetsProgress, lane: int, begin: int) -> Losses:
    """Return the bounds of a lane's data set since a step at which a block began."""
    number = progress.sets[lane]
    bounds = []
    for block in reversed(progress.bounds):
        if block.first < begin:
            break
        at = lane if lane < len(block.sets) and block.sets[lane] == number else np.argmax(block.sets == number)
        bounds.append(StepBounds(*(part[:, at] for part in block.step_bounds)))
    return Losses.of(bounds[::-1])


def _lanes_of(state: PyTree, lanes: Int[np.ndarray, "some"]) -> PyTree:
    """Return some lanes of a state, on the host."""
    return jax.tree.map(lambda leaf: to_host(leaf)[lanes], state)


def _with(of_sets: PyTree, numbers: Sequence[int] | np.ndarray, values: PyTree) -> PyTree:
    """Return a tree of arrays with a leading dimension of data sets, with other values for some of them."""

    def replaced(leaf: np.ndarray, new: np.ndarray) -> np.ndarray:
        new_leaf = leaf.copy()
        new_leaf[numbers] = new
        return new_leaf

    return jax.tree.map(replaced, of_sets, values)
