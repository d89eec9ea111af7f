"""Draw by a trajectory whose number of leapfrogs is fixed beforehand, as in HMC, ChEES-HMC and MAMS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import jax.numpy as jnp
from jax import Array, lax

from phalanx.kernels.integrators.acceptance import decide
from phalanx.kernels.integrators.leapfrog import PhasePoint, kinetic_energy, leapfrog
from phalanx.kernels.metric.low_rank import LaneMetric
from phalanx.kernels.protocol.kernel import Info, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.position import Vector
from phalanx.mesh.random_numbers import Bits

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Integer


@runtime_checkable
class Dynamics(Protocol):
    """Equations of motion that a trajectory follows; compared by value.

    Attributes:
        least_coordinates: the fewest coordinates for which they are defined.
    """

    least_coordinates: ClassVar[int] = 1

    def begin(self, at: Point, normals: Vector, target: LaneTarget, metric: LaneMetric) -> PhasePoint:
        """Start, with a momentum made of standard normals."""
        ...

    def leapfrog(
        self, phase: PhasePoint, step_size: Float[Array, "*#lanes"], target: LaneTarget, metric: LaneMetric
    ) -> PhasePoint:
        """Make one step."""
        ...

    def velocity(self, phase: PhasePoint, target: LaneTarget, metric: LaneMetric) -> Vector:
        """Return the time derivative of the position."""
        ...

    def kinetic_energy(self, phase: PhasePoint, target: LaneTarget, metric: LaneMetric) -> Float[Array, "lanes"]:
        """Return the kinetic energy up to a constant; called at both ends of a trajectory, not at every leapfrog."""
        ...

    def is_reversible(self, begin: PhasePoint, end: PhasePoint) -> Bool[Array, "lanes"]:
        """Return whether a trajectory from the end leads back to the start, despite rounding; else it is rejected."""
        return jnp.ones(end.log_density.shape, bool)


@dataclass(frozen=True)
class Hamiltonian(Dynamics):
    """Motion with a normal momentum."""

    def begin(self, at: Point, normals: Vector, target: LaneTarget, metric: LaneMetric) -> PhasePoint:
        """Start with a normal momentum."""
        return PhasePoint(at.position, metric.momentum(normals), at.log_density, at.gradient)

    def leapfrog(
        self, phase: PhasePoint, step_size: Float[Array, "*#lanes"], target: LaneTarget, metric: LaneMetric
    ) -> PhasePoint:
        """Make half a kick, a drift, half a kick."""
        return leapfrog(phase, step_size, target, metric)

    def velocity(self, phase: PhasePoint, target: LaneTarget, metric: LaneMetric) -> Vector:
        """Return momentum over mass."""
        return metric.velocity(phase.momentum)

    def kinetic_energy(self, phase: PhasePoint, target: LaneTarget, metric: LaneMetric) -> Float[Array, "lanes"]:
        """Return half of momentum times velocity."""
        return kinetic_energy(phase.momentum, target, metric)


def draw_by_trajectory(
    dynamics: Dynamics,
    key: Bits,
    at: Point,
    num_steps: Integer[Array, ""],
    step_size: Float[Array, "*#lanes"],
    target: LaneTarget,
    metric: LaneMetric,
    in_warm_up: bool | Bool[Array, ""] = False,
) -> tuple[Point, Info, PhasePoint]:
    """Make a draw of every lane: a trajectory with a new momentum, and a Metropolis decision at its end.

    Args:
        dynamics: the equations of motion.
        key: of the draw.
        at: the lanes' points.
        num_steps: leapfrogs, at least one and the same for all lanes; another number does not recompile.
        step_size: their length, one for all lanes or one for each, `(lanes,)`.
        target: the log density.
        metric: the inverse mass matrix.
        in_warm_up: true to accept ends of a higher log density even if the trajectory is not reversible. Chains on
            their way to the posterior have no distribution to leave invariant, and would be held where they began.

    Returns:
        The lanes' next points, statistics of the draw, and the end of the trajectory.
    """
    begin = dynamics.begin(at, target.normal(key), target, metric)

    def before_the_end(_: Array, phase: PhasePoint) -> PhasePoint:
        # with its log density unused, XLA computes gradients alone in all leapfrogs but the last
        return dynamics.leapfrog(phase, step_size, target, metric)._replace(log_density=phase.log_density)

    phase = lax.fori_loop(0, num_steps - 1, before_the_end, begin)
    end = dynamics.leapfrog(phase, step_size, target, metric)
    energy = dynamics.kinetic_energy(begin, target, metric) - at.log_density
    error = dynamics.kinetic_energy(end, target, metric) - end.log_density - energy
    climbs_in_warm_up = in_warm_up & (end.log_density - at.log_density > 0)
    error = jnp.where(dynamics.is_reversible(begin, end) | climbs_in_warm_up, error, jnp.inf)
    proposal = Point(end.position, end.log_density, end.gradient)
    new, info = decide(target.uniform(key), at, proposal, energy, error, num_steps)
    return new, info, end
