"""Archive format: one `.npz` file of plain arrays, with a JSON entry that describes them; no pickles."""

from __future__ import annotations

import json
import sys
from collections import namedtuple
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from phalanx.mesh.total import Total
from phalanx.store.plain_arrays import read_arrays
from phalanx.store.save_path import replacing

_ENTRY = "json"
_OURS = "phalanx"

Made = TypeVar("Made")


class Kind(NamedTuple):
    """Kind of archive.

    Attributes:
        what: noun for the contents.
        load: the call that reads it.
        format: name of the format.
        versions: versions of the format that are read; the last is written.
        parts: names of the parts that each file has.
    """

    what: str
    load: str
    format: str
    versions: tuple[int, ...]
    parts: tuple[str, ...]


def write_archive(file: Path, kind: Kind, parts: Mapping[str, Any], entries: Mapping[str, Any]) -> Path:
    """Write an archive; after a failure `file` holds its earlier contents.

    Args:
        file: the file, see `file_to_save`.
        kind: the kind of archive.
        parts: by name, arrays, or dicts, lists and tuples of arrays, numbers and strings.
        entries: plain values, as JSON has them.

    Returns:
        `file`.

    Raises:
        TypeError: when a part holds something else.
    """
    arrays: dict[str, np.ndarray] = {}
    descriptions = {name: _describe(part, name, arrays) for name, part in parts.items()}
    contents = {"format": kind.format, "version": kind.versions[-1], **entries, "parts": descriptions}
    # NumPy's numbers, which records may hold, are not JSON's.
    arrays[_ENTRY] = np.array(json.dumps(contents, default=lambda number: number.item()))
    with replacing(file) as partial, partial.open("wb") as stream:
        np.savez(stream, **arrays)  # pyright: ignore[reportArgumentType]
    return file


