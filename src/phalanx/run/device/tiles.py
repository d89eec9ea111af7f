"""Choice of the number of lanes that a device advances together.

On a CPU the arrays of a tile fit into a core's cache; with tens of thousands of lanes every operation would wait for
memory. An accelerator advances all lanes together. The environment variable `PHALANX_TILE` sets another number for all
programs that are compiled while it is set.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from phalanx.mesh.compatibility.workarounds import Workaround
from phalanx.run.device.blocks import Blocks

VARIABLE = "PHALANX_TILE"

CACHE_BYTES = 2**17
"""Bytes of a core's cache for the state of a tile; temporary arrays take the rest."""

ARRAYS = 16
"""Estimated number of arrays of the size of a position that a draw uses."""

LANES_OF_TILE = 128
"""Lanes of a tile if draws are recorded, one lane after the other; see `benchmarks/tiles.py`. If draws are reduced, a
tile has at least so many, within `MOST_BYTES`: with 20 lanes single operations take longer than access to memory."""

MOST_BYTES = 2**23
"""Bytes of the largest state of a tile with `LANES_OF_TILE` lanes although a core's cache is smaller."""


class Tiles(NamedTuple):
    """Number of lanes of a tile if draws are recorded, and if they are only reduced."""

    record: int
    accumulate: int

    @classmethod
    def of(cls, blocks: Blocks, stores_draws: bool) -> Tiles:
        """Return the tiles of a run; `stores_draws` decides which of them `PHALANX_TILE` sets."""
        count = blocks.count
        text = given_tile()
        if blocks.on_cpu and Workaround.TILES.is_on:
            lane = max(1, 4 * ARRAYS * sum(blocks.layout.lengths))
            lanes = max(1, CACHE_BYTES // lane, min(LANES_OF_TILE, MOST_BYTES // lane))
            tiles = cls(tile_of(count, LANES_OF_TILE), tile_of(count, lanes))
        else:
            tiles = cls(count, count)
        if not text:
            return tiles
        if not text.isdigit() or not 1 <= int(text) <= count:
            raise ValueError(
                f"{VARIABLE}: a tile must have from 1 to {count} lanes, as a device has, got {text!r}; give such a "
                f"number, or unset the variable."
            )
        return tiles._replace(record=int(text)) if stores_draws else tiles._replace(accumulate=int(text))


def given_tile() -> str:
    """Return the value of the environment variable; an empty string if it is not set."""
    return os.environ.get(VARIABLE, "")


def tile_of(count: int, most: int) -> int:
    """Return the lanes of a tile, at most `most`: a divisor of `count` if one is large enough, else nearly one."""
    most = min(count, most)
    chains = next(tile for tile in range(most, 0, -1) if count % tile == 0)
    # the last of several tiles is then filled up
    return chains if 2 * chains >= most else -(-count // -(-count // most))
