"""MAMS: microcanonical dynamics, in which the speed is the same everywhere, with a Metropolis decision at the end.

Where the density falls a Hamiltonian trajectory is fast, and where it rises slow; a microcanonical one turns instead.
In many dimensions its energy error is smaller at the same step size. Trajectories have one length, found as for
`phalanx.kernels.chees`. Directions are those of coordinates that the metric has whitened, and time is scaled so that a
step takes a position as far as a Hamiltonian one does on average.

Source: Robnik, De Luca, Silverstein, Seljak (2023), Microcanonical Hamiltonian Monte Carlo; Robnik, Cohn-Gordon, Seljak
(2025), Metropolis adjusted microcanonical Hamiltonian Monte Carlo.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.kernels.chees import kernel_of
from phalanx.kernels.integrators.leapfrog import Phase
from phalanx.kernels.metric.low_rank import LaneMetric
from phalanx.kernels.protocol.kernel import Kernel, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.position import Vector

RESOLVED = 4.0
"""How far above the rounding of a direction, as a logarithm, what is left of a difference must be: two digits."""

HEADLONG = 100.0
"""A start whose log density is this much below the end's has no mass that could be lost."""


class Pull(NamedTuple):
    """How much the directions about that of a trajectory have been drawn together, as a logarithm.

    Attributes:
        total: since the start.
        high, low: the largest and the smallest total so far.
        rise, fall: the largest rise of the total from any point to a later one, and the largest fall.
    """

    total: Any
    high: Any
    low: Any
    rise: Any
    fall: Any

    @classmethod
    def none(cls, like: Array) -> Pull:
        """At the start."""
        return cls(*(jnp.zeros_like(like),) * 5)

    def then(self, more: Array) -> Pull:
        """After another turn."""
        total = self.total + more
        high, low = jnp.maximum(self.high, total), jnp.minimum(self.low, total)
        return Pull(total, high, low, jnp.maximum(self.rise, total - low), jnp.maximum(self.fall, high - total))


@dataclass(frozen=True)
class Microcanonical:
    """Motion at one speed: the momentum is a direction, which the gradient turns."""

    least_coordinates: ClassVar[int] = 2

    def begin(self, at: Point, normals: Vector, target: LaneTarget, metric: LaneMetric) -> Phase:
        """Set out in a direction at random."""
        direction = normals / jnp.sqrt(target.inner_product(normals, normals))
        return Phase(at.position, direction, at.log_density, at.gradient, Pull.none(at.log_density.fine))

    def leapfrog(self, phase: Phase, step_size: Array, target: LaneTarget, metric: LaneMetric) -> Phase:
        """Half a turn, a drift, half a turn."""
        reach = step_size * np.sqrt(target.coordinates, dtype=target.dtype)
        half, first = _turned(phase.momentum, phase.gradient, 0.5 * reach, target, metric)
        position = phase.position + reach * metric.widened(half)
        log_density, gradient = target.value_and_grad(position)
        momentum, second = _turned(half, gradient, 0.5 * reach, target, metric)
        return Phase(position, momentum, log_density, gradient, phase.gathered.then(first).then(second))

    def velocity(self, phase: Phase, target: LaneTarget, metric: LaneMetric) -> Vector:
        """The direction, as long as a Hamiltonian velocity is on average."""
        return np.sqrt(target.coordinates, dtype=target.dtype) * metric.widened(phase.momentum)

    def kinetic_energy(self, phase: Phase, target: LaneTarget, metric: LaneMetric) -> Array:
        """What has been gained so far: of a direction alone it cannot be told."""
        return (target.coordinates - 1) * phase.gathered.total

    def retraceable(self, begin: Phase, end: Phase) -> Array:
        """Whether it can be followed back: directions drawn together beyond rounding are one, and do not part again.

        A fall of the total is a rise backwards in time, so that trajectories are turned down in both directions alike.
        A rise may be as large as it likes where the trajectory climbs from so far that none would ever lead down. Where
        steps are much too long, rounding would be told as energy, and ends be taken that have no mass at all: 5 of
        20,000 chains on three normals, after 100 draws of step size 3, where 8e-5 should be.
        """
        limit = -np.log(np.finfo(end.log_density.dtype).eps) - RESOLVED
        headlong = end.log_density - begin.log_density > HEADLONG
        return (end.gathered.fall < limit) & ((end.gathered.rise < limit) | headlong)


