r"""Dual averaging of the step size.

With $\bar H_t$ the running mean of (target - acceptance), $\log\epsilon_t = \mu - \tfrac{\sqrt t}{\gamma}\bar H_t$
explores, and its weighted average $\log\bar\epsilon_t$, with weights $t^{-\kappa}$, is what sampling uses.

All arithmetic is elementwise: states have numbers, or arrays with an entry for each of many data sets.

Source: Nesterov (2009), Primal-dual subgradient methods; Hoffman, Gelman (2014), The No-U-Turn Sampler, section 3.2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from phalanx.adaptation.tuner import array_module

GAMMA = 0.2
"""Hoffman and Gelman tune one chain with gamma = 0.05. A larger gamma changes the step size less per update, which
suits acceptance pooled over chains, and random walks, whose acceptance is noisier."""

T0 = 10.0
"""Updates added to their count in the running mean, so that the first ones weigh less; of Hoffman and Gelman."""

KAPPA = 0.75
"""Power with which the weight of an update in the average falls; of Hoffman and Gelman."""


class DualAveraging(NamedTuple):
    """State of the tuning of a step size."""

    log_step_size: Any
    log_averaged: Any
    error: Any
    count: Any
    mu: Any

    @property
    def step_size(self) -> Any:
        """The step size to try next."""
        return array_module(self.log_step_size).exp(self.log_step_size)

    @property
    def averaged(self) -> Any:
        """The step size to keep."""
        return array_module(self.log_averaged).exp(self.log_averaged)


def start(log_step_size: Any) -> DualAveraging:
    """Begin at the logarithm of a step size, towards which tuning shrinks."""
    return DualAveraging(log_step_size, log_step_size, 0.0, 0.0, log_step_size)


def update(state: DualAveraging, acceptance_rate: Any, target: Any) -> DualAveraging:
    """Return the state after a round with this acceptance rate, pooled over all chains."""
    xp = array_module(acceptance_rate)
    count = state.count + 1.0
    weight = 1 / (count + T0)
    acceptance_rate = xp.where(xp.isnan(acceptance_rate), 0.0, acceptance_rate)
    error = (1 - weight) * state.error + weight * (target - acceptance_rate)
    log_step_size = state.mu - xp.sqrt(count) / GAMMA * error
    weight = count**-KAPPA
    new_average = weight * log_step_size + (1 - weight) * state.log_averaged
    return DualAveraging(log_step_size, new_average, error, count, state.mu)
