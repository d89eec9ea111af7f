"""A fit under way on disk: its last state, its best parameters, and what was found on the way.

A folder has an index, which names the states that are whole and seals their files (`phalanx.posterior.sealed`); it is
replaced last. What a write that was cut short has left is not named, and is removed by the next.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from phalanx.extras import require
from phalanx.posterior.sealed import digests, seal, unseal

INDEX, NAME = "fit.json", "{:05d}"

ADVICE = "Take a copy of the folder if there is one, or name another to begin anew."
"""Advice on a damaged checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """A folder that a fit is kept in."""

    folder: Path

    @property
    def _called(self) -> str:
        return f"training: checkpoint={str(self.folder)!r}"

    def read(self) -> dict[str, Any] | None:
        """What is said of the fit in it; None where there is none.

        Raises:
            FileExistsError: when something else is there.
            ValueError: when what is there is damaged.
        """
        if (self.folder / INDEX).is_file():
            return unseal(self._called, self.folder, INDEX, ADVICE)
        if self.folder.is_dir() and any(self.folder.glob("last-*")):
            raise ValueError(f"{self._called} is damaged: the file {INDEX} is missing. {ADVICE}")
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise FileExistsError(
                f"training: checkpoint={str(self.folder)!r} is there and holds no fit, so it is left alone. Name a "
                f"folder that is new, empty, or was saved to before."
            )
        return None

    def write(self, states: dict[str, Any], record: dict[str, Any]) -> None:
        """Write states by name, such as `last-600`, and what is said of the fit; others in the folder are removed."""
        folder = self.folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        before = digests(folder, INDEX)
        with require("orbax.checkpoint").StandardCheckpointer() as writer:
            for name, tree in states.items():
                if not (folder / name).exists():
                    writer.save(folder / name, _numbered(tree))
        described = {name: _described(tree) for name, tree in states.items()}
        new = folder / f"{INDEX}.new"
        sealed = seal({**record, "states": described}, folder, states, before)
        new.write_text(sealed, encoding="utf-8")
        os.replace(new, folder / INDEX)
        for other in folder.iterdir():
            if other.is_dir() and other.name not in states:
                shutil.rmtree(other, ignore_errors=True)

    def restore(self, name: str, like: Any, record: dict[str, Any]) -> Any:
        """A state in the structure, and with the layout, of `like`.

        Raises:
            ValueError: when another fit was saved.
        """
        if record["states"].get(name) != _described(like):
            raise ValueError(
                f"training: checkpoint={str(self.folder)!r} holds a fit with other parameters or another optimiser. "
                f"Use the programs it was made with, or another folder."
            )
        wanted = {
            key: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
            for key, leaf in _numbered(like).items()
        }
        with require("orbax.checkpoint").StandardCheckpointer() as reader:
            try:
                found = reader.restore(self.folder.absolute() / name, wanted)
            except Exception as error:  # of a folder without a seal: Orbax and TensorStore raise errors of many kinds
                first = str(error).strip().partition("\n")[0]
                raise ValueError(f"{self._called} cannot be read: {name}: {first}. {ADVICE}") from error
        leaves = [found.get(NAME.format(i), leaf) for i, leaf in enumerate(jax.tree.leaves(like))]
        return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _numbered(tree: Any) -> dict[str, Any]:
    """The arrays by number; Orbax takes none without elements, and those say nothing."""
    return {NAME.format(i): leaf for i, leaf in enumerate(jax.tree.leaves(tree)) if np.size(leaf)}


def _described(tree: Any) -> list[list[Any]]:
    return [[list(np.shape(leaf)), str(leaf.dtype)] for leaf in jax.tree.leaves(tree)]
