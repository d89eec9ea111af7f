r"""LAPS: late-adjusted parallel sampling, for hundreds of chains that find the posterior together.

Warm-up has two parts. In the first, draws are unadjusted: chains follow microcanonical trajectories without a
Metropolis decision, which would hold them back on their way; the step size is tuned after each leapfrog, by the energy
errors of all chains (`phalanx.kernels.integrators.unadjusted`). In the second part, and in sampling, draws are
adjusted: a Metropolis decision ends each, as in `phalanx.kernels.mams`, so that draws are of the posterior.

Source: Robnik, Cohn-Gordon, Seljak (2026), Late-adjusted parallel sampling, arXiv 2601.16696.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from phalanx.adaptation.late_adjustment import FIRST_STEPS, LENGTH, LateAdjustment
from phalanx.adaptation.metric import Metric
from phalanx.kernels.chees import shared_length
from phalanx.kernels.integrators.trajectory import draw_by_trajectory
from phalanx.kernels.integrators.unadjusted import unadjusted_trajectory
from phalanx.kernels.mams import Microcanonical
from phalanx.kernels.protocol.kernel import Kernel, LaneState, Machine, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.kernels.protocol.options import check_integer, check_metric, hyperparameter, step_size_of
from phalanx.mesh.random_numbers import Bits, Keys
from phalanx.mesh.total import Total

if TYPE_CHECKING:
    from jaxtyping import Bool


SUPERCHAINS = 16
"""Groups in which chains start, for nested R-hat."""


class Tuning(NamedTuple):
    """Hyperparameters.

    Attributes:
        step_size: of a draw's first leapfrog.
        trajectory_length: integration time of a trajectory, step size times leapfrogs.
        max_steps: the most leapfrogs of an adjusted trajectory.
        metric: the inverse mass matrix.
        adjusted: true if a Metropolis decision ends a draw.
        unadjusted_steps: the most leapfrogs of an unadjusted trajectory.
    """

    step_size: Any
    trajectory_length: Any
    max_steps: Any
    metric: Any
    adjusted: Any
    unadjusted_steps: Any


class Info(NamedTuple):
    """Statistics of one draw; see `phalanx.kernels.protocol.kernel.Info` for the first four.

    `log_step_size` is the logarithm of the step size at the end of the draw, which unadjusted draws tune.
    """

    acceptance_rate: Array
    diverging: Array
    num_steps: Array
    energy: Total | Array
    log_step_size: Array


@dataclass(frozen=True)
class LateAdjusted(Machine):
    """Microcanonical trajectories of one length for all chains, with or without a Metropolis decision.

    Attributes:
        dynamics: the equations of motion.
        tunes_step_size: false if unadjusted trajectories keep their step size.
    """

    dynamics: Microcanonical
    tunes_step_size: bool = True

    @property
    def least_coordinates(self) -> int:
        """The fewest coordinates for which the dynamics are defined."""
        return self.dynamics.least_coordinates

    def step(
        self, now: LaneState, active: Bool[Array, "lanes"], keys: Keys, target: LaneTarget, tuning: Tuning
    ) -> tuple[LaneState, Bool[Array, "lanes"], Info]:
        """Make a draw of every lane."""
        key = keys.of_draw(now.draw)
        metric = tuning.metric

        def adjusted() -> tuple[Point, Info]:
            _, steps = shared_length(now.draw[0], tuning, target.dtype)
            new, info, _ = draw_by_trajectory(self.dynamics, key, now.at, steps, tuning.step_size, target, metric)
            return new, Info(*info, jnp.broadcast_to(jnp.log(tuning.step_size), (target.count,)))

        # all devices take the same branch, which has sums over devices
        new, info = lax.cond(tuning.adjusted, adjusted, lambda: self._unadjusted(key, now.at, target, tuning))
        return LaneState(now.draw + 1, new, ()), jnp.ones(target.count, bool), info

    def _unadjusted(self, key: Bits, at: Point, target: LaneTarget, tuning: Tuning) -> tuple[Point, Info]:
        """Move every lane to the end of a trajectory."""
        dynamics = self.dynamics
        metric = tuning.metric
        length = tuning.trajectory_length
        most = tuning.unadjusted_steps
        begin = dynamics.begin(at, target.normal(key), target, metric)
        trajectory = unadjusted_trajectory(
            dynamics, begin, length, most, tuning.step_size, self.tunes_step_size, target, metric
        )
        end = trajectory.phase
        kinetic = dynamics.kinetic_energy(end, target, metric)
        error = kinetic - dynamics.kinetic_energy(begin, target, metric) - (end.log_density - at.log_density)
        log_step_size = jnp.broadcast_to(jnp.log(trajectory.step_size), (target.count,))
        rate = jnp.exp(-jnp.maximum(error, 0))
        info = Info(rate, trajectory.broken, trajectory.steps, kinetic - end.log_density, log_step_size)
        return Point(end.position, end.log_density, end.gradient), info


def laps(
    step_size: float | None = None,
    *,
    initial_step_size: float = 0.1,
    target_acceptance: float | None = None,
    max_steps: int = 15,
    metric: str = "auto",
    relocate: bool = True,
) -> Kernel:
    r"""Return a kernel of late-adjusted parallel sampling, for hundreds of chains or more.

    Chains move to the posterior by unadjusted microcanonical trajectories, of at most 4 leapfrogs until a first metric
    is learned and of up to 32 later; the step size is tuned after each leapfrog of all chains. In the last part of
    warm-up, and in sampling, draws are those of `phx.mams`: the end of a trajectory is accepted with probability
    $\min(1, e^{-\Delta E})$. A warm-up of 100 draws suffices where chains begin near the posterior.

    Without `init=`, 64 chains or more start in 16 groups (superchains), each at one point, if 16 divides their number.
    The verdict on fewer than 100 draws of each chain then compares groups by nested R-hat: a few draws suffice.

    If the verdict says that chains disagree, the warm-up was too short for their starts: give it more draws, or begin
    where a fit ends, `phx.mcmc(..., init=phx.fit(model, phx.guides.pathfinder(), data))`.

    Args:
        step_size: length of a leapfrog; None tunes it.
        initial_step_size: the step size with which tuning starts.
        target_acceptance: the acceptance rate in sampling; None takes .7 up to 200 coordinates, and .9 beyond.
        max_steps: the most leapfrogs of an adjusted trajectory; where draws are correlated, more may pay.
        metric: the form of the covariance that warm-up learns: "diagonal", "dense" or "auto"; see `phx.nuts`.
        relocate: in warm-up, move a chain that is stuck in a region of negligible posterior mass to the position of
            another chain; the verdict reports each move.

    Returns:
        A kernel for `phx.mcmc`. The model must have at least two coordinates.

    Raises:
        ValueError: when a hyperparameter is out of range.

    Example:
        >>> import phalanx as phx
        >>> phx.laps(step_size=0.5).name
        'laps(step_size=0.5)'

    Source:
        Robnik, Cohn-Gordon, Seljak (2026), Late-adjusted parallel sampling, arXiv 2601.16696.
    """
    first = step_size_of("laps", step_size, initial_step_size, 0.7 if target_acceptance is None else target_acceptance)
    check_metric("laps", metric)
    most = hyperparameter(check_integer("laps", "max_steps", max_steps))
    return Kernel(
        name=f"laps(step_size={step_size})",
        machine=LateAdjusted(Microcanonical(), tunes_step_size=step_size is None),
        tuning=Tuning(first, hyperparameter(LENGTH), most, None, np.bool_(True), hyperparameter(FIRST_STEPS)),
        tuners=(Metric(metric), LateAdjustment(target_acceptance, tunes_step_size=step_size is None)),
        statistics=Info._fields,
        relocates=relocate,
        superchains=SUPERCHAINS,
    )
