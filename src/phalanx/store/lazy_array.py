"""Arrays of draws that are read when they are used: whole by NumPy, in pieces by all that must bound its memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

PIECE_BYTES = 256 * 2**20
"""Bytes of a piece."""


class LazyArray(NDArrayOperatorsMixin):
    """Draws of one variable `(chain, draw, ...)`; indexing by slices reads a part, all else reads the whole.

    Args:
        shape: the shape.
        dtype: type of the elements.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any):
        self.shape = shape
        self.dtype = np.dtype(dtype)

    @abstractmethod
    def _read(self, index: tuple[slice, ...]) -> np.ndarray:
        """Return a part, given slices with their starts and stops along the first axes, at least two."""

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array in memory."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype})"

    def __getitem__(self, index: Any) -> np.ndarray:
        indices = index if isinstance(index, tuple) else (index,)
        if 1 < len(indices) <= self.ndim and all(isinstance(one, slice) for one in indices):
            parts = [range(size)[one] for size, one in zip(self.shape, indices, strict=False)]
            if all(part.step == 1 for part in parts):  # behind the last draw there is room
                return self._read(tuple(slice(part.start, max(part.start, part.stop)) for part in parts))
        return np.asarray(self)[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._read((slice(0, self.shape[0]), slice(0, self.shape[1]))), dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = (np.asarray(one) if isinstance(one, LazyArray) else one for one in inputs)
        return getattr(ufunc, method)(*arrays, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield arrays `(chain, draw, element)` of a bounded number of elements, in row-major order of elements."""
        chains, draws, *event = self.shape
        if not event or self.nbytes <= PIECE_BYTES:
            yield np.asarray(self).reshape(chains, draws, -1)
            return
        step = max(1, PIECE_BYTES * event[0] // self.nbytes)  # along the first axis of the variable
        for first in range(0, event[0], step):
            yield self[:, :, first : first + step].reshape(chains, draws, -1)

    def rows(self, first: int, last: int) -> np.ndarray:
        """Return the draws from number `first` to `last`, counted over all chains, one chain after the other."""
        length = self.shape[1]
        parts = []
        for chain in range(first // length, (last - 1) // length + 1):
            begin = max(first - chain * length, 0)
            end = min(last - chain * length, length)
            parts.append(self[chain : chain + 1, begin:end][0])
        return np.concatenate(parts)


class StoredArray(LazyArray):
    """Draws of one variable `(chain, draw, ...)` in a store.

    Args:
        zarr_array: the array in the store, with room for more draws.
        count: draws of each chain to show.

    Attributes:
        stored: the array in the store.
    """

    def __init__(self, zarr_array: Any, count: int):
        super().__init__((zarr_array.shape[0], count, *zarr_array.shape[2:]), zarr_array.dtype)
        self.stored = zarr_array

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
        sizes = self.stored.chunks
        folder = Path(self.stored.store.root) / self.stored.path / "c"
        indices = [*index, *[slice(None)] * (self.ndim - len(index))]
        parts = [range(length)[one] for length, one in zip(self.shape, indices, strict=True)]
        pairs = zip(parts, sizes, strict=True)
        numbers = [range(part.start // size, -(-part.stop // size)) if part else () for part, size in pairs]
        for chunk in product(*numbers):
            if not folder.joinpath(*map(str, chunk)).is_file():
                raise FileNotFoundError(f"the file {str(folder.joinpath(*map(str, chunk)))!r} is missing")
