"""Hamilton's equations as the dynamics of a trajectory."""

from __future__ import annotations

from dataclasses import dataclass

from jax import Array

from phalanx.kernels.integrators.leapfrog import Phase, kinetic_energy, leapfrog
from phalanx.kernels.integrators.trajectory import Dynamics
from phalanx.kernels.metric.low_rank import LaneMetric
from phalanx.kernels.protocol.kernel import Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.position import Vector


@dataclass(frozen=True)
class Hamiltonian(Dynamics):
    """Motion with a normal momentum."""

    def begin(self, at: Point, normals: Vector, target: LaneTarget, metric: LaneMetric) -> Phase:
        """Set out with a normal momentum."""
        return Phase(at.position, metric.momentum(normals), at.log_density, at.gradient)

    def leapfrog(self, phase: Phase, step_size: Array, target: LaneTarget, metric: LaneMetric) -> Phase:
        """Half a kick, a drift, half a kick."""
        return leapfrog(phase, step_size, target, metric)

    def velocity(self, phase: Phase, target: LaneTarget, metric: LaneMetric) -> Vector:
        """Momentum over mass."""
        return metric.velocity(phase.momentum)

    def kinetic_energy(self, phase: Phase, target: LaneTarget, metric: LaneMetric) -> Array:
        """Half of momentum times velocity."""
        return kinetic_energy(phase.momentum, target, metric)
