"""Folder of an ensemble: arrays of all members in their order, whatever devices they were on, and an index.

`ensemble.save` writes one, and so does training with `checkpoint=`, which adds the identity and the progress of the
training. `ensemble.restore` reads both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.ensembles.members import Members
from phalanx.learning.checkpoint import TrainingCheckpoint
from phalanx.mesh.processes import agreed, is_first
from phalanx.store.policy import SavePolicy
from phalanx.store.saves import is_manifest

ARRAYS = "arrays"
"""Beginning of the names of the arrays that `ensemble.save` writes, and the name in folders of earlier releases."""

KIND = "ensemble"
ENTRIES = ("epoch", "steps", "members", "seed", "arrays")


def checkpoint_of(policy: SavePolicy, title: str = "") -> TrainingCheckpoint:
    """Return the folder of an ensemble, which messages call `title`."""
    return TrainingCheckpoint(policy, KIND, title or f"ensemble: {str(policy.folder.absolute())!r}", ENTRIES)


def is_there(folder: Path) -> bool:
    """Return True if a folder holds an ensemble."""
    return bool(checkpoint_of(SavePolicy(folder)).saves.manifests)


def entries_of(members: Members, epoch: int) -> dict[str, Any]:
    """Return the entries of an index that describe the members in a folder."""
    arrays = [[name, list(shape), dtype] for name, (shape, dtype) in members.described.items()]
    return {"epoch": epoch, "steps": members.steps, "members": members.count, "seed": members.seed, "arrays": arrays}


def save(folder: str | os.PathLike[str], members: Members, epoch: int) -> None:
    """Write all members; replace an existing ensemble only once the new one is complete.

    Raises:
        FileExistsError: when something else is there.
    """
    path = Path(folder).absolute()
    saves = checkpoint_of(SavePolicy(path), f"ensemble.save: {path}").saves
    saves.refuse_others()
    if saves.last_permanent:
        raise FileExistsError(
            f"ensemble.save: {path} has permanent saves of a training, which would be removed. Name another folder."
        )
    arrays = jax.tree.map(np.asarray, members.together())
    if is_first():
        _write(path, arrays, entries_of(members, epoch))
    agreed(True)  # the others wait for the first, and may read the folder then


def _write(path: Path, arrays: Any, entries: Mapping[str, Any]) -> None:
    """Write a save that replaces all others in the folder once it is complete, wherever a kill comes."""
    checkpoint = checkpoint_of(SavePolicy(path))
    saves = checkpoint.saves
    with saves.locked():
        state = f"{ARRAYS}-{saves.next_number:08d}"
        saves.damaged = saves.manifests  # removed once the new manifest is there
        checkpoint.write({state: arrays}, {**entries, "state": state})


def restore(folder: str | os.PathLike[str], members: Members) -> dict[str, Any]:
    """Replace these members by those of a folder, or of a save in it, and return the entries of its manifest.

    Raises:
        FileNotFoundError: when there is no ensemble.
        ValueError: when another ensemble was saved.
    """
    path = Path(folder).absolute()
    manifest = path if is_manifest(path) else None
    checkpoint = checkpoint_of(SavePolicy(path if manifest is None else path.parent))
    if not checkpoint.saves.manifests:
        what = "there is no folder" if not path.exists() else "no ensemble was saved to"
        raise FileNotFoundError(f"ensemble.restore: {what} {path}.")
    index = checkpoint.read(manifest)
    assert index is not None
    check_members(f"ensemble.restore: {path}", index, members)
    put_members(checkpoint, index, members)
    return index


def check_members(title: str, index: Mapping[str, Any], members: Members) -> None:
    """Raise unless a folder holds as many members, of the same seed and with the same arrays.

    Raises:
        ValueError: when it does not; the message names what differs.
    """
    for name, value in (("members", members.count), ("seed", members.seed)):
        if index[name] != value:
            raise ValueError(
                f"{title} was saved with {name} {index[name]}, and this ensemble has {value}. Make one with the saved "
                f"{name}."
            )
    descriptions = members.described
    saved_arrays = {name: (tuple(shape), dtype) for name, shape, dtype in index["arrays"]}
    for name in {**saved_arrays, **descriptions}:
        if saved_arrays.get(name) != descriptions.get(name):
            there, here = ("{1} {0}".format(*d[name]) if name in d else "missing" for d in (saved_arrays, descriptions))
            raise ValueError(
                f"{title} holds other networks: {name or 'the state'} is {there} there and {here} in this ensemble. "
                f"Use the code they were trained with."
            )


def put_members(checkpoint: TrainingCheckpoint, index: Mapping[str, Any], members: Members) -> None:
    """Read the arrays of a folder that has passed `check_members`, and put them in place of the members' own."""
    # arrays on the host make Orbax read to the host, whatever devices were saved; broadcast ones take no memory
    blank = [
        np.broadcast_to(jnp.zeros((), dtype), (members.count, *shape)) for shape, dtype in members.described.values()
    ]
    like = jax.tree.unflatten(jax.tree.structure(members.like), blank)
    members.put(checkpoint.tree(index.get("state", ARRAYS), like), index["steps"])
