"""Hamilton's equations as the dynamics of a trajectory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from phalanx.kernels.kernel import Point
from phalanx.kernels.lane_target import LaneTarget
from phalanx.kernels.leapfrog import Phase, kinetic_energy, leapfrog
from phalanx.kernels.low_rank import LaneMetric
from phalanx.kernels.vector import Vector


@dataclass(frozen=True)
class Hamiltonian:
    """Motion with a normal momentum; see `phalanx.kernels.trajectory.Dynamics`."""

    least_coordinates: ClassVar[int] = 1

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

    def retraceable(self, begin: Phase, end: Phase) -> Array:
        """Always."""
        return jnp.ones(end.log_density.shape, bool)
