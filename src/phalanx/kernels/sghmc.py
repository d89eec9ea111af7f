"""Stochastic gradient Hamiltonian Monte Carlo: motion with friction, on gradients of a few rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from phalanx.kernels.protocol.kernel import Info, Kernel, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.kernels.protocol.options import is_number
from phalanx.kernels.sgld import ended, falling, kernel_on_rows
from phalanx.mesh.position import Vector
from phalanx.mesh.random_numbers import Bits

STEPS = 10
"""Steps of a draw by default, as for `phx.hmc`."""


class Tuning(NamedTuple):
    """Hyperparameters: `num_steps` steps make a draw, the first of `step_size`, falling over a cycle."""

    step_size: Any
    num_steps: Any
    cycle: Any
    temperature: Any
    friction: Any


def draw(key: Bits, at: Point, target: LaneTarget, tuning: Tuning) -> tuple[Point, Info]:
    """Draw a momentum, and follow the motion, with new rows at every step."""
    keep = 1 - tuning.friction
    shaken = jnp.sqrt(tuning.temperature * (1 - keep**2))  # leaves the distribution of a momentum invariant

    def step(number: Array, phase: tuple[Point, Vector]) -> tuple[Point, Vector]:
        at, momentum = phase
        half = 0.5 * tuning.step_size * jnp.sqrt(falling(number, tuning.cycle))
        momentum = momentum + half * at.gradient
        position = at.position + half * momentum
        momentum = keep * momentum + shaken * target.normal(key, number + 1)
        position = position + half * momentum
        there = Point(position, *target.estimate(position, key, number + 1))
        return there, momentum + half * there.gradient

    begin = at, jnp.sqrt(tuning.temperature) * target.normal(key)
    end, _ = lax.fori_loop(0, tuning.num_steps, step, begin)
    return ended(at, end, target, tuning.num_steps)


def sghmc(
    step_size: float,
    batch_size: int,
    *,
    num_steps: int | None = None,
    friction: float = 0.1,
    cycle: int | None = None,
    temperature: float = 1.0,
) -> Kernel:
    r"""Return a kernel of stochastic gradient Hamiltonian Monte Carlo: friction, and gradients of a few rows.

    A draw begins with a momentum $p \sim N(0, T I)$ and makes `num_steps` steps: half a kick, half a drift, friction,
    half a drift, half a kick,

    $$p \leftarrow p + \tfrac\epsilon2 \hat g(x), \quad x \leftarrow x + \tfrac\epsilon2 p, \quad
    p \leftarrow (1 - \alpha) p + \sqrt{T (1 - (1 - \alpha)^2)}\, z, \quad x \leftarrow x + \tfrac\epsilon2 p, \quad
    p \leftarrow p + \tfrac\epsilon2 \hat g(x),$$

    with gradients $\hat g$ of $B$ of $N$ rows, as for `phx.sgld`; the second kick of a step and the first kick of the
    next share one gradient. The error of steps in this order is of order $\epsilon^2$. The momentum carries a chain
    farther than the noise of `phx.sgld` does, and friction removes the heat of the gradients' noise, the more the
    larger $\alpha$ is.

    The draws are approximate, each chain has rows of its own, and each device draws from its own shard of the data: see
    `phx.sgld`.

    Args:
        step_size: $\epsilon$, in units of the unconstrained coordinates, as for `phx.hmc`; at the beginning of a cycle.
        batch_size: rows of a step. If it is the number of all rows, each is used once, without noise.
        num_steps: steps of a draw; None means 10, or a cycle.
        friction: $\alpha$, the fraction of the momentum that a step removes.
        cycle: steps of a draw, over which the step size falls to nearly zero before the next cycle begins; its square
            falls along half a cosine.
        temperature: $T$; 1 draws from the posterior, 0 climbs to a mode.

    Returns:
        A kernel for `phx.mcmc`. Warm-up does not tune it, but gives chains time to find the posterior.

    Raises:
        ValueError: as for `phx.sgld`; when the friction is not above 0 and at most 1; or when both `num_steps` and
            `cycle` are given.

    Example:
        >>> import phalanx as phx
        >>> phx.sghmc(step_size=0.01, batch_size=50, cycle=100).name
        'sghmc(step_size=0.01, batch_size=50, num_steps=100, cycle=100)'

    Source:
        Chen, Fox, Guestrin (2014), Stochastic gradient Hamiltonian Monte Carlo; Leimkuhler, Matthews (2013), Rational
        construction of stochastic numerical methods for molecular sampling, whose order of steps this is; Zhang, Li,
        Zhang, Chen, Wilson (2020), Cyclical stochastic gradient MCMC for Bayesian deep learning.
    """
    if not is_number(friction) or not 0 < friction <= 1:
        raise ValueError(f"sghmc: friction must be above 0 and at most 1, got {friction!r}.")
    if cycle is not None and num_steps is not None:
        raise ValueError(f"sghmc: num_steps={num_steps!r} and cycle={cycle!r} are both the steps of a draw; give one.")
    if num_steps is None:
        num_steps = STEPS if cycle is None else cycle
    return kernel_on_rows(
        "sghmc",
        draw,
        Tuning,
        step_size,
        batch_size,
        num_steps,
        cycle,
        temperature,
        float(friction),
        text=f", num_steps={num_steps}",
    )
