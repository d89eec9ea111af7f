"""Showing how a run goes: a live line on a terminal, plain lines elsewhere, nothing when switched off."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol


@dataclass(frozen=True)
class Report:
    """How far a phase has come.

    Attributes:
        phase: "warm-up" or "sampling".
        done, total: iterations of every chain.
        chains: number of chains.
        acceptance_rate: mean over chains since the last report.
        divergences: divergences of the phase so far, over all chains.
        rate: draws per second of all chains together, in runs that store none; else 0.
    """

    phase: str
    done: int
    total: int
    chains: int
    acceptance_rate: float
    divergences: int
    rate: float = 0.0

    def __str__(self) -> str:
        rate = f", {self.rate:,.0f} draws per second" if self.rate else ""
        divergences = f", {self.divergences} divergences" if self.divergences else ""
        return f"acceptance {self.acceptance_rate:.2f}{divergences}{rate}"


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


def make_progress(enabled: bool) -> Progress:
    """The progress display for where this process writes to."""
    if not enabled:
        return Silent()
    if find_spec("rich") is None or not sys.stderr.isatty():
        return Lines()
    from phalanx.run.live import Live  # here, because Rich is optional and slow to import

    return Live()


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    def show(self, report: Report) -> None:
        """Show nothing."""

    def say(self, line: str) -> None:
        """Say nothing."""


class Lines(Silent):
    """Plain lines on standard error: at every tenth of a phase, but at most one every two seconds."""

    def __init__(self) -> None:
        self._phase, self._began, self._last = "", 0.0, 0.0

    def show(self, report: Report) -> None:
        """Print a line when a tenth of the phase is over."""
        now = time.monotonic()
        if report.phase != self._phase:
            self._phase, self._began, self._last = report.phase, now, now
        finished = report.done >= report.total
        if not report.done or (not finished and now - self._last < 2.0):
            return
        self._last = now
        left = (now - self._began) / report.done * (report.total - report.done)
        self.say(
            f"{report.phase:>8}  {report.chains} chains x {report.done}/{report.total}  {report}"
            + ("" if finished else f", {left:.0f} s left")
        )

    def say(self, line: str) -> None:
        """Print a line."""
        print(line, file=sys.stderr, flush=True)
