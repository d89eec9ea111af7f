r"""Leapfrog: one step of Hamiltonian motion.

With $H(x, p) = -\log\pi(x) + \tfrac12 p^\top M^{-1} p$: half a kick, a drift, half a kick,

$$p \leftarrow p + \tfrac\epsilon2 \nabla\log\pi(x), \quad x \leftarrow x + \epsilon M^{-1} p, \quad
p \leftarrow p + \tfrac\epsilon2 \nabla\log\pi(x).$$

It is reversible and preserves volume; its energy error over a fixed time is of order $\epsilon^2$.

Source: Duane, Kennedy, Pendleton, Roweth (1987), Hybrid Monte Carlo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from jax import Array

from phalanx.kernels.metric.low_rank import LaneMetric
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.position import Vector
from phalanx.mesh.total import Total

if TYPE_CHECKING:
    from jaxtyping import Float


class PhasePoint(NamedTuple):
    """Point of a trajectory: position and momentum.

    Attributes:
        position, momentum: of every lane.
        log_density: at the position, `(lanes,)`.
        gradient: of the log density.
        path_state: further state of the dynamics, which depends on the trajectory up to this point.
    """

    position: Vector
    momentum: Vector
    log_density: Total
    gradient: Vector
    path_state: Any = ()


def leapfrog(
    phase: PhasePoint, step_size: Float[Array, ""] | Float[Array, "lanes"], target: LaneTarget, metric: LaneMetric
) -> PhasePoint:
    """Make one leapfrog, with one gradient; a negative step size goes back in time.

    Args:
        phase: the point to start from.
        step_size: one for all lanes, or one for each, `(lanes,)`.
        target: the log density.
        metric: the inverse mass matrix.

    Returns:
        The next point.
    """
    half = phase.momentum + 0.5 * step_size * phase.gradient
    position = phase.position + step_size * metric.velocity(half)
    log_density, gradient = target.value_and_grad(position)
    return PhasePoint(position, half + 0.5 * step_size * gradient, log_density, gradient)


def kinetic_energy(momentum: Vector, target: LaneTarget, metric: LaneMetric) -> Float[Array, "lanes"]:
    r"""Return $\tfrac12 p^\top M^{-1} p$ over all devices, `(lanes,)`."""
    return 0.5 * target.inner_product(momentum, metric.velocity(momentum))
