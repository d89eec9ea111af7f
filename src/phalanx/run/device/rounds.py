"""Block that records draws, in rounds after each of which tuners learn on the devices.

A window of 40 draws that tunes a step size is one block:

    round   draws of each chain   step size   mean acceptance rate
    1       1                     .80         .41
    2       2                     .52         .70
    3       2                     .47         .83
    ...     (until 40 draws)      ...         ...

The host would need a call for each round. It begins the next window, with a metric from the draws of this one.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec

from phalanx.adaptation.tuner import Stage, Sums, where
from phalanx.adaptation.warm_up import WarmUp, WarmUpState
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.specs import PyTree
from phalanx.run.device.advance import Advance, Advanced, BlockArguments, SinkState
from phalanx.run.device.blocks import ChainState
from phalanx.run.device.summing import Summing

if TYPE_CHECKING:
    from jaxtyping import Float64

FURTHER_ROUNDS = 64
"""Rounds of a block beyond one for each slot, for a search for a step size: its draws use a slot again."""


class RoundArguments(NamedTuple):
    """Arguments of the rounds of a block. Fields are arrays, their shapes, or their partitions.

    Attributes:
        most: the most rounds; 0 makes the draws of the block's arguments, and no tuner learns.
        first: first slot of the draws.
        end: end of the slots whose draws are added up if `most` is 0, once all chains have them.
        draws, window: draws of each chain in the window so far, and in all.
        stage: number of the window, windows that tune, and windows.
        step_size: that of the next round.
        states: numbers in the states of the tuners, each as the two halves of a float64, `(number, 2)`.
    """

    most: Any
    first: Any
    end: Any
    draws: Any
    window: Any
    stage: Any
    step_size: Any
    states: Any


class RoundsResult(NamedTuple):
    """Result of the rounds of a block, in float64.

    Attributes:
        sums: sums over the draws of the rounds, as `Summing` makes them.
        numbers: rounds, draws of the window, slots in use, step size of the next round, or NaN for that of the tuners,
            and the numbers in the states of the tuners.
        log: a row for each round, with the columns of `RoundLog` and the values that tuners set.
    """

    sums: Any
    numbers: Any
    log: Any


class BlockResult(NamedTuple):
    """Result of a block that records draws: see `Advanced` and `RoundsResult`."""

    chains: Any
    sinks: Any
    ticks: Any
    rounds: Any


class RoundLog(NamedTuple):
    """First columns of the log: draws of the window after a round, and sums over all of its draws."""

    window: Any
    draws: Any
    acceptance: Any
    num_steps: Any
    divergences: Any


class _Now(NamedTuple):
    """State of the loop over rounds.

    Attributes:
        goes_on: false to end the block.
        round: rounds made so far.
        draws: draws of each chain in the window.
        slots_in_use: slots in use.
        step_size: that of the next round; NaN for that of the tuners.
        states: numbers in the states of the tuners; XLA compiles one array faster than many numbers.
        log: see `RoundsResult`.
        block: chains, draws and ticks.
    """

    goes_on: Any
    round: Any
    draws: Any
    slots_in_use: Any
    step_size: Any
    states: Any
    log: Any
    block: Advanced


class _Plan(NamedTuple):
    """Round that comes next.

    Attributes:
        searching: true for a single short draw of a search for a step size.
        length: draws of each chain.
        due: slots in use at its end.
        after_next: draws of the round after it, whose step size, `later`, is known before this one ends; 0 if unknown.
        ahead: the same, if there are slots for them: chains that are done may begin them.
        tuning: hyperparameters of the round.
        later: step size of draws beyond the round.
    """

    searching: Any
    length: Any
    due: Any
    after_next: Any
    ahead: Any
    tuning: Any
    later: Any


@dataclass(frozen=True)
class Rounds:
    """Function of a block that records draws, before it is compiled.

    Attributes:
        advance: advances chains, with the recorder as its only sink.
        warm_up: the schedule of warm-up; None if the host learns from each round.
        structure: structure of the states of the tuners.
        flags: true for those of their numbers that are truth values.
    """

    advance: Advance
    warm_up: WarmUp | None
    structure: Any
    flags: tuple[bool, ...]

    @classmethod
    def of(cls, advance: Advance, warm_up: WarmUp) -> Rounds:
        """Return the block of a run with this warm-up."""
        blocks = advance.blocks
        has_step_size = "step_size" in getattr(blocks.kernel.tuning, "_fields", ())
        if blocks.groups is not None or not has_step_size or not warm_up.runs_on_devices:
            return cls(advance, None, jax.tree.structure(()), ())
        leaves, structure = jax.tree.flatten(warm_up.round_states(warm_up.begin(blocks.no_sums())))
        return cls(advance, warm_up, structure, tuple(np.asarray(leaf).dtype == bool for leaf in leaves))

    def __call__(
        self,
        seed: Array,
        arrays: Sequence[Array],
        tuning: PyTree,
        block_arguments: BlockArguments,
        rounds: RoundArguments,
        chains: ChainState,
        sinks: SinkState,
    ) -> BlockResult:
        """Make rounds until their number, the window, the slots or the ticks are used up."""
        blocks = self.advance.blocks
        run = functools.partial(self.advance, seed, arrays)
        if self.warm_up is None:
            block = run(tuning, block_arguments, chains, sinks)
            here = (block.sinks.count >= block_arguments.draws).all()
            with jax.enable_x64(True):
                numbers = jnp.zeros(0, jnp.float64)
                log = jnp.zeros((0, 0), jnp.float64)
            end = jnp.where(here, rounds.end, rounds.first)
        else:
            with jax.enable_x64(True):
                start = self._start(rounds, Advanced(chains, sinks, jnp.zeros(1, jnp.int32)))
            last = lax.while_loop(
                lambda now: now.goes_on, functools.partial(self._one_round, run, tuning, block_arguments, rounds), start
            )
            with jax.enable_x64(True):
                counts = jnp.stack([last.round, last.draws, last.slots_in_use]).astype(jnp.float64)
                step_size = last.step_size.astype(jnp.float64)[None]
                numbers = jnp.concatenate([counts, step_size, last.states])
            log = last.log
            block = last.block
            here = (block.sinks.count >= block_arguments.draws).all() & (rounds.most == 0)
            end = jnp.where(here, rounds.end, jnp.where(rounds.most == 0, rounds.first, last.slots_in_use))
        (rows,) = block.sinks.states
        with jax.enable_x64(True):
            sums = blocks.summing(rows, rounds.first, end)
        return BlockResult(*block, RoundsResult(sums, numbers, log))

    def _start(self, rounds: RoundArguments, block: Advanced) -> _Now:
        assert self.warm_up is not None
        states = lax.bitcast_convert_type(rounds.states, jnp.float64)
        log = jnp.zeros((self.most_rounds, len(RoundLog._fields) + len(self.names)), jnp.float64)
        return _Now(jnp.bool_(True), jnp.int32(0), rounds.draws, rounds.first, rounds.step_size, states, log, block)

    def _one_round(
        self, run: Any, tuning: PyTree, block_arguments: BlockArguments, rounds: RoundArguments, now: _Now
    ) -> _Now:
        """Return the state after a round, or, if `rounds.most` is 0, after the draws of the block's arguments."""
        learns = rounds.most > 0
        with jax.enable_x64(True):
            plan = self._plan(tuning, rounds, now)
            round_tuning = where(learns, plan.tuning, tuning)
        rest = block_arguments._replace(ticks=block_arguments.ticks - now.block.ticks[0])
        of_plan = rest._replace(draws=plan.due, ahead=plan.ahead, later=plan.later)
        block = run(round_tuning, where(learns, of_plan, rest), now.block.chains, now.block.sinks)
        with jax.enable_x64(True):
            is_complete, ticks, sums = self._together(block, now, plan.due, learns)
            after = self._learn(rounds, now, plan, sums)
            goes_on = after.goes_on & is_complete & learns & (ticks < block_arguments.ticks)
            # a round that the ticks have cut continues in the next block
            figures = jax.tree.map(
                lambda new, before: jnp.where(is_complete & learns, new, before).astype(before.dtype),
                after._replace(goes_on=(), block=()),
                now._replace(goes_on=(), block=()),
            )
            sinks = block.sinks
            # draws of a search are dropped
            sinks = sinks._replace(count=jnp.where(is_complete & learns & plan.searching, 0, sinks.count))
            return figures._replace(goes_on=goes_on, block=Advanced(block.chains, sinks, ticks[None]))

    def _plan(self, tuning: PyTree, rounds: RoundArguments, now: _Now) -> _Plan:
        """Return what the next round is to do."""
        warm_up = self.warm_up
        assert warm_up is not None
        states = self._states(now.states)
        searching = self._search(states)
        length = warm_up.round_length(searching, now.draws, rounds.window)
        due = now.slots_in_use + length
        next_tuning = self._apply(states, tuning, rounds)
        if not warm_up.runs_ahead:
            return _Plan(searching, length, due, jnp.int32(0), jnp.int32(0), next_tuning, next_tuning.step_size)
        after_next = jnp.where(searching, 0, warm_up.round_length(searching, now.draws + length, rounds.window))
        ahead = jnp.where(due + after_next > self.advance.blocks.slots, 0, after_next).astype(jnp.int32)
        step_size = jnp.where(jnp.isnan(now.step_size), next_tuning.step_size, now.step_size)
        round_tuning = next_tuning._replace(step_size=step_size)
        return _Plan(searching, length, due, after_next, ahead, round_tuning, next_tuning.step_size)

    def _learn(self, rounds: RoundArguments, now: _Now, plan: _Plan, sums: Sums) -> _Now:
        """Return the state after tuners have learned from the sums over a round's draws; `block` is as before."""
        warm_up = self.warm_up
        assert warm_up is not None
        stage = self._stage(rounds)
        states = tuple(
            where(~plan.searching | tuner.searches(state), tuner.update(state, sums, plan.tuning, stage), state)
            for tuner, state in zip(warm_up.round_tuners, self._states(now.states), strict=True)
        )
        draws = jnp.where(plan.searching, now.draws, now.draws + plan.length)
        slots_in_use = jnp.where(plan.searching, 0, plan.due)
        # chains that have run ahead, or would have if there were slots for it, have the step size before this round
        step_size = jnp.where(plan.after_next > 0, plan.later, jnp.nan)
        figures = (sums.stats[name] for name in ("acceptance_rate", "num_steps", "diverging"))
        row = [draws, sums.draws, *figures, *(getattr(plan.tuning, name) for name in self.names)]
        log = now.log.at[now.round].set(jnp.stack([jnp.asarray(x, jnp.float64) for x in row]))
        next_length = warm_up.round_length(self._search(states), draws, rounds.window)
        fits = slots_in_use + next_length <= self.advance.blocks.slots
        goes_on = (now.round + 1 < rounds.most) & (draws < rounds.window) & fits
        leaves = [jnp.asarray(leaf, jnp.float64) for leaf in jax.tree.leaves(states)]
        numbers = jnp.stack(leaves) if leaves else now.states
        return _Now(goes_on, now.round + 1, draws, slots_in_use, step_size, numbers, log, now.block)

    def _states(self, numbers: Float64[Array, "number"]) -> Any:
        leaves = [numbers[i] != 0 if flag else numbers[i] for i, flag in enumerate(self.flags)]
        return jax.tree.unflatten(self.structure, leaves)

    def _together(self, block: Advanced, now: _Now, due: Array, learns: Array) -> tuple[Array, Array, Sums]:
        """Return whether all chains have the round's draws, the most ticks so far, and sums over these draws.

        Devices exchange them in one message: XLA cannot mix up the order of messages of which there is one.
        """
        blocks = self.advance.blocks
        here = (block.sinks.count >= due).all()
        summing = Summing(blocks.row_layout, has_moments=False)
        (rows,) = block.sinks.states
        (figures,) = summing(rows, now.slots_in_use, jnp.where(here & learns, due, now.slots_in_use))
        ticks = now.block.ticks[0] + block.ticks[0]
        own = jnp.concatenate([jnp.stack([here, ticks]).astype(jnp.float64), figures[0]])
        several = blocks.target.mesh.shape[CHAIN] > 1
        of_devices = lax.all_gather(own, CHAIN) if several else own[None]
        total = of_devices[:, 2:].sum(0)  # in the same order on all devices
        return of_devices[:, 0].min() > 0, of_devices[:, 1].max().astype(jnp.int32), summing.totals(total)

    def _search(self, states: Sequence[PyTree]) -> Any:
        assert self.warm_up is not None
        pairs = zip(self.warm_up.round_tuners, states, strict=True)
        return functools.reduce(operator.or_, (tuner.searches(state) for tuner, state in pairs), jnp.bool_(False))

    def _stage(self, rounds: RoundArguments) -> Stage:
        assert self.warm_up is not None
        return Stage(*rounds.stage, renews=self.warm_up.renews)

    def _apply(self, states: Sequence[PyTree], tuning: PyTree, rounds: RoundArguments) -> PyTree:
        assert self.warm_up is not None
        stage = self._stage(rounds)
        for tuner, state in zip(self.warm_up.round_tuners, states, strict=True):
            tuning = tuner.apply(state, tuning, stage)
        return tuning

    @property
    def names(self) -> list[str]:
        """Hyperparameters in the log."""
        return [] if self.warm_up is None else self.warm_up.names

    @property
    def most_rounds(self) -> int:
        """Rows of the log."""
        return self.advance.blocks.slots + FURTHER_ROUNDS

    @property
    def specs(self) -> BlockResult:
        """Partition of the result over the mesh."""
        everywhere = PartitionSpec()
        rounds = RoundsResult(self.advance.blocks.summing.specs, everywhere, everywhere)
        return BlockResult(*self.advance.specs, rounds)

    # -- on the host -------------------------------------------------------------------------------------------------

    def arguments(self, warm_up: WarmUp, state: WarmUpState, slots_in_use: int) -> RoundArguments:
        """Return the arguments of the next rounds of a window, some slots of which are in use."""
        stage = warm_up.stage(state.window)
        states = np.array(jax.tree.leaves(warm_up.round_states(state)), np.float64)
        return RoundArguments(
            most=np.int32(self.most_rounds),
            first=np.int32(slots_in_use),
            end=np.int32(slots_in_use),
            draws=np.int32(state.draws),
            window=np.int32(warm_up.window_lengths[state.window]),
            stage=np.array(stage[:3], np.int32),
            step_size=np.asarray(state.tuning.step_size),
            states=states.view(np.uint32).reshape(-1, 2),
        )

    def no_rounds(self, first: int = 0, end: int = 0) -> RoundArguments:
        """Return the arguments of a block that makes the draws of its arguments, and adds up those in some slots."""
        zero = np.int32(0)
        step_size = np.asarray(getattr(self.advance.blocks.kernel.tuning, "step_size", np.float32(0)))
        if self.advance.blocks.groups is not None:
            step_size = np.float32(0)
        states = np.zeros((len(self.flags), 2), np.uint32)
        return RoundArguments(
            zero, np.int32(first), np.int32(end), zero, zero, np.zeros(3, np.int32), step_size, states
        )

    def states_of(self, numbers: Float64[np.ndarray, "number"]) -> Any:
        """Return the states of the tuners, given their numbers in a result."""
        leaves = [bool(x) if flag else x for x, flag in zip(numbers, self.flags, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)
