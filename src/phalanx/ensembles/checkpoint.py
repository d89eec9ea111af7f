"""An ensemble on disk: its members' arrays, one after the other, without where they were, and an index of them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.extras import require
from phalanx.posterior.sealed import seal, unseal

ARRAYS, INDEX, NAME = "arrays", "ensemble.json", "{:05d}"

ADVICE = "Take a copy of the folder if there is one, or train the ensemble anew."
"""Advice on a damaged folder."""

Described = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and type of a member's arrays, by name."""


def save(folder: str | os.PathLike[str], members: Any, described: Described, counts: Mapping[str, int]) -> None:
    """Write arrays `(members, ...)` and counts; an ensemble that is there is replaced when the new one is whole.

    Raises:
        FileExistsError: when something else is there.
    """
    orbax = require("orbax.checkpoint")
    path = Path(folder).absolute()
    if path.exists() and not (path / INDEX).is_file() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(
            f"ensemble.save: {path} is there and holds no ensemble, so it is left alone. Name a folder that is new, "
            f"empty, or was saved to before."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        new = beside / "new"
        with orbax.StandardCheckpointer() as writer:
            writer.save(new / ARRAYS, _filled(members))
        index = {**counts, "arrays": [[name, list(shape), dtype] for name, (shape, dtype) in described.items()]}
        (new / INDEX).write_text(seal(index, new, [ARRAYS]), encoding="utf-8")
        _replace(path, new, beside / "old")
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def restore(
    folder: str | os.PathLike[str], like: Any, described: Described, expected: Mapping[str, int]
) -> tuple[Any, dict[str, int]]:
    """Arrays in the structure of `like`, and counts; those of `expected` must be as they are there.

    Raises:
        FileNotFoundError: when there is no ensemble.
        ValueError: when another ensemble was saved.
    """
    path = Path(folder).absolute()
    if not (path / INDEX).is_file():
        what = "there is no folder" if not path.exists() else "no ensemble was saved to"
        raise FileNotFoundError(f"ensemble.restore: {what} {path}.")
    index = unseal(f"ensemble: {str(path)!r}", path, INDEX, ADVICE)
    for name, value in expected.items():
        if index.get(name) != value:
            raise ValueError(
                f"ensemble.restore: {path} was saved with {name} {index.get(name)}, and this ensemble has {value}. "
                f"Make one with the same."
            )
    saved = {name: (tuple(shape), dtype) for name, shape, dtype in index.pop("arrays")}
    for name in {**saved, **described}:
        if saved.get(name) != described.get(name):
            there, here = ("{1} {0}".format(*d[name]) if name in d else "no such array" for d in (saved, described))
            raise ValueError(
                f"ensemble.restore: {path} holds other networks: {name or 'the state'} is {there} there and {here} "
                f"in this ensemble. Use the code they were trained with."
            )
    with require("orbax.checkpoint").StandardCheckpointer() as reader:
        try:
            arrays = reader.restore(path / ARRAYS)
        except Exception as error:  # of a folder without a seal: Orbax and TensorStore raise errors of many kinds
            first = str(error).strip().partition("\n")[0]
            raise ValueError(f"ensemble: {str(path)!r} cannot be read: {first}. {ADVICE}") from error
    for i, (shape, dtype) in enumerate(described.values()):
        if 0 in shape:
            arrays[NAME.format(i)] = np.zeros((index["members"], *shape), jnp.dtype(dtype))
    leaves = [arrays[name] for name in sorted(arrays)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves), index


def _filled(members: Any) -> dict[str, np.ndarray]:
    """The arrays by number; Orbax takes none without elements, and those say nothing."""
    arrays = {NAME.format(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(members))}
    return {name: array for name, array in arrays.items() if array.size}


def _replace(path: Path, new: Path, old: Path) -> None:
    """Put `new` where `path` is; what was there goes to `old`, or back where it was."""
    if path.exists():
        path.rename(old)
    try:
        new.rename(path)
    except BaseException:
        if old.exists():
            old.rename(path)
        raise
