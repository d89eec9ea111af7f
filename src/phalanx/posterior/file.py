"""A posterior in one file: an `.npz` archive of plain arrays, and a JSON entry that says what they are; no pickles."""

from __future__ import annotations

import json
import sys
import zipfile
from collections import namedtuple
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np

from phalanx.mesh.total import Total
from phalanx.posterior.record import RunRecord, Timing
from phalanx.posterior.save_path import NETCDF, replacing

_FORMAT = "phalanx.posterior"
_VERSION, _READ = 3, (2, 3)  # files of version 2 have no state from which to go on
_ENTRY = "json"
_PARTS = ("draws", "stats", "reduced")
_OURS = "phalanx"


def write_posterior(file: Path, parts: dict[str, Any], timing: Timing, record: RunRecord) -> Path:
    """Write the parts of a posterior; `file` holds either all of them or what it held before.

    Args:
        file: the file, see `file_to_save`.
        parts: `draws`, `stats` and `reduced`: dicts of arrays, or of dicts, lists and tuples of arrays.
        timing: seconds of each phase.
        record: what was run.

    Returns:
        `file`.
    """
    return write_archive(file, (_FORMAT, _VERSION), parts, timing, record)


def write_archive(file: Path, kind: tuple[str, int], parts: dict[str, Any], timing: Timing, record: RunRecord) -> Path:
    """Write parts of any kind; `kind` is the format and its version."""
    arrays: dict[str, np.ndarray] = {}
    contents = {
        "format": kind[0],
        "version": kind[1],
        "timing": asdict(timing),
        "record": asdict(record),
        "parts": {name: _describe(part, name, arrays) for name, part in parts.items()},
    }
    # NumPy's numbers, which records may hold, are not JSON's.
    arrays[_ENTRY] = np.array(json.dumps(contents, default=lambda number: number.item()))
    with replacing(file) as partial, partial.open("wb") as opened:
        np.savez(opened, **arrays)  # pyright: ignore[reportArgumentType]
    return file


def read_posterior(path: Path) -> tuple[dict[str, Any], Timing, RunRecord]:
    """Read what `write_posterior` wrote.

    Args:
        path: the file.

    Returns:
        The parts by name, the timing and the record.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when the file is something else, damaged, or written by a later version.
    """
    if path.suffix.lower() == NETCDF and path.is_file():
        raise ValueError(
            f"Posterior.load: {path} is netCDF, which has the draws and statistics alone: read it with "
            f"arviz.from_netcdf. What can be loaded is saved as .npz."
        )
    return read_archive("Posterior.load", "posterior", path, _FORMAT, _READ, _PARTS)


def read_archive(
    what: str, kind: str, path: Path, format_name: str, versions: tuple[int, ...], needed: tuple[str, ...]
) -> tuple[dict[str, Any], Timing, RunRecord]:
    """Read an archive of this format, in one of these versions, with the parts `needed`; `what` loads a `kind`."""
    if not path.is_file():
        raise FileNotFoundError(f"{what}: there is no file {path}.")
    try:
        # Of a file of another kind, NumPy would say to load it as a pickle.
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not an .npz archive")
        # NumPy leaves a damaged file open when it opened that itself.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            contents = json.loads(str(file[_ENTRY]))
            if contents["format"] != format_name:
                raise ValueError(f"its format is {contents['format']!r}")
            if contents["version"] not in versions:
                known = " and ".join(map(str, versions))
                raise ValueError(f"it has version {contents['version']} of the format; this release reads {known}")
            parts = {name: _rebuild(part, file) for name, part in contents["parts"].items()}
            if missing := [name for name in needed if name not in parts]:
                raise ValueError(f"it has no {', '.join(missing)}")
            _check_sizes({**parts.get("draws", {}), **parts.get("stats", {})})
        return parts, Timing(**contents["timing"]), RunRecord.of_json(contents["record"])
    except PermissionError:
        raise
    except Exception as error:  # zipfile, zlib, NumPy and json raise errors of a dozen kinds on damaged bytes
        message = f"{what}: {path} is not a {kind} saved by Phalanx, or is damaged: {error}."
        raise ValueError(message) from error


