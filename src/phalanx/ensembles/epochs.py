"""Training of an ensemble, as a method of the training loop: epochs of steps of all members."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from phalanx.learning.loop import Stop
from phalanx.run.compile.block_length import Pace
from phalanx.run.progress.report import Report


@dataclass(frozen=True)
class EpochReport(Report):
    """How far the training of an ensemble has come.

    Attributes:
        epoch, epochs: the epoch of the last step, and how many there are.
        measured: what `update` measured in the last step, on average over the members.
    """

    epoch: int = 0
    epochs: int = 0
    measured: Mapping[str, float] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """What is counted."""
        return "steps"

    def __str__(self) -> str:
        return ", ".join([f"epoch {self.epoch}/{self.epochs}", *(f"{k} {v:.4g}" for k, v in self.measured.items())])


class Epoch(NamedTuple):
    """An epoch as a value; the members themselves are the ensemble's, since each step reuses their memory.

    Attributes:
        batches: rows of the batches.
        measured: what was measured in each step, by group of members; steps add to this list.
        made: steps of the epoch that were made.
        epochs: epochs that have ended.
        steps: steps made, of all epochs.
    """

    batches: tuple[np.ndarray, ...]
    measured: list[list[Any]]
    made: int
    epochs: int
    steps: int


@dataclass
class Epochs:
    """The method of epochs.

    Attributes:
        batches: makes the rows of the batches of the next epoch.
        one: makes one step of every member on rows of the data, and returns what was measured, by group of members.
        join: puts values of groups together, `(members,)`.
        members: how many there are.
        num_epochs: epochs in all.
        shown: whether progress is shown: blocks are then short, and waited for. Otherwise a block is an epoch.
    """

    batches: Callable[[], tuple[np.ndarray, ...]]
    one: Callable[[np.ndarray], list[Any]]
    join: Callable[[list[Any]], Any]
    members: int
    num_epochs: int
    shown: bool
    _pace: Pace = field(default_factory=Pace)

    def init(self, start: None) -> Epoch:
        """Return the state before the first epoch."""
        return Epoch((), [], 0, 0, 0)

    def step(self, state: Epoch, say: Callable[[str], None]) -> Iterator[Epoch]:
        """Make steps of one epoch: all of them, or as many as take half a second."""
        if state.made == len(state.batches):
            state = Epoch(self.batches(), [], 0, state.epochs, state.steps)
        most, began = self._pace.ticks if self.shown else len(state.batches), time.perf_counter()
        now = state.batches[state.made : state.made + most]
        for rows in now:
            state.measured.append(self.one(rows))
            made = state.made + 1
            ended = state.epochs + (made == len(state.batches))
            state = state._replace(made=made, epochs=ended, steps=state.steps + 1)
            yield state
        if self.shown:
            jax.block_until_ready(state.measured[-1])
            self._pace.learn(len(now), time.perf_counter() - began)

    def done(self, state: Epoch) -> bool:
        """Return whether all epochs have ended."""
        return state.epochs >= self.num_epochs

    def stop(self, state: Epoch, reason: Stop) -> str:
        """Return a line about an interruption."""
        return f"Interrupted: {state.epochs:,} of {self.num_epochs:,} epochs were trained."

    def report(self, state: Epoch) -> EpochReport:
        """Return how many steps were made and, where progress is shown, what the last of them measured."""
        shown = self.join(state.measured[-1]) if self.shown else {}
        paths = jax.tree_util.tree_leaves_with_path(shown)
        means = {jax.tree_util.keystr(path, simple=True, separator="."): float(np.mean(v)) for path, v in paths}
        epoch = state.epochs + (state.made < len(state.batches))
        return EpochReport(
            "training", state.steps, len(state.batches) * self.num_epochs, self.members, math.nan, 0,
            epoch=epoch, epochs=self.num_epochs, measured=means,
        )  # fmt: skip
