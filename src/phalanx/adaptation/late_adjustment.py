r"""Tuner of late-adjusted sampling: step size and trajectories of unadjusted draws, then of adjusted ones.

In unadjusted draws the step size $\epsilon$ follows the variance $v$ of the energy error of a leapfrog, per coordinate.
With $b$ the mean squared distance from equipartition, the variance to aim at is $0.1\, b^{3/8}$, and $\epsilon$ is
multiplied by $(0.1\, b^{3/8} / v)^{1/6}$ after each draw of all chains. A trajectory is 1.9 standard deviations of the
chains long. In the last window of warm-up, draws are adjusted, and the step size is tuned to an acceptance rate.

Source: Robnik, Cohn-Gordon, Seljak (2026), Late-adjusted parallel sampling, arXiv 2601.16696.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from phalanx.adaptation import dual_averaging
from phalanx.adaptation.step_size import StepSize, StepSizeSearch, StepSizeState
from phalanx.adaptation.tuner import Sample, Stage, Sums, Tuner
from phalanx.mesh.specs import PyTree

ENERGY, POWER = 0.1, 3 / 8
"""Energy variance per coordinate to aim at where the squared imbalance is one, and the power with which it falls."""

MOST_IMBALANCE = 464.0
"""A larger squared imbalance counts as this one, for which the energy variance to aim at is one: chains that are spread
over many scales have one of 1e6 and more, which says nothing about a step size."""

LEAST_FACTOR, MOST_FACTOR = 0.3, 3.0
"""Bounds on the factor by which the step size changes after a draw."""

LENGTH = 1.9
"""Length of a trajectory, in standard deviations of the chains."""

FEW, LENIENT, STRICT = 200, 0.7, 0.9
"""Coordinates up to which the lower acceptance rate is aimed at, and both rates."""

BREAKING = 0.05
"""Share of chains whose trajectories break down, from which the step size is halved."""


class LateAdjustmentState(NamedTuple):
    """State of the tuner.

    Attributes:
        step_size: of unadjusted draws.
        trajectory_length: of all draws.
        coordinates: their number.
        adjusted: state of the tuner of adjusted draws' step size; None before.
    """

    step_size: float
    trajectory_length: float
    coordinates: int
    adjusted: StepSizeState | None = None


@dataclass(frozen=True)
class LateAdjustment(Tuner):
    """Tuner of `step_size`, `trajectory_length` and `adjusted`.

    Attributes:
        target: acceptance rate of adjusted draws; None chooses by the number of coordinates.
        tunes_step_size: False keeps the kernel's step size.

    Example:
        >>> from phalanx.adaptation.late_adjustment import LateAdjustment
        >>> LateAdjustment().sets
        ('step_size', 'trajectory_length', 'adjusted')
    """

    target: float | None = None
    tunes_step_size: bool = True
    sets: ClassVar[tuple[str, ...]] = ("step_size", "trajectory_length", "adjusted")
    every_draw: ClassVar[bool] = True

    def check(self, kernel: str, num_chains: int) -> None:
        """Raise unless there are two chains to compare."""
        if num_chains < 2:
            raise ValueError(
                f"num_chains={num_chains}: {kernel} measures by all chains together how far they have come, and needs "
                f"at least two, better hundreds. Run more chains, or take phx.nuts()."
            )

    def init(self, tuning: PyTree, beginning: Sums, stage: Stage) -> LateAdjustmentState:
        """Return the state that begins at the kernel's step size."""
        coordinates = sum(part.mean.shape[-1] for part in beginning.position)
        state = LateAdjustmentState(float(tuning.step_size), float(tuning.trajectory_length), coordinates)
        return _adjusting(state) if stage.is_last_tuned else state

    def update(self, state: LateAdjustmentState, sums: Sums, tuning: PyTree, stage: Stage) -> LateAdjustmentState:
        """Learn from a draw of all chains."""
        if state.adjusted is not None:
            return state._replace(adjusted=self._step_size(state).update(state.adjusted, sums, tuning, stage))
        pairs = zip(sums.position, tuning.metric.variance, strict=True)
        shares = np.concatenate([part.variance / np.asarray(variance, np.float64) for part, variance in pairs])
        spread = float(np.sqrt(np.mean(shares)))
        length = LENGTH * spread if np.isfinite(spread) and spread > 0 else state.trajectory_length
        aim = ENERGY * min(float(sums.mean("imbalance")), MOST_IMBALANCE) ** POWER
        factor = (aim / np.exp(float(sums.mean("log_energy_variance")))) ** (1 / 6)
        breaks = not np.isfinite(factor) or sums.mean("diverging") > BREAKING
        factor = 0.5 if breaks else float(np.clip(factor, LEAST_FACTOR, MOST_FACTOR))
        return state._replace(step_size=state.step_size * factor, trajectory_length=length)

    def searches(self, state: LateAdjustmentState) -> bool:
        """Return whether a step size of adjusted draws is searched for."""
        known = state.adjusted
        return self.tunes_step_size and known is not None and bool(self._step_size(state).searches(known))

    def next_window(self, state: LateAdjustmentState, sample: Sample | None, stage: Stage) -> LateAdjustmentState:
        """Begin with adjusted draws once the metric no longer changes."""
        return _adjusting(state) if stage.is_last_tuned else state

    def apply(self, state: LateAdjustmentState, tuning: PyTree, stage: Stage) -> PyTree:
        """Set what is tuned."""
        dtype, adjusted, most = tuning.step_size.dtype, state.adjusted, int(tuning.max_steps)
        length = state.trajectory_length
        if not self.tunes_step_size:
            step_size = tuning.step_size
        elif adjusted is None:
            step_size = np.asarray(state.step_size, dtype)
        else:
            tuning = self._step_size(state).apply(adjusted, tuning, stage)
            step_size = tuning.step_size
        if adjusted is not None:
            length = min(length, most * float(step_size))
        return tuning._replace(
            step_size=step_size, trajectory_length=np.asarray(length, dtype), adjusted=np.bool_(adjusted is not None)
        )

    def _step_size(self, state: LateAdjustmentState) -> StepSize:
        target = self.target or (LENIENT if state.coordinates <= FEW else STRICT)
        return StepSize(target, "max_steps", of_trajectories=True)


def _adjusting(state: LateAdjustmentState) -> LateAdjustmentState:
    step_size = np.asarray(state.step_size)
    return state._replace(adjusted=StepSizeState(dual_averaging.start(step_size), StepSizeSearch(step_size)))
