"""MAMS: microcanonical dynamics, in which the speed is constant, with a Metropolis decision at the end.

A Hamiltonian trajectory changes its speed with the density; a microcanonical one turns instead. In many dimensions its
energy error is smaller at the same step size. All trajectories have one length, found as for `phalanx.kernels.chees`.
Directions are those of coordinates whitened by the metric, and time is scaled so that a step moves a position as far as
a Hamiltonian step does on average.

Source: Robnik, De Luca, Silverstein, Seljak (2023), Microcanonical Hamiltonian Monte Carlo; Robnik, Cohn-Gordon, Seljak
(2025), Metropolis adjusted microcanonical Hamiltonian Monte Carlo.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.kernels.chees import kernel_of
from phalanx.kernels.integrators.leapfrog import PhasePoint
from phalanx.kernels.metric.low_rank import LaneMetric
from phalanx.kernels.protocol.kernel import Kernel, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.position import Vector

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

RESOLUTION_MARGIN = 4.0
"""Rounding errors of a direction must stay below e^-4 = 0.02 on the way back: about two of its digits are right."""

LARGE_CLIMB = 100.0
"""Rise of the log density, in nats, beyond which a trajectory needs no way back: the density at its start is e^-100 of
that at its end, so that draws which never return miss no mass. Chains that begin far away must be able to leave."""


class Contraction(NamedTuple):
    """Logarithm of the factor by which the turns of a trajectory have drawn neighbouring directions together.

    Attributes:
        total: since the start.
        high, low: the largest and the smallest total so far.
        rise, fall: the largest rise of the total from any point to a later one, and the largest fall.
    """

    total: Float[Array, "lanes"]
    high: Float[Array, "lanes"]
    low: Float[Array, "lanes"]
    rise: Float[Array, "lanes"]
    fall: Float[Array, "lanes"]

    @classmethod
    def none(cls, like: Float[Array, "lanes"]) -> Contraction:
        """Return the contraction at the start."""
        return cls(*(jnp.zeros_like(like),) * 5)

    def after(self, turn: Float[Array, "lanes"]) -> Contraction:
        """Return the contraction after another turn, given that of the turn."""
        total = self.total + turn
        high = jnp.maximum(self.high, total)
        low = jnp.minimum(self.low, total)
        return Contraction(total, high, low, jnp.maximum(self.rise, total - low), jnp.maximum(self.fall, high - total))


@dataclass(frozen=True)
class Microcanonical:
    """Motion at one speed: the momentum is a direction, which the gradient turns."""

    least_coordinates: ClassVar[int] = 2

    def begin(self, at: Point, normals: Vector, target: LaneTarget, metric: LaneMetric) -> PhasePoint:
        """Start in a random direction."""
        direction = normals / jnp.sqrt(target.inner_product(normals, normals))
        return PhasePoint(at.position, direction, at.log_density, at.gradient, Contraction.none(at.log_density.fine))

    def leapfrog(
        self, phase: PhasePoint, step_size: Float[Array, ""], target: LaneTarget, metric: LaneMetric
    ) -> PhasePoint:
        """Make half a turn, a drift, half a turn."""
        reach = step_size * np.sqrt(target.coordinates, dtype=target.dtype)
        half, first = _turn_direction(phase.momentum, phase.gradient, 0.5 * reach, target, metric)
        position = phase.position + reach * metric.unwhiten(half)
        log_density, gradient = target.value_and_grad(position)
        momentum, second = _turn_direction(half, gradient, 0.5 * reach, target, metric)
        return PhasePoint(position, momentum, log_density, gradient, phase.path_state.after(first).after(second))

    def velocity(self, phase: PhasePoint, target: LaneTarget, metric: LaneMetric) -> Vector:
        """Return the direction, scaled to the mean length of a Hamiltonian velocity."""
        return np.sqrt(target.coordinates, dtype=target.dtype) * metric.unwhiten(phase.momentum)

    def kinetic_energy(self, phase: PhasePoint, target: LaneTarget, metric: LaneMetric) -> Float[Array, "lanes"]:
        """Return the energy gained since the start: a direction alone does not determine it."""
        return (target.coordinates - 1) * phase.path_state.total

    def is_reversible(self, begin: PhasePoint, end: PhasePoint) -> Bool[Array, "lanes"]:
        """Return whether a trajectory from the end leads back to the start, despite rounding.

        Where the contraction has risen by r, the way back magnifies rounding errors by e^r, and must not lose the
        direction. On the way back a fall is a rise; it is bounded too, so that both ways have the same answer. Only a
        rise in a `LARGE_CLIMB` has no bound.

        Without the rule, rounding counts as energy when steps are much too long, and ends without mass are accepted:
        5 of 20,000 chains on three normals, after 100 draws of step size 3, where 8e-5 should be.
        """
        limit = -np.log(np.finfo(end.log_density.dtype).eps) - RESOLUTION_MARGIN
        climbs = end.log_density - begin.log_density > LARGE_CLIMB
        return (end.path_state.fall < limit) & ((end.path_state.rise < limit) | climbs)


def _turn_direction(
    direction: Vector, gradient: Vector, reach: Float[Array, ""], target: LaneTarget, metric: LaneMetric
) -> tuple[Vector, Float[Array, "lanes"]]:
    r"""Return the direction turned towards the gradient, and the logarithm by which that contracts directions near it.

    With $e$ the gradient's direction, $\delta$ the reach times its length and $a, b = (1 \pm e \cdot u) / 2$,
    directions near $u$ contract by $a e^\delta + b e^{-\delta}$; kinetic energy is its logarithm, times $d - 1$.
    """
    scaled_gradient = metric.whiten_gradient(gradient)
    square, along = target.inner_products((scaled_gradient, scaled_gradient), (scaled_gradient, direction))
    size = jnp.sqrt(jnp.maximum(square, jnp.finfo(square.dtype).tiny))
    towards = scaled_gradient / size
    # the smaller of a and b from the distance of two points on the sphere: the cosine would lose all its digits
    sign = jnp.where(along < 0, 1.0, -1.0).astype(square.dtype)
    between = direction + sign * towards
    small = 0.25 * target.inner_product(between, between)
    ahead = jnp.where(sign > 0, small, 1 - small)
    behind = jnp.where(sign > 0, 1 - small, small)
    delta = reach * size / (target.coordinates - 1)
    decay = jnp.exp(-delta)
    shift = jnp.where(sign > 0, ahead * (1 - decay) ** 2 - decay**2, 1 - behind * (1 - decay) ** 2)
    turned = decay * between + shift * towards
    square = target.inner_product(turned, turned)
    length = jnp.sqrt(jnp.maximum(square, jnp.finfo(square.dtype).tiny))
    return turned / length, jnp.logaddexp(jnp.log(ahead) + delta, jnp.log(behind) - delta)


def mams(
    step_size: float | None = None,
    *,
    trajectory_length: float | None = None,
    initial_step_size: float = 0.1,
    initial_trajectory_length: float = 1.0,
    target_acceptance: float = 0.9,
    max_steps: int = 1000,
    metric: str = "auto",
    relocate: bool = True,
) -> Kernel:
    r"""Return a kernel of the Metropolis-adjusted microcanonical sampler, for many chains and many dimensions.

    A position moves at constant speed, $\dot x = u$, and its direction turns towards where the density rises:
    $\dot u = (I - u u^\top)\, \nabla \log \pi(x) / (d - 1)$. The end of the trajectory is accepted with probability
    $\min(1, e^{-\Delta E})$.

    Warm-up lengthens the steps on the way to the posterior, so that chains arrive from default starts, and from starts
    a thousand standard deviations away, in a few hundred draws of warm-up. If the verdict says that chains disagree,
    begin where a fit ends, `phx.mcmc(..., init=phx.fit(model, phx.guides.pathfinder(), data))`.

    Args:
        step_size: length of a leapfrog; None tunes it in warm-up.
        trajectory_length: longest integration time, step size times leapfrogs; None tunes it in warm-up.
        initial_step_size: the step size with which tuning starts.
        initial_trajectory_length: the length with which tuning starts.
        target_acceptance: the acceptance rate at which tuning aims. It is reached where energy errors are normal, as in
            many dimensions. Tuning takes a harmonic mean of rates, in which failing trajectories weigh more, so that
            stuck chains move again: errors with heavier tails lead to smaller steps and a higher rate.
        max_steps: the most leapfrogs of a trajectory.
        metric: the form of the covariance that warm-up learns: "diagonal", "dense" or "auto"; see `phx.nuts`.
        relocate: in warm-up, move a chain that is stuck in a region of negligible posterior mass to the position of
            another chain; the verdict reports each move.

    Returns:
        A kernel for `phx.mcmc`. The model must have at least two coordinates.

    Raises:
        ValueError: when a hyperparameter is out of range.

    Example:
        >>> import phalanx as phx
        >>> phx.mams(step_size=0.5).name
        'mams(step_size=0.5, trajectory_length=None)'

    Source:
        Robnik, Cohn-Gordon, Seljak (2025), Metropolis adjusted microcanonical Hamiltonian Monte Carlo.
    """
    return kernel_of(
        "mams",
        Microcanonical(),
        step_size,
        trajectory_length,
        initial_step_size,
        initial_trajectory_length,
        target_acceptance,
        max_steps,
        metric,
        relocate,
    )
