"""Steps with draws of their own, until windows of steps agree: the usual way to fit."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, nan
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.errors.words import count
from phalanx.learning.compiled import Compiler
from phalanx.learning.loop import EndOfData, Stop
from phalanx.run.compile.block_length import Pace
from phalanx.variational.drawing import change_between, quartiles_of
from phalanx.variational.guides.likelihood import bound_of
from phalanx.variational.methods.blame import Blame
from phalanx.variational.methods.method import FitError, FitReport, Outcome
from phalanx.variational.methods.settling import TOLERANCE, Settling
from phalanx.variational.methods.step import PATIENCE, ROOM, Made, Order, State, Steps, laid_out
from phalanx.variational.monitoring.options import Training
from phalanx.variational.monitoring.stream import Stream
from phalanx.variational.monitoring.watching import Watch

COMPARED, NUMBERS = 256, 2**22
"""Draws that two guides are compared by, and numbers in all of them."""

T = TypeVar("T")


class Course(NamedTuple):
    """A fit by steps as a value.

    Attributes:
        state: on the devices, after the last step.
        settling: windows and rates.
        made: bounds and errors of all steps, in blocks.
        free: the parameters to return: of the last window, if there was one.
        averaged: those of the last window; None before the first has ended.
        quartiles: of the guides of the last two windows, the latest first.
        fresh: bounds and errors of the steps of a block that has not ended.
        rate: factor on the optimiser's changes in the last block.
    """

    state: State
    settling: Settling
    made: tuple[Made, ...]
    free: Any
    averaged: Any = None
    quartiles: tuple[np.ndarray | None, np.ndarray | None] = (None, None)
    fresh: tuple[Made, ...] = ()
    rate: float = 1.0

    @property
    def step(self) -> int:
        """Steps made."""
        return int(self.state.step)

    @property
    def best_average(self) -> Any:
        """Of a fit that ended within a window: its average if it is of enough steps, else that of the one before."""
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
        steps: what a step does.
        begins: the state that a fit begins with, from parameters on the real line.
        shapes: of these.
        settling: what decides on windows and rates, before the first step.
        stream: the batches, one for each step, where data come in batches; `arrays` are then those of the first.
        falls: whether the rate falls to nothing over the steps.
        training: how the fit is watched, if it is.
        first_batch: the number of the first batch, of those that have an order.
    """

    steps: Steps
    begins: Callable[[Any], State]
    shapes: dict[str, Any]
    seed: np.uint32
    arrays: tuple[Array, ...]
    rate: float
    settling: Settling
    compiler: Compiler
    stream: Stream | None = None
    falls: bool = False
    training: Training | None = None
    first_batch: int = 0
    _pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        state: Any = _shapes_of(self.begins, self.shapes)
        self._layout = laid_out(self.steps.pair, self.steps.optimizer, state)
        state = jax.tree.map(lambda leaf, where: leaf.update(sharding=where), state, self._layout)
        everywhere = jax.tree.leaves(self._layout.step)[0]
        made = Made(everywhere, everywhere)
        self._block = self.compiler(
            self.steps.block if self.stream is None else self.steps.single,
            state, self.seed, self.arrays, Order(np.int32(0), np.float32(self.rate), np.bool_(False)),
            out_shardings=lambda: (self._layout, made), identity=self.steps.identity(state),
        )  # fmt: skip
        if self.settling.stops:
            size = sum(leaf.size for leaf in jax.tree.leaves(state.free))
            count, pair = max(16, min(COMPARED, NUMBERS // size)), self.steps.pair
            identity = None if pair.identity is None else (pair.identity, "quartiles", count)
            arguments = state.free, self.seed, self.arrays
            self._quartiles = self.compiler(quartiles_of(pair, count), *arguments, rarely=True, identity=identity)

    def init(self, start: dict[str, Any]) -> Course:
        """Begin with these parameters, or where a checkpoint says, once steps can be made."""
        course = Course(jax.device_put(self.begins(start), self._layout), self.settling, (), start)
        self._begun = start if sum(leaf.size for leaf in jax.tree.leaves(start)) <= NUMBERS else None
        self.watch = None
        if self.training is not None:
            what = self.steps, course.state, self.seed, self.arrays, self.rate, self.compiler
            self.watch = Watch(self.training, *what)
            course = self._resumed(course, self.watch)
        if self.stream is not None:
            self.stream.skip_to(self.first_batch + course.step)
        self._block.wait()
        return course

    def step(self, state: Course, say: Callable[[str], None]) -> Iterator[Course]:
        """Make a block of steps; evaluate, log and save where that is due, and compare windows where one has ended."""
        first, began, window = state.step, time.perf_counter(), state.settling.window
        most = min(self._pace.ticks, ROOM, state.settling.end_of(first) - first, self._num_steps - first)
        most = most if self.watch is None else min(most, self.watch.until_next(first))
        rate = np.float32(self.rate * state.settling.rate)
        order, course = Order(np.int32(most), rate, np.bool_(first == window.begin)), state
        if self.stream is None:
            reached, made = self._block(course.state, self.seed, self.arrays, order)
            made = jax.tree.map(lambda part: np.asarray(part)[:most], made)
        else:
            for course in self._one_by_one(state, most, order, self.stream):
                yield course
            reached, made = course.state, _joined(course.fresh)
        course = course._replace(state=reached, made=(*course.made, made), fresh=(), rate=state.settling.rate)
        yield course
        self._pace.learn(most, seconds := time.perf_counter() - began)
        if self.watch is not None:
            self.watch.learned(np.asarray(made.bound), seconds)
        if int(reached.failing) >= PATIENCE:
            blame = Blame(self.steps, reached, self.seed, self.arrays, self._begun, self.rate)
            raise FitError(str(blame), course.free)
        step = first + most
        if self.stream is not None and (word := self.stream.word()):
            say(word)
        if self.watch is not None and (step % self.watch.every == 0 or step == self._num_steps):
            self.watch.look(reached, course.made)
        if step == window.end:
            yield self._compared(course, step)

    def done(self, state: Course) -> bool:
        """Return whether all steps are made, or the guide no longer changes."""
        return state.step >= self._num_steps or state.settling.settled

    def stop(self, state: Course, reason: Stop) -> str:
        """Judge the last batches, and save the state on Ctrl-C."""
        if reason is Stop.TIME:
            return ""
        self._settle(state, 0)
        if reason is Stop.INTERRUPTED and self.watch is not None:
            self.watch.keep(state.state, (*state.made, *state.fresh))
        why = "Interrupted" if reason is Stop.INTERRUPTED else "The data ended"
        return f"{why}: returning what was learned in {state.step:,} of {self._num_steps:,} steps."

    def outcome(self, state: Course, stopped: Stop | None) -> Outcome:
        """Return averages over the last window of steps, or the best of those that were evaluated."""
        step, free = state.step, state.free
        if state.settling.window.end != step or stopped is Stop.INTERRUPTED:
            free = state.best_average
        if self.watch is not None and self.watch.best is not None:
            free = self.watch.best
        ordered = self.stream is not None and self.stream.is_ordered
        return Outcome(
            free, (*state.made, *state.fresh), step, step * self.steps.num_particles, int(state.state.failed),
            seen=self.first_batch + step if ordered else 0,
            looks=self.watch.looks if self.watch else (),
            unsettled=self._unsettled(state, stopped),
        )  # fmt: skip

    def report(self, state: Course) -> FitReport:
        """Return how far the fit has come, on average over the last block."""
        made = state.made[-1]
        watched: dict[str, Any] = {}
        finite = np.isfinite(made.bound)
        elbo = float(made.bound[finite].mean()) if finite.any() else nan
        errors = made.error[finite]
        error = float(np.sqrt((errors**2).sum()) / len(errors)) if len(errors) else nan
        if (watch := self.watch) is not None:
            looks, scale = watch.looks, watch.scale
            watched = {
                "bits": scale.bits(scale.loss(elbo)), "held_out_bits": looks[-1].held_out_bits if looks else nan,
                "rows_per_second": watch.rows_per_second, "utilisation": watch.utilisation,
            }  # fmt: skip
        return FitReport(
            "fitting", state.step, self._num_steps, self.steps.num_particles, nan, int(state.state.failed),
            elbo=elbo, error=error, learning_rate=float(self.rate * state.rate),
            bound=bound_of(self.steps.pair), **watched,
        )  # fmt: skip

    @property
    def _num_steps(self) -> int:
        return self.settling.num_steps

    def _unsettled(self, state: Course, stopped: Stop | None) -> str:
        """Why it cannot be said that learning has ended; empty when it has."""
        ended = state.step == self._num_steps
        if state.settling.settled or (self.falls and ended and state.settling.agreements):
            return ""  # the last window of a rate that falls to nothing has a third of that before it, at most
        steps = count(state.step, "step")
        if stopped is not None:
            ends = {Stop.INTERRUPTED: "Ctrl-C ended the fit", Stop.TIME: "Time was over", Stop.DATA: "The data ended"}
            return f"{ends[stopped]} after {steps}, before the guide had stopped to change."
        if not self.settling.stops:
            return f"The fit made {steps} and did not look at whether what is learned still changes."
        return (
            f"After {steps} the guide still changes from one window of steps to the next, or where the rate is halved."
        )

    def _resumed(self, course: Course, watch: Watch) -> Course:
        """Go on with what is in the checkpoint, if there is one."""
        state, made = watch.resume(course.state, self._block.made[1])
        course = course._replace(state=state, made=tuple(made))
        if course.step:
            course = course._replace(free=course.best_average)
        if course.step > self._num_steps:
            warnings.warn(
                f"training: the fit in the checkpoint has made {course.step:,} steps, more than num_steps="
                f"{self._num_steps:,}; it is returned as it is, with all of them. Give a larger num_steps to go on, or "
                f"another folder to begin anew.",
                stacklevel=4,
            )
        return course

    def _one_by_one(self, course: Course, most: int, order: Order, stream: Stream) -> Iterator[Course]:
        """Make steps that see a batch each. None is waited for: the host reads on while the devices are busy."""
        first = course.step
        for number in range(most):
            batch = self._read(course, stream.take)
            state, made = self._block(course.state, self.seed, batch, order)
            course = course._replace(state=state, fresh=(*course.fresh, made))
            yield course
            order = order._replace(anew=np.bool_(False))
            if first + number + 1 < self._num_steps:
                stream.look_ahead()
        self._settle(course, first + most < self._num_steps)  # but for one that was read ahead

    def _settle(self, course: Course, still: int) -> None:
        """See whether data of the batches were such as model and guide can take, but for so many of the latest."""
        if (stream := self.stream) is not None:
            self._read(course, lambda: stream.settle(still))

    def _read(self, course: Course, read: Callable[[], T]) -> T:
        try:
            return read()
        except EndOfData:
            raise
        except Exception as error:
            raise FitError(
                f"fit: after {course.step:,} steps batches could not be gone on with: {error} What was learned before "
                f"is the error's .fit.",
                course.best_average,
            ) from error

    def _compared(self, course: Course, step: int) -> Course:
        """Return what follows where a window has ended, from its average and those of the two windows before."""
        state, settling = course.state, course.settling
        free, change, across, quartiles = state.mean if state.averages else state.free, inf, inf, course.quartiles
        if settling.stops:
            # waited for: the next steps do not depend on it, and devices may begin their sums in different orders
            now = np.asarray(self._quartiles(state.mean, self.seed, self.arrays))
            change, across = (_tolerances(then, now) for then in quartiles)
            quartiles = now, quartiles[0]
        bounds = np.concatenate([made.bound for made in course.made])
        settling = settling.look(step, bounds[settling.window.begin : step], change, across)
        return course._replace(settling=settling, free=free, averaged=free, quartiles=quartiles)


def _tolerances(then: np.ndarray | None, now: np.ndarray) -> float:
    """How far a guide has changed since another."""
    return inf if then is None else change_between(then, now) / TOLERANCE


def _shapes_of(begins: Callable[[Any], State], shapes: Any) -> State:
    """The shapes of the state that a fit begins with."""
    try:
        return jax.eval_shape(begins, shapes)
    except jax.errors.JAXTypeError:  # an optimiser that looks at values when it begins is shown zeros
        state = begins(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))
        return jax.eval_shape(lambda: jax.tree.map(jnp.asarray, state))


def _joined(parts: Sequence[Made]) -> Made:
    """What steps one by one have made, on the host."""
    empty = np.zeros(0, np.float32)
    bound, error = (np.concatenate([empty, *(getattr(part, name) for part in parts)]) for name in Made._fields)
    return Made(bound, error)  # pyright: ignore[reportArgumentType]  # on the devices they are arrays of JAX
