"""Checksums of the data that several processes hold, to be compared between them.

A replicated array must be equal in all. The rows of a sharded one are compared only among processes that hold the same
rows, so that each process may load its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax import Array

from phalanx.inputs.arguments import COMPILED_IN, Arguments
from phalanx.mesh.agreement import CONTENT, ROWS


def held_contents(arguments: Arguments) -> dict[str, str]:
    """Return the checksums of what this process shares with others, by name."""
    plain = [x for x in arguments.layout.leaves if isinstance(x, bool | int | float | complex | str | tuple)]
    contents = {f"{CONTENT}{COMPILED_IN}": repr(plain)}
    for name, array in zip(arguments.names, arguments.arrays, strict=True):
        if isinstance(array, Array) and not array.is_fully_addressable:
            pieces = {f"{ROWS}{rows} of data {name!r}": piece for rows, piece in _shared_pieces(array)}
        else:
            pieces = {f"{CONTENT}data {name!r}": array}
        contents |= {what: _checksum(piece) for what, piece in pieces.items()}
    return contents


def _shared_pieces(array: Array) -> Iterator[tuple[str, Any]]:
    """Yield each piece of a global array that this process and another hold, with the range of its rows."""
    holders: dict[str, set[int]] = {}
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        holders.setdefault(_rows(index, array), set()).add(device.process_index)
    pieces = {_rows(shard.index, array): shard.data for shard in array.addressable_shards}
    yield from ((rows, piece) for rows, piece in pieces.items() if len(holders[rows]) > 1)


def _rows(index: tuple[slice, ...], array: Array) -> str:
    ranges = (one.indices(size) for one, size in zip(index, array.shape, strict=True))
    first, *others = [f"{start}:{stop}" for start, stop, _ in ranges] or [""]
    whole = [f"0:{size}" for size in array.shape[1:]]
    return first if others == whole else ", ".join([first, *others])


def _checksum(array: Any) -> str:
    array = np.ascontiguousarray(jax.device_get(array))
    return f"{array.dtype} {array.shape} {hashlib.blake2b(array, digest_size=16).hexdigest()}"
