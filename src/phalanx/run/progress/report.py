"""Progress reports of a run, and the protocol of a display that shows them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from phalanx.errors.message_text import count


class Report(Protocol):
    """Progress of a phase, of which `str` says more in words."""

    @property
    def phase(self) -> str:
        """Name of the phase, such as "warm-up", "sampling" or "fitting"."""
        ...

    @property
    def done(self) -> int:
        """Iterations or steps so far."""
        ...

    @property
    def total(self) -> int:
        """Iterations or steps in all."""
        ...

    @property
    def what(self) -> str:
        """Name of the iterations, shown before their count."""
        ...


@dataclass(frozen=True)
class RunReport:
    """Progress of a run of chains.

    Attributes:
        phase: "warm-up" or "sampling".
        done, total: iterations of every chain so far, and in all.
        chains: number of chains.
        acceptance_rate: mean over chains of the round so far, or of the last block; NaN for a kernel that accepts
            every proposal.
        divergences: divergences of the phase so far, over all chains.
        rate: draws per second of all chains together, in runs that store none; else 0.
        so_far: function that returns a posterior of the draws so far. Saved, it can be continued to the same draws as
            this run.
    """

    phase: str
    done: int
    total: int
    chains: int
    acceptance_rate: float
    divergences: int
    rate: float = 0.0
    so_far: Callable[..., Any] | None = None

    @property
    def what(self) -> str:
        """Number of chains in words, shown before the count of iterations."""
        return f"{count(self.chains, 'chain')} x"

    def __str__(self) -> str:
        parts = (
            "" if math.isnan(self.acceptance_rate) else f"acceptance {self.acceptance_rate:.2f}",
            count(self.divergences, "divergence") if self.divergences else "",
            f"{self.rate:,.0f} draws per second" if self.rate else "",
        )
        return ", ".join(filter(None, parts))


class Progress(Protocol):
    """Display of reports; a context manager, so that a live display is closed after an exception, too."""

    def __enter__(self) -> Progress: ...

    def __exit__(self, *exception: object) -> None: ...

    def show(self, report: Report) -> None:
        """Show a report."""
        ...

    def say(self, line: str) -> None:
        """Show a line of text."""
        ...
