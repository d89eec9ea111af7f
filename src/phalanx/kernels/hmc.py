"""Hamiltonian Monte Carlo with trajectories of fixed length."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from phalanx.kernels.acceptance import DIVERGENCE_THRESHOLD, broken_down, metropolis
from phalanx.kernels.gradient_state import State, init
from phalanx.kernels.integrators import Phase, trajectory
from phalanx.kernels.kernel import Info, Kernel, hyperparameter, positive, share, whole
from phalanx.kernels.metrics import Metric, as_metric, kinetic_energy
from phalanx.programs.target import Density


class Tuning(NamedTuple):
    """Hyperparameters: `num_steps` leapfrogs of `step_size`, jittered from draw to draw, under a metric."""

    step_size: Array
    jitter: Array
    num_steps: Array
    metric: Metric


def step(key: Array, state: State, density: Density, tuning: Tuning) -> tuple[State, Info]:
    """Draw a momentum, follow the Hamiltonian motion, accept or stay."""
    key_momentum, key_uniforms = random.split(key)
    to_jitter, to_accept = random.uniform(key_uniforms, (2,), state.log_density.dtype)
    space, metric = density.space, tuning.metric
    momentum = metric.momentum(space, key_momentum, state.position)
    start = Phase(state.position, momentum, state.log_density, state.gradient)
    step_size = tuning.step_size * (1 + tuning.jitter * (2 * to_jitter - 1))
    end = trajectory(density, metric, start, step_size, tuning.num_steps)

    energy = kinetic_energy(metric, space, momentum) - state.log_density
    end_energy = kinetic_energy(metric, space, end.momentum) - end.log_density
    error = broken_down(end_energy - energy)
    accepted, acceptance_rate = metropolis(to_accept, -error)
    proposed = State(end.position, end.log_density, end.gradient)
    new = jax.tree.map(lambda a, b: lax.select(jnp.broadcast_to(accepted, a.shape), a, b), proposed, state)
    return new, Info(
        acceptance_rate, error > DIVERGENCE_THRESHOLD, tuning.num_steps, jnp.where(accepted, end_energy, energy)
    )


def hmc(
    num_steps: int = 10,
    step_size: float | None = None,
    *,
    initial_step_size: float = 0.1,
    target_acceptance: float = 0.8,
    tuned_steps: int | None = None,
    step_size_jitter: float = 0.3,
    inverse_mass_matrix: Any = None,
    relocate: bool = True,
) -> Kernel:
    r"""Hamiltonian Monte Carlo.

    A momentum $p \sim N(0, M)$ is drawn and $(x, p)$ follows `num_steps` leapfrogs of $H(x, p) = -\log\pi(x) +
    \tfrac12 p^\top M^{-1} p$; the end is accepted with probability $\min(1, e^{H_0 - H_1})$.

    Args:
        num_steps: leapfrogs per draw.
        step_size: length of a leapfrog; None tunes it in warm-up, pooled over all chains.
        initial_step_size: where tuning starts.
        target_acceptance: the acceptance rate tuning aims at.
        tuned_steps: warm-up iterations in which the step size is tuned; None means all of them.
        step_size_jitter: each draw's step size is the step size times a uniform on 1 - jitter to 1 + jitter.
            Trajectories all of one length come back to where they began when it is near a period of the motion, and
            mix badly.
        inverse_mass_matrix: None for the identity; a dict of variances by variable name, shaped like the variable
            on its unconstrained scale; or a covariance matrix over all coordinates in the order of sorted names.
        relocate: whether a chain that has settled where the posterior has next to no mass goes on beside another,
            in warm-up; the verdict says when it has happened.

    Returns:
        A kernel for `phx.mcmc`.

    Raises:
        ValueError: when a hyperparameter is out of range.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> kernel = phx.hmc(num_steps=8, step_size=0.2)

    Source:
        Duane, Kennedy, Pendleton, Roweth (1987), Hybrid Monte Carlo; Neal (2011), MCMC using Hamiltonian dynamics,
        whose section 3.2 advises the jitter.
    """
    whole("hmc", "num_steps", num_steps)
    positive("hmc", "initial_step_size", initial_step_size)
    if step_size is not None:
        positive("hmc", "step_size", step_size)
    share("hmc", "target_acceptance", target_acceptance)
    if not 0 <= step_size_jitter < 1:
        raise ValueError(f"hmc: step_size_jitter must lie between 0 and 1, got {step_size_jitter!r}.")
    if tuned_steps is not None:
        whole("hmc", "tuned_steps", tuned_steps, least=0)
    return Kernel(
        name=f"hmc(num_steps={num_steps}, step_size={step_size})",
        init=init,
        step=step,
        tuning=Tuning(
            hyperparameter(float(initial_step_size if step_size is None else step_size)),
            hyperparameter(float(step_size_jitter)),
            hyperparameter(num_steps),
            as_metric(inverse_mass_matrix),
        ),
        target_acceptance=target_acceptance if step_size is None else None,
        tuned_steps=tuned_steps,
        relocates=relocate,
    )
