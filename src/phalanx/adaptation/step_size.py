"""Tuner of the step size: a search for its order of magnitude on single steps, then dual averaging of whole draws.

All arithmetic is elementwise, so that one state may have numbers, or arrays with an entry for each of many data sets.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from phalanx.adaptation import dual_averaging
from phalanx.adaptation.acceptance import harmonic_mean, harmonic_mean_of_normal_errors
from phalanx.adaptation.dual_averaging import DualAveraging
from phalanx.adaptation.tuner import Sample, Stage, Sums, Tuner
from phalanx.mesh.specs import PyTree

SEARCHES = 50
"""Doublings or halvings of the step size after which the search gives up."""

MEAN_RATE_WINDOWS = 2
"""Last tuned windows, in which NUTS aims at the mean acceptance rate and no longer frees stuck chains: the draws of the
first of them give the final metric, and those of the second the final step size."""

MOST_REDUCTION = 100.0
"""Largest factor by which the step size is reduced to free stuck chains, from the largest one at which the mean rate
reached the target. Chains that still fail have another reason than their step size, and a smaller one stops all."""

Numbers = Flags = Any
"""A number or a truth value, or an array with one for each data set."""


class StepSizeSearch(NamedTuple):
    """State of a search for a step size at which a single leapfrog, or proposal, is accepted at about the target rate.

    If the first try away from a step size known from trajectories overshoots the target, in either direction, that step
    size stays: a single leapfrog carries less information.

    Source: Hoffman, Gelman (2014), The No-U-Turn Sampler, algorithm 4; here pooled over all chains.
    """

    step_size: Numbers
    factor: Numbers = 1.0
    tries: Numbers = 0
    is_known: bool = False

    @property
    def is_done(self) -> Flags:
        """True if the search is over."""
        return np.equal(self.factor, 0.0)

    def after(self, acceptance: Numbers, target: float) -> StepSizeSearch:
        """Return the search after a round at its step size; one that is over stays as it is."""
        factor = np.where(np.greater(acceptance, target), 2.0, 0.5)  # a NaN leads to a smaller step
        overshot = np.greater(self.tries, 0) & (factor != self.factor)
        stays = self.is_known & np.equal(self.tries, 1)
        back = np.where(stays, factor, np.minimum(factor, 1.0))  # the step size before, or the smaller of the two
        ends = overshot | np.equal(self.tries, SEARCHES)
        step_size = self.step_size * np.where(overshot, back, np.where(ends, 1.0, factor))
        next_try = StepSizeSearch(step_size, np.where(ends, 0.0, factor), self.tries + ~ends, self.is_known)
        return where(self.is_done, self, next_try)


class StepSizeState(NamedTuple):
    """State of the tuning in one window.

    Attributes:
        averaging: state of dual averaging.
        search: the search before it; None if no search is under way.
        log_enough: logarithm of the largest step size tried whose mean rate reached the target.
        gave_up: true if smaller steps have not freed the stuck chains, so that the rest of the window aims at the mean.
    """

    averaging: DualAveraging
    search: StepSizeSearch | None = None
    log_enough: Numbers = -np.inf
    gave_up: Flags = False


@dataclass(frozen=True)
class StepSize(Tuner):
    """Tuner of `step_size`.

    Attributes:
        target: the acceptance rate to aim at.
        bound: the hyperparameter that bounds a trajectory: set to 1, it makes a single leapfrog, on which step sizes
            are first tried. None if a draw is a single step.
        of_trajectories: true if a draw's rate is that of the end of its trajectory, False if a mean over all points.
            Rates of trajectories are averaged so that stuck chains weigh more; see `phalanx.adaptation.acceptance`.
        frees_chains: true to average so, whatever the rates, until the last two windows: chains that begin where
            trajectories fail then move on, and the final step size is that of the mean rate.

    Example:
        >>> import phalanx as phx
        >>> phx.kernels.StepSize(0.8, bound="max_depth").sets
        ('step_size',)
    """

    target: float
    bound: str | None = None
    _: KW_ONLY
    of_trajectories: bool = False
    frees_chains: bool = False
    sets: ClassVar[tuple[str, ...]] = ("step_size",)

    def init(self, tuning: PyTree, beginning: Sums, stage: Stage) -> StepSizeState:
        """Return the state that begins at the kernel's step size."""
        step_size = np.asarray(tuning.step_size, np.float64)
        search = StepSizeSearch(step_size) if stage.tunes else None
        return StepSizeState(dual_averaging.start(step_size), search)

    def update(self, state: StepSizeState, sums: Sums, tuning: PyTree, stage: Stage) -> StepSizeState:
        """Make another try of the search, or update the average."""
        acceptance = sums.mean("acceptance_rate")
        if state.search is not None:
            search = state.search.after(acceptance, self.target)
            search_ends = search.is_done & ~state.search.is_done
            averaging = where(search_ends, dual_averaging.start(search.step_size), state.averaging)
            return StepSizeState(averaging, None if search.is_done.all() else search)
        if not stage.tunes:
            return state
        if self.of_trajectories or (self.frees_chains and stage.window < stage.tuned - MEAN_RATE_WINDOWS):
            return self._freeing(state, acceptance, sums.inverse_rates / sums.draws)
        return state._replace(averaging=dual_averaging.update(state.averaging, acceptance, self.target))

    def _freeing(self, state: StepSizeState, acceptance: Numbers, inverse: Numbers) -> StepSizeState:
        """Return the state after a round of given means of rates and of their inverses, with steps that free chains.

        One chain that fails at any step size would hold the harmonic mean below its target for ever, and the step size
        would go to zero while all other chains accept each draw.
        """
        log_step_size = state.averaging.log_step_size
        reaches = np.greater_equal(acceptance, self.target)
        log_enough = np.where(reaches, np.maximum(state.log_enough, log_step_size), state.log_enough)
        futile = log_step_size < log_enough - math.log(MOST_REDUCTION)
        gave_up = state.gave_up | futile
        target = harmonic_mean_of_normal_errors(self.target)
        rate = harmonic_mean(inverse, target)
        if np.any(gave_up):
            rate = np.where(gave_up, acceptance, rate)
            target = np.where(gave_up, self.target, target)
        averaging = dual_averaging.update(state.averaging, rate, target)
        if np.any(futile):
            again = dual_averaging.start(np.exp(np.where(futile, log_enough, log_step_size)))
            averaging = where(futile, again, averaging)
        return StepSizeState(averaging, None, log_enough, gave_up)

    def searches(self, state: StepSizeState) -> bool | Flags:
        """Return whether a search is under way."""
        return state.search is not None and ~state.search.is_done

    def next_window(self, state: StepSizeState, sample: Sample | None, stage: Stage) -> StepSizeState:
        """Begin again, near the last step size; search, too, where the metric has changed."""
        average = state.averaging.averaged
        search = StepSizeSearch(average, is_known=True) if stage.renews else None
        return StepSizeState(dual_averaging.start(average), search)

    def apply(self, state: StepSizeState, tuning: PyTree, stage: Stage) -> PyTree:
        """Set the step size to try, or to keep."""
        step_size = state.averaging.step_size if stage.tunes else state.averaging.averaged
        if state.search is not None:
            step_size = np.where(state.search.is_done, step_size, state.search.step_size)
            tuning = tuning if self.bound is None else tuning._replace(**{self.bound: np.int32(1)})
        return tuning._replace(step_size=np.asarray(step_size, tuning.step_size.dtype))


def where(condition: Flags, a: Numbers, b: Numbers) -> Numbers:
    """Return the state `a` where the condition holds, else the state `b`."""
    return jax.tree.map(lambda x, y: np.where(condition, x, y), a, b)
