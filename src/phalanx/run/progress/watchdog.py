"""Watchdog of a run: a line on the progress display if no block ends for long, with advice if the process is idle.

Every block of a run or a fit ends in `Progress.show`. The watchdog wraps the display; its thread compares the time
since the last `show` with the length of earlier blocks. A silent display has no watchdog.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import jax
import jaxlib.version

from phalanx.mesh.compatibility.lapack_batches import deadlocks
from phalanx.run.progress.display import Silent
from phalanx.run.progress.report import Progress, Report

LIMIT = 60.0
"""Minimal seconds without the end of a block before a line is shown."""

TIMES = 20.0
"""Minimal multiple of the latest block's time before a line is shown."""

LOOKS = 4
"""Comparisons per `LIMIT` seconds."""

IDLE = 0.01
"""Fraction of a core below which a process counts as idle."""


def watched(display: Progress) -> Progress:
    """Return the display with a watchdog; a silent display unchanged."""
    return display if type(display) is Silent else Watchdog(display)


class Watchdog:
    """Display that also reports if no block has ended for long.

    Args:
        display: the display of reports and lines.
        limit: minimal seconds without the end of a block before a line is shown.
        clock: function that returns seconds.
        cpu_clock: function that returns the seconds of CPU time of this process.
    """

    def __init__(
        self,
        display: Progress,
        limit: float = LIMIT,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ):
        self._display = display
        self._limit = limit
        self._clock = clock
        self._used = cpu_clock
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._block = 0.0
        """Seconds of the latest block; 0 during the first."""
        self._ended = clock()
        self._looked = (clock(), cpu_clock())
        self._said_late = self._said_stuck = False

    def __enter__(self) -> Watchdog:
        self._display.__enter__()
        self._ended, self._looked = self._clock(), (self._clock(), self._used())
        self._thread = threading.Thread(target=self._watch, name="phalanx-watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._display.__exit__(*exception)

    def show(self, report: Report) -> None:
        """Show a report, and note the end of a block."""
        now = self._clock()
        self._block = now - self._ended
        self._ended = now
        self._said_late = self._said_stuck = False
        self._display.show(report)

    def say(self, line: str) -> None:
        """Show a line of text."""
        self._display.say(line)

    def _watch(self) -> None:
        while not self._over.wait(self._limit / LOOKS):
            self.look()

    def look(self) -> None:
        """Compare the clocks with those of the last call, and show a line if it is due."""
        now = self._clock()
        cpu_seconds = self._used()
        (before, used_before), self._looked = self._looked, (now, cpu_seconds)
        waited = now - self._ended
        if waited < max(self._limit, TIMES * self._block):
            return
        # a process that waits for a GPU is idle, too
        is_idle = cpu_seconds - used_before < IDLE * (now - before) and jax.default_backend() == "cpu"
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
    ", and the process has used no CPU time meanwhile. Unless your on_block function is waiting, the run is stuck: end "
    "the process. "
)

_PEER = "If several processes run together, another one may have ended or stopped."

_REMEDIES = {
    True: f"{_STUCK}With this release of JAX (0.10 or 0.11.0) devices of one CPU may deadlock: install JAX 0.11.2 or "
    f"later, or call phx.use_cpu_devices(1) first. {_PEER}",
    False: f"{_STUCK}Devices of one CPU may have deadlocked: call phx.use_cpu_devices(1) first. {_PEER}",
}
"""Advice for a stuck process; True for releases of JAX that are known to deadlock."""
