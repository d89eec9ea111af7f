"""Checkpoint of a training: a sealed folder with its latest states and a record of how it came there."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from phalanx.store.checkpoint import SealedFolder


@dataclass(frozen=True)
class Checkpoint:
    """Folder that the states of a training are kept in, by name, such as `last-600`.

    Attributes:
        folder: the folder.
        kind: the noun for what is trained, "fit" or "ensemble"; the index is called after it.
        called: the folder's name in messages.
        advice: advice on a damaged folder.
        needed: entries of the record without which it is damaged.
    """

    folder: Path
    kind: str
    called: str
    advice: str
    needed: tuple[str, ...]

    @property
    def index(self) -> str:
        """Name of the folder's index."""
        return f"{self.kind}.json"

    @property
    def sealed(self) -> SealedFolder:
        """The folder with its seal."""
        return SealedFolder(self.folder, self.index, self.called, self.advice, self.needed)

    def read(self) -> dict[str, Any] | None:
        """Return the record in the folder; None where the folder is new or empty.

        Raises:
            FileExistsError: when the folder holds something else.
            ValueError: when the folder is damaged.
        """
        if self.sealed.is_there:
            return self.sealed.read()
        if self.folder.is_dir() and any(self.folder.glob("last-*")):
            raise ValueError(f"{self.called} is damaged: the file {self.index} is missing. {self.advice}")
        self.sealed.refuse_others(self.called, self.kind)
        return None

    def write(self, states: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """Write states by name and then the record; states that the folder held before are removed after it.

        A state whose name the folder holds already is not written again: one name, one content.
        """
        described = {name: describe(tree) for name, tree in states.items()}
        self.sealed.write(states, {**record, "states": described})
        for other in self.folder.absolute().iterdir():
            if other.is_dir() and other.name not in states:
                shutil.rmtree(other, ignore_errors=True)

    def restore(self, name: str, like: Any, record: Mapping[str, Any]) -> Any:
        """Return a state in the structure, and with the layout, of `like`.

        Raises:
            ValueError: when the state has other arrays, or cannot be read.
        """
        if record.get("states", {}).get(name) != describe(like):
            raise ValueError(
                f"{self.called} holds other arrays than this {self.kind}: other parameters, or another optimiser's. "
                f"Use the programs it was made with, or another folder."
            )
        return self.sealed.restore(name, like)


def describe(tree: Any) -> list[list[Any]]:
    """Return shape and dtype of every array of a tree, as JSON has them."""
    return [[list(np.shape(leaf)), str(leaf.dtype)] for leaf in jax.tree.leaves(tree)]
