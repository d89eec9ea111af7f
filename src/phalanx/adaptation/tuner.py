"""Protocol of a tuner: pure functions that learn hyperparameters in warm-up, which is a schedule over tuners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.mesh.specs import PyTree

if TYPE_CHECKING:
    from jaxtyping import Float, Float64, Int, Integer, Shaped

LAST_LEAST = 20
"""The fewest iterations of a warm-up after the last change of the metric."""


def array_module(*values: Any) -> Any:
    """Return `jax.numpy` if JAX traces one of the values, else `numpy`, so that a tuner may learn on the devices."""
    return jnp if any(isinstance(value, jax.Array) for value in jax.tree.leaves(values)) else np


def where(condition: Any, state: PyTree, other: PyTree) -> PyTree:
    """Return a state of a tuner where the condition holds, else the other; both have the same structure."""
    xp = array_module(condition, state, other)
    return jax.tree.map(lambda x, y: xp.where(condition, x, y), state, other)


Vectors = Sequence[np.ndarray]
"""Draws `(draw, coordinate)`: the global coordinates, then one array for each group of sharded coordinates."""


class VectorMoments(NamedTuple):
    """Count, mean and sum of squared deviations of vectors, in float64; of many data sets, with an entry for each.

    Source: Chan, Golub, LeVeque (1983), Algorithms for computing the sample variance.
    """

    count: int | Int[np.ndarray, "sets"]
    mean: Float64[np.ndarray, "*sets coordinate"]
    squares: Float64[np.ndarray, "*sets coordinate"]

    @classmethod
    def nothing(cls, size: int) -> VectorMoments:
        """Return the moments of no draws of this many coordinates."""
        return cls(0, np.zeros(size), np.zeros(size))

    @classmethod
    def together(
        cls,
        counts: Shaped[np.ndarray, "set"],
        means: Float64[np.ndarray, "set coordinate"],
        squares: Float64[np.ndarray, "set coordinate"],
    ) -> VectorMoments:
        """Return the moments of all draws, from those of several sets of draws."""
        count = counts.sum()
        mean = counts @ means / max(count, 1)
        return cls(int(count), mean, squares.sum(0) + counts @ np.square(means - mean))

    def merge(self, other: VectorMoments) -> VectorMoments:
        """Return the moments of both sets of draws."""
        count = self.count + other.count
        apart = other.mean - self.mean
        share = _each(other.count / np.maximum(count, 1))
        spread = _each(self.count) * share * np.square(apart)
        return VectorMoments(count, self.mean + share * apart, self.squares + other.squares + spread)

    @property
    def variance(self) -> Float64[np.ndarray, "*sets coordinate"]:
        """Sample variances; NaN for fewer than two draws."""
        fewer = np.where(np.greater(self.count, 1), np.subtract(self.count, 1), np.nan)
        return self.squares / _each(fewer)


def _each(counts: Any) -> np.ndarray:
    """Return counts with a dimension for the coordinates."""
    return np.asarray(counts)[..., None]


class Sample(NamedTuple):
    """Draws of a window, chain by chain: vectors `(draw, coordinate)` by group, log densities and chains `(draw,)`.

    Example:
        >>> import numpy as np
        >>> from phalanx.kernels import Sample
        >>> draws = [np.ones((4, 2))]  # four draws of two coordinates
        >>> Sample(draws, draws, np.zeros(4), np.arange(4) // 2).chain
        array([0, 0, 1, 1])
    """

    position: Vectors
    gradient: Vectors
    log_density: Float[np.ndarray, "draw"]
    chain: Integer[np.ndarray, "draw"]


class RecentredDraws(NamedTuple):
    """Draws of a window in the coordinates of the next window, whose centring differs.

    Tuners learn from them instead of the original draws.

    Attributes:
        sample: the draws.
        moments: moments of their positions and gradients.
    """

    sample: Sample
    moments: Sums


class Sums(NamedTuple):
    """Sums over the draws of a round, of all chains: computed on the devices, and the same in every process.

    With many data sets, every value is an array with an entry for each.

    Attributes:
        draws: their number.
        stats: sums of their statistics, by name.
        inverse_rates: sum of the inverses of their acceptance rates; see `phalanx.adaptation.acceptance`.
        position, gradient: moments, by group of coordinates; empty if no metric is learned.

    Example:
        >>> from phalanx.kernels import Sums
        >>> half = Sums(draws=4, stats={"num_steps": 12.0}, inverse_rates=5.0)
        >>> half.merge(half).draws, float(half.mean("num_steps"))
        (8, 3.0)
    """

    draws: Any
    stats: Mapping[str, Any]
    inverse_rates: Any
    position: tuple[VectorMoments, ...] = ()
    gradient: tuple[VectorMoments, ...] = ()

    @classmethod
    def nothing(cls, sizes: Sequence[int] = ()) -> Sums:
        """Return the sums of no draws; `sizes` are the coordinates of each group."""
        none = tuple(map(VectorMoments.nothing, sizes))
        return cls(0, {}, 0.0, none, none)

    def mean(self, name: str) -> Any:
        """Return the mean of a statistic; NaN without draws."""
        xp = array_module(self.draws)
        return self.stats[name] / xp.where(xp.equal(self.draws, 0), np.nan, self.draws)

    def merge(self, other: Sums) -> Sums:
        """Return the sums over both sets of draws."""
        return Sums(
            self.draws + other.draws,
            {name: total + other.stats[name] for name, total in self.stats.items()},
            self.inverse_rates + other.inverse_rates,
            tuple(a.merge(b) for a, b in zip(self.position, other.position, strict=True)),
            tuple(a.merge(b) for a, b in zip(self.gradient, other.gradient, strict=True)),
        )


class Stage(NamedTuple):
    """Position of a round in warm-up.

    Attributes:
        window: number of the window under way.
        tuned: windows in which anything is tuned; those after them only run.
        windows: number of all windows.
        renews: true if the scale of the coordinates changes where a window ends; see `Tuner.renews`.
        of_warm_up: false for particles, which have a distribution that moves must leave invariant at each temperature.

    Example:
        >>> from phalanx.kernels import Stage
        >>> Stage(window=1, tuned=2, windows=3).tunes, Stage(window=2, tuned=2, windows=3).tunes
        (True, False)
    """

    window: Any
    tuned: Any
    windows: Any
    renews: bool = False
    of_warm_up: bool = True

    @property
    def tunes(self) -> Any:
        """True if anything is tuned in this window."""
        return self.window < self.tuned

    @property
    def is_last_tuned(self) -> Any:
        """True if the metric no longer changes after this window."""
        return self.window >= self.tuned - 1

    @property
    def over(self) -> Any:
        """True if warm-up is complete."""
        return self.window == self.windows


@runtime_checkable
class Tuner(Protocol):
    """Tuner of some hyperparameters from draws of all chains, such as `phalanx.adaptation.step_size.StepSize`.

    A kernel lists its tuners in the order in which they set hyperparameters; the last one to set a name decides. A
    tuner sets its own hyperparameters, by name, and reads the others'. Its methods are pure: states are NamedTuples of
    numbers and arrays, and a tuner returns the next state rather than change one. Tuners are hashable and compared by
    value, as frozen dataclasses are: kernels with equal machines and tuners share compiled programs. Derive from this
    class to have the defaults.

    Attributes:
        sets: hyperparameters, numbers, that it sets anew after a round. The record of the warm-up shows them. Leave out
            those that it sets only where a window ends.
        every_draw: true if it learns from each draw of all chains before the next, so that a round is one draw.
        on_devices: true if JAX may trace `update`, `searches` and `apply`, with arrays as numbers and truth values; if
            the tuner learns from moments, if one update may have the sums of several rounds. If the classes of all
            tuners of a kernel set it, the rounds of a window are one compiled program; it is not inherited.
        renews: true if it changes the scale of the coordinates where a window ends. Windows then double in length, and
            a warm-up ends with a window in which that scale is kept; other tuners may begin again in each.
        least_last: the fewest iterations of the last of these windows; a kernel has the least of its tuners'.

    Example:
        >>> import phalanx as phx
        >>> [tuner.learns_from for tuner in phx.nuts().tuners]
        ['draws', 'statistics']
    """

    sets: ClassVar[tuple[str, ...]] = ()
    every_draw: ClassVar[bool] = False
    on_devices: ClassVar[bool] = False
    renews: ClassVar[bool] = False
    least_last: ClassVar[int] = LAST_LEAST

    @property
    def learns_from(self) -> Literal["statistics", "moments", "draws"]:
        """The data from which it learns, each kind in addition to those before.

        Sums of the draws' statistics; moments of positions and gradients, where the kernel uses gradients; a sample of
        each window's draws of the coordinates that all devices hold.
        """
        return "statistics"

    def check(self, kernel: str, num_chains: int) -> None:
        """Raise ValueError unless so many chains of a kernel of this name can be tuned."""

    def init(self, tuning: PyTree, beginning: Sums, stage: Stage) -> PyTree:
        """Return the first state, given the kernel's hyperparameters and moments of all chains' first positions."""
        ...

    def update(self, state: PyTree, sums: Sums, tuning: PyTree, stage: Stage) -> PyTree:
        """Return the state after a round that used a tuning."""
        ...

    def searches(self, state: PyTree) -> Any:
        """Return whether the next round is a single short draw, from which only tuners that search learn."""
        return False

    def next_window(self, state: PyTree, sample: Sample | None, stage: Stage) -> PyTree:
        """Return the state as another window begins, given a sample of the draws of the last one.

        It is called before each window in which anything is tuned. The sample is None where no tuner learns from draws.
        """
        return state

    def apply(self, state: PyTree, tuning: PyTree, stage: Stage) -> PyTree:
        """Return hyperparameters for the next round or, when warm-up is over, for sampling."""
        ...
