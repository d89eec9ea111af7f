"""A fit with fixed draws: their bound is climbed to its maximum, and draws are doubled while that improves the guide.

The maximum for a set of draws is biased upwards for these draws. Fresh draws give an unbiased comparison: if the guide
that twice as many draws have led to is no better on them, more draws would not help either.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from jax.sharding import NamedSharding, PartitionSpec

from phalanx.errors.message_text import count
from phalanx.learning.ascent import MEMORY, Climb, climb
from phalanx.learning.compiled import Compiler
from phalanx.learning.loop import Stop
from phalanx.run.compile.block_length import BlockLength
from phalanx.variational.drawing import change_between, quartiles_of
from phalanx.variational.guides.guide_and_model import key_of
from phalanx.variational.guides.learned import Params
from phalanx.variational.methods.fixed_draws import FixedDraws, HeldDraws
from phalanx.variational.methods.method import FitError, FitReport
from phalanx.variational.methods.not_finite import improper_model
from phalanx.variational.methods.settling import NATS
from phalanx.variational.methods.step import ROOM, Losses, StepBounds
from phalanx.variational.methods.stochastic import COMPARED, NUMBERS
from phalanx.variational.result import FitOutcome

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

FIRST = 32
"""Fewest draws of the first climb."""

LAST = 2**15
"""Number of draws that is not exceeded by doubling."""

PER_COORDINATE = 4
"""Draws to begin with for each parameter of a coordinate: a guide overfits fewer."""

RECENT = 3
"""Steps in a row that must gain less than `NATS` together for a climb to end."""


CHANGED = 0.3
"""The most that a median may move by doubling, in standard deviations, and a width in parts of itself. It is loose:
even many draws hardly determine coordinates that the bound hardly depends on, and the bound decides."""


class ClimbState(NamedTuple):
    """State of a climb.

    Attributes:
        climb: the climb, whose position is a change of the parameters that it began with.
        recent: the bound before each of the last steps.
        over: whether it has ended.
    """

    climb: Climb
    recent: Float[Array, "step"]
    over: Bool[Array, ""]


class Growth(NamedTuple):
    """State of a fit with fixed draws.

    Attributes:
        free: the parameters, on the real line.
        chunks: chunks of draws that are held.
        step_bounds: bounds and errors of all steps, in blocks.
        gradients: gradients of the log density, one for each draw and each step that was tried.
        climb: the current climb; None between two.
        anchor: the parameters that it began with.
        draws: the draws that it holds.
        error: the bound's Monte-Carlo error.
        before: gradients that were computed before it.
        number: climbs that have ended.
        quartiles: quartiles of the guide at the end of the last climb.
        over: whether no further climb follows.
        unsettled: why learning may not have ended; empty if it has.
    """

    free: dict[str, Any]
    chunks: int
    step_bounds: tuple[StepBounds, ...] = ()
    gradients: int = 0
    climb: ClimbState | None = None
    anchor: dict[str, Any] | None = None
    draws: HeldDraws | None = None
    error: Float[Array, ""] | None = None
    before: int = 0
    number: int = 0
    quartiles: Float[np.ndarray, "3 coordinate"] | None = None
    over: bool = False
    unsettled: str = ""

    @property
    def step(self) -> int:
        """Steps made."""
        return sum(len(bounds.bound) for bounds in self.step_bounds)


@dataclass
class Growing:
    """The method of fixed draws.

    Attributes:
        fixed: the bound.
        doubles: whether draws are doubled.
    """

    fixed: FixedDraws
    seed: np.uint32
    arrays: tuple[Array, ...]
    num_steps: int
    doubles: bool
    compiler: Compiler

    def __post_init__(self) -> None:
        self._block_length = BlockLength()
        self._hold = self.compiler(
            self.fixed.hold, self.seed, np.uint32(0), np.int32(1), rarely=True, identity=self._identity("hold")
        )

    def init(self, start: dict[str, Any]) -> Growth:
        """Return the state at these parameters, and compile the climbs."""
        count = np.int32(1)
        draws = self._hold(self.seed, np.uint32(0), count)
        # replicated: a vector of all parameters, some of them sharded, cannot be sharded by rows
        everywhere = NamedSharding(self.fixed.pair.problem.mesh, PartitionSpec())
        self._begin = self.compiler(
            self._begun,
            start,
            draws,
            self.arrays,
            out_shardings=lambda _: everywhere,
            rarely=True,
            identity=self._identity("begin climbs"),
        )
        climb, _ = self._begin(start, draws, self.arrays)
        self._block = self.compiler(
            self._climbed,
            climb,
            start,
            draws,
            count,
            self.arrays,
            out_shardings=lambda _: everywhere,
            identity=self._identity("climb"),
        )
        if self.doubles:
            size = sum(leaf.size for leaf in jax.tree.leaves(start))
            num_draws = max(16, min(COMPARED, NUMBERS // size))
            self._quartiles = self.compiler(
                quartiles_of(self.fixed.pair, num_draws),
                start,
                self.seed,
                self.arrays,
                rarely=True,
                identity=self._identity("quartiles", num_draws),
            )
            self._gain = self.compiler(
                self.fixed.gain, start, start, draws, self.arrays, rarely=True, identity=self._identity("gain")
            )
        self._block.wait()
        return Growth(start, self._first(start))

    def step(self, state: Growth, say: Callable[[str], None]) -> Iterator[Growth]:
        """Make a block of steps of a climb; if the climb has ended, decide whether more draws are worth it."""
        if state.climb is None:
            self._block_length, state = BlockLength(), self._climb(state)
        anchor = state.anchor
        draws_now = state.chunks * self.fixed.chunk
        began = time.perf_counter()
        assert anchor is not None
        most = min(self._block_length.ticks, ROOM, self.num_steps - state.step)
        at, bounds, num_steps = self._block(state.climb, anchor, state.draws, np.int32(most), self.arrays)
        count = int(num_steps)
        free = self.fixed.moved(anchor, at.climb.position)
        step_bounds = StepBounds(*map(np.asarray, (bounds[:count], jnp.full(count, state.error))))  # pyright: ignore[reportArgumentType]
        gradients = state.before + int(at.climb.gradients) * draws_now
        state = state._replace(free=free, step_bounds=(*state.step_bounds, step_bounds), gradients=gradients, climb=at)
        yield state
        self._block_length.learn(count, time.perf_counter() - began)
        if bool(at.over):
            yield self._ended(state._replace(climb=None, number=state.number + 1), anchor)

    def done(self, state: Growth) -> bool:
        """Return whether more draws would not change the guide, or all steps are made."""
        return state.over or state.step >= self.num_steps

    def stop(self, state: Growth, reason: Stop) -> str:
        """Return a line about an interruption; there is no state to save."""
        is_interrupted = reason is Stop.INTERRUPTED
        return f"Interrupted: returning what was learned in {count(state.step, 'step')}." if is_interrupted else ""

    def outcome(self, state: Growth, stop: Stop | None) -> FitOutcome:
        """Return the parameters that the last step led to."""
        problem = state.unsettled
        draws = state.chunks * self.fixed.chunk
        if stop is Stop.INTERRUPTED:
            steps = count(state.step, "step")
            problem = f"Ctrl-C ended the fit after {steps}, while doubling the draws still improved the guide."
        elif stop is Stop.TIME:
            problem = f"Time was over after {state.step:,} steps, while doubling the draws still improved the guide."
        elif not state.over:
            problem = f"After {state.step:,} steps, with {draws:,} fixed draws, the bound still rises."
        return FitOutcome(state.free, Losses.of(state.step_bounds), state.step, state.gradients, unsettled=problem)

    def report(self, state: Growth) -> FitReport:
        """Return the progress of the climb."""
        latest = state.step_bounds[-1]
        return FitReport(
            "fitting",
            state.step,
            self.num_steps,
            elbo=float(latest.bound[-1]),
            error=float(latest.error[-1]),
        )

    def _identity(self, name: str, *what: Hashable) -> Hashable | None:
        return key_of(self.fixed.pair, name, self.fixed.chunk, *what)

    def _climb(self, state: Growth) -> Growth:
        """Return the state at the start of a climb, with more draws than the one before."""
        state = state._replace(chunks=self._more(state.chunks)) if state.number else state
        draws = self._hold(self.seed, np.uint32(0), np.int32(state.chunks))
        at, error = self._begin(state.free, draws, self.arrays)
        if not np.isfinite(at.climb.value) or not np.isfinite(at.climb.gradient).all():
            raise FitError(self._blame(state), state.free)
        return state._replace(
            climb=at,
            anchor=state.free,
            draws=draws,
            error=error,
            before=state.gradients,
            gradients=state.gradients + state.chunks * self.fixed.chunk,
        )

    def _ended(self, state: Growth, before: dict[str, Any]) -> Growth:
        """Return the state after a climb: the end of the fit, or room for a climb with more draws."""
        draws = state.chunks * self.fixed.chunk
        if not self.doubles:
            problem = (
                f"The fit kept to {draws:,} fixed draws and did not check whether more would change the guide "
                f"(until=False)."
            )
            return state._replace(over=True, unsettled=problem)
        fresh = self._hold(self.seed, np.uint32(state.number), np.int32(state.chunks))
        gain, error = map(float, self._gain(before, state.free, fresh, self.arrays))
        now = np.asarray(self._quartiles(state.free, self.seed, self.arrays))
        change = math.inf if state.quartiles is None else float(change_between(state.quartiles, now))
        state = state._replace(quartiles=now)
        if state.number > 1 and gain <= max(NATS, 2.0 * error) and change <= CHANGED:
            return state._replace(over=True)
        if 2 * draws > LAST:
            problem = f"With {draws:,} fixed draws the guide is still better than with fewer."
            return state._replace(over=True, unsettled=problem)
        return state

    def _first(self, start: dict[str, Any]) -> int:
        """Return the number of chunks of the first climb."""
        if not self.doubles:
            return 1
        of_model = self.fixed.pair.problem.parameters
        mine = {name: value for name, value in start.items() if name not in of_model}
        size = sum(leaf.size for leaf in jax.tree.leaves(mine))
        return self._chunks_of(min(max(FIRST, PER_COORDINATE * size / self.fixed.coordinates), LAST / 4))

    def _more(self, chunks: int) -> int:
        """Return twice the chunks, or as many as it takes to match second moments."""
        matched = self._chunks_of(self.fixed.enough)
        return max(2 * chunks, matched)

    def _chunks_of(self, draws: float) -> int:
        return math.ceil(draws / self.fixed.chunk)

    def _begun(self, anchor: Params, draws: HeldDraws, arrays: Sequence[Array]) -> tuple[ClimbState, Float[Array, ""]]:
        """Return the start of a climb, and the bound's error."""
        position = jnp.zeros_like(ravel_pytree(dict(anchor))[0])
        estimate = self.fixed.look(position, anchor, draws, arrays)
        none = jnp.zeros((MEMORY, position.size), position.dtype)
        first_climb = Climb(
            position, estimate.bound, estimate.gradient, none, none, jnp.zeros(MEMORY, bool), jnp.bool_(True)
        )
        return ClimbState(
            first_climb, jnp.full(RECENT, -jnp.inf, estimate.bound.dtype), jnp.bool_(False)
        ), estimate.error

    def _climbed(
        self, at: ClimbState, anchor: Params, draws: HeldDraws, count: Int[Array, ""], arrays: Sequence[Array]
    ) -> tuple[ClimbState, Float[Array, "step"], Int[Array, ""]]:
        """Make at most `count` steps; return the bound after each, and the number of steps, too."""
        value = self.fixed.value(anchor, draws, arrays)

        def go_on(carry: tuple[Array, ClimbState, Array]) -> Bool[Array, ""]:
            return (carry[0] < count) & ~carry[1].over

        def step(carry: tuple[Array, ClimbState, Array]) -> tuple[Array, ClimbState, Array]:
            number, at, bounds = carry
            there = climb(value, at.climb, 1)
            over = ~there.moved | (there.value - at.recent[0] < NATS)
            recent = jnp.append(at.recent[1:], at.climb.value)
            return number + 1, ClimbState(there, recent, over), bounds.at[number].set(there.value)

        num_steps, at, bounds = lax.while_loop(go_on, step, (jnp.int32(0), at, jnp.full(ROOM, jnp.nan)))
        return at, bounds, num_steps

    def _blame(self, state: Growth) -> str:
        draws = state.chunks * self.fixed.chunk
        improper = improper_model(self.fixed.pair, state.free, self.arrays)
        otherwise = f"{improper}. Or give" if improper else "Give"
        return (
            f"fit: some of {draws:,} fixed draws have no finite log density, or no finite gradient, under model and "
            f"guide. {otherwise} init=, or a guide that begins narrower (init_scale=); or learn by steps, without "
            f"optimizer='lbfgs': they leave such draws out. The error's .fit is the fit before."
        )
