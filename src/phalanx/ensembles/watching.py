"""Watch over the training of an ensemble: its evaluations by epoch, their log, and its checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import random
from jax.tree_util import keystr, tree_leaves_with_path

from phalanx.ensembles import checks
from phalanx.ensembles.checkpoint import check_members, checkpoint_of, entries_of, put_members
from phalanx.ensembles.members import Members, as_data
from phalanx.learning.batches import EpochBatches
from phalanx.learning.watch import Watch
from phalanx.mesh.agreement import check_same
from phalanx.mesh.processes import to_host
from phalanx.mesh.specs import PyTree
from phalanx.store.identity import Comparison, Identity, digest_of, identity_of, texts_of, trace
from phalanx.store.policy import SavePolicy

Measured = dict[str, Any]
"""Averages of an epoch by name: `(members,)`, or of the whole ensemble."""

COMPARISON = Comparison(
    {
        "data": "the data",
        "held_out": "the held-out rows",
        "members": "the members that training began with",
        "init": "init (the network's parameters, or the optimizer's state)",
        "update": "update (the network, its loss, or its optimizer)",
    },
    "Give what it was made with, or another folder.",
)
"""Comparison of two trainings of ensembles."""

ENTRIES = ("begun", "epochs", "made", "trained", "seconds", "looks")
"""Entries that the index of a training has besides those of an ensemble."""


class Origin(NamedTuple):
    """Ensemble that a training began with.

    Attributes:
        epoch: epochs trained.
        steps: steps made.
        content: digest of the members; empty before their first step, where `init` and the seed determine them.
    """

    epoch: int
    steps: int
    content: str

    @classmethod
    def of(cls, members: Members, epoch: int) -> Origin:
        """Describe an ensemble as it is."""
        return cls(epoch, members.steps, digest_of(_name_arrays(members.together())) if members.steps else "")


class TrainingProgress(NamedTuple):
    """Progress of a training, as its checkpoint has it.

    Attributes:
        epochs: epochs of it that have ended.
        steps_in_epoch: steps of the next epoch that were made; 0 between two epochs.
        steps: steps of it, in all.
        seconds: time that it took.
        measured: values that `update` measured in the steps of the next epoch, `(step, members)` by name.
    """

    epochs: int
    steps_in_epoch: int
    steps: int
    seconds: float
    measured: Any


class EpochLook(NamedTuple):
    """Evaluation of an ensemble at the end of an epoch.

    Attributes:
        epoch: epochs trained.
        steps: steps made.
        seconds: time since the training began, that of earlier runs included.
        measured: averages by name; the names of nested ones are joined by dots.
    """

    epoch: int
    steps: int
    seconds: float
    measured: Measured

    def columns(self) -> dict[str, Any]:
        """Return a line of the log, averages over the members."""
        means = {name: float(np.mean(values)) for name, values in self.measured.items()}
        return {"epoch": self.epoch, "steps": self.steps, "seconds": self.seconds, **means}


class EnsembleWatch:
    """Watch over a training.

    Args:
        members: the ensemble.
        origin: the ensemble that training began with.
        batches: rows of the batches.
        data: all rows, as the user gave them.
        held_out: rows that training does not use; None without.
        checkpoint: folder, and when to save; None without.
        log: file; None without.

    Raises:
        FileExistsError: when the checkpoint's folder holds something else.
        ValueError: when the checkpoint is damaged, or of another training; the message names what differs.

    Attributes:
        training: evaluations by epoch, their log, and the checkpoint.
    """

    def __init__(
        self,
        members: Members,
        origin: Origin,
        batches: EpochBatches,
        data: PyTree,
        held_out: PyTree,
        checkpoint: SavePolicy | None,
        log: str | os.PathLike[str] | None,
    ):
        self.begun = origin
        self._members = members
        self._data = data
        self._size = min(batches.size, batches.rows)
        check_same("ensemble.train", lambda: texts_of(self._identity(batches, held_out)))
        saves = None
        if checkpoint is not None:
            saves = checkpoint_of(checkpoint, f"ensemble.train: checkpoint={str(checkpoint.folder)!r}")
        self.training: Watch[EpochLook] = Watch(
            None if log is None else Path(log),
            EpochLook.columns,
            saves,
            lambda: self._identity(batches, held_out),
            COMPARISON,
        )
        self._record = self.training.resume()
        if self._record is not None and saves is not None:
            saves.check_entries(self._record, ENTRIES)
            check_members(saves.called, self._record, members)

    @property
    def folder(self) -> Path | None:
        """The checkpoint's folder; None without."""
        return None if self.training.checkpoint is None else self.training.checkpoint.saves.folder

    def resume(self) -> TrainingProgress | None:
        """Put the members of the checkpoint in place of these, and return how far they are; None without."""
        record = self._record
        checkpoint = self.training.checkpoint
        if record is None or checkpoint is None:
            return None
        put_members(checkpoint, record, self._members)
        self.training.looks[:] = [
            EpochLook(epoch, steps, seconds, {name: np.asarray(values) for name, values in tree_of_values.items()})
            for epoch, steps, seconds, tree_of_values in record["looks"]
        ]
        steps_done = record["made"]
        tree = jax.tree.structure(self._measured_like())
        values: Any = np.zeros((tree.num_leaves, steps_done, self._members.count))
        if values.size:
            values = checkpoint.restore(f"measured-{record['steps']}", values, record)
        tree_of_values = jax.tree.unflatten(tree, list(np.asarray(values))) if steps_done else None
        return TrainingProgress(record["epochs"], steps_done, record["trained"], record["seconds"], tree_of_values)

    def save(self, progress: TrainingProgress, epoch: int) -> None:
        """Save the members, as they are after so many epochs.

        Raises:
            ValueError: when the members have changed outside of this training.
        """
        if (saves := self.training.checkpoint) is None:
            return
        steps = self._members.steps
        if steps != self.begun.steps + progress.steps:
            raise ValueError(
                f"{saves.called}: the members have made {steps:,} steps, {self.begun.steps:,} before and "
                f"{progress.steps:,} in this training. Do not update or restore an ensemble while it is trained with "
                f"checkpoint=."
            )
        state = f"last-{steps}"
        states: dict[str, Any] = {state: jax.tree.map(np.asarray, self._members.together())}
        if progress.steps_in_epoch and (leaves := jax.tree.leaves(progress.measured)):
            states[f"measured-{steps}"] = np.stack(leaves)
        looks = [
            [*look[:3], {name: np.asarray(values).tolist() for name, values in look.measured.items()}]
            for look in self.training.looks
        ]
        self.training.save(
            states,
            {
                **entries_of(self._members, epoch),
                "state": state,
                "begun": list(self.begun),
                "epochs": progress.epochs,
                "made": progress.steps_in_epoch,
                "trained": progress.steps,
                "seconds": progress.seconds,
                "looks": looks,
            },
            progress.steps,
        )

    def _identity(self, batches: EpochBatches, held_out: PyTree) -> Identity:
        members = self._members
        settings = {
            "num_members": members.count,
            "seed of the ensemble": members.seed,
            "batch_size": batches.size,
            "order": batches.order,
            "seed": batches.seed,
            "drop_last": batches.drop_last,
            "number of steps before the training": self.begun.steps,
            "data": ", ".join(
                f"{name} {array.dtype} {array.shape}".strip() for name, array in _name_arrays(self._data)
            ),
        }
        contents = {
            "data": digest_of(_name_arrays(self._data)),
            "held_out": None if held_out is None else digest_of(_name_arrays(held_out)),
            "members": self.begun.content or None,
        }
        traces = {
            "init": trace(members.init, random.key(0)),
            "update": trace(members.first_step, members.like, self._batch_like()),
        }
        return identity_of(settings, contents, traces)

    def _batch_like(self) -> PyTree:
        return jax.eval_shape(lambda data: jax.tree.map(lambda leaf: leaf[: self._size], data), self._data)

    def _measured_like(self) -> PyTree:
        def measured(state: PyTree, batch: PyTree) -> PyTree:
            return checks.check_step(self._members.first_step(state, batch), state)[1]

        return jax.eval_shape(measured, self._members.like, self._batch_like())


def average(values: PyTree, weights: Sequence[int] | np.ndarray) -> PyTree:
    """Return averages over steps of values `(step, members)`, weighted by the rows of each step."""
    return jax.tree.map(lambda v: np.average(v, axis=0, weights=weights), values)


def flat(tree: PyTree) -> Measured:
    """Return values by name, nested ones by names with dots."""
    return {keystr(path, simple=True, separator="."): value for path, value in tree_leaves_with_path(tree)}


def _name_arrays(tree: PyTree) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of a tree by name, on the host; keys of random numbers as plain numbers."""
    for path, leaf in tree_leaves_with_path(tree):
        yield keystr(path), to_host(as_data(leaf) if isinstance(leaf, jax.Array) else leaf)
