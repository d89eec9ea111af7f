"""A fit under way: blocks of steps, between which Python is free to show, to compare and to stop."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from phalanx.errors.words import count
from phalanx.programs.validity import nan_hint
from phalanx.run.pace import Pace
from phalanx.run.progress import Progress, Report
from phalanx.variational.aligned import ProgramPair
from phalanx.variational.compiled import Compiler
from phalanx.variational.drawing import change_between, quartiles_of
from phalanx.variational.likelihood import Likelihood, bound_of
from phalanx.variational.settling import TOLERANCE, Settling
from phalanx.variational.step import PATIENCE, ROOM, Made, Order, State, Steps, laid_out
from phalanx.variational.stream import EndOfData, Stream
from phalanx.variational.training import Training
from phalanx.variational.watching import Watch

LOOK_FOR = (
    "Look for values that the guide draws outside of what the model can compute, such as exp or log of large numbers; "
    "give init=, a guide that begins narrower (init_scale=), or a lower rate (optimizer=0.01)"
)
"""Advice where nothing more is known of a loss that is not finite."""

FARTHEST_STEP = 1.0
"""Longest step of parameters on the real line; a longer one says that the rate is too large."""

COMPARED, NUMBERS = 256, 2**22
"""Draws that two guides are compared by, and numbers in all of them."""


class FitError(ValueError):
    """A fit whose loss is not finite any more; `fit` is what was learned before."""

    fit: Any = None


@dataclass(frozen=True)
class FitReport(Report):
    """How far a fit has come.

    Attributes:
        elbo: the bound, on average over the last block.
        error: its Monte-Carlo error.
        learning_rate: factor on the optimiser's changes.
        bits: the loss in bits per observed number, of a fit that is watched (`training=`).
        held_out_bits: that of held-out rows, when they were last looked at.
        rows_per_second: that are learned from.
        utilisation: the share of what the devices can compute that the model's own arithmetic takes; NaN of a CPU.
        bound: what `elbo` is called; by maximum likelihood it is no bound.
    """

    elbo: float = float("nan")
    error: float = float("nan")
    learning_rate: float = 1.0
    bits: float = float("nan")
    held_out_bits: float = float("nan")
    rows_per_second: float = float("nan")
    utilisation: float = float("nan")
    bound: str = "ELBO"

    @property
    def what(self) -> str:
        """What is counted."""
        return "steps"

    def __str__(self) -> str:
        failed = f", {count(self.divergences, 'step')} left out" if self.divergences else ""
        error = "" if isnan(self.error) else f" ± {self.error:.2g}"
        bits = "" if isnan(self.bits) else f", {self.bits:.4f} bits per dimension"
        held_out = "" if isnan(self.held_out_bits) else f" (held out {self.held_out_bits:.4f})"
        rate = "" if isnan(self.rows_per_second) else f", {self.rows_per_second:,.0f} rows per second"
        share = "" if isnan(self.utilisation) else f", {self.utilisation:.0%} of the devices' FLOPs"
        return f"{self.bound} {self.elbo:,.2f}{error}{bits}{held_out}{rate}{share}{failed}"


@dataclass
class Learning:
    """A fit under way.

    Attributes:
        steps: the compiled block, and what it is made of.
        begins: the state that a fit begins with, from parameters on the real line.
        shapes: of these.
        settling: what decides on windows and rates.
        made: bounds and errors of all steps, in blocks.
        stream: the batches, one for each step, where data come in batches; `arrays` are then those of the first.
        falls: whether the rate falls to nothing over `num_steps`.
        training: how it is watched, if it is.
        first_batch: the number of the first batch, of those that have an order.
        interrupted: whether Ctrl-C has ended it.
    """

    steps: Steps
    begins: Callable[[Any], State]
    shapes: dict[str, Any]
    seed: np.uint32
    arrays: tuple[Array, ...]
    num_steps: int
    rate: float
    settling: Settling
    compiler: Compiler
    stream: Stream | None = None
    falls: bool = False
    training: Training | None = None
    first_batch: int = 0
    made: list[Made] = field(default_factory=list)
    interrupted: bool = False
    out_of_time: bool = False
    out_of_data: bool = False

    def __post_init__(self) -> None:
        self.state: State = _shapes_of(self.begins, self.shapes)
        """After the last block; before it begins, its shapes."""
        self.result: Any = self.shapes
        self._before, self.watch, self._begun = None, None, None
        self._seen: tuple[np.ndarray | None, np.ndarray | None] = None, None
        """Quartiles of the guides of the last two windows, the latest first."""

    def compile(self) -> None:
        """Compile what steps are made with."""
        self._layout = laid_out(self.steps.pair, self.steps.optimizer, self.state)
        state = jax.tree.map(lambda leaf, where: leaf.update(sharding=where), self.state, self._layout)
        everywhere = jax.tree.leaves(self._layout.step)[0]
        self._order = Order(np.int32(0), np.float32(self.rate), np.bool_(False))
        made = Made(everywhere, everywhere)
        self._block = self.compiler(
            self.steps.block if self.stream is None else self.steps.single,
            state,
            self.seed,
            self.arrays,
            self._order,
            out_shardings=lambda: (self._layout, made),
            identity=self.steps.identity(state),
        )
        if self.settling.stops:
            size = sum(leaf.size for leaf in jax.tree.leaves(state.free))
            count, pair = max(16, min(COMPARED, NUMBERS // size)), self.steps.pair
            identity = None if pair.identity is None else (pair.identity, "quartiles", count)
            arguments = state.free, self.seed, self.arrays
            self._quartiles = self.compiler(quartiles_of(pair, count), *arguments, rarely=True, identity=identity)

    def begin(self, free: dict[str, Any]) -> None:
        """Begin there, or where a checkpoint says, once steps can be made."""
        self.state, self.result = jax.device_put(self.begins(free), self._layout), free
        self._begun = free if sum(leaf.size for leaf in jax.tree.leaves(free)) <= NUMBERS else None
        if self.training is not None:
            self.watch = Watch(self.training, self.steps, self.state, self.seed, self.arrays, self.rate, self.compiler)
            self._resume(self.watch)
        if self.stream is not None:
            self.stream.skip_to(self.first_batch + self.step)
        self._block.wait()

    @property
    def step(self) -> int:
        """Steps made."""
        return int(self.state.step)

    @property
    def seen(self) -> int:
        """The number of the batch that comes next, of those that have an order."""
        return self.first_batch + self.step if self.stream is not None and self.stream.is_ordered else 0

    @property
    def gradients(self) -> int:
        """Gradients of the log density, one for each particle and step."""
        return self.step * self.steps.num_particles

    @property
    def failed(self) -> int:
        """Steps that were left out."""
        return int(self.state.failed)

    @property
    def unsettled(self) -> str:
        """Why it cannot be said that learning has ended; empty when it has."""
        ended = self.step == self.num_steps
        if self.settling.settled or (self.falls and ended and self.settling.agreements):
            return ""  # the last window of a rate that falls to nothing has a third of that before it, at most
        steps = count(self.step, "step")
        if self.interrupted:
            return f"Ctrl-C ended the fit after {steps}, before the guide had stopped to change."
        if self.out_of_time:
            return f"Time was over after {steps}, before the guide had stopped to change."
        if self.out_of_data:
            return f"The data ended after {steps}, before the guide had stopped to change."
        if not self.settling.stops:
            return f"The fit made {steps} and did not look at whether what is learned still changes."
        return (
            f"After {steps} the guide still changes from one window of steps to the next, or where the rate is halved."
        )

    def run(self, display: Progress, look: Sequence[Callable[[Report], Any]], seconds: float | None) -> None:
        """Learn until it has settled, or steps or time are over. Ctrl-C ends it; what was learned stays."""
        pace, began, step = Pace(), time.monotonic(), self.step
        try:
            while step < self.num_steps and not self.settling.settled:
                if seconds is not None and time.monotonic() - began >= seconds:
                    self.out_of_time = True
                    break
                step = self._advance(min(pace.ticks, ROOM), pace)
                if self.stream is not None and (word := self.stream.word()):
                    display.say(word)
                if self.watch is not None and (step % self.watch.every == 0 or step == self.num_steps):
                    self.watch.look(self.state, self.made)
                self._show(step, [display.show, *look])
                if step == self.settling.window.end:
                    self._compare(step)
        except KeyboardInterrupt:
            self._settle(0)
            self.interrupted, step = True, self.step
            display.say(f"Interrupted: returning what was learned in {step:,} of {self.num_steps:,} steps.")
            if self.watch is not None:
                self.watch.keep(self.state, self.made)
        except EndOfData:
            self._settle(0)
            self.out_of_data, step = True, self.step
            display.say(f"The data ended: returning what was learned in {step:,} of {self.num_steps:,} steps.")
        if self.settling.window.end != step or self.interrupted:
            self.result = self._best_average()
        if self.watch is not None and self.watch.best is not None:
            self.result = self.watch.best

    def _resume(self, watch: Watch) -> None:
        """Go on with what is in the checkpoint, if there is one."""
        self.state, self.made = watch.resume(self.state, self._block.made[1])
        if self.step:
            self.result = self._best_average()
        if self.step > self.num_steps:
            warnings.warn(
                f"training: the fit in the checkpoint has made {self.step:,} steps, more than num_steps="
                f"{self.num_steps:,}; it is returned as it is, with all of them. Give a larger num_steps to go on, or "
                f"another folder to begin anew.",
                stacklevel=4,
            )

    def _advance(self, most: int, pace: Pace) -> int:
        step, began = self.step, time.perf_counter()
        count = min(most, self.settling.end_of(step) - step, self.num_steps - step)
        if self.watch is not None:
            count = min(count, self.watch.until_next(step))
        rate = np.float32(self.rate * self.settling.rate)
        order = Order(np.int32(count), rate, np.bool_(step == self.settling.window.begin))
        if self.stream is None:
            state, made = self._block(self.state, self.seed, self.arrays, order)
            made = jax.tree.map(lambda part: np.asarray(part)[:count], made)
            # last, and together: an interrupt before this line leaves a shorter, whole record
            self.state, self.made = state, [*self.made, made]
        else:
            made = self._one_by_one(count, order, self.stream)
        pace.learn(count, seconds := time.perf_counter() - began)
        if self.watch is not None:
            self.watch.learned(np.asarray(made.bound), seconds)
        if int(self.state.failing) >= PATIENCE:
            raise FitError(self._blame())
        return step + count

    def _one_by_one(self, count: int, order: Order, stream: Stream) -> Made:
        """Steps that see a batch each. None is waited for: the host reads on while the devices are busy."""
        found, first = [], self.step
        try:
            for number in range(count):
                state, made = self._block(self.state, self.seed, self._read(stream.take), order)
                self.state, found = state, [*found, made]
                order = order._replace(anew=np.bool_(False))
                if first + number + 1 < self.num_steps:
                    stream.look_ahead()
            self._settle(first + count < self.num_steps)  # but for one that was read ahead
        finally:  # the record is as long as the steps that were made, also when they were interrupted
            whole = _joined(found)
            self.made = [*self.made, whole]
        return whole

    def _settle(self, still: int) -> None:
        """See whether data of the batches were such as model and guide can take, but for so many of the latest."""
        if (stream := self.stream) is not None:
            self._read(lambda: stream.settle(still))

    def _read(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except EndOfData:
            raise
        except Exception as error:
            self.result = self._best_average()
            raise FitError(
                f"fit: after {self.step:,} steps batches could not be gone on with: {error} What was learned before "
                f"is the error's .fit."
            ) from error

    def _compare(self, step: int) -> None:
        """A window has ended: is its average the one of the window before, and of the one before that?"""
        self._before = self.result = self.state.mean if self.state.averages else self.state.free
        change = across = float("inf")
        if self.settling.stops:
            # waited for: the next steps do not depend on it, and devices may begin their sums in different orders
            now = np.asarray(self._quartiles(self.state.mean, self.seed, self.arrays))
            change, across = (_tolerances(then, now) for then in self._seen)
            self._seen = now, self._seen[0]
        bounds = np.concatenate([made.bound for made in self.made])
        self.settling.look(step, bounds[self.settling.window.begin : step], change, across)

    def _best_average(self) -> Any:
        """Of a fit that ended within a window: its average if it is of enough steps, else that of the one before."""
        if not self.state.averages:
            return self.state.free
        enough = int(self.state.averaged) >= (self.settling.window.end - self.settling.window.begin) // 2
        if self._before is not None and not enough:
            return self._before
        return self.state.mean if enough else self.state.free

    def _show(self, step: int, look: Sequence[Callable[[Report], Any]]) -> None:
        made = self.made[-1]
        finite = np.isfinite(made.bound)
        elbo = float(made.bound[finite].mean()) if finite.any() else float("nan")
        errors = made.error[finite]
        error = float(np.sqrt((errors**2).sum()) / len(errors)) if len(errors) else float("nan")
        report = FitReport(
            "fitting", step, self.num_steps, self.steps.num_particles, float("nan"), int(self.state.failed),
            elbo=elbo, error=error, learning_rate=float(self.rate * self.settling.rate),
            bound=bound_of(self.steps.pair), **self._watched(elbo),
        )  # fmt: skip
        for one in look:
            one(report)

    def _watched(self, elbo: float) -> dict[str, Any]:
        """What a report says of a fit that is watched."""
        if (watch := self.watch) is None:
            return {}
        looks, scale = watch.looks, watch.scale
        return {
            "bits": scale.bits(scale.loss(elbo)), "held_out_bits": looks[-1].held_out_bits if looks else nan,
            "rows_per_second": watch.rows_per_second, "utilisation": watch.utilisation,
        }  # fmt: skip

    def _blame(self) -> str:
        """What to say when no step has a finite gradient any more."""
        parts, gradients = jax.jit(self.steps.blame)(self.state, self.seed, self.arrays)
        sites = [repr(name) if name else "the guide" for name, count in parts.items() if int(count)]
        params = [name for name, bad in gradients.items() if bool(bad)]
        where = f"The log density is not finite of {', '.join(sites)}" if sites else "All log densities are finite"
        which = f"the gradient of parameters {', '.join(map(repr, params))} is not" if params else "so are gradients"
        first = self.step - int(self.state.failing) + 1
        problem = self.steps.pair.problem
        advice = self._improper_guide() or self._too_fast() or self._improper_model() or LOOK_FOR
        return (
            f"fit: in step {first:,} and those after it the loss or its gradient is not finite. "
            f"{where}, and {which}{nan_hint(problem.arguments.names, self.arrays)}. {advice}. What was learned before "
            f"is the error's .fit."
        )

    def _improper_guide(self) -> str:
        """A sentence about a distribution of the guide with a parameter that it cannot have; or nothing."""
        pair, described = self.steps.pair, {}
        if not isinstance(pair, ProgramPair) or isinstance(pair, Likelihood):
            return ""

        def look(free: Any, arrays: Any) -> dict[tuple[str, str], Array]:
            params, data = pair.learned.constrain(free), pair.problem.step_data(arrays, random.key(0))

            def flags() -> dict[tuple[str, str], Array]:
                described.update(pair.improper(params, random.key(0), data))  # of these only the words
                return {key: jnp.any(doubt.bad) for key, doubt in described.items()}

            return pair.problem.alone(flags)

        for (name, parameter), bad in jax.jit(look)(self.state.free, self.arrays).items():
            if bad:
                doubt = described[name, parameter]
                return (
                    f"Variable {name!r} of the guide {pair.name}: its {parameter} must be {doubt.allowed} for a "
                    f"{doubt.distribution}, and steps have led out of there. Give its phx.param a constraint, such as "
                    f"numpyro.distributions.constraints.positive"
                )
        return ""

    def _improper_model(self) -> str:
        """The same of the model, whose latent variables may be anywhere."""
        pair = self.steps.pair
        params = pair.learned.constrain(self.state.free)
        return pair.problem.improper(self.arrays, {name: params[name] for name in pair.problem.parameters})

    def _too_fast(self) -> str:
        """A sentence about the rate, where steps have moved parameters farther than a guide is wide; or nothing."""
        made = self.step - self.failed
        if not made or self._begun is None:
            return ""
        differences = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b), initial=0.0), self.state.free, self._begun)
        moved = float(max(map(float, jax.tree.leaves(differences)), default=0.0)) / made
        if not moved > FARTHEST_STEP:
            return ""
        rate = "the optimiser's rate" if self.rate == 1.0 else f"the rate, {abs(self.rate):g},"
        return (
            f"The {made:,} steps before moved parameters by up to {moved:,.3g} each: {rate} is too large. Give a lower "
            f"one, such as optimizer=0.05 or optax.adam(1e-2)"
        )


def _tolerances(then: np.ndarray | None, now: np.ndarray) -> float:
    """How far a guide has changed since another."""
    return float("inf") if then is None else change_between(then, now) / TOLERANCE


def _shapes_of(begins: Callable[[Any], State], shapes: Any) -> State:
    """The shapes of the state that a fit begins with."""
    try:
        return jax.eval_shape(begins, shapes)
    except jax.errors.JAXTypeError:  # an optimiser that looks at values when it begins is shown zeros
        state = begins(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))
        return jax.eval_shape(lambda: jax.tree.map(jnp.asarray, state))


def _joined(parts: list[Made]) -> Made:
    """What steps one by one have made, on the host."""
    empty = np.zeros(0, np.float32)
    bound, error = (np.concatenate([empty, *(getattr(part, name) for part in parts)]) for name in Made._fields)
    return Made(bound, error)  # pyright: ignore[reportArgumentType]  # on the devices they are arrays of JAX
