"""How many iterations the next block should have."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

BLOCK_SECONDS = 0.5
"""How long a block should take: short enough to show progress and hear Ctrl-C, long enough to cost nothing."""


class Pace:
    """Learns how long an iteration takes. The draws do not depend on it, only when they are handed over."""

    def __init__(self) -> None:
        self._seconds = BLOCK_SECONDS  # before anything is known, one iteration at a time

    @contextmanager
    def block(self, most: int) -> Iterator[int]:
        """The number of iterations of the next block; the time spent in the `with` block is what it took."""
        count = max(1, min(most, int(BLOCK_SECONDS / self._seconds)))
        began = time.perf_counter()
        yield count
        self._seconds = max((time.perf_counter() - began) / count, 1e-7)
