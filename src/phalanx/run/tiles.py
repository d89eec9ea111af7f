"""How many lanes of a device are worked on together.

On a CPU a tile stays in a core's cache with all that a draw needs: of tens of thousands of lanes at once every
operation would wait for memory. An accelerator takes all lanes at once.
"""

from __future__ import annotations

from typing import NamedTuple

from phalanx.kernels.lanes import group_sizes
from phalanx.mesh.workarounds import Workaround
from phalanx.run.blocks import Blocks

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
    def of(cls, blocks: Blocks, given: int | None, stores_draws: bool) -> Tiles:
        """Those of a run, whose draws are recorded or folded in tiles of as many lanes as are `given`, if any are."""
        count = blocks.count
        if blocks.on_cpu and Workaround.TILES.is_on:
            lane = 4 * ARRAYS * sum(group_sizes(blocks.target.shares.latents))
            tiles = cls(tile_of(count, RECORDED_TOGETHER), tile_of(count, max(1, CACHE_BYTES // max(lane, 1))))
        else:
            tiles = cls(count, count)
        if given is None:
            return tiles
        _check(given, count)
        return tiles._replace(record=given) if stores_draws else tiles._replace(fold=given)


def tile_of(count: int, most: int) -> int:
    """Lanes worked on together: at most so many, and a divisor of all there are."""
    found = next(tile for tile in range(min(count, most), 0, -1) if count % tile == 0)
    return found if 8 * found >= min(count, most) else count  # of a prime number of lanes no tile is worth while


def _check(tile: int, lanes: int) -> None:
    if not isinstance(tile, int) or isinstance(tile, bool) or tile < 1 or lanes % tile:
        raise ValueError(f"tile must be a divisor of the {lanes} lanes of a device, got {tile!r}; None chooses one.")
