"""Watch over a long fit: every so many steps it is evaluated, logged and saved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.learning.checkpoint import TrainingCheckpoint
from phalanx.learning.compiled import Compiler
from phalanx.learning.watch import Watch
from phalanx.store.policy import SavePolicy
from phalanx.variational.guides.learned import Params
from phalanx.variational.methods.settling import Settling, mean_and_sd
from phalanx.variational.methods.step import FitState, StepBounds, Steps, step_key
from phalanx.variational.monitoring.evaluating import HeldOut, Scale
from phalanx.variational.monitoring.options import Training
from phalanx.variational.monitoring.same_fit import COMPARISON, fit_identity

PEAKS = {
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
}
"""Operations per second in dense bfloat16, by a part of the device's kind; from the vendors' data sheets."""


class Look(NamedTuple):
    """Evaluation of a fit after some steps.

    Attributes:
        step: steps made.
        seconds: since the fit began, those of earlier runs included.
        loss: the negative bound, in nats per row, on average over the steps since the last look.
        bits: the loss in bits per observed number.
        held_out_loss: loss of held-out rows; NaN without.
        held_out_bits: loss of held-out rows in bits per observed number; NaN without.
        rows_per_second: rows per second that were learned from.
    """

    step: int
    seconds: float
    loss: float
    bits: float
    held_out_loss: float
    held_out_bits: float
    rows_per_second: float


class Windows(NamedTuple):
    """Windows of a fit that stops when its guide no longer changes.

    Attributes:
        settling: the rule, with the current window and rate.
        averaged: the average over the last window; None before the first has ended.
        quartiles: quartiles of the guides of the last two windows, the latest first.
    """

    settling: Settling
    averaged: Params | None = None
    quartiles: tuple[np.ndarray | None, ...] = (None, None)


class FitWatch:
    """Watch over a fit.

    Attributes:
        best: the parameters of the best evaluation; None without held-out rows.
    """

    def __init__(
        self,
        training: Training | None,
        policy: SavePolicy | None,
        settling: Settling,
        steps: Steps,
        state: FitState,
        seed: np.uint32,
        arrays: tuple[Array, ...],
        rate: float,
        compiler: Compiler,
    ):
        self._training = training
        self.scale = Scale.of(steps.pair.problem)
        held_out, log = (None, None) if training is None else (training.held_out, training.log)
        # where windows end depends on the number of steps; a state without averages has fewer arrays
        average = None if state.averages else False
        more = {"num_steps": settling.num_steps, "stops when settled": settling.stops, "average": average}
        more = more if training is None else {}
        self._held_out = None if held_out is None else HeldOut.of(steps, held_out, seed, state.free, compiler)
        self._watch: Watch[Look] = Watch(
            log,
            Look._asdict,
            None if policy is None else fit_checkpoint(policy),
            lambda: fit_identity(steps, state, int(seed), rate, compiler.precision, held_out, more),
            COMPARISON,
        )
        minibatch = steps.pair.problem.minibatch
        self._rows = self.scale.rows if minibatch is None else minibatch.size
        self.best: Params | None = None
        self._best_step = 0
        self._spent = 0.0
        self._seconds = 0.0
        self._steps = 0
        self._bounds: list[np.ndarray] = []
        self._flops_fraction = fraction_of_a_step(steps, state, seed, arrays)

    @property
    def looks(self) -> list[Look]:
        """All looks, those of earlier runs included."""
        return self._watch.looks

    @property
    def saves(self) -> TrainingCheckpoint | None:
        """The checkpoint; None without."""
        return self._watch.checkpoint

    def resume(
        self, state: FitState, shapes: StepBounds, windows: Windows
    ) -> tuple[FitState, list[StepBounds], Windows]:
        """Return state, bounds and errors of earlier steps, and windows: those of a checkpoint, or else as given.

        Args:
            state: the state of a fit that begins.
            shapes: of the bounds and errors of a block, whose dtypes are those of the model's numbers.
            windows: the windows of a fit that begins.
        """
        record = self._watch.resume()
        checkpoint = self._watch.checkpoint
        if record is None or checkpoint is None:
            return state, [], windows
        step = record["step"]
        blank = StepBounds(*(jnp.zeros(step, part.dtype) for part in shapes))
        state, step_bounds = checkpoint.restore(f"last-{step}", (state, blank), record)
        self.looks[:] = [Look(*look) for look in record["looks"]]
        self._best_step = record["best"]
        if self._held_out is not None and self._best_step:
            self.best = checkpoint.restore(f"best-{self._best_step}", state.free, record)
        self._spent = record["seconds"]
        self._bounds = [np.asarray(step_bounds.bound)[self.looks[-1].step if self.looks else 0 :]]
        if self._training is None:
            checkpoint.check_entries(record, ["settling"])
            names = {name.partition("-")[0]: name for name in record["states"]}
            averages = checkpoint.restore(names["averaged"], state.free, record) if "averaged" in names else None
            quartiles = checkpoint.arrays(names["quartiles"], record) if "quartiles" in names else []
            settling = Settling.of_json(record["settling"])
            windows = Windows(settling, averages, (*quartiles, *[None] * (2 - len(quartiles))))
        return state, [step_bounds], windows

    def until_next(self, step: int) -> float:
        """Return the number of steps to the next look or permanent save; infinity without."""
        every = math.inf if self._training is None else self._training.every
        return min(every - step % every, self._watch.until_next(step))

    def is_look(self, step: int, num_steps: int) -> bool:
        """Return whether to evaluate the fit after so many steps."""
        return self._training is not None and (step % self._training.every == 0 or step == num_steps)

    def learned(self, bounds: np.ndarray, seconds: float) -> None:
        """Note the bounds of steps that were made, and the seconds that they took."""
        self._bounds.append(bounds)
        self._steps, self._seconds = self._steps + len(bounds), self._seconds + seconds

    @property
    def rows_per_second(self) -> float:
        """Rows per second learned from since the last look."""
        return self._steps * self._rows / self._seconds if self._seconds else math.nan

    @property
    def utilisation(self) -> float:
        """Fraction of the devices' peak that the steps since the last look have used; NaN of devices not known."""
        return self._flops_fraction * self._steps / self._seconds if self._seconds else math.nan

    def look(self, state: FitState, step_bounds: Sequence[StepBounds], windows: Windows) -> Look:
        """Evaluate, log and save; then begin to count anew."""
        step = int(state.step)
        bounds = np.concatenate(self._bounds)
        held_out = math.nan if self._held_out is None else self._held_out.loss(state.free)
        others = [look.held_out_loss for look in self.looks if math.isfinite(look.held_out_loss)]
        if held_out < min(others, default=math.inf):  # NaN is never the best
            self.best = state.free
            self._best_step = step
        loss = self.scale.loss(mean_and_sd(bounds)[0])
        spent = self._spent + self._seconds
        bits = self.scale.bits
        record = Look(step, spent, loss, bits(loss), held_out, bits(held_out), self.rows_per_second)
        self._spent = spent
        self._steps = 0
        self._seconds = 0.0
        self._bounds = []
        self._watch.add(record)
        self.save(state, step_bounds, windows)
        return record

    def save_if_due(self, state: FitState, step_bounds: Sequence[StepBounds], windows: Windows) -> None:
        """Save if the last save is long ago, or a permanent one is due."""
        if self._watch.is_due(int(state.step)):
            self.save(state, step_bounds, windows)

    def save(self, state: FitState, step_bounds: Sequence[StepBounds], windows: Windows) -> None:
        """Save the state, the windows, the best parameters and the looks, if there is a checkpoint."""
        if self._watch.checkpoint is None or not step_bounds:
            return
        step = int(state.step)
        whole = StepBounds(
            *(jnp.concatenate([getattr(part, name) for part in step_bounds]) for name in StepBounds._fields)
        )
        states: dict[str, Any] = {f"last-{step}": (state, whole)}
        if self.best is not None:
            states[f"best-{self._best_step}"] = self.best
        seconds = self._spent + self._seconds
        record = {"step": step, "seconds": seconds, "best": self._best_step, "looks": self.looks}
        if self._training is None:
            begin = step if windows.settling.settled else windows.settling.window.begin
            record["settling"] = windows.settling.to_json()
            if windows.averaged is not None:
                states[f"averaged-{begin}"] = windows.averaged
            if quartiles := [each for each in windows.quartiles if each is not None]:
                states[f"quartiles-{begin}"] = quartiles
        self._watch.save(states, record, step)