def _turned(
    direction: Vector, gradient: Vector, reach: Array, target: LaneTarget, metric: LaneMetric
) -> tuple[Vector, Array]:
    r"""The direction after it has been turned towards the gradient, and how much it has been pulled together.

    With $e$ the gradient's direction, $\delta$ the reach times its length and $a, b = (1 \pm e \cdot u) / 2$, what was
    near $u$ is drawn together by $a e^\delta + b e^{-\delta}$; kinetic energy is that logarithm, times $d - 1$.
    """
    scaled = metric.narrowed(gradient)
    square, along = target.inner_products((scaled, scaled), (scaled, direction))
    size = jnp.sqrt(jnp.maximum(square, jnp.finfo(square.dtype).tiny))
    towards = scaled / size
    # the smaller of a and b from the distance of two points of the sphere: from the cosine all its digits would be lost
    sign = jnp.where(along < 0, 1.0, -1.0).astype(square.dtype)
    between = direction + sign * towards
    small = 0.25 * target.inner_product(between, between)
    ahead, behind = jnp.where(sign > 0, small, 1 - small), jnp.where(sign > 0, 1 - small, small)
    delta = reach * size / (target.coordinates - 1)
    decay = jnp.exp(-delta)
    shift = jnp.where(sign > 0, ahead * (1 - decay) ** 2 - decay**2, 1 - behind * (1 - decay) ** 2)
    turned = decay * between + shift * towards
    square = target.inner_product(turned, turned)
    length = jnp.sqrt(jnp.maximum(square, jnp.finfo(square.dtype).tiny))
    return turned / length, jnp.logaddexp(jnp.log(ahead) + delta, jnp.log(behind) - delta)


def mams(
    step_size: float | None = None,
    trajectory_length: float | None = None,
    *,
    initial_step_size: float = 0.1,
    initial_trajectory_length: float = 1.0,
    target_acceptance: float = 0.9,
    max_steps: int = 1000,
    metric: str = "auto",
    relocate: bool = True,
) -> Kernel:
    r"""The Metropolis-adjusted microcanonical sampler, for many chains and many dimensions.

    A position moves at constant speed, $\dot x = u$, and its direction turns towards where the density rises:
    $\dot u = (I - u u^\top)\, \nabla \log \pi(x) / (d - 1)$. The end of the trajectory is accepted with probability
    $\min(1, e^{-\Delta E})$.

    At one speed it takes long from far away, and where log densities are some -1e7, rounding keeps acceptance below
    what tuning aims at: chains may then not come to the posterior in warm-up, and the verdict says so. Begin such runs
    where a fit ends, `phx.mcmc(..., init=phx.fit(model, phx.guides.pathfinder(), data))`.

    Args:
        step_size: length of a leapfrog; None tunes it in warm-up.
        trajectory_length: the longest trajectory, in the units of the step size; None tunes it in warm-up.
        initial_step_size: where tuning starts.
        initial_trajectory_length: where tuning starts.
        target_acceptance: the acceptance rate tuning aims at, reached where energy errors are normal, as in many
            dimensions. Trajectories that fail count for more than others (tuning takes a harmonic mean, so that chains
            that are stuck move again): where errors have heavier tails the steps are smaller, and the rate is higher.
        max_steps: leapfrogs of a trajectory at most.
        metric: what warm-up learns of the posterior's covariance: "diagonal", "dense" or "auto"; see `phx.nuts`.
        relocate: whether a chain that has settled where the posterior has next to no mass goes on beside another,
            in warm-up; the verdict says when it has happened.

    Returns:
        A kernel for `phx.mcmc`. The model must have at least two coordinates.

    Raises:
        ValueError: when a hyperparameter is out of range.

    Example:
        >>> import phalanx as phx
        >>> kernel = phx.mams()

    Source:
        Robnik, Cohn-Gordon, Seljak (2025), Metropolis adjusted microcanonical Hamiltonian Monte Carlo.
    """
    return kernel_of(
        "mams", Microcanonical(), step_size, trajectory_length, initial_step_size, initial_trajectory_length,
        target_acceptance, max_steps, metric, relocate,
    )  # fmt: skip
