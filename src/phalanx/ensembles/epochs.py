"""Training of an ensemble, as a method of the training loop: epochs of steps of all members."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from phalanx.ensembles.members import Members
from phalanx.ensembles.watching import EnsembleWatch, EpochLook, Measured, TrainingProgress, average, flat
from phalanx.learning.batches import EpochBatches
from phalanx.learning.loop import Stop
from phalanx.mesh.output import warn
from phalanx.run.compile.block_length import BlockLength

if TYPE_CHECKING:
    from jaxtyping import Integer


@dataclass(frozen=True)
class EpochReport:
    """Progress of the training of an ensemble.

    Attributes:
        phase: "training".
        done, total: steps so far, and in all.
        members: number of members.
        epoch, epochs: the epoch of the last step, and the number of epochs.
        measured: values that `update` measured in the last step, on average over the members.
    """

    phase: str
    done: int
    total: int
    members: int
    epoch: int = 0
    epochs: int = 0
    measured: Mapping[str, float] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """The word for what is counted."""
        return "steps"

    def __str__(self) -> str:
        return ", ".join([f"epoch {self.epoch}/{self.epochs}", *(f"{k} {v:.4g}" for k, v in self.measured.items())])


class Epoch(NamedTuple):
    """Training as a value; the ensemble holds the members themselves, since each step reuses their memory.

    Attributes:
        batches: rows of the batches of the epoch.
        measured: values measured in its steps after the first `kept`, by group of members; steps append to this list.
        steps_in_epoch: steps of the epoch that were made.
        earlier: values measured in its first `kept` steps, `(step, members)`.
        kept: number of steps whose values a checkpoint holds.
        last: values measured in the last step, by group of members.
        epochs: epochs that have ended.
        steps: steps made, of all epochs.
        averages_of_epoch: averages of the latest epoch that has ended.
    """

    batches: tuple[Integer[np.ndarray, "*members batch"], ...]
    measured: list[list[Any]]
    steps_in_epoch: int = 0
    earlier: Any = None
    kept: int = 0
    last: Sequence[Any] = ()
    epochs: int = 0
    steps: int = 0
    averages_of_epoch: Measured | None = None

    @property
    def is_within(self) -> bool:
        """True if some steps of the epoch were made, and not all."""
        return 0 < self.steps_in_epoch < len(self.batches)


@dataclass
class Epochs:
    """Method of epochs.

    Attributes:
        members: the ensemble.
        data: all rows, on every device.
        batches: rows of the batches.
        num_epochs: number of epochs.
        scores: returns scores of the ensemble as it is.
        watch: evaluations, log and checkpoint.
        shown: whether progress is shown.
    """

    members: Members
    data: Any
    batches: EpochBatches
    num_epochs: int
    scores: Callable[[], Measured]
    watch: EnsembleWatch
    shown: bool
    _block_length: BlockLength = field(default_factory=BlockLength)
    _began: float = field(default_factory=time.monotonic)

    def init(self, start: None) -> Epoch:
        """Return the state before the first epoch, or where the checkpoint is."""
        if (resumed := self.watch.resume()) is None:
            return Epoch((), [])
        self._began -= resumed.seconds
        if resumed.epochs > self.num_epochs:
            warn(
                f"ensemble.train: the training in the checkpoint has {resumed.epochs:,} epochs, more than num_epochs="
                f"{self.num_epochs:,}; the members are those after all of them. Give a larger num_epochs to train "
                f"longer, or another folder to begin anew.",
                stacklevel=4,
            )
        state = Epoch((), [], epochs=resumed.epochs, steps=resumed.steps)
        if not resumed.steps_in_epoch:
            return state
        return self._begin(state)._replace(
            steps_in_epoch=resumed.steps_in_epoch, earlier=resumed.measured, kept=resumed.steps_in_epoch
        )

    def step(self, state: Epoch, say: Callable[[str], None]) -> Iterator[Epoch]:
        """Make steps of one epoch: as many as take half a second where something waits for them, else all."""
        if state.steps_in_epoch == len(state.batches):
            state = self._begin(state)
        waits = self.shown or self.watch.training.checkpoint is not None
        most = self._block_length.ticks if waits else len(state.batches)
        began = time.perf_counter()
        most = int(min(most, len(state.batches), self.watch.training.until_next(state.steps)))
        now = state.batches[state.steps_in_epoch : state.steps_in_epoch + most]
        for rows in now:
            losses = self.members.step(self.data, rows)
            state.measured.append(losses)
            state = state._replace(steps_in_epoch=state.steps_in_epoch + 1, steps=state.steps + 1, last=losses)
            if state.steps_in_epoch == len(state.batches):
                state = self._ended(state)
            yield state
        if waits:
            jax.block_until_ready(state.last)
            self._block_length.learn(len(now), time.perf_counter() - began)
        if self.watch.training.is_due(state.steps):
            state = self.save(state)
            yield state

    def done(self, state: Epoch) -> bool:
        """Return whether all epochs have ended."""
        return state.epochs >= self.num_epochs

    def stop(self, state: Epoch, reason: Stop) -> str:
        """Save a training that a signal has interrupted, and return a line about it."""
        text = f"Interrupted: {state.epochs:,} of {self.num_epochs:,} epochs were trained."
        if self.watch.training.checkpoint is None:
            return text
        return f"{text} The same call continues." if self.save_whole(state) else text

    def report(self, state: Epoch) -> EpochReport:
        """Return how many steps were made and, where progress is shown, what the last of them measured."""
        last_values = flat(self.members.placement.join(state.last)) if self.shown else {}
        means = {name: float(np.mean(values)) for name, values in last_values.items()}
        epoch = state.epochs + (state.steps_in_epoch < len(state.batches))
        return EpochReport(
            "training",
            state.steps,
            len(state.batches) * self.num_epochs,
            self.members.count,
            epoch,
            self.num_epochs,
            means,
        )

    def save(self, state: Epoch) -> Epoch:
        """Save the members, and what was measured within the epoch."""
        values = self._measured(state) if state.is_within else None
        steps_done = state.steps_in_epoch if state.is_within else 0
        seconds = time.monotonic() - self._began
        self.watch.save(TrainingProgress(state.epochs, steps_done, state.steps, seconds, values), self.epoch_of(state))
        return state._replace(earlier=values, kept=steps_done, measured=[])

    def save_whole(self, state: Epoch) -> bool:
        """Save if all members have made the same steps, those of the state; return whether they have."""
        is_whole = self.members.is_whole and self.members.steps == self.watch.begun.steps + state.steps
        if is_whole:
            self.save(state)
        return is_whole

    def epoch_of(self, state: Epoch) -> int:
        """Return the number of epochs that the ensemble was trained for, in this training and before."""
        return self.watch.begun.epoch + state.epochs

    def averages(self, state: Epoch) -> Measured:
        """Return averages over the rows of the epoch's steps so far, and scores."""
        sizes = [rows.shape[-1] for rows in state.batches[: state.steps_in_epoch]]
        return {**average(self._measured(state), sizes), **self.scores()}

    def _begin(self, state: Epoch) -> Epoch:
        """Begin the next epoch."""
        return Epoch(self.batches.of_epoch(self.epoch_of(state)), [], epochs=state.epochs, steps=state.steps)

    def _ended(self, state: Epoch) -> Epoch:
        """Evaluate, log and save at the end of an epoch."""
        averages = self.averages(state)
        state = state._replace(epochs=state.epochs + 1, averages_of_epoch=averages, earlier=None, kept=0, measured=[])
        seconds = time.monotonic() - self._began
        self.watch.training.add(EpochLook(self.epoch_of(state), self.members.steps, seconds, flat(averages)))
        return self.save(state) if self.watch.training.checkpoint is not None and self.done(state) else state

    def _measured(self, state: Epoch) -> Any:
        """Return the values measured in the epoch's steps so far, `(step, members)` by name, on the host."""
        # a second Ctrl-C within a step may have left one that the state does not count
        steps = [self.members.placement.join(groups) for groups in state.measured[: state.steps_in_epoch - state.kept]]
        parts = [jax.tree.map(lambda *values: np.stack(values).astype(np.float64), *steps)] if steps else []
        parts = parts if state.earlier is None else [state.earlier, *parts]
        return jax.tree.map(lambda *values: np.concatenate(values), *parts)
