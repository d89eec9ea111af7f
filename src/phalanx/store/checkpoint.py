"""Checkpoint format: a sealed folder with trees of arrays in Orbax's layout, and a JSON index of them.

The index lists the complete states and seals their files (`sealed.py`); it is replaced last. Files that an interrupted
write has left are not listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from phalanx.extras import require
from phalanx.store.save_path import replacing, sync
from phalanx.store.sealed import digests, seal, unseal

VERSION = 1
"""Version of the format that is written; folders without one are of earlier releases, and are read."""


@dataclass(frozen=True)
class SealedFolder:
    """Folder of states with a sealed index.

    Attributes:
        path: the folder.
        index: name of its index.
        called: the folder's name in messages.
        advice: advice on a damaged folder.
        needed: entries without which the index is damaged.
    """

    path: Path
    index: str
    called: str
    advice: str
    needed: tuple[str, ...]

    @property
    def is_there(self) -> bool:
        """Return True if the folder has an index."""
        return (self.path / self.index).is_file()

    def refuse_others(self, named: str, kind: str) -> None:
        """Raise if something else is at the path, which a write would replace.

        Raises:
            FileExistsError: when there is a file, or a folder with other contents.
        """
        is_empty = self.path.is_dir() and not any(self.path.iterdir())
        if self.path.exists() and not self.is_there and not is_empty:
            raise FileExistsError(
                f"{named} exists and holds no {kind}, so it is left alone. Name a folder that is new, empty, or was "
                f"saved to before."
            )

    def read(self) -> dict[str, Any]:
        """Return the entries of the index, after checking every file.

        Raises:
            ValueError: when the index or a file is damaged, an entry is missing, or a later release wrote it.
        """
        entries = unseal(self.called, self.path, self.index, self.advice)
        version = entries.pop("version", 0)
        if not isinstance(version, int) or version > VERSION:
            raise ValueError(
                f"{self.called} was saved by a later release of Phalanx: its {self.index} has version {version!r} of "
                f"the format, and this release reads up to {VERSION}. Install that release, or name another folder."
            )
        self.check_entries(entries, self.needed)
        return entries

    def check_entries(self, entries: Mapping[str, Any], needed: Sequence[str]) -> None:
        """Raise unless the index has all entries that are needed.

        Raises:
            ValueError: when some are missing; they are named.
        """
        if missing := [name for name in needed if name not in entries]:
            raise ValueError(
                f"{self.called} is damaged: its {self.index} has no entry {', '.join(map(repr, missing))}. "
                f"{self.advice}"
            )

    def write(self, states: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """Write trees of arrays that the folder does not have yet, then the index with the entries of `record`."""
        folder = self.path.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        before = digests(folder, self.index)
        with require("orbax.checkpoint").StandardCheckpointer() as writer:
            for name, tree in states.items():
                if not (folder / name).exists():
                    writer.save(folder / name, _numbered(tree))
        for path in (path for name in states for path in (*(folder / name).rglob("*"), folder / name)):
            sync(path)
        with replacing(folder / self.index) as partial:
            partial.write_text(seal({**record, "version": VERSION}, folder, states, before), encoding="utf-8")

    def restore(self, name: str, like: Any) -> Any:
        """Return a tree in the structure of `like` and with the shardings of its leaves, or else NumPy arrays.

        Raises:
            ValueError: when the tree cannot be read.
        """
        numbered, wanted = _numbered(like), None
        if all(getattr(leaf, "sharding", None) is not None for leaf in numbered.values()):
            wanted = {
                key: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
                for key, leaf in numbered.items()
            }
        leaves, tree = jax.tree.flatten(like)
        with require("orbax.checkpoint").StandardCheckpointer() as reader:
            try:
                found = reader.restore(self.path.absolute() / name, wanted)
                leaves = [found[_name(i)] if _name(i) in numbered else leaf for i, leaf in enumerate(leaves)]
            except Exception as error:  # without a seal; Orbax and TensorStore raise errors of many kinds
                first = str(error).strip().partition("\n")[0]
                raise ValueError(f"{self.called} cannot be read: {name}: {first}. {self.advice}") from error
        return jax.tree.unflatten(tree, leaves)


def _name(number: int) -> str:
    return f"{number:05d}"


def _numbered(tree: Any) -> dict[str, Any]:
    """Return the arrays by number, without empty ones, which Orbax refuses."""
    leaves = jax.tree.leaves(tree)
    return {_name(i): leaf for i, leaf in enumerate(leaves) if np.prod(np.shape(leaf), dtype=int)}
