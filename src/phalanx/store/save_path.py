"""Path of a file to save a posterior or fit to: checks of folder and ending, and netCDF for `.nc`."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from phalanx.extras import is_installed, require
from phalanx.mesh.output import warn

ARCHIVE = ("", ".npz", ".phalanx")
"""Endings of an archive that `load` reads."""

NETCDF = ".nc"

WITHOUT_SYNC = errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP
"""Errors of file systems that cannot sync files."""

WITHOUT_FOLDERS = errno.EACCES, errno.EPERM, errno.EISDIR, errno.EBADF
"""Errors of file systems that can sync files and no folders."""


def file_to_save(path: str | PathLike[str], example: str, netcdf: str = "") -> Path:
    """Return the path of a file to save to, after checking it.

    Args:
        path: the file.
        example: a file name to suggest.
        netcdf: advice where `.nc` cannot be written; empty where it can.

    Returns:
        The path.

    Raises:
        FileNotFoundError: when its folder is missing.
        ValueError: when the path is a folder, lies below a file, or has the ending of another format.
    """
    file = Path(path)
    if file.is_dir():
        raise ValueError(f"save: {str(path)!r} is a folder; name a file in it, such as {str(file / example)!r}.")
    if not file.parent.is_dir():
        if in_the_way := next((str(above) for above in file.parents if above.is_file()), None):
            raise ValueError(f"save: {str(path)!r} cannot be written: {in_the_way!r} is a file, no folder.")
        raise FileNotFoundError(
            f"save: {str(path)!r} cannot be written: there is no folder {str(file.parent)!r}. Make it first, "
            f"pathlib.Path({str(file.parent)!r}).mkdir(parents=True), or correct the path."
        )
    ending = file.suffix.lower()
    if ending == NETCDF and netcdf:
        raise ValueError(f"save: {str(path)!r} ends in {NETCDF!r}, and {netcdf}")
    if ending not in (*ARCHIVE, NETCDF):
        other = "" if netcdf else f", or {str(file.with_suffix(NETCDF))!r} for netCDF"
        raise ValueError(
            f"save: {str(path)!r} ends in {file.suffix!r}, which is not a format that can be written. Use "
            f"{str(file.with_suffix('.npz'))!r} for an archive that load reads{other}."
        )
    return file


def is_netcdf(file: Path) -> bool:
    """Return True if the ending of a file is that of netCDF."""
    return file.suffix.lower() == NETCDF


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yield a path to write to, which replaces `file` unless an error is raised.

    The contents reach the disk before the file gets its name, and the name before this returns.
    """
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)  # a link would be written through
    try:
        yield partial
        sync(partial)
        partial.replace(file)
        sync(file.parent)
    finally:
        partial.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk, unless the file system cannot wait for them."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        without = (*WITHOUT_SYNC, *(WITHOUT_FOLDERS if path.is_dir() else ()))
        if error.errno not in without:
            raise


def lock(descriptor: int, title: str) -> bool:
    """Lock an open file or folder for this process, and return whether no other process holds it.

    A file system without locks is used without one, with a warning.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # such as ENOSYS, ENOLCK, EOPNOTSUPP, and EBADF for a folder in NFS
        warn(
            f"{title} is on a file system that cannot lock it ({error.strerror}), so that two processes that write to "
            f"it at the same time are not noticed. See to it that one alone does.",
            stacklevel=4,
        )
    return True


def write_netcdf(file: Path, to_arviz: Callable[[], Any]) -> Path:
    """Write ArviZ's container of draws and statistics to a netCDF file.

    Args:
        file: the file.
        to_arviz: makes the container.

    Returns:
        The file.

    Raises:
        ImportError: when ArviZ, or a package that writes netCDF, is not installed.
    """
    require("arviz")
    engine = "netcdf4" if is_installed("netCDF4") else "h5netcdf"
    if engine == "h5netcdf":
        require("h5netcdf")
    with replacing(file) as partial:
        to_arviz().to_netcdf(str(partial), engine=engine)
    return file
