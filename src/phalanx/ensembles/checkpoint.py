"""An ensemble on disk: its members' arrays, one after the other, without where they were."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

from phalanx.extras import require

ARRAYS = "arrays"


def save(folder: str | os.PathLike[str], members: Any, counts: dict[str, int]) -> None:
    """Write arrays `(members, ...)` and counts; a folder that is there is replaced when the new one is whole.

    Between the two lies a moment in which both are there, the old one as `folder.old`.
    """
    orbax = require("orbax.checkpoint", "ensembles")
    arrays = {f"{i:05d}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(members))}
    tree = {ARRAYS: arrays, "counts": {name: np.int64(count) for name, count in counts.items()}}
    path = Path(folder).absolute()
    new, old = path.with_name(path.name + ".new"), path.with_name(path.name + ".old")
    with orbax.StandardCheckpointer() as writer:
        writer.save(new, tree, force=True)
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    new.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def restore(folder: str | os.PathLike[str], like: Any, expected: dict[str, int]) -> tuple[Any, dict[str, int]]:
    """Arrays in the structure of `like`, and counts; those of `expected` must be as they are there.

    Raises:
        FileNotFoundError: when there is no such folder.
        ValueError: when other arrays were saved.
    """
    path = Path(folder).absolute()
    if not path.is_dir():
        raise FileNotFoundError(f"ensemble.restore: there is no folder {path}.")
    orbax = require("orbax.checkpoint", "ensembles")
    with orbax.StandardCheckpointer() as reader:
        tree = reader.restore(path)
    counts = {name: int(count) for name, count in tree["counts"].items()}
    for name, value in expected.items():
        if counts[name] != value:
            raise ValueError(
                f"ensemble.restore: {path} was saved with {name} {counts[name]}, and this ensemble has {value}. Make "
                f"one with the same."
            )
    found, leaves = [tree[ARRAYS][name] for name in sorted(tree[ARRAYS])], jax.tree.leaves(like)
    if [np.shape(a) for a in found] != [np.shape(b) for b in leaves]:
        raise ValueError(
            f"ensemble.restore: {path} holds other networks: its arrays and this ensemble's differ in number or shape. "
            f"Use the code they were trained with."
        )
    return jax.tree.unflatten(jax.tree.structure(like), found), counts
