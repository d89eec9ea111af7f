"""The step size: a search for its order of magnitude on single steps, then dual averaging of whole draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from phalanx.adaptation import dual_averaging
from phalanx.adaptation.acceptance import harmonic_mean, harmonic_mean_of_normal_errors
from phalanx.adaptation.dual_averaging import DualAveraging
from phalanx.adaptation.tuner import Sample, Stage, Sums, Tuner

SEARCHES = 50
"""Doublings or halvings of the step size after which the search gives up."""


class Search(NamedTuple):
    """A search for a step size of which a single leapfrog, or proposal, is accepted about as often as it should be.

    Where the first try beyond a step size that trajectories have found is one too many, in either direction, that step
    size stays: a single leapfrog knows less.

    Source: Hoffman, Gelman (2014), The No-U-Turn Sampler, algorithm 4; here pooled over all chains.
    """

    step_size: float
    factor: float = 1.0
    tries: int = 0
    is_known: bool = False

    @property
    def found(self) -> bool:
        """Whether the search is over."""
        return self.factor == 0.0

    def after(self, acceptance: float, target: float) -> Search:
        """The search after a round at its step size."""
        factor = 2.0 if acceptance > target else 0.5  # so written, a NaN calls for a smaller step
        if self.tries and factor != self.factor:
            stays = self.is_known and self.tries == 1
            back = factor if stays else min(factor, 1.0)  # of the two the one before, or the smaller
            return self._replace(step_size=self.step_size * back, factor=0.0)
        if self.tries == SEARCHES:
            return self._replace(factor=0.0)
        return self._replace(step_size=self.step_size * factor, factor=factor, tries=self.tries + 1)


class StepSizeState(NamedTuple):
    """The averaging, and the search that comes before it; None where there is none under way."""

    averaging: DualAveraging
    search: Search | None = None


@dataclass(frozen=True)
class StepSize(Tuner):
    """The tuner of `step_size`.

    Attributes:
        target: the acceptance rate to aim at.
        bound: the hyperparameter that bounds a trajectory: set to 1, it is a single leapfrog, on which a step size is
            first tried. None where a draw is as short as can be.
        of_trajectories: whether a draw's rate is that of one trajectory, and not a mean over one.
    """

    target: float
    bound: str | None = None
    of_trajectories: bool = False
    sets: ClassVar[tuple[str, ...]] = ("step_size",)

    def init(self, tuning: Any, beginning: Sums, stage: Stage) -> StepSizeState:
        """Where tuning starts."""
        step_size = float(tuning.step_size)
        search = Search(step_size) if stage.tunes else None
        return StepSizeState(dual_averaging.start(step_size), search)

    def update(self, state: StepSizeState, sums: Sums, tuning: Any, stage: Stage) -> StepSizeState:
        """Another try of the search, or an update of the average."""
        acceptance, target = sums.mean("acceptance_rate"), self.target
        if state.search is not None:
            search = state.search.after(acceptance, target)
            if search.found:
                return StepSizeState(dual_averaging.start(search.step_size))
            return state._replace(search=search)
        if not stage.tunes:
            return state
        if self.of_trajectories:
            target = harmonic_mean_of_normal_errors(target)
            acceptance = harmonic_mean(sums.inverse_rates / sums.draws, target)
        return state._replace(averaging=dual_averaging.update(state.averaging, acceptance, target))

    def searches(self, state: StepSizeState) -> bool:
        """Return whether a search is under way."""
        return state.search is not None

    def next_window(self, state: StepSizeState, sample: Sample | None, stage: Stage) -> StepSizeState:
        """Begin again, near what was found; search, too, where the metric has changed."""
        averaged = state.averaging.averaged
        search = Search(averaged, is_known=True) if stage.renews else None
        return StepSizeState(dual_averaging.start(averaged), search)

    def apply(self, state: StepSizeState, tuning: Any, stage: Stage) -> Any:
        """The step size to try, or to stay with."""
        step_size = state.averaging.step_size if stage.tunes else state.averaging.averaged
        if state.search is not None:
            step_size = state.search.step_size
            tuning = tuning if self.bound is None else tuning._replace(**{self.bound: np.int32(1)})
        return tuning._replace(step_size=np.asarray(step_size, tuning.step_size.dtype))
