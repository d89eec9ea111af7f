"""A fit with fixed draws: they are climbed to the end of what they have to say, and doubled until more say no more.

The top for some draws is too good for these very draws. What another set says of it is not biased: where the guide that
twice as many draws have led to is no better on fresh ones, more would not help either.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from jax.sharding import NamedSharding, PartitionSpec

from phalanx.errors.words import count
from phalanx.learning.ascent import MEMORY, Climb, climb
from phalanx.learning.compiled import Compiler
from phalanx.learning.loop import Stop
from phalanx.run.compile.block_length import Pace
from phalanx.variational.drawing import change_between, quartiles_of
from phalanx.variational.methods.blame import improper_model
from phalanx.variational.methods.fixed_draws import Draws, FixedDraws
from phalanx.variational.methods.method import FitError, FitReport, Outcome
from phalanx.variational.methods.settling import NATS
from phalanx.variational.methods.step import ROOM, Made
from phalanx.variational.methods.stochastic import COMPARED, NUMBERS

FIRST, LAST = 32, 2**15
"""Draws to begin with, at least, and to end with, at most."""

PER_COORDINATE = 4
"""Times as many draws as a coordinate has parameters: of fewer, a guide learns what is theirs alone."""

RECENT = 3
"""Steps in a row that must gain less than `NATS` together for a climb to end."""


CHANGED = 0.3
"""The most that a median may move by doubling, in standard deviations, and a width in parts of itself: of coordinates
that the bound hardly depends on, many draws know little, and it is the bound that is waited for."""


class Stage(NamedTuple):
    """A climb under way.

    Attributes:
        climb: where it is, as a change of the parameters it began with.
        recent: the bound before each of the last steps.
        over: whether it has ended.
    """

    climb: Climb
    recent: Array
    over: Array


class Growth(NamedTuple):
    """A fit with fixed draws as a value.

    Attributes:
        free: the parameters, on the real line.
        chunks: chunks of draws that are held.
        made: bounds and errors of all steps, in blocks.
        gradients: gradients of the log density, one for each draw and each step that was tried.
        stage: where the climb under way is; None between two.
        anchor: the parameters that it began with.
        draws: that it holds.
        error: the bound's Monte-Carlo error.
        before: gradients that were computed before it.
        number: climbs that have ended.
        quartiles: of the guide at the end of the last.
        over: whether nothing is to be had from more draws, or no more are to be made.
        unsettled: why it cannot be said that learning has ended; empty when it has.
    """

    free: dict[str, Any]
    chunks: int
    made: tuple[Made, ...] = ()
    gradients: int = 0
    stage: Stage | None = None
    anchor: Any = None
    draws: Any = None
    error: Any = None
    before: int = 0
    number: int = 0
    quartiles: np.ndarray | None = None
    over: bool = False
    unsettled: str = ""

    @property
    def step(self) -> int:
        """Steps made."""
        return sum(len(made.bound) for made in self.made)


@dataclass
class Growing:
    """The method of fixed draws.

    Attributes:
        fixed: the bound.
        doubles: whether there will be more draws than at first.
    """

    fixed: FixedDraws
    seed: np.uint32
    arrays: tuple[Array, ...]
    num_steps: int
    doubles: bool
    compiler: Compiler

    def __post_init__(self) -> None:
        self._pace = Pace()
        self._hold = self.compiler(self.fixed.hold, self.seed, np.uint32(0), np.int32(1), rarely=True)

    def init(self, start: dict[str, Any]) -> Growth:
        """Begin with these parameters, and compile what climbs are made with."""
        count = np.int32(1)
        draws = self._hold(self.seed, np.uint32(0), count)
        # whole on every device: a vector of all parameters, some of which lie with rows, has no rows to be cut along
        everywhere = NamedSharding(self.fixed.pair.problem.mesh, PartitionSpec())
        self._begin = self.compiler(
            self._begun, start, draws, self.arrays, out_shardings=lambda: everywhere, rarely=True
        )
        stage, _ = self._begin(start, draws, self.arrays)
        self._block = self.compiler(
            self._climbed, stage, start, draws, count, self.arrays, out_shardings=lambda: everywhere
        )
        if self.doubles:
            size = sum(leaf.size for leaf in jax.tree.leaves(start))
            quartiles = quartiles_of(self.fixed.pair, max(16, min(COMPARED, NUMBERS // size)))
            self._quartiles = self.compiler(quartiles, start, self.seed, self.arrays, rarely=True)
            self._gain = self.compiler(self.fixed.gain, start, start, draws, self.arrays, rarely=True)
        self._block.wait()
        return Growth(start, self._first(start))

    def step(self, state: Growth, say: Callable[[str], None]) -> Iterator[Growth]:
        """Climb on, from where the last climb ended; where it has ended, look whether more draws are worth it."""
        if state.stage is None:
            self._pace, state = Pace(), self._climb(state)
        anchor, draws_now, began = state.anchor, state.chunks * self.fixed.chunk, time.perf_counter()
        most = min(self._pace.ticks, ROOM, self.num_steps - state.step)
        stage, bounds, done = self._block(state.stage, anchor, state.draws, np.int32(most), self.arrays)
        count, free = int(done), self.fixed.moved(anchor, stage.climb.position)
        made = Made(*map(np.asarray, (bounds[:count], jnp.full(count, state.error))))  # pyright: ignore[reportArgumentType]
        gradients = state.before + int(stage.climb.gradients) * draws_now
        state = state._replace(free=free, made=(*state.made, made), gradients=gradients, stage=stage)
        yield state
        self._pace.learn(count, time.perf_counter() - began)
        if bool(stage.over):
            yield self._ended(state._replace(stage=None, number=state.number + 1), anchor)

    def done(self, state: Growth) -> bool:
        """Return whether more draws would not change the guide, or all steps are made."""
        return state.over or state.step >= self.num_steps

    def stop(self, state: Growth, reason: Stop) -> str:
        """Return a line about an interruption."""
        interrupted = reason is Stop.INTERRUPTED
        return f"Interrupted: returning what was learned in {count(state.step, 'step')}." if interrupted else ""

    def outcome(self, state: Growth, stopped: Stop | None) -> Outcome:
        """Return the parameters that the last step led to."""
        unsettled, draws = state.unsettled, state.chunks * self.fixed.chunk
        if stopped is Stop.INTERRUPTED:
            steps = count(state.step, "step")
            unsettled = f"Ctrl-C ended the fit after {steps}, before more draws made no better guide."
        elif stopped is Stop.TIME:
            unsettled = f"Time was over after {state.step:,} steps, before more draws made no better guide."
        elif not state.over:
            unsettled = f"After {state.step:,} steps, with {draws:,} fixed draws, the bound still rises."
        return Outcome(state.free, state.made, state.step, state.gradients, unsettled=unsettled)

    def report(self, state: Growth) -> FitReport:
        """Return how far the climb has come."""
        made = state.made[-1]
        return FitReport(
            "fitting", state.step, self.num_steps, state.chunks * self.fixed.chunk, float("nan"), 0,
            elbo=float(made.bound[-1]), error=float(made.error[-1]),
        )  # fmt: skip

    def _climb(self, state: Growth) -> Growth:
        """Begin a climb, with more draws than the one before."""
        state = state._replace(chunks=self._more(state.chunks)) if state.number else state
        draws = self._hold(self.seed, np.uint32(0), np.int32(state.chunks))
        stage, error = self._begin(state.free, draws, self.arrays)
        if not np.isfinite(stage.climb.value) or not np.isfinite(stage.climb.gradient).all():
            raise FitError(self._blame(state), state.free)
        return state._replace(
            stage=stage, anchor=state.free, draws=draws, error=error, before=state.gradients,
            gradients=state.gradients + state.chunks * self.fixed.chunk,
        )  # fmt: skip

    def _ended(self, state: Growth, before: dict[str, Any]) -> Growth:
        """Return what follows a climb that has ended: the end of the fit, or a climb of more draws."""
        draws = state.chunks * self.fixed.chunk
        if not self.doubles:
            unsettled = (
                f"The fit kept to {draws:,} fixed draws and did not look at whether more would change the guide "
                f"(until=False)."
            )
            return state._replace(over=True, unsettled=unsettled)
        fresh = self._hold(self.seed, np.uint32(state.number), np.int32(state.chunks))
        gain, error = map(float, self._gain(before, state.free, fresh, self.arrays))
        now = np.asarray(self._quartiles(state.free, self.seed, self.arrays))
        change = math.inf if state.quartiles is None else change_between(state.quartiles, now)
        state = state._replace(quartiles=now)
        if state.number > 1 and gain <= max(NATS, 2.0 * error) and change <= CHANGED:
            return state._replace(over=True)
        if 2 * draws > LAST:
            unsettled = f"With {draws:,} fixed draws the guide is still better than with fewer."
            return state._replace(over=True, unsettled=unsettled)
        return state

    def _first(self, start: dict[str, Any]) -> int:
        """Chunks of draws to begin with."""
        if not self.doubles:
            return 1
        names = set(self.fixed.pair.model_parameters())
        mine = {name: value for name, value in start.items() if name not in names}
        size = sum(leaf.size for leaf in jax.tree.leaves(mine))
        return self._chunks_of(min(max(FIRST, PER_COORDINATE * size / self.fixed.coordinates), LAST / 4))

    def _more(self, chunks: int) -> int:
        """Twice as many, or as many as make second moments right."""
        matched = self._chunks_of(self.fixed.enough)
        return max(2 * chunks, matched)

    def _chunks_of(self, draws: float) -> int:
        return math.ceil(draws / self.fixed.chunk)

    def _begun(self, anchor: Any, draws: Draws, arrays: Any) -> tuple[Stage, Array]:
        """A climb that begins, and the bound's error."""
        position = jnp.zeros_like(ravel_pytree(dict(anchor))[0])
        estimate = self.fixed.look(position, anchor, draws, arrays)
        none = jnp.zeros((MEMORY, position.size), position.dtype)
        begun = Climb(position, estimate.bound, estimate.gradient, none, none, jnp.zeros(MEMORY, bool), jnp.bool_(True))
        return Stage(begun, jnp.full(RECENT, -jnp.inf, estimate.bound.dtype), jnp.bool_(False)), estimate.error

    def _climbed(
        self, stage: Stage, anchor: Any, draws: Draws, count: Array, arrays: Any
    ) -> tuple[Stage, Array, Array]:
        """At most so many steps, the bound after each, and how many there were."""
        value = self.fixed.value(anchor, draws, arrays)

        def go_on(carry: tuple[Array, Stage, Array]) -> Array:
            return (carry[0] < count) & ~carry[1].over

        def step(carry: tuple[Array, Stage, Array]) -> tuple[Array, Stage, Array]:
            number, stage, bounds = carry
            there = climb(value, stage.climb, 1)
            over = ~there.moved | (there.value - stage.recent[0] < NATS)
            recent = jnp.append(stage.recent[1:], stage.climb.value)
            return number + 1, Stage(there, recent, over), bounds.at[number].set(there.value)

        done, stage, bounds = lax.while_loop(go_on, step, (jnp.int32(0), stage, jnp.full(ROOM, jnp.nan)))
        return stage, bounds, done

    def _blame(self, state: Growth) -> str:
        draws, improper = state.chunks * self.fixed.chunk, improper_model(self.fixed.pair, state.free, self.arrays)
        otherwise = f"{improper}. Or give" if improper else "Give"
        return (
            f"fit: of {draws:,} fixed draws some have no finite log density, or no finite gradient, under model and "
            f"guide. {otherwise} init=, or a guide that begins narrower (init_scale=); or learn by steps, without "
            f"optimizer='lbfgs', which leaves such draws out. What was learned before is the error's .fit."
        )
