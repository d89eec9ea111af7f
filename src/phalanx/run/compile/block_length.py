"""Choice of the number of ticks of a block, by the time that ticks take."""

from __future__ import annotations

from phalanx.mesh.processes import agreed

BLOCK_SECONDS = 0.5
"""Most time of a block: short enough for progress and Ctrl-C, long enough that calls take little of it."""


class BlockLength:
    """Estimate of the time of a tick. Draws do not depend on it, only their division into blocks does."""

    def __init__(self) -> None:
        self._seconds = BLOCK_SECONDS  # the first block has one tick

    @property
    def ticks(self) -> int:
        """Number of ticks of the next block, equal in all processes: a power of two, which blocks often share."""
        most = int(BLOCK_SECONDS / self._seconds)
        return int(agreed(1 << max(most.bit_length() - 1, 0)))

    def learn(self, ticks: int, seconds: float) -> None:
        """Update the estimate by a block's time and the ticks that it made."""
        self._seconds = max(seconds / max(ticks, 1), 1e-7)