def fit_checkpoint(policy: SavePolicy) -> TrainingCheckpoint:
    """Return the checkpoint of a fit in a folder."""
    required_entries = ("step", "seconds", "best", "looks", "fit", "states")
    return TrainingCheckpoint(policy, "fit", f"fit: checkpoint={str(policy.folder)!r}", required_entries)


def flops_of_a_step(steps: Steps, state: FitState, seed: np.uint32, arrays: Sequence[Array]) -> float:
    """Return the floating-point operations of one step on all devices together, before XLA's optimisation."""

    def step(state: FitState, seed: Array, arrays: Sequence[Array]) -> tuple[FitState, StepBounds]:
        key = step_key(seed, state.step)
        return steps.one(state, steps.noise(key), steps.pair.problem.step_data(arrays, key), np.float32(1.0))

    counted: Any = jax.jit(step).lower(state, seed, arrays).cost_analysis()
    return float(counted.get("flops", math.nan)) if counted else math.nan


def fraction_of_a_step(steps: Steps, state: FitState, seed: np.uint32, arrays: Sequence[Array]) -> float:
    """Return the seconds of a step at the devices' peak; NaN for a kind of device that `PEAKS` does not list."""
    devices = steps.pair.problem.mesh.devices
    kind = devices.flat[0].device_kind
    peak = next((rate for name, rate in PEAKS.items() if name in kind), None)
    if peak is None:
        return math.nan
    return flops_of_a_step(steps, state, seed, arrays) / (peak * devices.size)
