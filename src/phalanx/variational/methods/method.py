"""The protocol of ways to fit, as methods of the learning loop; report, error, and the way without steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isnan
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from phalanx.errors.message_text import count
from phalanx.learning.loop import Method, Stop
from phalanx.mesh.specs import PyTree
from phalanx.variational.guides.learned import Params
from phalanx.variational.methods.step import Losses
from phalanx.variational.result import Fit, FitOutcome

S = TypeVar("S")


class FitMethod(Method[S], Protocol[S]):
    """A way to fit: `init`, `step` and `done` from parameters on the real line, and the outcome of the steps."""

    def outcome(self, state: S, stop: Stop | None) -> FitOutcome:
        """Return the outcome of the steps that led to a state."""
        ...


class FitError(ValueError):
    """A fit whose loss is no longer finite; `fit` is the fit before that.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions as dist, phalanx as phx
        >>> def model():
        ...     x = phx.sample("x", dist.Normal(0.0, 1.0))
        ...     phx.factor("domain", jnp.log(x - 100.0))
        >>> try:
        ...     phx.fit(model, phx.guides.mean_field, num_steps=10, progress=False)
        ... except phx.FitError as error:
        ...     print(sorted(error.fit.params))
        ['x.loc', 'x.scale']
    """

    fit: Fit

    def __init__(self, message: str, free: Params | None = None):
        super().__init__(message)
        self.free = free
        """The parameters to return, on the real line."""


@dataclass(frozen=True)
class FitReport:
    """Progress of a fit.

    Attributes:
        phase: "fitting".
        done, total: steps so far, and at most.
        failed: steps left out because their loss or its gradient was not finite.
        elbo: the bound, on average over the last block.
        error: its Monte-Carlo error.
        learning_rate: the rate of the default optimiser in the last block, or that which the state of one of optax's
            shows (`optax.inject_hyperparams`), times the factor that falls as the fit settles; None of others.
        bits: the loss in bits per observed number, of a fit that is watched (`training=`).
        held_out_bits: loss of held-out rows in bits, at their last evaluation.
        rows_per_second: rows per second that are learned from.
        utilisation: fraction of the devices' peak FLOPs that the model's own arithmetic uses; NaN of a CPU.
        bound: name of `elbo`, which by maximum likelihood is the log likelihood.
    """

    phase: str
    done: int
    total: int
    failed: int = 0
    elbo: float = float("nan")
    error: float = float("nan")
    learning_rate: float | None = None
    bits: float = float("nan")
    held_out_bits: float = float("nan")
    rows_per_second: float = float("nan")
    utilisation: float = float("nan")
    bound: str = "ELBO"

    @property
    def what(self) -> str:
        """Name of the iterations, shown before their count."""
        return "steps"

    def __str__(self) -> str:
        failures = f", {count(self.failed, 'step')} left out" if self.failed else ""
        error = "" if isnan(self.error) else f" ± {self.error:.2g}"
        bits = "" if isnan(self.bits) else f", {self.bits:.4f} bits per dimension"
        held_out = "" if isnan(self.held_out_bits) else f" (held out {self.held_out_bits:.4f})"
        rate = "" if isnan(self.rows_per_second) else f", {self.rows_per_second:,.0f} rows per second"
        fraction = "" if isnan(self.utilisation) else f", {self.utilisation:.0%} of the devices' FLOPs"
        return f"{self.bound} {self.elbo:,.2f}{error}{bits}{held_out}{rate}{fraction}{failures}"


class Solved(NamedTuple):
    """The method that makes no steps, since a climb finds the guide, or for `num_steps=0`; its state is the parameters.

    Attributes:
        seen: number of the next batch.
        unsettled: why learning may not have ended; empty if it has.
    """

    seen: int = 0
    unsettled: str = ""

    def init(self, start: dict[str, PyTree]) -> dict[str, Any]:
        """Return the parameters."""
        return start

    def step(self, state: dict[str, PyTree], say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
        """Yield no state."""
        return iter(())

    def done(self, state: dict[str, PyTree]) -> bool:
        """Return True."""
        return True

    def report(self, state: dict[str, PyTree]) -> NoReturn:
        """Raise: there are no blocks of steps."""
        raise NotImplementedError

    def stop(self, state: dict[str, PyTree], reason: Stop) -> str:
        """Return no line."""
        return ""

    def outcome(self, state: dict[str, PyTree], stop: Stop | None) -> FitOutcome:
        """Return the parameters."""
        return FitOutcome(state, Losses.of(), seen=self.seen, unsettled=self.unsettled)
