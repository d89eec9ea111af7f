r"""The leapfrog: the one step of Hamiltonian motion that every kernel with a momentum takes.

With $H(x, p) = -\log\pi(x) + \tfrac12 p^\top M^{-1} p$: half a kick, a drift, half a kick,

$$p \leftarrow p + \tfrac\epsilon2 \nabla\log\pi(x), \quad x \leftarrow x + \epsilon M^{-1} p, \quad
p \leftarrow p + \tfrac\epsilon2 \nabla\log\pi(x).$$

It is reversible and keeps volume; its energy error over a time goes with $\epsilon^2$.

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


class Phase(NamedTuple):
    """A point of a trajectory.

    Attributes:
        position, momentum: where it is, and what moves it.
        log_density: at the position, `(lanes,)`.
        gradient: of the log density.
        gathered: what dynamics keep of the trajectory so far, where the momentum does not tell it.
    """

    position: Vector
    momentum: Vector
    log_density: Total
    gradient: Vector
    gathered: Any = ()


def leapfrog(
    phase: Phase, step_size: Float[Array, ""] | Float[Array, "lanes"], target: LaneTarget, metric: LaneMetric
) -> Phase:
    """One leapfrog, and one gradient; a negative step size goes back in time.

    Args:
        phase: where to go on.
        step_size: one for all lanes, or one for each, `(lanes,)`.
        target: the log density.
        metric: the inverse mass matrix.

    Returns:
        Where it leads.
    """
    half = phase.momentum + 0.5 * step_size * phase.gradient
    position = phase.position + step_size * metric.velocity(half)
    log_density, gradient = target.value_and_grad(position)
    return Phase(position, half + 0.5 * step_size * gradient, log_density, gradient)


def kinetic_energy(momentum: Vector, target: LaneTarget, metric: LaneMetric) -> Float[Array, "lanes"]:
    r"""$\tfrac12 p^\top M^{-1} p$ over all devices, `(lanes,)`."""
    return 0.5 * target.inner_product(momentum, metric.velocity(momentum))