def _describe(value: Any, where: str, arrays: dict[str, np.ndarray]) -> Any:
    """Put the arrays within `value` into `arrays`, and describe in JSON how to build `value` from them."""
    match value:
        case None | bool() | int() | float() | str():
            return {"value": value}
        case dict():
            for key in value:
                if not isinstance(key, str):
                    raise TypeError(f"save: the keys of {where} must be strings; got {key!r}.")
            return {"dict": {key: _describe(item, f"{where}[{key!r}]", arrays) for key, item in value.items()}}
        case list() | tuple():
            fields = getattr(value, "_fields", None)
            names = [f".{name}" for name in fields] if fields else [f"[{index}]" for index in range(len(value))]
            items = [_describe(item, where + name, arrays) for name, item in zip(names, value, strict=True)]
            if fields:
                return {"namedtuple": [_name_of(type(value)), list(fields)], "items": items}
            return {"list" if isinstance(value, list) else "tuple": items}
        case Total(coarse=coarse, fine=fine):  # who goes on with a run knows what the two are
            return {"tuple": [_describe(part, where, arrays) for part in (coarse, fine)]}
        case np.ndarray() | np.generic() | jax.Array():
            return _describe_array(np.asarray(value), where, arrays)
    raise TypeError(
        f"save: {where} holds a {type(value).__name__}, which cannot be saved. Save the rest without it: "
        "dataclasses.replace(posterior, reduced={}).save(path)."
    )


def _name_of(record: type) -> str:
    """A record's name, and the module of one of ours."""
    ours = record.__module__.partition(".")[0] == _OURS
    return f"{record.__module__}:{record.__qualname__}" if ours else record.__name__


def _class_of(name: str, fields: list[str]) -> Any:
    """A record's class: one of ours, if it is imported and has these fields still; else a new one."""
    module, _, name = name.rpartition(":")
    found = getattr(sys.modules.get(module), name, None) if module.partition(".")[0] == _OURS else None
    is_it = isinstance(found, type) and issubclass(found, tuple) and list(getattr(found, "_fields", ())) == fields
    return found if is_it else namedtuple(name.rpartition(".")[2], fields)


def _describe_array(array: np.ndarray, where: str, arrays: dict[str, np.ndarray]) -> Any:
    """Put one array into `arrays` under a number, because a variable may have any name and a file entry may not."""
    if array.dtype.hasobject:
        raise TypeError(f"save: {where} holds Python objects in an array, which cannot be saved.")
    entry = str(len(arrays))
    # The format does not know dtypes such as bfloat16: their bits go in as integers.
    known = array.dtype.kind != "V"
    arrays[entry] = array if known else array.view(f"u{array.dtype.itemsize}")
    return {"array": entry, "dtype": array.dtype.name, "shape": list(array.shape)}


def _check_sizes(arrays: dict[str, Any]) -> None:
    """Check that all draws and statistics are of the same chains and draws; files of old say no shapes."""
    sizes = {name: np.shape(array)[:2] for name, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"its arrays differ in chains and draws: {', '.join(f'{k} {v}' for k, v in sizes.items())}")


def _checked(array: np.ndarray, dtype: str, shape: Any) -> np.ndarray:
    """Return an array of the file if it is what was saved."""
    known = array.dtype.name == dtype
    if not known and not (np.dtype(dtype).kind == "V" and array.dtype == f"u{np.dtype(dtype).itemsize}"):
        raise ValueError(f"an array of {dtype} is one of {array.dtype}")
    if shape is not None and list(array.shape) != shape:
        raise ValueError(f"an array of shape {tuple(shape)} has shape {array.shape}")
    return array if known else array.view(dtype)


def _rebuild(described: Any, file: Any) -> Any:
    """Invert `_describe`."""
    match described:
        case {"value": value}:
            return value
        case {"dict": items}:
            return {key: _rebuild(item, file) for key, item in items.items()}
        case {"namedtuple": [name, fields], "items": items}:
            return _class_of(name, fields)(*(_rebuild(item, file) for item in items))
        case {"list": items}:
            return [_rebuild(item, file) for item in items]
        case {"tuple": items}:
            return tuple(_rebuild(item, file) for item in items)
        case {"array": entry, "dtype": dtype}:
            return _checked(file[entry], dtype, described.get("shape"))
    raise ValueError(f"an entry reads {described!r}")
