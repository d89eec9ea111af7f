"""A fit with fixed draws: they are climbed to the end of what they have to say, and doubled until more say no more.

The top for some draws is too good for these very draws. What another set says of it is not biased: where the guide that
twice as many draws have led to is no better on fresh ones, more would not help either.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from jax.sharding import NamedSharding, PartitionSpec

from phalanx.errors.words import count
from phalanx.run.pace import Pace
from phalanx.run.progress import Progress, Report
from phalanx.variational.ascent import MEMORY, Climb, climb
from phalanx.variational.compiled import Compiler
from phalanx.variational.drawing import change_between, quartiles_of
from phalanx.variational.fixed_draws import Draws, FixedDraws
from phalanx.variational.learning import COMPARED, NUMBERS, FitError, FitReport
from phalanx.variational.settling import NATS
from phalanx.variational.step import ROOM, Made

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


@dataclass
class Growing:
    """A fit with fixed draws under way.

    Attributes:
        fixed: the bound.
        result: the parameters, on the real line; their shapes before it begins.
        doubles: whether there will be more draws than at first.
        made: bounds and errors of all steps, in blocks.
        gradients: gradients of the log density, one for each draw and each step that was tried.
        interrupted: whether Ctrl-C has ended it.
        unsettled: why it cannot be said that learning has ended; empty when it has.
    """

    fixed: FixedDraws
    result: dict[str, Any]
    seed: np.uint32
    arrays: tuple[Array, ...]
    num_steps: int
    doubles: bool
    compiler: Compiler
    made: list[Made] = field(default_factory=list)
    gradients: int = 0
    interrupted: bool = False
    unsettled: str = "The fit has not begun."
    _seen: np.ndarray | None = None
    failed: int = 0
    seen: int = 0

    def compile(self) -> None:
        """Compile what is the same wherever it begins."""
        self._hold = self.compiler(self.fixed.hold, self.seed, np.uint32(0), np.int32(1), rarely=True)

    def begin(self, free: dict[str, Any]) -> None:
        """Begin there, and compile what climbs are made with."""
        self.result, count = free, np.int32(1)
        draws = self._hold(self.seed, np.uint32(0), count)
        # whole on every device: a vector of all parameters, some of which lie with rows, has no rows to be cut along
        everywhere = NamedSharding(self.fixed.pair.problem.mesh, PartitionSpec())
        self._begin = self.compiler(
            self._begun, self.result, draws, self.arrays, out_shardings=lambda: everywhere, rarely=True
        )
        stage, _ = self._begin(self.result, draws, self.arrays)
        self._block = self.compiler(
            self._climbed, stage, self.result, draws, count, self.arrays, out_shardings=lambda: everywhere
        )
        if self.doubles:
            size = sum(leaf.size for leaf in jax.tree.leaves(self.result))
            quartiles = quartiles_of(self.fixed.pair, max(16, min(COMPARED, NUMBERS // size)))
            self._quartiles = self.compiler(quartiles, self.result, self.seed, self.arrays, rarely=True)
            self._gain = self.compiler(self.fixed.gain, self.result, self.result, draws, self.arrays, rarely=True)
        self._block.wait()

    @property
    def step(self) -> int:
        """Steps made."""
        return sum(len(made.bound) for made in self.made)

    def run(self, display: Progress, look: Sequence[Callable[[Report], Any]], seconds: float | None) -> None:
        """Climb, and double the draws, until it has settled, or steps or time are over. Ctrl-C ends it."""
        chunks, began, number = self._first(), time.monotonic(), 0
        ends = None if seconds is None else began + seconds
        try:
            while True:
                before = self.result
                ended = self._climb(chunks, ends, [display.show, *look])
                if not ended:
                    return
                number += 1
                if self._is_settled(before, number, chunks):
                    return
                chunks = self._more(chunks)
        except KeyboardInterrupt:
            self.interrupted, steps = True, count(self.step, "step")
            self.unsettled = f"Ctrl-C ended the fit after {steps}, before more draws made no better guide."
            display.say(f"Interrupted: returning what was learned in {steps}.")

    def _climb(self, chunks: int, ends: float | None, look: Sequence[Callable[[Report], Any]]) -> bool:
        """One climb; whether it was made to its end."""
        anchor, draws_now, pace = self.result, chunks * self.fixed.chunk, Pace()
        draws = self._hold(self.seed, np.uint32(0), np.int32(chunks))
        stage, error = self._begin(anchor, draws, self.arrays)
        before = self.gradients
        self.gradients += draws_now
        if not np.isfinite(stage.climb.value) or not np.isfinite(stage.climb.gradient).all():
            raise FitError(self._blame(draws_now))
        while not bool(stage.over):
            if ends is not None and time.monotonic() >= ends:
                self.unsettled = f"Time was over after {self.step:,} steps, before more draws made no better guide."
                return False
            if self.step >= self.num_steps:
                self.unsettled = f"After {self.step:,} steps, with {draws_now:,} fixed draws, the bound still rises."
                return False
            count, clock = min(pace.ticks, ROOM, self.num_steps - self.step), time.perf_counter()
            stage, bounds, done = self._block(stage, anchor, draws, np.int32(count), self.arrays)
            count, result = int(done), self.fixed.moved(anchor, stage.climb.position)
            made = Made(*map(np.asarray, (bounds[:count], jnp.full(count, error))))  # pyright: ignore[reportArgumentType]
            self.result, self.made = result, [*self.made, made]
            self.gradients = before + int(stage.climb.gradients) * draws_now
            pace.learn(count, time.perf_counter() - clock)
            self._show(made, draws_now, look)
        return True

    def _is_settled(self, before: Any, number: int, chunks: int) -> bool:
        """Whether there is nothing to be had from more draws, or no more are to be made."""
        draws = chunks * self.fixed.chunk
        if not self.doubles:
            self.unsettled = (
                f"The fit kept to {draws:,} fixed draws and did not look at whether more would change the guide "
                f"(until=False)."
            )
            return True
        fresh = self._hold(self.seed, np.uint32(number), np.int32(chunks))
        gain, error = map(float, self._gain(before, self.result, fresh, self.arrays))
        then, self._seen = self._seen, np.asarray(self._quartiles(self.result, self.seed, self.arrays))
        change = math.inf if then is None else change_between(then, self._seen)
        if number > 1 and gain <= max(NATS, 2.0 * error) and change <= CHANGED:
            self.unsettled = ""
            return True
        self.unsettled = f"With {draws:,} fixed draws the guide is still better than with fewer."
        return 2 * draws > LAST

    def _first(self) -> int:
        """Chunks of draws to begin with."""
        if not self.doubles:
            return 1
        names = set(self.fixed.pair.model_parameters())
        mine = {name: value for name, value in self.result.items() if name not in names}
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

    def _show(self, made: Made, draws: int, look: Sequence[Callable[[Report], Any]]) -> None:
        report = FitReport(
            "fitting", self.step, self.num_steps, draws, float("nan"), 0,
            elbo=float(made.bound[-1]), error=float(made.error[-1]),
        )  # fmt: skip
        for one in look:
            one(report)

    def _blame(self, draws: int) -> str:
        pair = self.fixed.pair
        params = pair.learned.constrain(self.result)
        improper = pair.problem.improper(self.arrays, {name: params[name] for name in pair.problem.parameters})
        otherwise = f"{improper}. Or give" if improper else "Give"
        return (
            f"fit: of {draws:,} fixed draws some have no finite log density, or no finite gradient, under model and "
            f"guide. {otherwise} init=, or a guide that begins narrower (init_scale=); or learn by steps, without "
            f"optimizer='lbfgs', which leaves such draws out. What was learned before is the error's .fit."
        )
