"""Random-walk Metropolis."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from phalanx.kernels.acceptance import metropolis
from phalanx.kernels.kernel import Info, Kernel, hyperparameter, positive
from phalanx.mesh.space import Position
from phalanx.programs.target import Density


class State(NamedTuple):
    """A position with its log density."""

    position: Position
    log_density: Array


class Tuning(NamedTuple):
    """Hyperparameters: the standard deviation of a proposal."""

    step_size: Array


def init(key: Array, position: Position, density: Density) -> State:
    """The state at a position."""
    return State(position, density.log_density(position))


def step(key: Array, state: State, density: Density, tuning: Tuning) -> tuple[State, Info]:
    """Propose a normal step, accept or stay."""
    key_proposal, key_accept = random.split(key)
    move = density.space.normal(key_proposal, state.position)
    proposal = density.space.axpy(tuning.step_size, move, state.position)
    log_density = density.log_density(proposal)
    uniform = random.uniform(key_accept, dtype=log_density.dtype)
    accepted, acceptance_rate = metropolis(uniform, log_density - state.log_density)
    proposed = State(proposal, log_density)
    new = jax.tree.map(lambda a, b: lax.select(jnp.broadcast_to(accepted, a.shape), a, b), proposed, state)
    return new, Info(acceptance_rate, jnp.isnan(log_density), jnp.int32(1), -new.log_density)


def rwmh(step_size: float | None = None, *, initial_step_size: float = 0.1, target_acceptance: float = 0.234) -> Kernel:
    r"""Random-walk Metropolis.

    Propose $x' = x + \epsilon z$ with $z \sim N(0, I)$; accept with probability $\min(1, \pi(x')/\pi(x))$.

    Args:
        step_size: standard deviation $\epsilon$ of a proposal on the unconstrained scale; None tunes it in warm-up.
        initial_step_size: where tuning starts.
        target_acceptance: the acceptance rate tuning aims at; 0.234 is best in many dimensions, 0.44 in one.

    Returns:
        A kernel for `phx.mcmc`.

    Raises:
        ValueError: when a hyperparameter is out of range.

    Example:
        >>> import phalanx as phx
        >>> kernel = phx.rwmh(step_size=0.1)

    Source:
        Metropolis et al. (1953), Equation of state calculations by fast computing machines; Roberts, Gelman, Gilks
        (1997), Weak convergence and optimal scaling of random walk Metropolis algorithms.
    """
    positive("rwmh", "initial_step_size", initial_step_size)
    if step_size is not None:
        positive("rwmh", "step_size", step_size)
    if not 0 < target_acceptance < 1:
        raise ValueError(f"rwmh: target_acceptance must lie between 0 and 1, got {target_acceptance!r}.")
    return Kernel(
        name=f"rwmh(step_size={step_size})",
        init=init,
        step=step,
        tuning=Tuning(hyperparameter(float(initial_step_size if step_size is None else step_size))),
        target_acceptance=target_acceptance if step_size is None else None,
        uses_gradient=False,
    )
