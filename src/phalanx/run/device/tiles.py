"""How many lanes of a device are worked on together.

On a CPU a tile stays in a core's cache with all that a draw needs: of tens of thousands of lanes at once every
operation would wait for memory. An accelerator takes all lanes at once. The environment variable `PHALANX_TILE` gives
another number, a divisor of a device's lanes, to whatever is compiled while it is set.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from phalanx.mesh.compatibility.workarounds import Workaround
from phalanx.run.device.blocks import Blocks

VARIABLE = "PHALANX_TILE"

CACHE_BYTES = 2**17
"""What a tile's state may take of a core's cache. The rest is for what a draw computes on its way."""

ARRAYS = 16
"""Arrays as large as a position that a draw works on."""

RECORDED_TOGETHER = 128
"""Lanes of a tile where draws are recorded, one lane after the other; see `benchmarks/tiles.py`."""


class Tiles(NamedTuple):
    """Lanes of a tile where draws are recorded, and where they are folded."""

    record: int
    fold: int

    @classmethod
    def of(cls, blocks: Blocks, stores_draws: bool) -> Tiles:
        """Return those of a run, whose draws are recorded or folded."""
        count, given = blocks.count, given_tile()
        if blocks.on_cpu and Workaround.TILES.is_on:
            lane = 4 * ARRAYS * sum(blocks.layout.lengths)
            tiles = cls(tile_of(count, RECORDED_TOGETHER), tile_of(count, max(1, CACHE_BYTES // max(lane, 1))))
        else:
            tiles = cls(count, count)
        if not given:
            return tiles
        if not given.isdigit() or not int(given) or count % int(given):
            raise ValueError(
                f"{VARIABLE}: a tile must be a divisor of the {count} lanes of a device, got {given!r}; unset it, and "
                f"one is chosen."
            )
        return tiles._replace(record=int(given)) if stores_draws else tiles._replace(fold=int(given))


def given_tile() -> str:
    """Return the lanes of a tile that the environment gives; empty where it gives none."""
    return os.environ.get(VARIABLE, "")


def tile_of(count: int, most: int) -> int:
    """Lanes worked on together: at most so many, and a divisor of all there are."""
    found = next(tile for tile in range(min(count, most), 0, -1) if count % tile == 0)
    return found if 8 * found >= min(count, most) else count  # of a prime number of lanes no tile is worth while
