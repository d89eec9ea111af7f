"""Tuner of the step size: a search for its order of magnitude on single steps, then dual averaging of whole draws.

All arithmetic is elementwise, so that one state may have numbers, or arrays with an entry for each of many data sets.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from phalanx.adaptation import dual_averaging
from phalanx.adaptation.acceptance import harmonic_mean, harmonic_mean_of_normal_errors
from phalanx.adaptation.dual_averaging import DualAveraging
from phalanx.adaptation.tuner import Sample, Stage, Sums, Tuner, array_module, where
from phalanx.mesh.specs import PyTree

SEARCHES = 50
"""Doublings or halvings of the step size after which the search gives up."""

MEAN_RATE_WINDOWS = 2
"""Last tuned windows, in which steps may aim at the mean acceptance rate and no longer free stuck chains: the draws of
the first of them give the final metric, and those of the second the final step size. One, if no metric is learned."""

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
    tries: Numbers = 0.0
    is_known: Flags = False

    @classmethod
    def none(cls, step_size: Numbers) -> StepSizeSearch:
        """Return a search that is over."""
        return cls(step_size, step_size * 0.0)

    @property
    def is_done(self) -> Flags:
        """True if the search is over."""
        return array_module(self.factor).equal(self.factor, 0.0)

    def after(self, acceptance: Numbers, target: float) -> StepSizeSearch:
        """Return the search after a round at its step size; one that is over stays as it is."""
        xp = array_module(acceptance)
        factor = xp.where(xp.greater(acceptance, target), 2.0, 0.5)  # a NaN leads to a smaller step
        overshot = xp.greater(self.tries, 0) & (factor != self.factor)
        stays = self.is_known & xp.equal(self.tries, 1)
        back = xp.where(stays, factor, xp.minimum(factor, 1.0))  # the step size before, or the smaller of the two
        ends = overshot | xp.equal(self.tries, SEARCHES)
        step_size = self.step_size * xp.where(overshot, back, xp.where(ends, 1.0, factor))
        next_try = StepSizeSearch(step_size, xp.where(ends, 0.0, factor), self.tries + ~ends, self.is_known)
        return where(self.is_done, self, next_try)


class StepSizeState(NamedTuple):
    """State of the tuning in one window.

    Attributes:
        averaging: state of dual averaging.
        search: the search before it.
        log_enough: logarithm of the largest step size tried whose mean rate reached the target.
        gave_up: true if smaller steps have not freed the stuck chains, so that the rest of the window aims at the mean.
    """

    averaging: DualAveraging
    search: StepSizeSearch
    log_enough: Numbers = -np.inf
    gave_up: Flags = False

    @classmethod
    def start(cls, search: StepSizeSearch) -> StepSizeState:
        """Return the state before a search, or at the step size of one that is over."""
        log_step_size = array_module(search.step_size).log(search.step_size)
        return cls(dual_averaging.start(log_step_size), search)


@dataclass(frozen=True)
class StepSize(Tuner):
    """Tuner of `step_size`.

    Attributes:
        target: the acceptance rate to aim at.
        bound: the hyperparameter that bounds a trajectory: set to 1, it makes a single leapfrog, on which step sizes
            are first tried. None if a draw is a single step.
        frees_chains: true to average rates so that stuck chains weigh more: chains that begin where draws fail then
            move on. See `phalanx.adaptation.acceptance`.
        ends_at_mean: true to free chains only until the last windows, so that the final step size is that of the mean
            rate. False suits kernels whose chains share the length of a trajectory: in a narrow arm of the posterior
            they are stuck for long.

    Example:
        >>> import phalanx as phx
        >>> phx.kernels.StepSize(0.8, bound="max_depth").sets
        ('step_size',)
    """

    target: float
    bound: str | None = None
    _: KW_ONLY
    frees_chains: bool = False
    ends_at_mean: bool = True
    sets: ClassVar[tuple[str, ...]] = ("step_size",)
    on_devices: ClassVar[bool] = True

    def init(self, tuning: PyTree, beginning: Sums, stage: Stage) -> StepSizeState:
        """Return the state that begins at the kernel's step size."""
        step_size = np.asarray(tuning.step_size, np.float64)
        return StepSizeState.start(StepSizeSearch(step_size) if stage.tunes else StepSizeSearch.none(step_size))

    def update(self, state: StepSizeState, sums: Sums, tuning: PyTree, stage: Stage) -> StepSizeState:
        """Make another try of the search, or update the average."""
        acceptance = sums.mean("acceptance_rate")
        all_tune = stage.tunes & array_module(acceptance).all(state.search.is_done)  # data sets wait for others
        search = state.search.after(acceptance, self.target)
        after_search = where(search.is_done, StepSizeState.start(search), state._replace(search=search))
        if self.frees_chains:
            last_windows = MEAN_RATE_WINDOWS if stage.renews else 1
            is_early = stage.of_warm_up & (stage.window < stage.tuned - last_windows)
            frees = is_early | (not self.ends_at_mean)
            after_round = self._freeing(state, acceptance, sums.inverse_rates / sums.draws, frees)
        else:
            after_round = state._replace(averaging=dual_averaging.update(state.averaging, acceptance, self.target))
        return where(state.search.is_done, where(all_tune, after_round, state), after_search)

    def _freeing(self, state: StepSizeState, acceptance: Numbers, inverse: Numbers, frees: Flags) -> StepSizeState:
        """Return the state after a round of given means of rates and of their inverses, with steps that free chains.

        Without `frees` the steps aim at the mean of the rates.

        One chain that fails at any step size would hold the harmonic mean below its target for ever, and the step size
        would go to zero while all other chains accept each draw.
        """
        xp = array_module(acceptance)
        log_step_size = state.averaging.log_step_size
        reaches = frees & xp.greater_equal(acceptance, self.target)
        log_enough = xp.where(reaches, xp.maximum(state.log_enough, log_step_size), state.log_enough)
        futile = frees & (log_step_size < log_enough - math.log(MOST_REDUCTION))
        gave_up = state.gave_up | futile
        target = harmonic_mean_of_normal_errors(self.target)
        takes_mean = gave_up | ~xp.asarray(frees)
        rate = xp.where(takes_mean, acceptance, harmonic_mean(inverse, target))
        averaging = dual_averaging.update(state.averaging, rate, xp.where(takes_mean, self.target, target))
        again = dual_averaging.start(log_enough)
        return StepSizeState(where(futile, again, averaging), state.search, log_enough, gave_up)

    def searches(self, state: StepSizeState) -> Flags:
        """Return whether a search is under way."""
        return ~state.search.is_done

    def next_window(self, state: StepSizeState, sample: Sample | None, stage: Stage) -> StepSizeState:
        """Begin again, near the last step size; search, too, where the metric has changed."""
        average = state.averaging.averaged
        search = StepSizeSearch(average, is_known=True) if stage.renews else StepSizeSearch.none(average)
        return StepSizeState.start(search)

    def apply(self, state: StepSizeState, tuning: PyTree, stage: Stage) -> PyTree:
        """Set the step size to try, or to keep."""
        xp = array_module(state, stage)
        step_size = xp.where(stage.tunes, state.averaging.step_size, state.averaging.averaged)
        step_size = xp.where(state.search.is_done, step_size, state.search.step_size)
        if self.bound is not None:
            bound = getattr(tuning, self.bound)
            bound = xp.asarray(xp.where(xp.all(state.search.is_done), bound, 1), bound.dtype)
            tuning = tuning._replace(**{self.bound: bound})
        return tuning._replace(step_size=xp.asarray(step_size, tuning.step_size.dtype))
