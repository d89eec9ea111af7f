"""How many ticks the next block should have."""

from __future__ import annotations

from phalanx.mesh.processes import agreed

BLOCK_SECONDS = 0.5
"""How long a block should take: short enough to show progress and hear Ctrl-C, long enough to cost nothing."""


class Pace:
    """Learns how long a tick takes. The draws do not depend on it, only when they are handed over."""

    def __init__(self) -> None:
        self._seconds = BLOCK_SECONDS  # before anything is known, one tick at a time

    @property
    def ticks(self) -> int:
        """Ticks of a block, the same in all processes."""
        return int(agreed(max(1, int(BLOCK_SECONDS / self._seconds))))

    def learn(self, ticks: int, seconds: float) -> None:
        """A block of so many ticks has taken so long. It may have ended before the ticks it was given."""
        self._seconds = max(seconds / max(ticks, 1), 1e-7)
