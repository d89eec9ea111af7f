"""Stochastic gradient steps, each with fresh draws, until windows of steps agree: the usual way to fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, nan
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.errors.message_text import count
from phalanx.extras import require
from phalanx.learning.checkpoint import TrainingCheckpoint
from phalanx.learning.compiled import Compiler
from phalanx.learning.loop import EndOfData, Stop
from phalanx.mesh.output import warn
from phalanx.mesh.processes import all_to_devices
from phalanx.run.compile.block_length import BlockLength
from phalanx.store.policy import SavePolicy
from phalanx.variational.drawing import change_between, quartiles_of
from phalanx.variational.guides.guide_and_model import bound_name, key_of
from phalanx.variational.guides.learned import Params
from phalanx.variational.methods.method import FitError, FitReport
from phalanx.variational.methods.not_finite import Blame
from phalanx.variational.methods.settling import TOLERANCE, Settling
from phalanx.variational.methods.step import PATIENCE, ROOM, FitState, Losses, StepBounds, StepOrder, Steps, laid_out
from phalanx.variational.monitoring.options import Training
from phalanx.variational.monitoring.stream import Stream
from phalanx.variational.monitoring.watching import FitWatch, Windows
from phalanx.variational.result import FitOutcome

if TYPE_CHECKING:
    from jaxtyping import Float

COMPARED = 256
"""Most draws that compare two guides."""

NUMBERS = 2**22
"""Most numbers in the draws that compare two guides, unless 16 have more, and in a copy of the first parameters."""

T = TypeVar("T")


class FitProgress(NamedTuple):
    """State of a fit by steps.

    Attributes:
        state: the state on the devices, after the last step.
        settling: windows and rates.
        step_bounds: bounds and errors of all steps, in blocks.
        free: the average over the last window, if one has ended.
        averaged: the average over the last window; None before the first has ended.
        quartiles: quartiles of the guides of the last two windows, the latest first.
        fresh: bounds and errors of the steps of a block that has not ended.
        rate: factor on the optimiser's changes in the last block.
    """

    state: FitState
    settling: Settling
    step_bounds: tuple[StepBounds, ...]
    free: Params
    averaged: Params | None = None
    quartiles: tuple[Float[np.ndarray, "3 coordinate"] | None, ...] = (None, None)
    fresh: tuple[StepBounds, ...] = ()
    rate: float = 1.0

    @property
    def step(self) -> int:
        """Steps made."""
        return int(self.state.step)

    @property
    def windows(self) -> Windows:
        """The windows, as a checkpoint has them."""
        return Windows(self.settling, self.averaged, self.quartiles)

    @property
    def best_average(self) -> Params:
        """The average over a window that was cut short, if it has enough steps, else over the window before."""
        if not self.state.averages:
            return self.state.free
        window = self.settling.window
        enough = int(self.state.averaged) >= (window.end - window.begin) // 2
        if self.averaged is not None and not enough:
            return self.averaged
        return self.state.mean if enough else self.state.free


@dataclass
class Stochastic:
    """The method of steps.

    Attributes:
        steps: the steps.
        begins: function from parameters on the real line to the first state.
        shapes: shapes of the parameters.
        settling: the rule for windows and rates, at its start.
        stream: the batches, one for each step, of data that come in batches; `arrays` are then those of the first.
        falls: whether the rate falls to zero over the steps.
        training: options of a fit that is watched.
        policy: folder of its saves, and when to make them; None without.
        first_batch: the number of the first batch, of batches that have an order.
        averages: whether the outcome is an average over steps; otherwise it is the last step.
    """

    steps: Steps
    begins: Callable[[dict[str, Any]], FitState]
    shapes: dict[str, Any]
    seed: np.uint32
    arrays: tuple[Array, ...]
    rate: float
    settling: Settling
    compiler: Compiler
    stream: Stream | None = None
    falls: bool = False
    training: Training | None = None
    policy: SavePolicy | None = None
    first_batch: int = 0
    averages: bool = True
    _block_length: BlockLength = field(default_factory=BlockLength)

    def __post_init__(self) -> None:
        state: Any = _shapes_of(self.begins, self.shapes)
        self._layout = laid_out(self.steps.pair, self.steps.optimizer, state)
        state = jax.tree.map(lambda leaf, where: leaf.update(sharding=where), state, self._layout)
        everywhere = jax.tree.leaves(self._layout.step)[0]
        empty = StepBounds(everywhere, everywhere)
        self._block = self.compiler(
            self.steps.block if self.stream is None else self.steps.single,
            state,
            self.seed,
            self.arrays,
            StepOrder(np.int32(0), np.float32(self.rate), np.bool_(False)),
            out_shardings=lambda _: (self._layout, empty),
            identity=self.steps.identity(state),
        )
        if self.settling.stops:
            count = draws_to_compare(state.free)
            pair = self.steps.pair
            arguments = (state.free, self.seed, self.arrays)
            identity = key_of(pair, "quartiles", count)
            self._quartiles = self.compiler(quartiles_of(pair, count), *arguments, rarely=True, identity=identity)

    def init(self, start: dict[str, Any]) -> FitProgress:
        """Return the state at these parameters, or that of a checkpoint, once the block is compiled."""
        progress = FitProgress(all_to_devices(self.begins(start), self._layout), self.settling, (), start)
        self._begun = start if sum(leaf.size for leaf in jax.tree.leaves(start)) <= NUMBERS else None
        self.watch = None
        if self.training is not None or self.policy is not None:
            what = self.steps, progress.state, self.seed, self.arrays, self.rate, self.compiler
            self.watch = FitWatch(self.training, self.policy, self.settling, *what)
            progress = self._resumed(progress, self.watch)
        if self.stream is not None:
            self.stream.skip_to(self.first_batch + progress.step)
        self._block.wait()
        return progress

    def step(self, state: FitProgress, say: Callable[[str], None]) -> Iterator[FitProgress]:
        """Make a block of steps; evaluate, log and save if that is due, and compare windows if one has ended."""
        first = state.step
        began = time.perf_counter()
        window = state.settling.window
        most = min(self._block_length.ticks, ROOM, state.settling.end_of(first) - first, self._num_steps - first)
        most = most if self.watch is None else int(min(most, self.watch.until_next(first)))
        rate = np.float32(self.rate * state.settling.rate)
        order = StepOrder(np.int32(most), rate, np.bool_(first == window.begin))
        progress = state
        if self.stream is None:
            new_state, bounds = self._block(progress.state, self.seed, self.arrays, order)
            bounds = jax.tree.map(lambda part: np.asarray(part)[:most], bounds)
        else:
            for progress in self._one_by_one(state, most, order, self.stream):
                yield progress
            new_state = progress.state
            bounds = _join_bounds(progress.fresh)
        progress = progress._replace(
            state=new_state, step_bounds=(*progress.step_bounds, bounds), fresh=(), rate=state.settling.rate
        )
        yield progress
        self._block_length.learn(most, seconds := time.perf_counter() - began)
        if self.watch is not None:
            self.watch.learned(np.asarray(bounds.bound), seconds)
        if int(new_state.failing) >= PATIENCE:
            blame = Blame(self.steps, new_state, self.seed, self.arrays, self._begun, self.rate)
            raise FitError(str(blame), progress.free)
        step = first + most
        if self.stream is not None and (word := self.stream.word()):
            say(word)
        if step == window.end:
            progress = self._compared(progress, step)
            yield progress
        if self.watch is None:
            return
        if self.watch.is_look(step, self._num_steps):
            self.watch.look(new_state, progress.step_bounds, progress.windows)
        elif self.done(progress):
            self.watch.save(new_state, progress.step_bounds, progress.windows)
        else:
            self.watch.save_if_due(new_state, progress.step_bounds, progress.windows)

    def done(self, state: FitProgress) -> bool:
        """Return whether all steps are made, or the guide no longer changes."""
        return state.step >= self._num_steps or state.settling.settled

    def stop(self, state: FitProgress, reason: Stop) -> str:
        """Check the last batches, and save the state."""
        if reason is not Stop.TIME:
            self._settle(state, 0)
        if self.watch is not None:
            self.watch.save(state.state, (*state.step_bounds, *state.fresh), state.windows)
        if reason is Stop.TIME:
            return ""
        why = "Interrupted" if reason is Stop.INTERRUPTED else "The data ended"
        return f"{why}: returning what was learned in {state.step:,} of {self._num_steps:,} steps."

    def outcome(self, state: FitProgress, stop: Stop | None) -> FitOutcome:
        """Return averages over the last window of steps, the last step, or the best parameters that were evaluated."""
        step = state.step
        last = dict(state.state.free)
        free = last
        if self.watch is not None and self.watch.best is not None:
            free = self.watch.best
        elif self.averages and (state.settling.window.end != step or stop is Stop.INTERRUPTED):
            free = state.best_average
        elif self.averages:
            free = state.free
        has_order = self.stream is not None and self.stream.is_ordered
        return FitOutcome(
            dict(free),
            Losses.of((*state.step_bounds, *state.fresh)),
            step,
            step * self.steps.num_particles,
            int(state.state.failed),
            seen=self.first_batch + step if has_order else 0,
            last=None if free is last else last,
            looks=self.watch.looks if self.watch else (),
            unsettled=why_unsettled(state.settling, state.step, self.falls, stop),
        )

    def report(self, state: FitProgress) -> FitReport:
        """Return the progress of the fit, with bounds averaged over the last block."""
        latest = state.step_bounds[-1]
        window_values: dict[str, Any] = {}
        elbo, error = Losses.of([latest]).mean
        if (watch := self.watch) is not None and self.training is not None:
            looks = watch.looks
            scale = watch.scale
            window_values = {
                "bits": scale.bits(scale.loss(elbo)),
                "held_out_bits": looks[-1].held_out_bits if looks else nan,
                "rows_per_second": watch.rows_per_second,
                "utilisation": watch.utilisation,
            }
        return FitReport(
            "fitting",
            state.step,
            self._num_steps,
            int(state.state.failed),
            elbo=elbo,
            error=error,
            learning_rate=self._learning_rate(state),
            bound=bound_name(self.steps.pair),
            **window_values,
        )

    def _learning_rate(self, state: FitProgress) -> float | None:
        """Return the rate of the last step; None if the optimiser does not show it."""
        if self.steps.optimizer is None:
            return None
        optax = require("optax")
        if self.rate < 0:  # the default optimiser, whose factor turns gradients into steps downhill
            falling = optax.cosine_decay_schedule(1.0, self._num_steps)(state.step - 1) if self.falls else 1.0
            return float(-self.rate * state.rate * falling)
        rates = optax.tree_utils.tree_get_all_with_path(state.state.optimizer, "learning_rate")
        return float(rates[0][1]) * state.rate if len(rates) == 1 and np.size(rates[0][1]) == 1 else None

    @property
    def saves(self) -> TrainingCheckpoint | None:
        """The checkpoint of a fit that has begun; None without."""
        return None if self.watch is None else self.watch.saves

    @property
    def _num_steps(self) -> int:
        return self.settling.num_steps

    def _resumed(self, progress: FitProgress, watch: FitWatch) -> FitProgress:
        """Return the state of the checkpoint, if there is one."""
        state, step_bounds, windows = watch.resume(progress.state, self._block.out_info[1], progress.windows)
        progress = progress._replace(state=state, step_bounds=tuple(step_bounds), **windows._asdict())
        if progress.averaged is not None:
            progress = progress._replace(free=progress.averaged)
        elif progress.step and self.training is not None:
            progress = progress._replace(free=progress.best_average)
        window = progress.settling.window
        if progress.step == window.end > window.begin and not progress.settling.settled and self.training is None:
            progress = self._compared(progress, progress.step)  # saved after the last step of a window
        if progress.step > self._num_steps:
            warn(
                f"fit: the fit in the checkpoint has made {progress.step:,} steps, more than num_steps="
                f"{self._num_steps:,}; it is returned as it is, with all of them. Give a larger num_steps to continue, "
                f"or another folder to start again.",
                stacklevel=4,
            )
        return progress

    def _one_by_one(self, progress: FitProgress, most: int, order: StepOrder, stream: Stream) -> Iterator[FitProgress]:
        """Make steps, one for each batch, without waiting: the host reads the next batch while the devices compute."""
        first = progress.step
        for number in range(most):
            batch = self._read(progress, stream.take)
            state, bounds = self._block(progress.state, self.seed, batch, order)
            progress = progress._replace(state=state, fresh=(*progress.fresh, bounds))
            yield progress
            order = order._replace(anew=np.bool_(False))
            if first + number + 1 < self._num_steps:
                stream.look_ahead()
        self._settle(progress, first + most < self._num_steps)  # except the batch that was read ahead

    def _settle(self, progress: FitProgress, still: int) -> None:
        """Raise if model or guide does not accept the data of a batch; the latest `still` batches are not checked."""
        if (stream := self.stream) is not None:
            self._read(progress, lambda: stream.settle(still))

    def _read(self, progress: FitProgress, function: Callable[[], T]) -> T:
        try:
            return function()
        except EndOfData:
            raise
        except Exception as error:
            raise FitError(
                f"fit: after {progress.step:,} steps the next batch failed: {error} The error's .fit is the fit "
                f"before.",
                progress.best_average,
            ) from error

    def _compared(self, progress: FitProgress, step: int) -> FitProgress:
        """Return the state after the end of a window, given its average and those of the two windows before."""
        state = progress.state
        settling = progress.settling
        free = state.mean if state.averages else state.free
        change = inf
        across = inf
        quartiles = progress.quartiles
        if settling.stops:
            # wait: devices could start its sums and those of the next steps in different orders, and deadlock
            now = np.asarray(self._quartiles(state.mean, self.seed, self.arrays))
            change, across = (_tolerances(then, now) for then in quartiles)
            quartiles = now, quartiles[0]
        bounds = np.concatenate([one.bound for one in progress.step_bounds])
        settling = settling.look(step, bounds[settling.window.begin : step], change, across)
        return progress._replace(settling=settling, free=free, averaged=free, quartiles=quartiles)


def draws_to_compare(free: Params) -> int:
    """Return the number of draws that compare two guides."""
    return max(16, min(COMPARED, NUMBERS // sum(leaf.size for leaf in jax.tree.leaves(free))))


def why_unsettled(settling: Settling, step: int, falls: bool, stop: Stop | None) -> str:
    """Return why learning may not have ended after so many steps; empty if it has.

    Args:
        settling: windows and rates.
        step: steps made.
        falls: whether the rate falls to zero over the steps.
        stop: reason why the fit was stopped; None if it was not.
    """
    if settling.settled or (falls and step == settling.num_steps and settling.agreements):
        return ""  # the last window of a rate that falls to zero has at most a third of the rate before
    steps = count(step, "step")
    if stop is not None:
        ends = {Stop.INTERRUPTED: "Ctrl-C ended the fit", Stop.TIME: "Time was over", Stop.DATA: "The data ended"}
        return f"{ends[stop]} after {steps}, before the guide stopped changing."
    if not settling.stops:
        return f"The fit made {steps} and did not check whether the parameters still change."
    return f"After {steps} the guide still changes from one window of steps to the next, or where the rate is halved."


def _tolerances(then: Float[np.ndarray, "3 coordinate"] | None, now: Float[np.ndarray, "3 coordinate"]) -> float:
    """Return the distance between two guides, in tolerances."""
    return inf if then is None else float(change_between(then, now)) / TOLERANCE


def _shapes_of(begins: Callable[[dict[str, Any]], FitState], shapes: dict[str, Any]) -> FitState:
    """Return the shapes of the first state of a fit."""
    try:
        return jax.eval_shape(begins, shapes)
    except jax.errors.JAXTypeError:  # an optimiser that reads values is given zeros
        state = begins(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))
        return jax.eval_shape(lambda: jax.tree.map(jnp.asarray, state))


def _join_bounds(parts: Sequence[StepBounds]) -> StepBounds:
    """Return the bounds of single steps on the host."""
    empty = np.zeros(0, np.float32)
    bound, error = (np.concatenate([empty, *(getattr(part, name) for part in parts)]) for name in StepBounds._fields)
    return StepBounds(bound, error)  # pyright: ignore[reportArgumentType]  # on the devices they are arrays of JAX
