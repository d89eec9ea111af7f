"""Search for the folder with data files: the argument, else the environment variable PHALANX_DATA, else an error."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "PHALANX_DATA"


def find_folder(name: str, folder: str | os.PathLike[str] | None, origin: str) -> Path:
    """Find the folder of one data set.

    Args:
        name: the data set, which is also the name of its folder inside a folder of data sets.
        folder: the data set's own folder, or one that contains it as `name`; None means the one PHALANX_DATA names.
        origin: source of the files, for the error message.

    Returns:
        `folder / name` if that is a folder, else `folder`.

    Raises:
        FileNotFoundError: when no folder is named, or the named one does not exist.
    """
    given = folder if folder is not None else os.environ.get(VARIABLE)
    how = f"Get the files from {origin}, and pass their folder or set {VARIABLE} to it."
    if not given:
        raise FileNotFoundError(
            f"{name}: no folder was given, and the environment variable {VARIABLE} is not set. {how}"
        )
    root = Path(given).expanduser()
    if not root.is_dir():
        whose = "the folder given" if folder is not None else f"the folder that {VARIABLE} names"
        raise FileNotFoundError(
            f"{name}: {whose}, {root}, {'is not a folder' if root.exists() else 'does not exist'}. {how}"
        )
    return root / name if (root / name).is_dir() else root
