"""What every way to fit has in common: a method of the training loop, its report, its outcome and its error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, NamedTuple, Protocol, TypeVar

from phalanx.errors.words import count
from phalanx.learning.loop import Method, Stop
from phalanx.run.progress.report import Report
from phalanx.variational.methods.step import Made
from phalanx.variational.monitoring.watching import Look

S = TypeVar("S")


class Outcome(NamedTuple):
    """Result of a fit, before it is wrapped in `Fit`.

    Attributes:
        free: the parameters, on the real line.
        made: bounds and errors of all steps, in blocks.
        steps: steps made.
        gradients: gradients of the log density that were computed.
        failed: steps that were left out.
        seen: number of the batch that comes next, of batches that have an order.
        looks: evaluations of a fit that was watched.
        unsettled: why it cannot be said that learning has ended; empty when it has.
    """

    free: dict[str, Any]
    made: Sequence[Made] = ()
    steps: int = 0
    gradients: int = 0
    failed: int = 0
    seen: int = 0
    looks: Sequence[Look] = ()
    unsettled: str = ""


class FitMethod(Method[S], Protocol[S]):
    """A way to fit: `init`, `step` and `done` from parameters on the real line, and what comes of it."""

    def outcome(self, state: S, stopped: Stop | None) -> Outcome:
        """Return what was learned by the steps that led to a state."""
        ...


class FitError(ValueError):
    """A fit whose loss is not finite any more; `fit` is what was learned before."""

    fit: Any = None

    def __init__(self, message: str, free: Any = None):
        super().__init__(message)
        self.free = free
        """The parameters to return, on the real line."""


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
