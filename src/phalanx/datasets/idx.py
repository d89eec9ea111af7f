"""Reader of the idx file format, a header of sizes and then bytes, with checks for corrupt files.

An idx file starts with two zero bytes, the type of its items (08 for unsigned bytes) and the number of its dimensions;
then come the sizes, four bytes each, most significant first; then the items.

Source: Y. LeCun, C. Cortes, C. Burges (1998), The MNIST database of handwritten digits.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from phalanx.inputs.unpacking import most_unpacked

_UNSIGNED_BYTES = b"\x00\x00\x08"


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an idx file of unsigned bytes, gzipped when its name ends in `.gz`.

    Args:
        path: the file.
        dimensions: number of dimensions that its array must have.

    Returns:
        The array, uint8, with the sizes that the file states; read-only.

    Raises:
        ValueError: when the file is corrupt; the message names the file and the check that failed.
    """
    content = _unpack(path) if path.suffix == ".gz" else path.read_bytes()
    header = 4 + 4 * dimensions
    check(path, "header length", len(content) >= header, f"at least {header} bytes", f"{len(content)} bytes")
    check(path, "magic number", content[:3] == _UNSIGNED_BYTES, "bytes 00 00 08", f"bytes {content[:3].hex(' ')}")
    check(path, "dimension count", content[3] == dimensions, dimensions, content[3])
    sizes = np.frombuffer(content, ">u4", dimensions, offset=4).tolist()
    length = header + math.prod(sizes)
    stated = f"{length} bytes for sizes {' x '.join(map(str, sizes))}"
    check(path, "file length", len(content) == length, stated, f"{len(content)} bytes")
    return np.frombuffer(content, np.uint8, offset=header).reshape(sizes)


def check(path: Path, what: str, passed: bool, expected: object, got: object) -> None:
    """Raise unless a file has passed a check.

    Args:
        path: the file.
        what: the check's name.
        passed: whether the file passes.
        expected: content of a sound file.
        got: content of this file.

    Raises:
        ValueError: when the file does not pass.
    """
    if not passed:
        raise ValueError(
            f"{path}: corrupt file, the {what} check failed: expected {expected}, got {got}. Get the file again."
        )


def _unpack(path: Path) -> bytes:
    most = most_unpacked(path)
    try:
        with gzip.open(path) as opened:
            content = opened.read(most + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        reason = str(error).partition(" 0x")[0]
        raise ValueError(f"{path}: corrupt file, the gzip check failed: {reason}. Get the file again.") from error
    check(path, "unpacked size", len(content) <= most, f"at most {most} bytes", "more")
    return content
