r"""Tuner of late-adjusted sampling: trajectories of unadjusted draws, then step size and trajectories of adjusted ones.

A draw is adjusted if a Metropolis decision ends its trajectory, which corrects the error of the integrator. An
unadjusted draw is the end of its trajectory, whatever the energy error.

A trajectory is 1.9 standard deviations of the chains long. Unadjusted draws tune their step size on the devices,
leapfrog by leapfrog (`phalanx.kernels.integrators.unadjusted`). Until a first metric is learned they stop after 4
leapfrogs, with each further metric after twice as many, up to 32: an early metric helps more than long trajectories,
which only chains need whose way is long. In the last window of warm-up, draws are adjusted, and the step size is tuned
to an acceptance rate.

Source: Robnik, Cohn-Gordon, Seljak (2026), Late-adjusted parallel sampling, arXiv 2601.16696.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from phalanx.adaptation.step_size import StepSize, StepSizeSearch, StepSizeState
from phalanx.adaptation.tuner import Sample, Stage, Sums, Tuner
from phalanx.mesh.specs import PyTree

LENGTH = 1.9
"""Length of a trajectory, in standard deviations of the chains, as in the source."""

FIRST_STEPS = 4
"""Most leapfrogs of an unadjusted trajectory in the first window."""

MOST_STEPS = 32
"""Most leapfrogs of an unadjusted trajectory in any window."""

FEW_COORDINATES = 200
"""Largest number of coordinates for which the acceptance rate to aim at is `RATE_OF_FEW`."""

RATE_OF_FEW = 0.7
"""Acceptance rate to aim at with few coordinates: the default of `phx.chees`."""

RATE_OF_MANY = 0.9
"""Acceptance rate to aim at with more coordinates: the default of `phx.mams`."""


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
    """Tuner of `step_size`, `trajectory_length`, `adjusted` and `unadjusted_steps`.

    Attributes:
        target: acceptance rate of adjusted draws; None chooses by the number of coordinates.
        tunes_step_size: False keeps the kernel's step size.

    Example:
        >>> from phalanx.adaptation.late_adjustment import LateAdjustment
        >>> LateAdjustment().sets
        ('step_size', 'trajectory_length', 'adjusted', 'unadjusted_steps')
    """

    target: float | None = None
    tunes_step_size: bool = True
    sets: ClassVar[tuple[str, ...]] = ("step_size", "trajectory_length", "adjusted", "unadjusted_steps")
    every_draw: ClassVar[bool] = True
    least_last: ClassVar[int] = 10

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
        return state._replace(step_size=float(np.exp(sums.mean("log_step_size"))), trajectory_length=length)

    def searches(self, state: LateAdjustmentState) -> bool:
        """Return whether a step size of adjusted draws is searched for."""
        adjusted = state.adjusted
        return self.tunes_step_size and adjusted is not None and bool(self._step_size(state).searches(adjusted))

    def next_window(self, state: LateAdjustmentState, sample: Sample | None, stage: Stage) -> LateAdjustmentState:
        """Begin with adjusted draws once the metric no longer changes."""
        return _adjusting(state) if stage.is_last_tuned else state

    def apply(self, state: LateAdjustmentState, tuning: PyTree, stage: Stage) -> PyTree:
        """Set what is tuned."""
        dtype = tuning.step_size.dtype
        adjusted = state.adjusted
        most = int(tuning.max_steps)
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
        steps = np.asarray(min(FIRST_STEPS << stage.window, MOST_STEPS), tuning.unadjusted_steps.dtype)
        return tuning._replace(
            step_size=step_size,
            trajectory_length=np.asarray(length, dtype),
            adjusted=np.bool_(adjusted is not None),
            unadjusted_steps=steps,
        )

    def _step_size(self, state: LateAdjustmentState) -> StepSize:
        target = self.target or (RATE_OF_FEW if state.coordinates <= FEW_COORDINATES else RATE_OF_MANY)
        return StepSize(target, "max_steps", frees_chains=True, ends_at_mean=False)


def _adjusting(state: LateAdjustmentState) -> LateAdjustmentState:
    return state._replace(adjusted=StepSizeState.start(StepSizeSearch(np.asarray(state.step_size))))
