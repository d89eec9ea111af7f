"""How many ticks the next block should have."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

BLOCK_SECONDS = 0.5
"""How long a block should take: short enough to show progress and hear Ctrl-C, long enough to cost nothing."""


class Pace:
    """Learns how long a tick takes. The draws do not depend on it, only when they are handed over."""

    def __init__(self) -> None:
        self._seconds = BLOCK_SECONDS  # before anything is known, one tick at a time

    @property
    def ticks(self) -> int:
        """Ticks of a block."""
        return max(1, int(BLOCK_SECONDS / self._seconds))

    @contextmanager
    def measure(self, ticks: int) -> Iterator[None]:
        """The time spent in the `with` block is what a block of at most `ticks` takes."""
        began = time.perf_counter()
        yield
        self._seconds = max((time.perf_counter() - began) / ticks, 1e-7)
