"""Protocol of a tuner: one thing that warm-up learns, as pure functions of a state. Warm-up is a schedule over them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

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
        renews: whether the scale of the coordinates changes where a window ends; see `Tuner.renews`.
    """

    window: int
    tuned: int
    windows: int
    renews: bool = False

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
    """One thing that is learned from draws of all chains together, such as `phalanx.adaptation.step_size.StepSize`.

    A kernel lists its tuners in the order in which they set hyperparameters; the last one to set a name decides. A
    tuner sets its own hyperparameters, by name, and reads the others'. Its methods are pure: states are NamedTuples of
    numbers and arrays, and a tuner changes none of them, but returns the next. Tuners are hashable and compared by
    value, as frozen dataclasses are: kernels with equal machines and tuners share what is compiled. Derive from this
    class to have the defaults.

    Attributes:
        sets: hyperparameters, numbers, that it sets anew after a round. The record of the warm-up shows them. Those
            that it sets where a window ends, and only there, need not be named.
        every_draw: whether it learns from each draw of all chains before the next, so that a round is one draw.
        renews: whether it changes the scale of the coordinates where a window ends. Windows then double in length, and
            a warm-up ends with a window in which that scale is kept; other tuners may begin again in each.
    """

    sets: ClassVar[tuple[str, ...]] = ()
    every_draw: ClassVar[bool] = False
    renews: ClassVar[bool] = False

    @property
    def learns_from(self) -> Literal["statistics", "moments", "draws"]:
        """The data that it learns from, each kind in addition to those before.

        Sums of the draws' statistics; moments of positions and gradients, where the kernel uses gradients; a sample of
        each window's draws of the coordinates that all devices hold.
        """
        return "statistics"

    def check(self, kernel: str, num_chains: int) -> None:
        """Raise ValueError unless so many chains of a kernel of this name can be tuned."""

    def init(self, tuning: Any, beginning: Sums, stage: Stage) -> Any:
        """Return the state at the start, given the kernel's hyperparameters, and moments of where all chains begin."""
        ...

    def update(self, state: Any, sums: Sums, tuning: Any, stage: Stage) -> Any:
        """Return the state after a round that used a tuning."""
        ...

    def searches(self, state: Any) -> bool:
        """Return whether the next round is one draw, as short as can be, from which only tuners that search learn."""
        return False

    def next_window(self, state: Any, sample: Sample | None, stage: Stage) -> Any:
        """Return the state as another window begins, given a sample of the draws of the last.

        No window begins after the last one in which anything is tuned. The sample is None where no tuner learns from
        draws.
        """
        return state

    def apply(self, state: Any, tuning: Any, stage: Stage) -> Any:
        """Return hyperparameters for the next round or, when warm-up is over, for sampling."""
        ...
