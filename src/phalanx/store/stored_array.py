"""Array of draws in a store, read when it is used."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.store.lazy_array import LazyArray


class StoredArray(LazyArray):
    """Draws of one variable `(chain, draw, ...)` in a store.

    Args:
        stored: the array in the store, with room for more draws.
        count: draws of each chain to show.

    Attributes:
        stored: the array in the store.
    """

    def __init__(self, stored: Any, count: int):
        super().__init__((stored.shape[0], count, *stored.shape[2:]), stored.dtype)
        self.stored = stored

    def _read(self, index: tuple[slice, ...]) -> np.ndarray:
        try:
            self.check_chunks(index)
            return np.asarray(self.stored[index])
        except Exception as error:  # of many classes: of the disk, of the checksum, of the compressor
            folder = Path(self.stored.store.root) / self.stored.path
            raise ValueError(
                f"a chunk of the array {str(folder)!r} is damaged ({str(error).rstrip('.')}). Restore that folder from "
                f"a copy; draws in other chunks can be read."
            ) from error

    def check_chunks(self, index: tuple[slice, ...]) -> None:
        """Raise if a chunk has no file; Zarr would return its fill value.

        Raises:
            FileNotFoundError: when a chunk is missing.
        """
        sizes, folder = self.stored.chunks, Path(self.stored.store.root) / self.stored.path / "c"
        wanted = [*index, *[slice(None)] * (self.ndim - len(index))]
        parts = [range(length)[one] for length, one in zip(self.shape, wanted, strict=True)]
        pairs = zip(parts, sizes, strict=True)
        numbers = [range(part.start // size, -(-part.stop // size)) if part else () for part, size in pairs]
        for chunk in product(*numbers):
            if not folder.joinpath(*map(str, chunk)).is_file():
                raise FileNotFoundError(f"the file {str(folder.joinpath(*map(str, chunk)))!r} is missing")
