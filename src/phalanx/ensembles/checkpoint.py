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

from phalanx.store.checkpoint import SealedFolder

ARRAYS, INDEX = "arrays", "ensemble.json"

ENTRIES = ("epoch", "steps", "members", "seed", "arrays")

ADVICE = "Take a copy of the folder if there is one, or train the ensemble anew."
"""Advice on a damaged folder."""

Described = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and type of a member's arrays, by name."""


def save(folder: str | os.PathLike[str], members: Any, described: Described, counts: Mapping[str, int]) -> None:
    """Write arrays `(members, ...)` and counts; an ensemble that is there is replaced when the new one is whole.

    Raises:
        FileExistsError: when something else is there.
    """
    path = Path(folder).absolute()
    _sealed(path).refuse_others(f"ensemble.save: {path}", "ensemble")
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        arrays = [[name, list(shape), dtype] for name, (shape, dtype) in described.items()]
        _sealed(beside / "new").write({ARRAYS: jax.tree.map(np.asarray, members)}, {**counts, "arrays": arrays})
        _replace(path, beside / "new", beside / "old")
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
    if not _sealed(path).is_there:
        what = "there is no folder" if not path.exists() else "no ensemble was saved to"
        raise FileNotFoundError(f"ensemble.restore: {what} {path}.")
    index = _sealed(path).read()
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
    # on the host, wherever they were: a blank takes no memory
    blank = [np.broadcast_to(jnp.zeros((), dtype), (index["members"], *shape)) for shape, dtype in described.values()]
    return _sealed(path).restore(ARRAYS, jax.tree.unflatten(jax.tree.structure(like), blank)), index


def _sealed(path: Path) -> SealedFolder:
    return SealedFolder(
        path, INDEX, f"ensemble: {str(path)!r}", ADVICE, ("epoch", "steps", "members", "seed", "arrays")
    )


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
