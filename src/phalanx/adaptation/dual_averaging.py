r"""Dual averaging of the step size.

With $\bar H_t$ the running mean of (target - acceptance), $\log\epsilon_t = \mu - \tfrac{\sqrt t}{\gamma}\bar H_t$
explores, and its weighted average $\log\bar\epsilon_t$, with weights $t^{-\kappa}$, is what sampling uses.

Source: Nesterov (2009), Primal-dual subgradient methods; Hoffman, Gelman (2014), The No-U-Turn Sampler, section 3.2.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

SHRINKAGE, DELAY, DECAY = 0.2, 10.0, 0.75
"""gamma, t0 and kappa. Hoffman and Gelman tune one chain with gamma = 0.05; acceptance pooled over chains, and random
walks, whose acceptance is noisier, settle better with a larger one, which changes the step size less per iteration."""


class DualAveraging(NamedTuple):
    """State of the tuning of a step size; scalars."""

    log_step_size: Array
    log_averaged: Array
    error: Array
    count: Array
    center: Array


def start(step_size: Array) -> DualAveraging:
    """Begin at `step_size`, leaning to ten times it: one too large is quickly mended, one too small is not."""
    log_step_size = jnp.log(step_size)
    zero = jnp.zeros_like(log_step_size)
    return DualAveraging(log_step_size, log_step_size, zero, zero, log_step_size + jnp.log(10.0))


def restart(state: DualAveraging) -> DualAveraging:
    """Forget what was learned on the way to the typical set, and go on from the present step size."""
    zero = jnp.zeros_like(state.count)
    return DualAveraging(state.log_step_size, state.log_step_size, zero, zero, state.log_step_size)


def update(state: DualAveraging, acceptance_rate: Array, target: float | Array) -> DualAveraging:
    """One iteration, from the acceptance rate pooled over all chains."""
    count = state.count + 1
    weight = 1 / (count + DELAY)
    acceptance_rate = jnp.where(jnp.isnan(acceptance_rate), 0.0, acceptance_rate)
    error = (1 - weight) * state.error + weight * (target - acceptance_rate)
    log_step_size = state.center - jnp.sqrt(count) / SHRINKAGE * error
    share = count**-DECAY
    averaged = share * log_step_size + (1 - share) * state.log_averaged
    return DualAveraging(log_step_size, averaged, error, count, state.center)


def tune(
    state: DualAveraging, acceptance_rate: Array, target: float, iteration: Array, tuned_steps: Array
) -> tuple[DualAveraging, Array]:
    """One warm-up iteration, numbered from one: the new state, and the step size for the next iteration.

    Half-way through its `tuned_steps` iterations the tuning restarts: chains that were still on their way to the
    typical set call for other steps than chains in it. After the last one the averaged step size stays.
    """
    updated = update(state, acceptance_rate, target)
    updated = jax.tree.map(partial(jnp.where, iteration == tuned_steps // 2), restart(updated), updated)
    state = jax.tree.map(partial(jnp.where, iteration <= tuned_steps), updated, state)
    return state, jnp.exp(jnp.where(iteration < tuned_steps, state.log_step_size, state.log_averaged))