def read_archive(path: Path, kind: Kind, make: Callable[[dict[str, Any], Mapping[str, Any]], Made]) -> Made:
    """Read an archive.

    Args:
        path: the file.
        kind: the kind of archive.
        make: makes the result of the parts and the entries; its errors are reported as those of a damaged file.

    Raises:
        FileNotFoundError: when the file does not exist.
        ValueError: when the file is something else, damaged, or written by a later version.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{kind.load}: there is no file {path}.")
    try:
        arrays = read_arrays(path, path.stat().st_size)  # `write_archive` does not compress
        contents = json.loads(str(arrays[_ENTRY]))
        if contents.get("format") != kind.format:
            raise ValueError(f"its format is {contents.get('format')!r}")
        if contents.get("version") not in kind.versions:
            versions = " and ".join(map(str, kind.versions))
            raise ValueError(f"it has version {contents.get('version')} of the format; this release reads {versions}")
        parts = {name: _rebuild(part, arrays) for name, part in contents.get("parts", {}).items()}
        if missing := [name for name in kind.parts if name not in parts]:
            raise ValueError(f"it has no {', '.join(missing)}")
        return make(parts, contents)
    except PermissionError:
        raise
    except Exception as error:  # zipfile, zlib, NumPy and json raise errors of a dozen kinds on damaged bytes
        problem = f"it has no entry {error}" if isinstance(error, KeyError) else error
        message = f"{kind.load}: {path} is not a {kind.what} saved by Phalanx, or is damaged: {problem}."
        raise ValueError(message) from error


def _describe(value: Any, where: str, arrays: dict[str, np.ndarray]) -> Any:
    """Put the arrays within `value` into `arrays`, and describe in JSON how to build `value` from them."""
    match value:
        case None | bool() | int() | float() | str():
            return {"value": value}
        case dict():
            for key in value:
                if not isinstance(key, str | int) or isinstance(key, bool):
                    raise TypeError(f"save: the keys of {where} must be strings or whole numbers; got {key!r}.")
            if any(isinstance(key, int) for key in value):  # JSON has keys of strings alone
                return {"pairs": [[key, _describe(item, f"{where}[{key!r}]", arrays)] for key, item in value.items()]}
            return {"dict": {key: _describe(item, f"{where}[{key!r}]", arrays) for key, item in value.items()}}
        case list() | tuple():
            fields = getattr(value, "_fields", None)
            names = [f".{name}" for name in fields] if fields else [f"[{index}]" for index in range(len(value))]
            items = [_describe(item, where + name, arrays) for name, item in zip(names, value, strict=True)]
            if fields:
                return {"namedtuple": [_name_of(type(value)), list(fields)], "items": items}
            return {"list" if isinstance(value, list) else "tuple": items}
        case Total(coarse=coarse, fine=fine):  # rebuilt by the run that continues
            return {"tuple": [_describe(part, where, arrays) for part in (coarse, fine)]}
        case np.ndarray() | np.generic() | jax.Array():
            return _describe_array(np.asarray(value), where, arrays)
    raise TypeError(
        f"save: {where} holds a {type(value).__name__}, which cannot be saved. Save the rest without it: "
        "dataclasses.replace(posterior, reduced={}).save(path)."
    )


def _name_of(record: type) -> str:
    """Return a record's name, with its module where it is Phalanx's."""
    ours = record.__module__.partition(".")[0] == _OURS
    return f"{record.__module__}:{record.__qualname__}" if ours else record.__name__


def _class_of(name: str, fields: list[str]) -> Any:
    """Return a record's class: Phalanx's, if it is imported and still has these fields; else a new one."""
    module, _, name = name.rpartition(":")
    entry = getattr(sys.modules.get(module), name, None) if module.partition(".")[0] == _OURS else None
    is_it = isinstance(entry, type) and issubclass(entry, tuple) and list(getattr(entry, "_fields", ())) == fields
    return entry if is_it else namedtuple(name.rpartition(".")[2], fields)


def _describe_array(array: np.ndarray, where: str, arrays: dict[str, np.ndarray]) -> Any:
    """Put one array into `arrays` under a number: not every name of a variable is a valid name in a file."""
    if array.dtype.hasobject:
        raise TypeError(f"save: {where} holds Python objects in an array, which cannot be saved.")
    entry = str(len(arrays))
    # `.npy` has no dtypes such as bfloat16: their bits are written as integers
    has_name = array.dtype.kind != "V"
    arrays[entry] = array if has_name else array.view(f"u{array.dtype.itemsize}")
    return {"array": entry, "dtype": array.dtype.name, "shape": list(array.shape)}


def _check_array(array: np.ndarray, dtype: str, shape: Any) -> np.ndarray:
    """Return an array of the file if it is what was saved."""
    if array.dtype.fields is not None or np.dtype(dtype).fields is not None:
        raise ValueError("an array has several fields")
    same_type = array.dtype.name == dtype
    if not same_type and not (np.dtype(dtype).kind == "V" and array.dtype == f"u{np.dtype(dtype).itemsize}"):
        raise ValueError(f"an array of {dtype} is one of {array.dtype}")
    if shape is not None and list(array.shape) != shape:
        raise ValueError(f"an array of shape {tuple(shape)} has shape {array.shape}")
    return array if same_type else array.view(dtype)


def _rebuild(description: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Invert `_describe`."""
    match description:
        case {"value": value}:
            return value
        case {"dict": items}:
            return {key: _rebuild(item, arrays) for key, item in items.items()}
        case {"pairs": pairs}:
            return {key: _rebuild(item, arrays) for key, item in pairs}
        case {"namedtuple": [name, fields], "items": items}:
            return _class_of(name, fields)(*(_rebuild(item, arrays) for item in items))
        case {"list": items}:
            return [_rebuild(item, arrays) for item in items]
        case {"tuple": items}:
            return tuple(_rebuild(item, arrays) for item in items)
        case {"array": entry, "dtype": dtype}:
            return _check_array(arrays[entry], dtype, description.get("shape"))
    raise ValueError(f"an entry reads {description!r}")
