"""A long fit under way, looked at every so many steps: evaluated, logged, saved."""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.learning.compiled import Compiler
from phalanx.variational.methods.step import Made, State, Steps
from phalanx.variational.monitoring.checkpoint import Checkpoint
from phalanx.variational.monitoring.evaluating import HeldOut, Scale
from phalanx.variational.monitoring.options import Training
from phalanx.variational.monitoring.same_fit import described, differences, not_compared
from phalanx.variational.monitoring.utilisation import share_of_a_step


class Look(NamedTuple):
    """What was seen at a look.

    Attributes:
        step: steps made.
        seconds: since the fit began, those of earlier runs included.
        loss: the bound, negative, in nats per row, on average over the steps since the last look.
        bits: that, in bits per observed number.
        held_out_loss: of held-out rows; NaN without.
        held_out_bits: of held-out rows; NaN without.
        rows_per_second: that were learned from.
    """

    step: int
    seconds: float
    loss: float
    bits: float
    held_out_loss: float
    held_out_bits: float
    rows_per_second: float


class Watch:
    """A fit that is looked at.

    Attributes:
        looks: what was seen.
        best: the parameters of the best evaluation; None without held-out rows.
    """

    def __init__(
        self, training: Training, steps: Steps, state: State, seed: np.uint32, arrays: tuple[Array, ...],
        rate: float, compiler: Compiler,
    ):  # fmt: skip
        self.every, self.scale, self._log = training.every, Scale.of(steps.pair.problem), training.log
        self._held_out = (
            None if training.held_out is None else HeldOut.of(steps, training.held_out, seed, state.free, compiler)
        )
        self._checkpoint = None if training.checkpoint is None else Checkpoint(training.checkpoint)
        if self._checkpoint is not None:
            self._fit = described(steps, state, int(seed), rate, compiler.precision, training.held_out)
        minibatch = steps.pair.problem.minibatch
        self._rows = self.scale.rows if minibatch is None else minibatch.size
        self.looks: list[Look] = []
        self.best, self._best_step = None, 0
        self._spent, self._seconds, self._steps, self._bounds = 0.0, 0.0, 0, []
        self._flops_share = share_of_a_step(steps, state, seed, arrays)

    def resume(self, state: State, shapes: Made) -> tuple[State, list[Made]]:
        """The state to begin with, and what earlier steps have made: those of the checkpoint, if there is one.

        Args:
            state: the state of a fit that begins.
            shapes: of what a block makes; bounds are of the types that the model's numbers have.
        """
        record = None if self._checkpoint is None else self._checkpoint.read()
        if record is None or self._checkpoint is None:
            return state, []
        if found := differences(record["fit"], self._fit):
            raise ValueError(
                f"training: checkpoint={str(self._checkpoint.folder)!r} holds another fit: {found}. Give what it was "
                f"made with, or another folder."
            )
        if untold := not_compared(record["fit"], self._fit):
            warnings.warn(
                f"training: whether checkpoint={str(self._checkpoint.folder)!r} is of this very fit was not checked "
                f"in full: not compared were {untold}. Make sure that they are those it was made with.",
                stacklevel=2,
            )
        step = record["step"]
        blank = Made(*(jnp.zeros(step, part.dtype) for part in shapes))
        state, made = self._checkpoint.restore(f"last-{step}", (state, blank), record)
        self.looks, self._best_step = [Look(*look) for look in record["looks"]], record["best"]
        if self._held_out is not None and self._best_step:
            self.best = self._checkpoint.restore(f"best-{self._best_step}", state.free, record)
        self._spent = record["seconds"]
        self._bounds = [np.asarray(made.bound)[self.looks[-1].step if self.looks else 0 :]]
        return state, [made]

    def until_next(self, step: int) -> int:
        """Steps to the next look."""
        return self.every - step % self.every

    def learned(self, bounds: np.ndarray, seconds: float) -> None:
        """Steps with these bounds have taken so long."""
        self._bounds.append(bounds)
        self._steps, self._seconds = self._steps + len(bounds), self._seconds + seconds

    @property
    def rows_per_second(self) -> float:
        """Learned from since the last look."""
        return self._steps * self._rows / self._seconds if self._seconds else math.nan

    @property
    def utilisation(self) -> float:
        """The share of what the devices can compute that the steps since the last look have; NaN where not known."""
        return self._flops_share * self._steps / self._seconds if self._seconds else math.nan

    def look(self, state: State, made: Sequence[Made]) -> Look:
        """Evaluate, log and save; then begin to count anew."""
        step, bounds = int(state.step), np.concatenate(self._bounds)
        held_out = math.nan if self._held_out is None else self._held_out.loss(state.free)
        others = [look.held_out_loss for look in self.looks if math.isfinite(look.held_out_loss)]
        if held_out < min(others, default=math.inf):  # what is not a number is never the best
            self.best, self._best_step = state.free, step
        loss, spent = self.scale.loss(float(np.nanmean(bounds))), self._spent + self._seconds
        bits = self.scale.bits
        found = Look(step, spent, loss, bits(loss), held_out, bits(held_out), self.rows_per_second)
        self.looks.append(found)
        self._spent, self._steps, self._seconds, self._bounds = spent, 0, 0.0, []
        self._log_looks()
        self.keep(state, made)
        return found

    def keep(self, state: State, made: Sequence[Made]) -> None:
        """Save where the fit is, if that was asked for."""
        if self._checkpoint is None or not made:
            return
        step = int(state.step)
        whole = Made(*(jnp.concatenate([getattr(part, name) for part in made]) for name in Made._fields))
        states: dict[str, Any] = {f"last-{step}": (state, whole)}
        if self.best is not None:
            states[f"best-{self._best_step}"] = self.best
        record = {
            "step": step, "seconds": self._spent + self._seconds, "best": self._best_step, "looks": self.looks,
            "fit": self._fit,
        }  # fmt: skip
        self._checkpoint.write(states, record)

    def _log_looks(self) -> None:
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([Look._fields, *self.looks])
