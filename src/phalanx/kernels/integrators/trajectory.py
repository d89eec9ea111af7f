"""A draw by a trajectory of a number of leapfrogs that is settled beforehand: what HMC, ChEES-HMC and MAMS share."""

from __future__ import annotations

from typing import ClassVar, Protocol

import jax.numpy as jnp
from jax import Array, lax

from phalanx.kernels.integrators.acceptance import decide
from phalanx.kernels.integrators.leapfrog import Phase
from phalanx.kernels.metric.low_rank import LaneMetric
from phalanx.kernels.protocol.kernel import Info, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.position import Vector
from phalanx.mesh.random_numbers import Words


class Dynamics(Protocol):
    """The equations of motion that a trajectory follows; compared by value.

    Attributes:
        least_coordinates: the fewest they make sense for.
    """

    least_coordinates: ClassVar[int] = 1

    def begin(self, at: Point, normals: Vector, target: LaneTarget, metric: LaneMetric) -> Phase:
        """Set out, with a momentum made of standard normals."""
        ...

    def leapfrog(self, phase: Phase, step_size: Array, target: LaneTarget, metric: LaneMetric) -> Phase:
        """One step."""
        ...

    def velocity(self, phase: Phase, target: LaneTarget, metric: LaneMetric) -> Vector:
        """How fast the position changes."""
        ...

    def kinetic_energy(self, phase: Phase, target: LaneTarget, metric: LaneMetric) -> Array:
        """Up to a constant; asked for at both ends of a trajectory, and not at every leapfrog."""
        ...

    def retraceable(self, begin: Phase, end: Phase) -> Array:
        """Return whether a trajectory from the end leads back to the start, as far as numbers resolve."""
        return jnp.ones(end.log_density.shape, bool)


def draw_by_trajectory(
    dynamics: Dynamics, key: Words, at: Point, num_steps: Array, step_size: Array, target: LaneTarget,
    metric: LaneMetric,
) -> tuple[Point, Info, Phase]:  # fmt: skip
    """A draw of every lane: a trajectory with a new momentum, and whether to stay at its end.

    Args:
        dynamics: the equations of motion.
        key: of the draw.
        at: where the lanes are.
        num_steps: leapfrogs, at least one and the same for all lanes. Another number compiles nothing.
        step_size: their length, one for all lanes or one for each, `(lanes,)`.
        target: the log density.
        metric: the inverse mass matrix.

    Returns:
        Where the lanes go on, what they did, and the end of the trajectory.
    """
    begin = dynamics.begin(at, target.normal(key), target, metric)

    def before_the_end(_: Array, phase: Phase) -> Phase:
        # what only the log density needs is left out by the compiler, but for the last leapfrog
        return dynamics.leapfrog(phase, step_size, target, metric)._replace(log_density=phase.log_density)

    phase = lax.fori_loop(0, num_steps - 1, before_the_end, begin)
    end = dynamics.leapfrog(phase, step_size, target, metric)
    energy = dynamics.kinetic_energy(begin, target, metric) - at.log_density
    error = dynamics.kinetic_energy(end, target, metric) - end.log_density - energy
    error = jnp.where(dynamics.retraceable(begin, end), error, jnp.inf)
    proposal = Point(end.position, end.log_density, end.gradient)
    new, info = decide(target.uniform(key), at, proposal, energy, error, num_steps)
    return new, info, end
