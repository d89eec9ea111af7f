"""Loop of gradient steps of fits and ensembles: blocks of steps until a method is done, or is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from phalanx.learning.checkpoint import TrainingCheckpoint
from phalanx.mesh.failure import all_end_by
from phalanx.mesh.interrupts import Interrupts, ended_by_interrupt
from phalanx.mesh.processes import agreed
from phalanx.run.progress.report import Progress, Report

S = TypeVar("S")


class Stop(Enum):
    """Reason why a loop ended before its method was done."""

    INTERRUPTED = "Ctrl-C"
    TERMINATED = "SIGTERM"
    TIME = "time is over"
    DATA = "the batches have ended"


class EndOfData(Exception):
    """End of the batches."""


class Method(Protocol[S]):
    """Way to learn, as functions of a state, which holds all that must survive an interruption."""

    def init(self, start: Any) -> S:
        """Return the state to begin with."""
        ...

    def step(self, state: S, say: Callable[[str], None]) -> Iterator[S]:
        """Make one block of steps; yield each consistent state, the last at the end. `say` shows a line."""
        ...

    def done(self, state: S) -> bool:
        """Return whether all steps are made, or no more are needed."""
        ...

    def report(self, state: S) -> Report:
        """Return the progress, for the display and `on_block`."""
        ...

    def stop(self, state: S, reason: Stop) -> str:
        """Save the state of a method that is stopped; return a line to show, which may be empty."""
        ...


@dataclass
class Loop(Generic[S]):
    """Loop over the blocks of a method.

    Attributes:
        method: the method.
        state: the last consistent state, also after an exception.
        saves: the checkpoint, held while the loop runs; None without.
        stopped: reason why the loop ended before the method was done; None otherwise.
    """

    method: Method[S]
    state: S
    saves: TrainingCheckpoint | None = None
    stopped: Stop | None = None

    def blocks(
        self, display: Progress, look: Sequence[Callable[[Report], Any]] = (), seconds: float | None = None
    ) -> Iterator[S]:
        """Yield the state after each block, until the method is done, time or data have run out, or Ctrl-C.

        With a checkpoint, SIGTERM ends the process after a save.

        Args:
            display: shows the reports.
            look: functions called with each report.
            seconds: time limit; None without.
        """
        began = time.monotonic()
        interrupts = Interrupts(self.saves is not None)
        with nullcontext() if self.saves is None else self.saves.held():
            with ended_by_interrupt(lambda: self._stop(Stop.INTERRUPTED)):
                try:
                    while not self.method.done(self.state):
                        if seconds is not None and agreed(time.monotonic() - began >= seconds):
                            self._stop(Stop.TIME)
                            break
                        with interrupts.held():
                            for state in self.method.step(self.state, display.say):
                                self.state = state
                                interrupts.agree(after=state)
                            report = self.method.report(self.state)
                            for one in (display.show, *look):
                                one(report)
                        yield self.state
                except EndOfData:
                    self._stop(Stop.DATA)
                except (SystemExit, GeneratorExit) as error:  # SIGTERM, or the caller's loop was left
                    with interrupts.saving():
                        if all_end_by(error):
                            self.method.stop(self.state, Stop.TERMINATED)
                    raise
            if self.stopped is not None:
                with interrupts.saving():
                    line = self.method.stop(self.state, self.stopped)
                if line:
                    display.say(line)

    def _stop(self, reason: Stop) -> None:
        self.stopped = reason
