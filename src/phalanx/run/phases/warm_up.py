"""Phases of warm-up: rounds of recorded draws that tune and relocate chains, or draws that are discarded.

Between two windows the coordinates may change, to a centring of variables that is learned from draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from phalanx.adaptation.centring import learn_centring
from phalanx.adaptation.metric import LowRankMetric
from phalanx.adaptation.stuck_chains import HostTarget, StuckChains
from phalanx.adaptation.tuner import RecentredDraws, Sample, Sums, VectorMoments
from phalanx.adaptation.warm_up import WarmUp, WarmUpState
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.mesh.position import Vector
from phalanx.mesh.processes import to_devices, to_host
from phalanx.mesh.specs import PyTree
from phalanx.programs.centring import Centrings, recentred
from phalanx.run.device.blocks import Blocks
from phalanx.run.device.rounds import RoundLog, RoundsResult
from phalanx.run.engine import Engine
from phalanx.run.host.draw_buffer import DrawBuffer
from phalanx.run.host.recorded import BlockStats
from phalanx.run.host.window import Window
from phalanx.run.phases.phase import BlockGoal, PhaseProgress, acceptance_rates
from phalanx.run.state import RunState, Stored, WarmingState

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Integer

MOST_SAMPLED = 2**20
"""Most numbers that are copied to the host for one draw of every chain, where correlations are learned from draws.
Beyond it, only some chains are copied."""


SETTLING = 8
"""Maximal draws of each chain, early in the last window of warm-up, that are kept for the verdict."""


class WarmUpPhase:
    """Phase in which tuners learn hyperparameters.

    Args:
        engine: engine of the run.
        kernel: the kernel with its initial hyperparameters.
        num_warmup: iterations per chain.
    """

    name, accumulates = "warm-up", False

    def __init__(self, engine: Engine, kernel: Kernel, num_warmup: int):
        self._engine = engine
        self._kernel = kernel
        self._num_warmup = num_warmup
        blocks = engine.blocks
        host_target = host_target_of(engine)
        stuck = StuckChains(blocks.num_chains, host_target) if kernel.relocates else None
        runs_ahead = not kernel.machine.makes_whole_draws
        self._warm_up = WarmUp(kernel.tuners, kernel.tuning, num_warmup, kernel.tuned_steps, stuck, runs_ahead)

    def begin(self, state: RunState, beginning: Sums) -> RunState:
        """Return the state before the first round, given sums over initial positions and their gradients."""
        blocks = self._engine.blocks
        groups = self._warm_up.num_sampled_groups
        if self._engine.centring:
            groups = None
        one_of_each = blocks.num_chains * blocks.row_layout.widths[0]
        # all chains are kept if their coordinates are: to find stuck ones, or to recentre variables
        window = Window(groups, 1 if groups is None else math.ceil(one_of_each / MOST_SAMPLED))
        schedule = self._warm_up.begin(beginning)
        warming = WarmingState(schedule, window)
        return self._begin_round(state._replace(tuning=schedule.tuning, warming=warming))

    def resume(self, state: RunState) -> RunState:
        """Return a state that was read from a file, with tuners' states in their classes."""
        assert state.warming is not None
        schedule = self._warm_up.continued(self._engine.blocks.no_sums(), state.warming.schedule)
        return state._replace(tuning=schedule.tuning, warming=state.warming._replace(schedule=schedule))

    def goal(self, state: RunState) -> BlockGoal | None:
        """Return the goal of the next block: the part of the round that fits into the slots."""
        warming = state.warming
        warm_up = self._warm_up
        if warming is None:
            return None
        schedule = warming.schedule
        rounds = self._engine.executables.rounds
        if self._learns_on_devices(warming):
            none = np.zeros(self._engine.blocks.num_chains, np.int32)
            arguments = rounds.arguments(warm_up, schedule, warming.filled)
            return BlockGoal(none, rounds=arguments, tuning=warm_up.later(schedule, of_window=True))
        ahead = 0 if warming.left else warm_up.ahead(schedule)
        if warming.goal + ahead > self._engine.blocks.slots:
            ahead = 0
        slots_of_round = rounds.no_rounds(warming.filled, warming.goal)
        return BlockGoal(
            self._goal_of_chains(warming), ahead=ahead, later=warm_up.later(schedule), rounds=slots_of_round
        )

    def _learns_on_devices(self, warming: WarmingState) -> bool:
        """Return True if the devices make whole rounds until the window or their slots end."""
        is_in_parts = warming.left > 0 or warming.sums is not None
        rounds = self._engine.executables.rounds
        return rounds.warm_up is not None and not is_in_parts and self._warm_up.stage(warming.schedule.window).tunes

    def _goal_of_chains(self, warming: WarmingState) -> Integer[np.ndarray, "chains"]:
        """Return the draws that each chain should have in the sinks at the end of the current part of the round.

        Groups of chains need different times to find a step size: those that have one wait, with a goal of 0.
        """
        searching = np.atleast_1d(self._warm_up.searching_sets(warming.schedule))
        due = np.where(searching, warming.goal, 0) if searching.any() else np.array([warming.goal])
        return np.repeat(due, self._engine.blocks.num_chains // due.size)

    def take_block(self, state: RunState) -> tuple[RunState, PhaseProgress]:
        """Add up the draws of a block; tuners learn once every chain has made the draws of the round."""
        warming = state.warming
        assert warming is not None and state.sinks is not None and warming.result is not None
        counts = to_host(state.sinks.count)
        rounds = len(state.rounds)
        result = warming.result
        warming = warming._replace(result=None)
        state = state._replace(warming=warming)
        if self._learns_on_devices(warming):
            state = self._after_rounds(state, result)
        elif (counts >= self._goal_of_chains(warming)).all():
            sums = self._engine.blocks.summing.fetched(result.sums)
            sums = sums if warming.sums is None else warming.sums.merge(sums)
            state = state._replace(warming=warming._replace(sums=sums, filled=warming.goal))
            state = self._begin_part(state) if warming.left else self._learn_from_round(state, sums)
        rates = np.array([of_round["acceptance_rate"] for of_round in state.rounds[rounds:]], float)
        divergences = sum(of_round["divergences"] for of_round in state.rounds)
        num_draws = self._num_warmup if state.warming is None else state.warming.schedule.iterations
        return state, PhaseProgress(num_draws, self._num_warmup, rates, divergences)

    def _begin_round(self, state: RunState) -> RunState:
        """Begin a round, whose draws fill the slots behind those of earlier rounds, or end the phase."""
        warming = state.warming
        assert warming is not None
        if self._warm_up.over(warming.schedule):
            return self._keep_draws(state)._replace(warming=None, sinks=None)
        num_left = self._warm_up.length(warming.schedule)
        return self._begin_part(state._replace(warming=warming._replace(left=num_left, sums=None)))

    def _begin_part(self, state: RunState) -> RunState:
        """Set the goal of the next part of the round, as many draws as fit into the slots."""
        slots = self._engine.blocks.slots
        warming = state.warming
        assert warming is not None
        if warming.filled + warming.left > slots:
            state = self._empty_slots(state)
            warming = state.warming
            assert warming is not None
        length = min(warming.left, slots)
        warming = warming._replace(goal=warming.filled + length, left=warming.left - length)
        return state._replace(warming=warming)

    def _empty_slots(self, state: RunState) -> RunState:
        """Move the draws from the sinks to the window; all chains have the same number.

        Draws made during the search for a step size are dropped instead.
        """
        warming = state.warming
        sinks = state.sinks
        assert warming is not None
        if sinks is not None and self._warm_up.searching(warming.schedule):  # the next draws overwrite them
            sinks = sinks._replace(count=to_devices(np.zeros(sinks.count.shape, np.int32), sinks.count.sharding))
        elif sinks is not None:
            window = warming.window.with_draws(sinks, self._engine.blocks.row_layout)
            state = self._keep_draws(state)
            warming = warming._replace(window=window)
            sinks = None
        return state._replace(sinks=sinks, warming=warming._replace(filled=0))

    def _keep_draws(self, state: RunState) -> RunState:
        """Copy the draws from the sinks to `state.warmed`, if the run keeps draws of warm-up."""
        if state.warmed is None or state.sinks is None:
            return state
        return state._replace(warmed=self._append_sinks(state, state.warmed, self._num_warmup))

    def _append_sinks(self, state: RunState, draws: Stored, total: int) -> Stored:
        """Return stored draws followed by those in the sinks; together at most `total` of each chain."""
        engine = self._engine
        blocks = self._engine.blocks
        warming = state.warming
        sinks = state.sinks
        assert warming is not None and sinks is not None and engine.executables.constrain is not None
        counts = np.full(blocks.num_chains, warming.filled)
        block = BlockStats.fetched(sinks, blocks.row_layout, counts, blocks.held_chains)
        values = engine.executables.constrain(engine.arrays, sinks.states[0])
        return DrawBuffer(blocks.target, blocks.held_chains, total, total).with_block(draws, values, block, counts, 0)

    def _keep_settling_draws(self, state: RunState, part: tuple[int, int]) -> RunState:
        """Copy a few draws of the window to `state.settling`: of those numbered `part` that the sinks have."""
        warming = state.warming
        if state.settling is None or warming is None or self._engine.executables.constrain is None:
            return state
        num_filled = warming.filled
        begin = warming.schedule.draws - num_filled  # draw in the first slot
        first = max(part[0] - begin, 0)
        end = part[1] - begin
        if end <= first:
            return state
        draw_numbers = np.unique(np.linspace(first, end - 1, SETTLING).round().astype(int))
        nothing = Stored.nothing(self._engine.blocks.num_chains)
        return state._replace(settling=self._append_sinks(state, nothing, num_filled).selected(draw_numbers))

    def _learn_from_round(self, state: RunState, sums: Sums) -> RunState:
        """Return the state after tuners have learned from a round on the host."""
        warm_up = self._warm_up
        warming = state.warming
        assert warming is not None
        schedule = warming.schedule
        if warm_up.searching(schedule):
            state = self._empty_slots(state)
        new_schedule = warm_up.learn(schedule, sums)
        figures = (sums.draws, sums.stats["acceptance_rate"], sums.stats["num_steps"], sums.stats["diverging"])
        log = RoundLog(new_schedule.draws, *(float(np.sum(figure)) for figure in figures))
        values = {name: getattr(state.tuning, name) for name in warm_up.names}
        return self._after_learning(state, new_schedule, [(log, values)])

    def _after_rounds(self, state: RunState, result: RoundsResult) -> RunState:
        """Return the state after tuners have learned from some rounds on the devices."""
        warming = state.warming
        assert warming is not None
        schedule = warming.schedule
        count, draws, num_filled, step_size, *numbers = to_host(result.numbers)
        log = to_host(result.log)[: int(count)]
        if not len(log):
            return state
        columns = len(RoundLog._fields)
        names = self._warm_up.names
        rounds = [(RoundLog(*row[:columns]), dict(zip(names, row[columns:], strict=True))) for row in log]
        new_schedule = self._warm_up.learned_on_devices(
            schedule,
            self._engine.executables.rounds.states_of(np.array(numbers)),
            self._engine.blocks.summing.fetched(result.sums),
            int(draws),
            None if np.isnan(step_size) else np.asarray(step_size, schedule.tuning.step_size.dtype),
        )
        return self._after_learning(
            state._replace(warming=warming._replace(filled=int(num_filled))), new_schedule, rounds
        )

    def _after_learning(
        self, state: RunState, schedule: WarmUpState, rounds: Sequence[tuple[RoundLog, Mapping[str, Any]]]
    ) -> RunState:
        """Return the state before the next round, given the schedule after some rounds, and hyperparameters of each."""
        warming = state.warming
        assert warming is not None
        before = warming.schedule
        part = self._warm_up.settling_draws(schedule, before.draws)
        shared = {"step_size": getattr(state.tuning, "step_size", np.nan), **_metric_scales(state.tuning)}
        entries = [
            _round_entry(before.iterations + int(log.window) - before.draws, log, {**shared, **values})
            for log, values in rounds
        ]
        last, _ = rounds[-1]
        state = state._replace(
            tuning=schedule.tuning,
            mean_steps=float(last.num_steps / last.draws),
            warming=warming._replace(schedule=schedule),
            rounds=(*state.rounds, *entries),
            warmup=state.warmup.more(evaluations=int(sum(log.num_steps for log, _ in rounds))),
        )
        if part is not None:
            state = self._keep_settling_draws(state, part)
        if self._warm_up.ends_window(schedule):
            state = self._with_next_window(state)
        return self._begin_round(state)

    def _with_next_window(self, state: RunState) -> RunState:
        """Return the state after the end of a window: tuners learn from its draws, and chains are relocated."""
        warm_up = self._warm_up
        sample = None
        assert state.warming is not None
        schedule = state.warming.schedule
        if warm_up.samples_window(schedule):
            state = self._empty_slots(state)
            warming = state.warming
            assert warming is not None
            sample = warming.window.sample(self._engine.blocks.row_layout)
            state = state._replace(warming=warming._replace(window=warming.window.emptied()))
        warming = state.warming
        assert warming is not None
        moves = bool(self._engine.centring) and sample is not None and warm_up.tunes_next(schedule)
        recentring = recentring_of(self._engine, sample) if moves and sample is not None else None
        schedule, relocations = warm_up.next_window(schedule, sample, recentring and recentring.draws)
        chains = state.chains
        recentring_evaluations = 0 if recentring is None else recentring.evaluations
        if relocations:
            sources = np.arange(self._engine.blocks.num_chains)
            for relocation in relocations:
                sources[relocation.chain] = relocation.beside
            chains = self._engine.put_beside(chains, sources)
        if recentring is not None:
            chains = self._engine.recentred(chains, recentring.centring)
        has_changed = getattr(schedule.tuning, "metric", None) is not getattr(state.tuning, "metric", None)
        entry = {**state.rounds[-1], "metric_changed": has_changed, "relocated_chains": len(relocations)}
        return state._replace(
            chains=chains,
            centring=self._engine.centring,
            tuning=schedule.tuning,
            warming=warming._replace(schedule=schedule),
            rounds=(*state.rounds[:-1], entry),
            relocations=(*state.relocations, *((r.chain, r.beside, r.log_fraction) for r in relocations)),
            warmup=state.warmup.more(evaluations=recentring_evaluations),
        )


def _round_entry(iterations: int, log: RoundLog, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a round's entry in the record, given its log and its hyperparameters."""
    entry = {
        "iteration": iterations,
        "acceptance_rate": float(log.acceptance / log.draws),
        "divergences": int(log.divergences),
        "metric_changed": False,
        "relocated_chains": 0,
    }
    return entry | {name: float(np.mean(value)) for name, value in values.items()}


def _metric_scales(tuning: PyTree) -> dict[str, float]:
    """Return the least and the greatest standard deviation of a coordinate that a metric assumes, if there is one."""
    metric = getattr(tuning, "metric", None)
    if not isinstance(metric, LowRankMetric) or not any(part.size for part in metric.variance):
        return {}
    scales = np.sqrt(np.concatenate([np.asarray(part, np.float64) for part in metric.variance]))
    return {"metric_low": float(scales.min()), "metric_high": float(scales.max())}


class DiscardPhase:
    """Phase of a warm-up without tuners: chains draw, and their draws are discarded.

    Args:
        engine: engine of the run.
        num_warmup: iterations per chain.
    """

    name, accumulates = "warm-up", True

    def __init__(self, engine: Engine, num_warmup: int):
        self._engine = engine
        self._num_warmup = num_warmup

    def begin(self, state: RunState, beginning: Sums) -> RunState:
        """Return the state before the first block."""
        kernel = self._engine.blocks.kernel
        schedule = WarmUp(kernel.tuners, kernel.tuning, self._num_warmup).begin(beginning)
        return self._end_if_done(state._replace(warming=WarmingState(schedule, Window(0, 1), goal=self._num_warmup)), 0)

    def resume(self, state: RunState) -> RunState:
        """Return the state unchanged, since tuners have no state."""
        return state

    def goal(self, state: RunState) -> BlockGoal | None:
        """Return the goal of the next block: all draws."""
        if state.warming is None:
            return None
        return BlockGoal(np.full(self._engine.blocks.num_chains, state.warming.goal))

    def take_block(self, state: RunState) -> tuple[RunState, PhaseProgress]:
        """Count the draws of a block, and end the phase if every chain has made all."""
        assert state.sinks is not None
        num_draws = int(to_host(state.sinks.count).min())
        counts = state.sinks.states[0]
        rates = acceptance_rates(counts)
        steps, divergences = (int(to_host(part).sum(dtype=np.int64)) for part in (counts.num_steps, counts.diverging))
        if num_draws >= self._num_warmup:
            state = state._replace(warmup=state.warmup.more(evaluations=steps))
        return self._end_if_done(state, num_draws), PhaseProgress(num_draws, self._num_warmup, rates, divergences)

    def _end_if_done(self, state: RunState, num_draws: int) -> RunState:
        return state._replace(warming=None, sinks=None) if num_draws >= self._num_warmup else state


def host_target_of(engine: Engine) -> HostTarget:
    """Return the target of a run, evaluated by calls from the host in the engine's present coordinates."""
    blocks = engine.blocks
    numbers = _coordinate_numbers(engine.blocks)
    columns = np.argsort(numbers, kind="stable")[np.count_nonzero(numbers < 0) :]
    ends = np.cumsum(blocks.layout.whole_lengths)
    dtype = blocks.layout.dtype

    def of_chains(rows: Float[np.ndarray, "rows coordinates"]) -> Float[np.ndarray, "rows"]:
        """Return the log density of at most as many positions as there are chains."""
        position = np.zeros((blocks.num_chains, ends[-1]), dtype)
        position[: len(rows), columns] = rows
        vector = Vector(tuple(np.split(position, ends[:-1], axis=1)), blocks.layout)
        return engine.executables.log_density_at(engine.arrays, vector)[: len(rows)]

    def log_density(rows: Float[np.ndarray, "rows coordinates"]) -> Float[np.ndarray, "rows"]:
        count = blocks.num_chains
        return np.concatenate([of_chains(rows[i : i + count]) for i in range(0, len(rows), count)])

    return HostTarget(columns, log_density, int(engine.seed))


def _coordinate_numbers(blocks: Blocks) -> Int[np.ndarray, "padded_coordinates"]:
    """Return the number of each coordinate of a recorded draw in the order of variables; -1 in padded rows.

    Recorded draws have their coordinates by group, within a group by device, and on a device by variable.
    """
    first = 1
    numbers = {}
    for name, shape in blocks.layout.whole_shapes.items():
        count = math.prod(shape)
        numbers[name] = np.arange(first, first + count).reshape(shape)
        first += count
    return np.concatenate(blocks.layout.of_whole(numbers, zero=True).parts) - 1


NUMBERS = 2**22
"""Most numbers, draws times coordinates, of a window from which a centring and then a metric are learned."""

MOST_ROWS = 4096
"""Most draws, of all chains, that are used for that."""

FEWEST_ROWS = 256
"""Number of draws that are used even if they have more than `NUMBERS` numbers."""


class Recentring(NamedTuple):
    """A centring, draws in the coordinates that belong to it, and the gradients evaluated to find both."""

    centring: Centrings
    draws: RecentredDraws
    evaluations: int


def recentring_of(engine: Engine, sample: Sample) -> Recentring:
    """Return the centring that a window's draws suggest, and these draws in the new coordinates."""
    count = len(sample.chain)
    layout = engine.blocks.layout
    most = min(max(NUMBERS // layout.coordinates, FEWEST_ROWS), MOST_ROWS)
    draw_numbers = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))
    sample = jax.tree.map(lambda values: values[draw_numbers], sample)
    position = Vector(tuple(sample.position), layout)
    evaluation = engine.evaluated_at(engine.arrays, position)
    centring = {name: learn_centring(*of, before=engine.centring[name]) for name, of in evaluation.residuals.items()}
    values = {**position.by_variable(), **recentred(evaluation.residuals, centring, layout.dtype)}
    position = layout.of_whole(values, zero=True)
    there = engine.evaluated_at(engine.arrays_with(centring), position)
    recentred_sample = sample._replace(position=position.parts, gradient=there.gradient.parts)
    # `Engine.recentred` evaluates the gradient at the chains' positions, too, before and after
    evaluations = 2 * (len(draw_numbers) + engine.blocks.num_chains)
    return Recentring(centring, RecentredDraws(recentred_sample, _moments(recentred_sample)), evaluations)


def _moments(sample: Sample) -> Sums:
    """Return the moments of positions and gradients, of the draws at which all are finite."""
    parts = [part.astype(np.float64) for part in (*sample.position, *sample.gradient)]
    finite = np.logical_and.reduce([np.isfinite(part).all(1) for part in parts])
    count = int(finite.sum())
    groups = len(sample.position)

    def of(part: np.ndarray) -> VectorMoments:
        mean = part[finite].sum(0) / max(count, 1)
        return VectorMoments(count, mean, np.square(part[finite] - mean).sum(0))

    position = tuple(map(of, parts[:groups]))
    gradient = tuple(map(of, parts[groups:]))
    return Sums(count, {}, 0.0, position, gradient)
