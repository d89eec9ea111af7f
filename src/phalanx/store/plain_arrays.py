"""Reader of the plain arrays in an `.npz` archive, with a limit of their memory; it reads no pickles."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np


def read_arrays(path: Path, most: int) -> dict[str, np.ndarray]:
    """Return the arrays of an archive by name.

    Args:
        path: the file.
        most: bytes that all arrays together may take.

    Raises:
        ValueError: when the file is something else, has two arrays of one name, or takes more memory. Of a damaged
            file, zipfile, zlib and NumPy raise errors of a dozen other kinds.
    """
    # NumPy would advise to load a file of another kind as a pickle, and leaves one that it opened itself open.
    if not zipfile.is_zipfile(path):
        raise ValueError("it is not an .npz archive")
    with path.open("rb") as stream:
        with zipfile.ZipFile(stream) as archive:
            entries = archive.infolist()
        names = [entry.filename.removesuffix(".npy") for entry in entries]
        if len(set(names)) < len(names):
            raise ValueError(f"it has two arrays {next(name for name in names if names.count(name) > 1)!r}")
        if (total := sum(entry.file_size for entry in entries)) > most:
            raise ValueError(f"its arrays unpack to {total:,} bytes, and {most:,} are the most for a file of its size")
        with np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    if empty := [name for name, array in arrays.items() if array.size and not array.itemsize]:
        raise ValueError(f"the items of its array {empty[0]!r} have no bytes, so that their number can be any")
    return arrays
