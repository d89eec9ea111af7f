"""A fit under way on disk: its last state, its best parameters, and the record of its looks."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from phalanx.store.checkpoint import SealedFolder

INDEX = "fit.json"

ADVICE = "Take a copy of the folder if there is one, or name another to begin anew."
"""Advice on a damaged checkpoint."""

_ENTRIES = ("step", "seconds", "best", "looks", "fit", "states")


@dataclass(frozen=True)
class Checkpoint:
    """A folder that a fit is kept in."""

    folder: Path

    @property
    def _called(self) -> str:
        return f"training: checkpoint={str(self.folder)!r}"

    @property
    def _sealed(self) -> SealedFolder:
        return SealedFolder(self.folder, INDEX, self._called, ADVICE, _ENTRIES)

    def read(self) -> dict[str, Any] | None:
        """Return the record of the fit in it; None without one.

        Raises:
            FileExistsError: when something else is there.
            ValueError: when what is there is damaged.
        """
        if self._sealed.is_there:
            return self._sealed.read()
        if self.folder.is_dir() and any(self.folder.glob("last-*")):
            raise ValueError(f"{self._called} is damaged: the file {INDEX} is missing. {ADVICE}")
        self._sealed.refuse_others(self._called, "fit")
        return None

    def write(self, states: dict[str, Any], record: dict[str, Any]) -> None:
        """Write states by name, such as `last-600`, and the record of the fit; others in the folder are removed."""
        described = {name: _described(tree) for name, tree in states.items()}
        self._sealed.write(states, {**record, "states": described})
        for other in self.folder.absolute().iterdir():
            if other.is_dir() and other.name not in states:
                shutil.rmtree(other, ignore_errors=True)

    def restore(self, name: str, like: Any, record: dict[str, Any]) -> Any:
        """Return a state in the structure, and with the layout, of `like`.

        Raises:
            ValueError: when another fit was saved.
        """
        if record["states"].get(name) != _described(like):
            raise ValueError(
                f"training: checkpoint={str(self.folder)!r} holds a fit with other parameters or another optimiser. "
                f"Use the programs it was made with, or another folder."
            )
        return self._sealed.restore(name, like)


def _described(tree: Any) -> list[list[Any]]:
    return [[list(np.shape(leaf)), str(leaf.dtype)] for leaf in jax.tree.leaves(tree)]
