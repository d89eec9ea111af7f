"""Where a file is to be written: looked at before the work is done, not after."""

from __future__ import annotations

from os import PathLike
from pathlib import Path


def file_to_write(what: str, path: str | PathLike[str], example: str) -> Path:
    """The path of a file to write, with the folders on its way made.

    Args:
        what: who writes, for the message.
        path: where to.
        example: a file name to suggest.

    Returns:
        The path.

    Raises:
        ValueError: when it names a folder, or lies below a file.
    """
    file = Path(path)
    if file.is_dir():
        raise ValueError(f"{what}: {str(path)!r} is a folder; name a file in it, such as {str(file / example)!r}.")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(f"{what}: {str(path)!r} cannot be written: {error.filename!r} is a file, no folder.") from None
    return file
