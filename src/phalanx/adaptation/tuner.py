"""What a tuner is: one thing that warm-up learns, as pure functions of a state. Warm-up is a schedule over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

Vectors = Sequence[np.ndarray]
"""Draws `(draw, coordinate)`: the global coordinates, then one array for each group of those spread over devices."""


class Batch(NamedTuple):
    """Draws that ended in a round, chain by chain: vectors `(draw, coordinate)` by group, statistics `(draw,)`."""

    position: Vectors
    gradient: Vectors
    stats: Mapping[str, np.ndarray]
    chain: np.ndarray


class Stage(NamedTuple):
    """How far warm-up is.

    Attributes:
        window: number of the window under way.
        tuned: windows in which anything is tuned; those after them only run.
        windows: in all.
    """

    window: int
    tuned: int
    windows: int

    @property
    def tunes(self) -> bool:
        """Whether anything is tuned in this window."""
        return self.window < self.tuned

    @property
    def is_last_tuned(self) -> bool:
        """Whether the metric is no longer changed after this window."""
        return self.window >= self.tuned - 1

    @property
    def over(self) -> bool:
        """Whether warm-up is."""
        return self.window == self.windows


@runtime_checkable
class Tuner(Protocol):
    """One thing that is learned, from draws of all chains together; `phalanx.adaptation.step_size` is one.

    States are NamedTuples, and a tuner changes none: it returns the next. A tuner changes its own hyperparameters, by
    name, and reads the others'.
    """

    def init(self, tuning: Any, beginning: Batch, stage: Stage) -> Any:
        """The state at the start, given the kernel's hyperparameters, and positions and gradients of all chains."""
        ...

    def update(self, state: Any, batch: Batch, tuning: Any, stage: Stage) -> Any:
        """The state after a round that used a tuning."""
        ...

    def next_window(self, state: Any, stage: Stage) -> Any:
        """The state when another window begins in which things are tuned."""
        ...

    def apply(self, state: Any, tuning: Any, stage: Stage) -> Any:
        """Hyperparameters for the next round or, when warm-up is over, for sampling."""
        ...
