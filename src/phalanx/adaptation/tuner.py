"""What a tuner is: one thing that warm-up learns, as pure functions of a state. Warm-up is a schedule over them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from phalanx.adaptation.moments import Moments

Vectors = Sequence[np.ndarray]
"""Draws `(draw, coordinate)`: the global coordinates, then one array for each group of those spread over devices."""


class Sample(NamedTuple):
    """Draws themselves, chain by chain: vectors `(draw, coordinate)` by group, log densities and chains `(draw,)`."""

    position: Vectors
    gradient: Vectors
    log_density: np.ndarray
    chain: np.ndarray


class Sums(NamedTuple):
    """What the draws that ended in a round add up to, over all chains: the devices add them up, for every process.

    Attributes:
        draws: how many there are.
        stats: sums of their statistics, by name.
        inverse_rates: sum of the inverses of their acceptance rates; see `phalanx.adaptation.acceptance`.
        position, gradient: moments, by group of coordinates; none where no metric is learned.
    """

    draws: int
    stats: Mapping[str, float]
    inverse_rates: float
    position: tuple[Moments, ...] = ()
    gradient: tuple[Moments, ...] = ()

    @classmethod
    def nothing(cls, sizes: Sequence[int] = ()) -> Sums:
        """Of no draws; `sizes` are the coordinates of each group."""
        none = tuple(map(Moments.nothing, sizes))
        return cls(0, {}, 0.0, none, none)

    def mean(self, name: str) -> float:
        """Mean of a statistic; NaN of no draws."""
        return self.stats[name] / self.draws if self.draws else math.nan

    def merge(self, other: Sums) -> Sums:
        """Those of both sets of draws."""
        return Sums(
            self.draws + other.draws,
            {name: total + other.stats[name] for name, total in self.stats.items()},
            self.inverse_rates + other.inverse_rates,
            tuple(a.merge(b) for a, b in zip(self.position, other.position, strict=True)),
            tuple(a.merge(b) for a, b in zip(self.gradient, other.gradient, strict=True)),
        )


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

    def init(self, tuning: Any, beginning: Sums, stage: Stage) -> Any:
        """The state at the start, given the kernel's hyperparameters, and moments of where all chains begin."""
        ...

    def update(self, state: Any, sums: Sums, tuning: Any, stage: Stage) -> Any:
        """The state after a round that used a tuning."""
        ...

    def next_window(self, state: Any, sample: Sample | None, stage: Stage) -> Any:
        """The state when another window begins in which things are tuned, given a sample of the draws of the last."""
        ...

    def apply(self, state: Any, tuning: Any, stage: Stage) -> Any:
        """Hyperparameters for the next round or, when warm-up is over, for sampling."""
        ...
