"""Watchdog of a run: says on the progress display that no block has ended for long, and what to do if nothing moves.

Every block of warm-up and sampling, and every look at a fit, ends in `Progress.show`. The watchdog is a display around
the display: a thread of its own compares the time since the last `show` with what blocks took before. Without a display
there is no thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jaxlib.version

from phalanx.mesh.compatibility.lapack_batches import deadlocks
from phalanx.run.progress.display import Silent
from phalanx.run.progress.report import Progress, Report

LIMIT = 60.0
"""Seconds without the end of a block after which a line is shown, at least."""

TIMES = 20.0
"""Multiple of the latest block's time that must have passed, too."""

LOOKS = 4
"""Looks at the clock in `LIMIT` seconds."""

IDLE = 0.01
"""Fraction of a core below which a process does nothing."""


def watched(display: Progress) -> Progress:
    """Return the display with a watchdog; a silent one as it is."""
    return display if type(display) is Silent else Watchdog(display)


class Watchdog:
    """A display that also says when no block has ended for long.

    Args:
        display: shows reports and lines.
        limit: seconds without the end of a block after which a line is shown, at least.
        clock: seconds that have passed.
        used: seconds of CPU time that this process has used.
    """

    def __init__(
        self,
        display: Progress,
        limit: float = LIMIT,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.process_time,
    ):
        self._display, self._limit, self._clock, self._used = display, limit, clock, used
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._block = 0.0
        """Seconds of the latest block; 0 before the first has ended."""
        self._ended, self._looked = clock(), (clock(), used())
        self._said_late = self._said_stuck = False

    def __enter__(self) -> Watchdog:
        self._display.__enter__()
        self._ended, self._looked = self._clock(), (self._clock(), self._used())
        self._thread = threading.Thread(target=self._watch, name="phalanx-watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._display.__exit__(*exception)

    def show(self, report: Report) -> None:
        """Show how far the run has come: a block has ended."""
        now = self._clock()
        self._block, self._ended = now - self._ended, now
        self._said_late = self._said_stuck = False
        self._display.show(report)

    def say(self, line: str) -> None:
        """Show a line of text."""
        self._display.say(line)

    def _watch(self) -> None:
        while not self._over.wait(self._limit / LOOKS):
            self.look()

    def look(self) -> None:
        """Compare the clocks with those of the last look, and say what is to be said."""
        now, used = self._clock(), self._used()
        (before, used_before), self._looked = self._looked, (now, used)
        waited = now - self._ended
        if waited < max(self._limit, TIMES * self._block):
            return
        # waiting for a GPU takes no CPU time either
        is_idle = used - used_before < IDLE * (now - before) and jax.default_backend() == "cpu"
        if is_idle and not self._said_stuck:
            self._said_late = self._said_stuck = True
            self.say(_line_of(waited, self._block) + _REMEDIES[deadlocks(jaxlib.version.__version__)])
        elif not self._said_late:
            self._said_late = True
            self.say(_line_of(waited, self._block) + ".")


def _line_of(waited: float, block: float) -> str:
    before = f"; the latest block took {block:.1f} s" if block else ""
    return f"phalanx: no block has ended for {waited:.0f} s{before}"


_STUCK = (
    ", and the process has used no CPU time meanwhile. If nothing is awaited in on_block, the run is stuck: end the "
    "process. "
)

_PEER = "Where several processes run together, another one may have ended or stopped."

_REMEDIES = {
    True: f"{_STUCK}With this release of JAX (0.10 or 0.11.0) devices of one CPU may wait for one another for ever: "
    f"install JAX 0.11.2 or later, or call phx.use_cpu_devices(1) first. {_PEER}",
    False: f"{_STUCK}Devices of one CPU may wait for one another: call phx.use_cpu_devices(1) first. {_PEER}",
}
"""Advice where nothing moves, by whether the installed JAX is known to deadlock."""
