r"""Trajectory without a Metropolis decision, whose step size is tuned after each leapfrog of all chains.

The step size $\epsilon$ follows the variance $v$ of the energy error of a leapfrog, per coordinate. With $b$ the mean
squared distance of all chains from equipartition, $E[-x_i \, \partial_i \log\pi(x)] = 1$ for every coordinate, the
variance to aim at is $0.1\, b^{3/8}$, and $\epsilon$ is multiplied by $(0.1\, b^{3/8} / v)^{1/6}$, since $v$ grows with
$\epsilon^6$: steps are larger the farther the chains are from the posterior. Below, $b$ is called the imbalance.

Source: Robnik, Cohn-Gordon, Seljak (2026), Late-adjusted parallel sampling, arXiv 2601.16696, and its implementation in
BlackJAX, for all constants but those for which another reason is given.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from phalanx.kernels.integrators.leapfrog import PhasePoint
from phalanx.kernels.integrators.trajectory import Dynamics
from phalanx.kernels.metric.low_rank import LaneMetric
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.position import Vector, choose, inner_products

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

TARGET_VARIANCE = 0.1
"""Energy variance per coordinate to aim at where the imbalance is one."""

IMBALANCE_POWER = 3 / 8
"""Power of the imbalance to which the energy variance to aim at is proportional."""

MOST_IMBALANCE = 464.0
"""A larger imbalance counts as this one, for which the energy variance to aim at is one. Chains whose
distances from the posterior differ by orders of magnitude have 1e6 and more, which says nothing about a step size."""

LEAST_VARIANCE = 1e-20
"""Lower bound on the squared energy error of a lane per coordinate: errors below rounding have a finite logarithm."""

MOST_VARIANCE = 1e10
"""Upper bound on that square, and its value for a lane that makes no leapfrog, whose error may be infinite."""

LOG_OF_SQUARE = -1.2704
"""Mean of the logarithm of the square of a standard normal: a mean of logarithms of squared errors is so much below the
logarithm of their variance."""

LEAST_FACTOR = 0.3
"""Least factor by which the step size changes after a leapfrog."""

MOST_FACTOR = 3.0
"""Largest factor by which the step size changes after a leapfrog."""

MOST_ERROR = 100.0
"""Largest energy error of a leapfrog that a lane makes, in nats: beyond it the posterior has no mass."""

MOST_DEVIATIONS = 10.0
"""The same bound in roots of the number of coordinates, if that is more: errors to aim at have a standard deviation of
at most one such root."""

LEAST_STEPS = 2
"""Fewest leapfrogs of a trajectory whose step size is tuned. In two or three coordinates the energy errors to aim at
lead to steps beyond the length at which a leapfrog is stable, and the chains are lost."""

MOST_BROKEN = 0.05
"""Largest fraction of chains that may make no leapfrog before the step size is halved. BlackJAX halves it for a single
chain, but one lost chain would then stop all others."""


class Unadjusted(NamedTuple):
    """State of a trajectory.

    Attributes:
        phase: the last point.
        steps: leapfrogs so far.
        length: their integration time so far, the sum of the step sizes.
        step_size: of the next leapfrog.
        broken: true for lanes that have left out a leapfrog, because its energy error was too large.
    """

    phase: PhasePoint
    steps: Int[Array, ""]
    length: Float[Array, ""]
    step_size: Float[Array, ""]
    broken: Bool[Array, "lanes"]


def unadjusted_trajectory(
    dynamics: Dynamics,
    begin: PhasePoint,
    length: Float[Array, ""],
    most: Int[Array, ""],
    step_size: Float[Array, ""],
    tunes: bool,
    target: LaneTarget,
    metric: LaneMetric,
) -> Unadjusted:
    """Follow a trajectory of every lane.

    Args:
        dynamics: the equations of motion.
        begin: its start.
        length: its integration time, step size times leapfrogs.
        most: the most leapfrogs.
        step_size: of the first leapfrog, one for all lanes.
        tunes: false to keep it.
        target: the log density.
        metric: the inverse mass matrix.

    Returns:
        Its end.
    """

    def goes_on(now: Unadjusted) -> Bool[Array, ""]:
        return (now.steps < most) & (now.length < length)

    def step(now: Unadjusted) -> Unadjusted:
        new = dynamics.leapfrog(now.phase, now.step_size, target, metric)
        gained = dynamics.kinetic_energy(new, target, metric) - dynamics.kinetic_energy(now.phase, target, metric)
        error = gained - (new.log_density - now.phase.log_density)
        breaks = ~(jnp.abs(error) < max(MOST_ERROR, MOST_DEVIATIONS * math.sqrt(target.coordinates)))
        new = choose(~breaks, new, now.phase)
        factor = _factor(error, breaks, new, middle, target) if tunes else 1.0
        length_so_far = now.length + now.step_size
        next_step = jnp.minimum(now.step_size * factor, longest) if tunes else now.step_size
        return Unadjusted(new, now.steps + 1, length_so_far, next_step, now.broken | breaks)

    middle = target.mean_over_chains(begin.position) if tunes else begin.position
    longest = length / LEAST_STEPS
    first = jnp.minimum(step_size, longest) if tunes else step_size
    none = jnp.zeros(target.count, bool)
    return lax.while_loop(goes_on, step, Unadjusted(begin, jnp.int32(0), jnp.zeros_like(first), first, none))


def _factor(
    error: Float[Array, "lanes"], breaks: Bool[Array, "lanes"], at: PhasePoint, middle: Vector, target: LaneTarget
) -> Float[Array, ""]:
    """Return the factor by which the step size changes after a leapfrog; `middle` is near the mean of all chains."""
    variance = jnp.where(breaks, MOST_VARIANCE, jnp.square(error) / target.coordinates)
    # a mean of logarithms is that of most lanes: one that breaks down does not stop all others
    logarithm = jnp.log(jnp.clip(variance, LEAST_VARIANCE, MOST_VARIANCE)) - LOG_OF_SQUARE
    apart = at.position - middle
    summands = breaks.astype(error.dtype), logarithm, apart, at.gradient, apart * at.gradient
    (broken,), (logarithm,), apart, gradient, product = target.mean_over_chains(summands)
    # the square of 1 + balance, multiplied out: coordinates of padded rows have gradients of zero, and no part in it
    balance = product - apart * gradient
    ones = jax.tree.map(jnp.ones_like, balance)
    (square,), (total,) = inner_products(target.layout.groups, (balance, balance), (balance, ones))
    imbalance = jnp.maximum(1 + (square + 2 * total) / target.coordinates, 0)
    # a lost chain makes the imbalance NaN, which fmin ignores
    aim = math.log(TARGET_VARIANCE) + IMBALANCE_POWER * jnp.log(jnp.fmin(imbalance, MOST_IMBALANCE))
    factor = jnp.clip(jnp.exp((aim - logarithm) / 6), LEAST_FACTOR, MOST_FACTOR)
    return jnp.where(broken > MOST_BROKEN, 0.5, factor)
