"""Reports on how far a run is, and the protocol of a display that shows them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from phalanx.errors.words import count


@dataclass(frozen=True)
class Report:
    """How far a phase has come.

    Attributes:
        phase: "warm-up" or "sampling".
        done, total: iterations of every chain.
        chains: number of chains.
        acceptance_rate: mean over chains since the last report; NaN for a kernel that refuses nothing.
        divergences: divergences of the phase so far, over all chains.
        rate: draws per second of all chains together, in runs that store none; else 0.
        so_far: makes a posterior of the draws so far, which can be saved, and continued: to the draws of this run, if
            it should be lost.
    """

    phase: str
    done: int
    total: int
    chains: int
    acceptance_rate: float
    divergences: int
    rate: float = 0.0
    so_far: Callable[[], Any] | None = None

    @property
    def what(self) -> str:
        """What is counted, as it is shown before the count."""
        return f"{count(self.chains, 'chain')} x"

    def __str__(self) -> str:
        told = (
            "" if math.isnan(self.acceptance_rate) else f"acceptance {self.acceptance_rate:.2f}",
            count(self.divergences, "divergence") if self.divergences else "",
            f"{self.rate:,.0f} draws per second" if self.rate else "",
        )
        return ", ".join(filter(None, told))


class Progress(Protocol):
    """Something that shows reports. A context manager, so that a live display ends whatever happens."""

    def __enter__(self) -> Progress: ...

    def __exit__(self, *exception: Any) -> None: ...

    def show(self, report: Report) -> None:
        """Show how far the run has come."""
        ...

    def say(self, line: str) -> None:
        """Show a line of text."""
        ...
