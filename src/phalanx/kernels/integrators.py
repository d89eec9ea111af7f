"""Integrators of Hamiltonian motion."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from phalanx.kernels.metrics import Metric
from phalanx.mesh.space import Position
from phalanx.programs.target import Density


class Phase(NamedTuple):
    """A point in phase space, with what was computed there."""

    position: Position
    momentum: Position
    log_density: Array
    gradient: Position


def leapfrog(density: Density, metric: Metric, phase: Phase, step_size: Array) -> Phase:
    """One velocity-Verlet step: half a kick, a drift, half a kick. One gradient."""
    space = density.space
    momentum = space.axpy(0.5 * step_size, phase.gradient, phase.momentum)
    position = space.axpy(step_size, metric.velocity(space, momentum), phase.position)
    log_density, gradient = density.value_and_grad(position)
    return Phase(position, space.axpy(0.5 * step_size, gradient, momentum), log_density, gradient)


def trajectory(density: Density, metric: Metric, phase: Phase, step_size: Array, num_steps: Array) -> Phase:
    """`num_steps` leapfrogs, at least one. The number may differ from run to run without a new compilation.

    The log density is asked for at the end alone: on the way there the compiler leaves out what only it needs.
    """

    def body(_, phase: Phase) -> Phase:
        new = leapfrog(density, metric, phase, step_size)._replace(log_density=phase.log_density)
        return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), new, phase)

    return leapfrog(density, metric, lax.fori_loop(0, num_steps - 1, body, phase), step_size)
