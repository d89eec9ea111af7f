"""Objectives: what a fit makes small, as a function of the log densities of draws under model and guide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

Loss = Callable[[Array, Array, Any], Array]


@dataclass(frozen=True)
class Objective:
    """An objective.

    Attributes:
        name: how the user wrote it.
        loss: from log densities of the draws under the model and under the guide, `(particle,)` each, and the draws, to
            a scalar, whose gradient is followed.
        bound: from the same to what each particle says of the evidence, `(particle,)`: shown, and not differentiated.
        held: whether the guide's log density is differentiated along the draws' path alone.
    """

    name: str
    loss: Loss
    bound: Callable[[Array, Array], Array]
    held: bool = True


def _mean_gap(log_p: Array, log_q: Array, draws: Any) -> Array:
    return jnp.mean(log_q - log_p)


def _gap(log_p: Array, log_q: Array) -> Array:
    return log_p - log_q


def elbo() -> Objective:
    r"""The evidence lower bound, $E_q[\log p(x, z) - \log q(z)]$, by the path-derivative estimator.

    The gradient runs along the path of the draws alone: what is left out has mean zero, and without it the gradient is
    free of noise where the guide is the posterior ("sticking the landing").

    Returns:
        The objective for `phx.fit(..., objective=)`; it is the default.

    Example:
        >>> import phalanx as phx
        >>> phx.guides.elbo().name
        'elbo()'

    Source:
        Roeder, Wu, Duvenaud (2017), Sticking the landing: simple, lower-variance gradient estimators for variational
        inference.
    """
    return Objective("elbo()", _mean_gap, _gap)
