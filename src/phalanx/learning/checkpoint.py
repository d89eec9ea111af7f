"""Checkpoint of a training: saves of its states, by Orbax, each with a record of the training so far.

Orbax's layout needs no copy of an array on one device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array

from phalanx.extras import require
from phalanx.mesh.processes import agreed, is_first, to_devices, to_host
from phalanx.mesh.random_numbers import is_key
from phalanx.mesh.specs import PyTree
from phalanx.store.checkpoint import Checkpoint
from phalanx.store.policy import SavePolicy
from phalanx.store.save_path import sync
from phalanx.store.saves import Damage, remove

STATE = re.compile(r"(arrays|last|best|averaged|quartiles|measured)-\d+(\.orbax.*)?")
"""Name of a state, such as `last-600`, and of one that Orbax is writing."""

FIRST = "first-save"
"""File that is there during the first save, whose states are of no use without their manifest."""


class TrainingCheckpoint(Checkpoint):
    """Folder that the states of a training are saved to, by name, such as `last-600`: one name, one content.

    Args:
        policy: the folder, and when to save.
        kind: the noun for what is trained, "fit" or "ensemble".
        title: the folder's name in messages.
        required_entries: entries of the record without which it is damaged.
    """

    def __init__(self, policy: SavePolicy, kind: str, title: str, required_entries: Sequence[str]):
        super().__init__(policy, kind, title, f"{kind}.json")
        self._needed = required_entries

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder in a `with` block, which ends, in all processes, when the save under way has."""
        with super().held():
            yield
        agreed(True)  # they may read the folder next

    def read(self, manifest: Path | None = None) -> dict[str, Any] | None:
        """Return the record of the newest complete save, or of one; None where the folder is new or empty.

        Raises:
            FileExistsError: when the folder holds something else.
            ValueError: when the save, or all of them, are damaged.
        """
        if manifest is None:
            is_first_save = (self.saves.folder / FIRST).is_file()
            if not self.saves.manifests and any(self.saves.folder.glob("last-*")) and not is_first_save:
                raise self.saves.damage("it has states and no manifest")
            self.saves.refuse_others()
            record = self.saves.newest()
        else:
            try:
                record = self.saves.entries_of(manifest)
            except Damage as damage:
                raise self.saves.damage(str(damage)) from None
        if record is not None:
            self.check_entries(record, self._needed)
        return record

    def check_entries(self, record: Mapping[str, Any], required_entries: Sequence[str]) -> None:
        """Raise unless a record has all entries that are needed.

        Raises:
            ValueError: when some are missing; they are named.
        """
        if missing := [name for name in required_entries if name not in record]:
            raise self.saves.damage(f"its record has no entry {', '.join(map(repr, missing))}")

    def save(self, states: Mapping[str, PyTree], record: Mapping[str, Any], at: int | None = None) -> None:
        """Have the first process write a save, beside the devices' work unless it has keys of random numbers."""
        copies = jax.tree.map(_copy_to_host, states)  # devices may reuse the memory of the arrays
        if not is_first():
            return
        if any(map(is_key, jax.tree.leaves(copies))):
            self.write(copies, record, at)
        else:
            self._writer.submit(self.write, copies, record, at)

    def write(self, states: Mapping[str, PyTree], record: Mapping[str, Any], at: int | None = None) -> None:
        """Write a save; states that the save before has already are not written again."""
        folder = self.saves.folder
        saves = self.saves
        folder.mkdir(parents=True, exist_ok=True)
        if not saves.manifests:
            (folder / FIRST).touch()
            sync(folder)
        before = [name for name in states if name in saves.contents]
        files = {name: partial(write_tree, tree=tree) for name, tree in states.items() if name not in before}
        descriptions = {name: describe(tree) for name, tree in states.items()}
        saves.write(files, {**record, "states": descriptions}, before, at)
        (folder / FIRST).unlink(missing_ok=True)
        file_names = saves.contents_of(saves.manifests)
        for path in folder.iterdir():  # of a write that was interrupted
            if path.is_dir() and STATE.fullmatch(path.name) and path.name not in file_names:
                remove(path)

    def restore(self, name: str, like: PyTree, record: Mapping[str, Any]) -> PyTree:
        """Return a state in the structure, and with the layout, of `like`.

        Raises:
            ValueError: when the state has other arrays, or cannot be read.
        """
        if record.get("states", {}).get(name) != describe(like):
            raise ValueError(
                f"{self.called} holds other arrays than this {self.kind}: other parameters, or another optimiser's. "
                f"Use the programs it was made with, or another folder."
            )
        return self.tree(name, like)

    def arrays(self, name: str, record: Mapping[str, Any]) -> list[np.ndarray]:
        """Return the arrays of a state without a structure."""
        return self.tree(name, [np.zeros(shape, dtype) for shape, dtype in record["states"][name]])

    def tree(self, name: str, like: PyTree) -> PyTree:
        """Return a state as it is in the folder.

        Raises:
            ValueError: when it cannot be read.
        """
        try:
            return jax.tree.map(_place_like, read_tree(self.saves.folder / name, like), like)
        except Exception as error:  # Orbax and TensorStore raise errors of many kinds
            first = str(error).strip().partition("\n")[0]
            raise self.saves.damage(f"{name} cannot be read: {first}") from error


def _copy_to_host(leaf: Array) -> Any:
    """Return a copy of an array on the host, of all processes' parts; keys of random numbers as keys."""
    if not is_key(leaf):
        return np.array(to_host(leaf))
    if leaf.is_fully_addressable:
        return leaf
    data = jax.numpy.asarray(to_host(jax.random.key_data(leaf)))
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))


def _place_like(leaf: Any, like: PyTree) -> Any:
    """Return an array on the devices of all processes, if `like` is; one process has placed it in reading."""
    where = getattr(like, "sharding", None)
    return leaf if where is None or where.is_fully_addressable else to_devices(leaf, where)


def describe(tree: PyTree) -> list[list[Any]]:
    """Return shape and dtype of every array of a tree, as JSON has them."""
    return [[list(np.shape(leaf)), str(leaf.dtype)] for leaf in jax.tree.leaves(tree)]


def write_tree(path: Path, tree: Any) -> None:
    """Write a tree to a folder, which replaces what an interrupted write has left there, and wait for the disk."""
    remove(path)
    with _checkpointer() as writer:
        writer.save(path.absolute(), _number_arrays(tree))
    for file in (*path.rglob("*"), path, path.parent):
        sync(file)


def read_tree(path: Path, like: Any) -> Any:
    """Return a tree in the structure of `like` and with the shardings of its leaves, or else NumPy arrays.

    Shardings over several processes are left to the caller.
    """
    leaves_by_number = _number_arrays(like)
    template = None
    layouts = [getattr(leaf, "sharding", None) for leaf in leaves_by_number.values()]
    if all(layout is not None and layout.is_fully_addressable for layout in layouts):
        template = {
            key: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
            for key, leaf in leaves_by_number.items()
        }
    leaves, tree = jax.tree.flatten(like)
    with _checkpointer() as reader:
        restored = reader.restore(path.absolute(), template)
    return jax.tree.unflatten(
        tree, [restored[_name(i)] if _name(i) in leaves_by_number else leaf for i, leaf in enumerate(leaves)]
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


def _number_arrays(tree: Any) -> dict[str, Any]:
    """Return the arrays by number, without empty ones, which Orbax refuses."""
    leaves = jax.tree.leaves(tree)
    return {_name(i): leaf for i, leaf in enumerate(leaves) if np.prod(np.shape(leaf), dtype=int)}
