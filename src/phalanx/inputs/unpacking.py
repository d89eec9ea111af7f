"""Limit of the memory that a file of data may unpack to, since a hostile file of kilobytes unpacks to gigabytes."""

from __future__ import annotations

from pathlib import Path

TIMES = 100
"""Bytes unpacked for each byte of a file; images and tables of data need 1 to 20."""

SMALL = 2**26
"""Bytes that any file may unpack to."""


def most_unpacked(path: Path) -> int:
    """Return the bytes that a file may unpack to."""
    return max(TIMES * path.stat().st_size, SMALL)
