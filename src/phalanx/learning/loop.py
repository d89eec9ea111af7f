"""The loop of gradient steps that fits and ensembles share: blocks of steps until a method is done, or is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from phalanx.mesh.interrupts import Interrupts, ended_by_interrupt
from phalanx.run.progress.report import Progress, Report

S = TypeVar("S")


class Stop(Enum):
    """Reason why a loop ended before its method was done."""

    INTERRUPTED = "Ctrl-C"
    TIME = "time is over"
    DATA = "there are no more batches"


class EndOfData(Exception):
    """There are no more batches."""


class Method(Protocol[S]):
    """A way to learn, as three functions of a state; whatever must survive an interruption is in the state."""

    def init(self, start: Any) -> S:
        """Return the state to begin with."""
        ...

    def step(self, state: S, say: Callable[[str], None]) -> Iterator[S]:
        """Make one block of steps; yield the state wherever it is whole, and at the end. `say` shows a line."""
        ...

    def done(self, state: S) -> bool:
        """Return whether there is nothing left to do."""
        ...

    def report(self, state: S) -> Report:
        """Return how far it has come, for the progress display and `on_block`."""
        ...

    def stop(self, state: S, reason: Stop) -> str:
        """Save what is to be saved of a state that is stopped; return a line to show, which may be empty."""
        ...


@dataclass
class Loop(Generic[S]):
    """A method under way.

    Attributes:
        method: the method.
        state: the last state that was whole, also after an exception.
        stopped: why the loop ended before the method was done; None otherwise.
    """

    method: Method[S]
    state: S
    stopped: Stop | None = None

    def blocks(
        self, display: Progress, look: Sequence[Callable[[Report], Any]] = (), seconds: float | None = None
    ) -> Iterator[S]:
        """Yield the state after each block, until the method is done, time or data are over, or on Ctrl-C."""
        began, interrupts = time.monotonic(), Interrupts()
        with ended_by_interrupt(lambda: self._stop(Stop.INTERRUPTED)):
            try:
                while not self.method.done(self.state):
                    if seconds is not None and time.monotonic() - began >= seconds:
                        self._stop(Stop.TIME)
                        break
                    with interrupts.held():
                        for state in self.method.step(self.state, display.say):
                            self.state = state
                            interrupts.agree()
                        report = self.method.report(self.state)
                        for one in (display.show, *look):
                            one(report)
                    yield self.state
            except EndOfData:
                self._stop(Stop.DATA)
        if self.stopped is not None and (line := self.method.stop(self.state, self.stopped)):
            display.say(line)

    def _stop(self, reason: Stop) -> None:
        self.stopped = reason
