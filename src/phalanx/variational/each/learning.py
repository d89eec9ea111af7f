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
    made: StepBounds


class SetsCourse(NamedTuple):
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
        own = [
            StepBounds(*(part[:, lanes[0]] for part in block.made))
            for block in self.bounds
            if len(lanes := np.flatnonzero(block.sets == number))
        ]
        return Losses(*(part[: self.steps[number]] for part in Losses.of(own)))


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

    def init(self, start: SetsCourse) -> SetsCourse:
        """Return the state to begin with."""
        return start

    def begin(
        self, free: dict[str, Any], sets: np.ndarray, arrays: tuple[Array, ...], without: frozenset[int]
    ) -> SetsCourse:
        """Return the state of lanes of these data sets at initial parameters; those in `without` do not move."""
        count = len(self.seeds)
        moves = (np.arange(len(sets)) < count) & ~np.isin(sets, list(without))
        of_sets = jax.tree.map(lambda leaf: to_host(leaf)[:count].copy(), free)
        return SetsCourse(
            0,
            jax.vmap(self.steps.begin)(free),
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

    def step(self, state: SetsCourse, say: Callable[[str], None]) -> Iterator[SetsCourse]:
        """Make a block of steps, and compare the windows that have ended."""
        course = state
        began = time.perf_counter()
        rules = [course.settling[number] for number in course.sets]
        ends = min(rule.end_of(course.step) for rule, moves in zip(rules, course.moves, strict=True) if moves)
        most = min(self._block_length.ticks, room_of(len(rules)), ends - course.step)
        rates = np.array([self.rate * rule.rate for rule in rules], np.float32)
        anew = np.array([rule.window.begin == course.step for rule in rules])
        order = LaneOrder(np.int32(most), course.moves, rates, anew)
        lanes, made = self.programs.block(self.steps, course.state, self.seeds[course.sets], course.arrays, order)
        steps = course.steps.copy()
        steps[course.sets[course.moves]] += most
        bounds = (*course.bounds, Bounds(course.step, course.sets, made))
        course = course._replace(step=course.step + most, state=lanes, steps=steps, bounds=bounds)
        yield course
        self._block_length.learn(most, time.perf_counter() - began)
        yield self._with_fewer_lanes(self._without_ended(self._compared(course)))

    def done(self, state: SetsCourse) -> bool:
        """Return whether no data set moves any more."""
        return not state.moves.any()

    def report(self, state: SetsCourse) -> SetsReport:
        """Return the progress."""
        moving = int(state.moves.sum())
        return SetsReport("fitting", state.step, self.settling.num_steps, len(self.seeds), moving)

    def stop(self, state: SetsCourse, reason: Stop) -> str:
        """Return a line about a fit that was stopped."""
        made = f"{state.step:,} of {self.settling.num_steps:,} steps"
        return f"Interrupted: returning what was learned in {made}." if reason is Stop.INTERRUPTED else ""

    def outcome(self, course: SetsCourse) -> SetsCourse:
        """Return the state with the parameters to return of data sets that were stopped: the best averages."""
        moving = np.flatnonzero(course.moves)
        if not len(moving):
            return course
        rules = [course.settling[number] for number in course.sets[moving]]
        enough = np.array([max((rule.window.end - rule.window.begin) // 2, 1) for rule in rules])
        averaged = to_host(course.state.averaged)[moving] >= enough
        never = ~averaged & ~np.array([rule.compared for rule in rules])
        found = course.free
        for lanes, best in ((moving[averaged], course.state.mean), (moving[never], course.state.free)):
            found = _with(found, course.sets[lanes], _lanes_of(best, lanes))
        elbo = course.elbo.copy()
        error = course.error.copy()
        for number in course.sets[moving]:
            if np.isnan(elbo[number]) and course.step:
                elbo[number], error[number] = course.losses(number).mean
        last = _with(course.last, course.sets[moving], _lanes_of(course.state.free, moving))
        return course._replace(free=found, last=last, elbo=elbo, error=error)

    def _compared(self, course: SetsCourse) -> SetsCourse:
        """Return the state after the ends of windows, given their averages and those of the two windows before."""
        rules = [course.settling[number] for number in course.sets]
        ended = np.array([rule.window.end == course.step for rule in rules]) & course.moves
        lanes = np.flatnonzero(ended)
        numbers = course.sets[ended]
        if not len(lanes):
            return course
        free = _with(course.free, numbers, _lanes_of(course.state.mean, lanes))
        last = _with(course.last, numbers, _lanes_of(course.state.free, lanes))
        changes = np.full((2, len(lanes)), np.inf)
        quartiles = course.quartiles
        if self.settling.stops:
            now = self._quartiles(course, lanes)
            none = np.full((len(self.seeds), *now.shape[1:]), np.nan, now.dtype)
            quartiles = tuple(none if then is None else then for then in quartiles)
            found = np.stack([change_between(then[numbers], now) for then in quartiles]) / TOLERANCE
            begun = np.stack([np.isfinite(then[numbers]).any((1, 2)) for then in quartiles])
            changes = np.where(begun, found, np.inf)
            quartiles = _with(quartiles[0], numbers, now), _with(quartiles[1], numbers, quartiles[0][numbers])
        settling = list(course.settling)
        elbo = course.elbo.copy()
        error = course.error.copy()
        for lane, number, change, across in zip(lanes, numbers, *changes, strict=True):
            rule = settling[number]
            made = _bounds_of(course, lane, rule.window.begin)
            settling[number] = rule.look(course.step, made.elbo, float(change), float(across))
            elbo[number], error[number] = made.mean
        return course._replace(
            settling=tuple(settling), free=free, last=last, quartiles=quartiles, elbo=elbo, error=error
        )

    def _quartiles(
        self, course: SetsCourse, lanes: Int[np.ndarray, "ended"]
    ) -> Float[np.ndarray, "ended 3 coordinate"]:
        """Return the quartiles of the guides of some lanes, by a program for so many lanes, or up to four times more.

        Windows end at different steps, and all lanes would take as long each time.
        """
        size = self.programs.lanes_for(1)
        while size < len(lanes):
            size *= FEWER
        filled = np.resize(lanes, size)
        mean = course.state.mean
        arrays = course.arrays
        if size < len(course.sets):
            mean = jax.tree.map(lambda leaf: to_host(leaf)[filled], mean)
            arrays = self.programs.arrays(course.sets[filled])
        else:
            filled = np.arange(len(course.sets))
        count = draws_to_compare(jax.tree.map(lambda leaf: leaf[0], course.free))
        found = self.programs.quartiles(count, mean, self.seeds[course.sets[filled]], arrays)
        return found[: len(lanes)] if size < len(course.sets) else found[lanes]

    def _without_ended(self, course: SetsCourse) -> SetsCourse:
        """Return the state where data sets that have settled, or gave up, do not move."""
        gave_up = (to_host(course.state.failing) >= PATIENCE) & course.moves
        settled = np.array([course.settling[number].settled for number in course.sets])
        over = course.step >= self.settling.num_steps
        failed = course.failed.copy()
        failed[course.sets[course.moves]] = to_host(course.state.failed)[course.moves]
        return course._replace(
            moves=course.moves & ~(gave_up | settled | over),
            failed=failed,
            gave_up=course.gave_up | {int(number) for number in course.sets[gave_up]},
        )

    def _with_fewer_lanes(self, course: SetsCourse) -> SetsCourse:
        """Return the state without the lanes that have ended, if few still move."""
        moving = np.flatnonzero(course.moves)
        count = self.programs.lanes_for(len(moving))
        if not len(moving) or count * FEWER > len(course.sets):
            return course
        kept = np.resize(moving, count)
        state = jax.tree.map(lambda leaf: to_host(leaf)[kept], course.state)
        sets = course.sets[kept]
        arrays = self.programs.arrays(sets)
        return course._replace(state=state, sets=sets, moves=np.arange(count) < len(moving), arrays=arrays)


def _bounds_of(course: SetsCourse, lane: int, begin: int) -> Losses:
    """Return the bounds of a lane's data set since a step at which a block began."""
    number = course.sets[lane]
    found = []
    for block in reversed(course.bounds):
        if block.first < begin:
            break
        own = lane if lane < len(block.sets) and block.sets[lane] == number else np.argmax(block.sets == number)
        found.append(StepBounds(*(part[:, own] for part in block.made)))
    return Losses.of(found[::-1])


def _lanes_of(state: PyTree, lanes: Int[np.ndarray, "some"]) -> PyTree:
    """Return some lanes of a state, on the host."""
    return jax.tree.map(lambda leaf: to_host(leaf)[lanes], state)


def _with(of_sets: PyTree, numbers: Sequence[int] | np.ndarray, values: PyTree) -> PyTree:
    """Return a tree of arrays with a leading dimension of data sets, with other values for some of them."""

    def replaced(leaf: np.ndarray, new: np.ndarray) -> np.ndarray:
        changed = leaf.copy()
        changed[numbers] = new
        return changed

    return jax.tree.map(replaced, of_sets, values)
