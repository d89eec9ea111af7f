"""Search for the folder with data files (the argument, else the variable PHALANX_DATA), and checks of their content."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

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
    path = folder if folder is not None else os.environ.get(VARIABLE)
    how = f"Get the files from {origin}, and pass their folder or set {VARIABLE} to it."
    if not path:
        raise FileNotFoundError(
            f"{name}: no folder was given, and the environment variable {VARIABLE} is not set. {how}"
        )
    root = Path(path).expanduser()
    if not root.is_dir():
        whose = "the folder given" if folder is not None else f"the folder that {VARIABLE} names"
        raise FileNotFoundError(
            f"{name}: {whose}, {root}, {'is not a folder' if root.exists() else 'does not exist'}. {how}"
        )
    return root / name if (root / name).is_dir() else root


def read_archive(path: Path, names: tuple[str, ...]) -> list[np.ndarray]:
    """Return the arrays with these names in a NumPy archive; raise ValueError if it is corrupt or lacks one."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in names if name in archive.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: corrupt file, reading the archive failed: {error}. Get the file again.") from error
    check(path, "content", len(arrays) == len(names), f"arrays {', '.join(names)}", ", ".join(arrays) or "none of them")
    return list(arrays.values())


def check(path: Path, what: str, is_good: bool, sound_content: object, got: object) -> None:
    """Raise unless a file has passed the check `what`; the message has what a sound file contains, and this one."""
    if not is_good:
        raise ValueError(
            f"{path}: corrupt file, the {what} check failed: expected {sound_content}, got {got}. Get the file again."
        )
