"""Trees of arrays in folders, in Orbax's layout, which needs no copy of an array on one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from phalanx.extras import require
from phalanx.store.save_path import sync
from phalanx.store.saves import remove


def write_tree(path: Path, tree: Any) -> None:
    """Write a tree to a folder, which replaces what an interrupted write has left there, and wait for the disk."""
    remove(path)
    with _checkpointer() as writer:
        writer.save(path.absolute(), _numbered(tree))
    for written in (*path.rglob("*"), path, path.parent):
        sync(written)


def read_tree(path: Path, like: Any) -> Any:
    """Return a tree in the structure of `like` and with the shardings of its leaves, or else NumPy arrays.

    Shardings over several processes are left to the caller.
    """
    numbered, wanted = _numbered(like), None
    layouts = [getattr(leaf, "sharding", None) for leaf in numbered.values()]
    if all(layout is not None and layout.is_fully_addressable for layout in layouts):
        wanted = {
            key: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding) for key, leaf in numbered.items()
        }
    leaves, tree = jax.tree.flatten(like)
    with _checkpointer() as reader:
        found = reader.restore(path.absolute(), wanted)
    return jax.tree.unflatten(
        tree, [found[_name(i)] if _name(i) in numbered else leaf for i, leaf in enumerate(leaves)]
    )


def _checkpointer() -> Any:
    """Return Orbax's, for this process alone, which would else wait for all processes of a run."""
    alone = {}
    if jax.process_count() > 1:
        me = jax.process_index()
        options = require("orbax.checkpoint.options").MultiprocessingOptions
        alone["multiprocessing_options"] = options(me, {me}, f"phalanx-{me}")
    return require("orbax.checkpoint").StandardCheckpointer(**alone)


def _name(number: int) -> str:
    return f"{number:05d}"


def _numbered(tree: Any) -> dict[str, Any]:
    """Return the arrays by number, without empty ones, which Orbax refuses."""
    leaves = jax.tree.leaves(tree)
    return {_name(i): leaf for i, leaf in enumerate(leaves) if np.prod(np.shape(leaf), dtype=int)}
