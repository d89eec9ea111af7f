"""The bijection from the real line onto a support: NumPyro's, and for the simplex one that keeps its digits."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.nn import log_sigmoid
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import ParameterFreeTransform, Transform


def bijection_onto(support: Any) -> Transform:
    """The bijection from real vectors onto `support`.

    Raises:
        NotImplementedError: when none is known.
    """
    if support is constraints.simplex:
        return StickBreaking()
    return biject_to(support)


class StickBreaking(ParameterFreeTransform):
    r"""Stick-breaking in logarithms: $y_k = z_k \prod_{j<k} (1 - z_j)$ with $z_k = \sigma(u_k - \log(K - k))$.

    $1 - z$ rounds to nothing where the logit of $z$ is beyond 16 in float32, and all of the stick that is left with it,
    as happens to most draws of a sparse Dirichlet. $\log(1 - z) = \log \sigma(-\operatorname{logit} z)$ does not.

    Source:
        Carpenter et al. (2017), Stan: a probabilistic programming language, for the transform.
    """

    domain: Any = constraints.real_vector
    codomain: Any = constraints.simplex

    def __call__(self, x: Array) -> Array:
        """From `(..., K - 1)` real numbers to `(..., K)` on the simplex."""
        y = jnp.exp(_log_pieces(_logits(x)))
        return jnp.maximum(y, jnp.finfo(y.dtype).tiny)  # of zero a density has no logarithm

    def _inverse(self, y: Array) -> Array:
        left = jnp.flip(jnp.cumsum(jnp.flip(y, -1), -1), -1)[..., 1:]  # from the small end: 1 - sum loses digits
        tiny = jnp.finfo(y.dtype).tiny
        return jnp.log(jnp.maximum(y[..., :-1], tiny)) - jnp.log(jnp.maximum(left, tiny)) + _offsets(y[..., 1:])

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: Any = None) -> Array:
        """Of shape `(...)`."""
        logits = _logits(x)
        return jnp.sum(_log_pieces(logits)[..., :-1] + log_sigmoid(-logits), -1)

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One element more."""
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One element less."""
        return (*shape[:-1], shape[-1] - 1)


def _offsets(x: Array) -> Array:
    """What makes the zero vector the middle of the simplex."""
    offsets = jnp.log(jnp.arange(x.shape[-1], 0, -1, dtype=x.dtype))
    return jnp.broadcast_to(offsets, x.shape)


def _logits(x: Array) -> Array:
    return x - _offsets(x)


def _log_pieces(logits: Array) -> Array:
    left = jnp.cumsum(log_sigmoid(-logits), -1)
    nothing = jnp.zeros((*left.shape[:-1], 1), left.dtype)
    return jnp.concatenate([log_sigmoid(logits), nothing], -1) + jnp.concatenate([nothing, left], -1)
