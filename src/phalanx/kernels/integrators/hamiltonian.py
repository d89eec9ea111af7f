"""Hamilton's equations as the dynamics of a trajectory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jax import Array

from phalanx.kernels.integrators.leapfrog import PhasePoint, kinetic_energy, leapfrog
from phalanx.kernels.integrators.trajectory import Dynamics
from phalanx.kernels.metric.low_rank import LaneMetric
from phalanx.kernels.protocol.kernel import Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.position import Vector

if TYPE_CHECKING:
    from jaxtyping import Float


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
