r"""LAPS: late-adjusted parallel sampling, for hundreds of chains that find the posterior together.

Warm-up has two parts. In the first, chains follow microcanonical trajectories without a Metropolis decision, which
would hold them back on their way; the step size follows the energy errors of all chains, and is larger the farther the
chains are from equipartition, $E[-x_i \, \partial_i \log\pi(x)] = 1$ for every coordinate. In the second part, and in
sampling, a draw is one of `phalanx.kernels.mams`, so that draws are of the posterior.

Source: Robnik, Cohn-Gordon, Seljak (2026), Late-adjusted parallel sampling, arXiv 2601.16696.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from phalanx.adaptation.late_adjustment import LENGTH, LateAdjustment
from phalanx.adaptation.metric import Metric
from phalanx.kernels.chees import shared_length
from phalanx.kernels.integrators.acceptance import decide
from phalanx.kernels.integrators.leapfrog import PhasePoint
from phalanx.kernels.integrators.trajectory import draw_by_trajectory
from phalanx.kernels.mams import Microcanonical
from phalanx.kernels.protocol.kernel import Kernel, LaneState, Machine, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.kernels.protocol.options import check_metric, hyperparameter, step_size_of, whole
from phalanx.mesh.keys import Keys
from phalanx.mesh.random_numbers import Words
from phalanx.mesh.total import Total

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


MOST_UNADJUSTED = 32
"""The most leapfrogs of an unadjusted trajectory, after which the step size is tuned. Chains must have found the
posterior before a metric is learned from their first draws: with 8 leapfrogs a run takes several times the gradients
where the way is long, and fewer where it is short."""

SUPERCHAINS = 16
"""Groups in which chains start, for nested R-hat."""

LEAST_VARIANCE, MOST_VARIANCE = 1e-20, 1e10
"""Bounds on the mean square of the energy error of a leapfrog, whose logarithm is taken."""


class Tuning(NamedTuple):
    """Hyperparameters: step size, longest trajectory, the most leapfrogs, the metric, and whether draws are adjusted.

    The length of a trajectory has the units of the step size. `adjusted` is true if a Metropolis decision ends a draw.
    """

    step_size: Any
    trajectory_length: Any
    max_steps: Any
    metric: Any
    adjusted: Any


class Info(NamedTuple):
    """Statistics of one draw; see `phalanx.kernels.protocol.kernel.Info` for the first four.

    `log_energy_variance` is the logarithm of the mean square of the energy error of a leapfrog, per coordinate.
    `imbalance` is the mean over coordinates of the squared distance of all chains from equipartition. Both are zero in
    adjusted draws.
    """

    acceptance_rate: Array
    diverging: Array
    num_steps: Array
    energy: Total | Array
    log_energy_variance: Array
    imbalance: Array


@dataclass(frozen=True)
class LateAdjusted(Machine):
    """Microcanonical trajectories of one length for all chains, with or without a Metropolis decision."""

    dynamics: Microcanonical

    @property
    def least_coordinates(self) -> int:
        """The fewest coordinates for which the dynamics are defined."""
        return self.dynamics.least_coordinates

    def tick(
        self, now: LaneState, active: Bool[Array, "lanes"], keys: Keys, target: LaneTarget, tuning: Tuning
    ) -> tuple[LaneState, Bool[Array, "lanes"], Info]:
        """Make a draw of every lane."""
        key, metric = keys.of_draw(now.draw), tuning.metric
        none = jnp.zeros_like(now.at.log_density.fine)

        def adjusted() -> tuple[Point, Info]:
            _, steps = shared_length(now.draw[0], tuning, target.dtype)
            new, info, _ = draw_by_trajectory(self.dynamics, key, now.at, steps, tuning.step_size, target, metric)
            return new, Info(*info, none, none)

        # all devices take the same branch, which has sums over devices
        new, info = lax.cond(tuning.adjusted, adjusted, lambda: self._unadjusted(key, now.at, target, tuning))
        return LaneState(now.draw + 1, new, ()), jnp.ones(target.count, bool), info

    def _unadjusted(self, key: Words, at: Point, target: LaneTarget, tuning: Tuning) -> tuple[Point, Info]:
        """Move every lane to the end of a trajectory, unless that has no density at all."""
        dynamics, metric, step_size = self.dynamics, tuning.metric, tuning.step_size
        steps = jnp.clip(jnp.ceil(tuning.trajectory_length / step_size), 1, MOST_UNADJUSTED).astype(jnp.int32)
        begin = dynamics.begin(at, target.normal(key), target, metric)

        def kinetic(phase: PhasePoint) -> Float[Array, "lanes"]:
            return dynamics.kinetic_energy(phase, target, metric)

        def step(_: Array, along: tuple[PhasePoint, Array]) -> tuple[PhasePoint, Array]:
            phase, squares = along
            new = dynamics.leapfrog(phase, step_size, target, metric)
            error = kinetic(new) - kinetic(phase) - (new.log_density - phase.log_density)
            return new, squares + jnp.square(error)

        end, squares = lax.fori_loop(0, steps, step, (begin, jnp.zeros_like(at.log_density.fine)))
        energy = kinetic(begin) - at.log_density
        error = kinetic(end) - end.log_density - energy
        proposal = Point(end.position, end.log_density, end.gradient)
        # a uniform of zero is below any probability above zero
        new, info = decide(jnp.zeros_like(squares), at, proposal, energy, error, steps)
        variance = squares / steps / target.coordinates
        variance = jnp.where(jnp.isfinite(variance), variance, MOST_VARIANCE)
        # a mean of logarithms is that of most lanes: one that breaks down does not stop all others
        logarithm = jnp.log(jnp.clip(variance, LEAST_VARIANCE, MOST_VARIANCE))
        return new, Info(*info, logarithm, _imbalance(new, target))


def _imbalance(at: Point, target: LaneTarget) -> Float[Array, "lanes"]:
    """Return the mean over coordinates of the squared distance of all chains from equipartition."""
    apart = at.position - target.mean_over_chains(at.position)
    balance = target.mean_over_chains(apart * at.gradient)
    balance = jax.tree.map(lambda part, like: jnp.broadcast_to(part, like.shape), balance, apart)
    # the square of 1 + balance, multiplied out: coordinates of padded rows have no part in it
    squares, total = target.inner_products((balance, balance), (apart, at.gradient))
    return jnp.maximum(1 + (squares + 2 * target.mean_over_chains(total)) / target.coordinates, 0)


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

    Chains move to the posterior by unadjusted microcanonical trajectories, of at most 32 leapfrogs, whose step size is
    tuned after every draw of all chains. In the last part of warm-up, and in sampling, draws are those of `phx.mams`:
    the end of a trajectory is accepted with probability $\min(1, e^{-\Delta E})$. A warm-up of 100 draws suffices where
    chains begin near the posterior.

    Without `init=`, 64 chains or more start in 16 groups (superchains), each at one point, if 16 divides their number.
    The verdict on fewer than 100 draws of each chain then compares groups by nested R-hat: a few draws suffice.

    At constant speed the way from a distant start is long, as it is for `phx.mams`: begin where a fit ends,
    `phx.mcmc(..., init=phx.fit(model, phx.guides.pathfinder(), data))`, if the verdict says that chains disagree.

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
    most = hyperparameter(whole("laps", "max_steps", max_steps))
    return Kernel(
        name=f"laps(step_size={step_size})",
        machine=LateAdjusted(Microcanonical()),
        tuning=Tuning(first, hyperparameter(LENGTH), most, None, np.bool_(True)),
        tuners=(Metric(metric), LateAdjustment(target_acceptance, tunes_step_size=step_size is None)),
        statistics=Info._fields,
        relocates=relocate,
        superchains=SUPERCHAINS,
    )
