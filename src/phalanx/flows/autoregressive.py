"""Autoregressive transforms: each coordinate is moved and scaled by what the ones before it say."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpyro.distributions import constraints

from phalanx.flows.both_at_once import BothAtOnce
from phalanx.flows.networks import Weights, apply_dense, init_dense, shift_and_log_scale
from phalanx.mesh.compatibility.numpyro_internals import MASKS, refuse_without


class _Autoregressive(BothAtOnce):
    """What the two directions share: a masked network, and the way back, a coordinate at a time."""

    domain: Any = constraints.real_vector
    codomain: Any = constraints.real_vector

    def __init__(self, weights: Weights, order: Sequence[int] | None = None, context: Array | None = None):
        if (context is None) != ("context" not in weights):
            raise ValueError(
                "context: weights from init(key, size, context=n) take a context of n numbers, and others none."
            )
        self.weights, self.context = weights, context
        self.order = tuple(range(weights["linear"].shape[0])) if order is None else tuple(map(int, order))
        if sorted(self.order) != list(range(weights["linear"].shape[0])):
            raise ValueError(
                f"order: expected each of the {weights['linear'].shape[0]} coordinates once; got {self.order}."
            )

    @staticmethod
    def init(key: Array, size: int, hidden: Sequence[int] = (32, 32), context: int = 0) -> Weights:
        """Weights with which it is the identity.

        Args:
            key: a JAX key.
            size: coordinates.
            hidden: widths of the network's layers.
            context: numbers that are known beside, such as what an encoder says of an image.
        """
        return init_dense(key, size, 2 * size, hidden, context)

    def affine(self, known: Array) -> tuple[Array, Array]:
        """Shift and log scale of each coordinate, from those before it."""
        hidden = tuple(len(bias) for _, bias in self.weights["layers"][:-1])
        return shift_and_log_scale(apply_dense(self.weights, known, masks_of(self.order, hidden), self.context))

    def one_by_one(self, step: Any, like: Array) -> Array:
        """The fixed point of `step`, which knows a coordinate when it knows those before it."""
        place = np.empty(len(self.order), int)
        place[list(self.order)] = np.arange(len(self.order))

        def next_one(i: Array, known: Array) -> Array:
            return jnp.where(place.reshape(*(1,) * (like.ndim - 1), -1) == i, step(known), known)

        return lax.fori_loop(0, len(self.order), next_one, jnp.zeros_like(like))

    def tree_flatten(self) -> Any:
        """Weights and context are leaves."""
        return (self.weights, self.context), (("weights", "context"), {"order": self.order})


class InverseAutoregressive(_Autoregressive):
    r"""$y_i = x_i e^{s_i(x_{<i})} + m_i(x_{<i})$: one pass forward, one pass for each coordinate back.

    For what is drawn from and looked at in its own draws, as a guide.

    Args:
        weights: a pytree, from `init`; or a `phx.param` of it.
        order: the coordinates, as they follow one another; by default as they are.
        context: what is known beside, `(..., context)`, and has a say in every coordinate; of weights made for one.

    Raises:
        ValueError: when `order` is no order of the coordinates, or weights and context do not go together.

    Example:
        >>> import jax, jax.numpy as jnp, phalanx as phx
        >>> weights = phx.flows.InverseAutoregressive.init(jax.random.key(0), 3)
        >>> phx.flows.InverseAutoregressive(weights)(jnp.ones(3)).tolist()  # it begins as the identity
        [1.0, 1.0, 1.0]

    Source:
        Kingma, Salimans, Jozefowicz, Chen, Sutskever, Welling (2016), Improved variational inference with inverse
        autoregressive flow; Germain, Gregor, Murray, Larochelle (2015), MADE, for the masks.
    """

    def forth(self, x: Array) -> tuple[Array, Array]:
        """Forward, and the log determinant `(...)`."""
        shift, log_scale = self.affine(x)
        return x * jnp.exp(log_scale) + shift, jnp.sum(log_scale, -1)

    def back(self, y: Array) -> tuple[Array, Array]:
        """The inverse, and the log determinant of the way forward."""

        def step(x: Array) -> Array:
            shift, log_scale = self.affine(x)
            return (y - shift) * jnp.exp(-log_scale)

        x = self.one_by_one(step, y)
        return x, jnp.sum(self.affine(x)[1], -1)


class MaskedAutoregressive(_Autoregressive):
    r"""$y_i = x_i e^{s_i(y_{<i})} + m_i(y_{<i})$: one pass back, one pass for each coordinate forward.

    For what is learned from data, whose density takes a single pass.

    Args:
        weights: a pytree, from `init`; or a `phx.param` of it.
        order: the coordinates, as they follow one another; by default as they are.
        context: what is known beside, `(..., context)`, and has a say in every coordinate; of weights made for one.

    Raises:
        ValueError: when `order` is no order of the coordinates, or weights and context do not go together.

    Example:
        >>> import jax, numpyro.distributions as dist, phalanx as phx
        >>> weights = phx.flows.MaskedAutoregressive.init(jax.random.key(0), 3)
        >>> flow = phx.flows.MaskedAutoregressive(weights, order=(2, 1, 0))
        >>> dist.TransformedDistribution(dist.Normal(0.0, 1.0).expand([3]).to_event(1), flow).event_shape
        (3,)

    Source:
        Papamakarios, Pavlakou, Murray (2017), Masked autoregressive flow for density estimation.
    """

    def forth(self, x: Array) -> tuple[Array, Array]:
        """Forward, and the log determinant `(...)`."""

        def step(y: Array) -> Array:
            shift, log_scale = self.affine(y)
            return x * jnp.exp(log_scale) + shift

        y = self.one_by_one(step, x)
        return y, self.log_det(x, y)

    def back(self, y: Array) -> tuple[Array, Array]:
        """The inverse, and the log determinant of the way forward."""
        shift, log_scale = self.affine(y)
        return (y - shift) * jnp.exp(-log_scale), jnp.sum(log_scale, -1)

    def log_det(self, x: Array, y: Array) -> Array:
        """The log determinant, which follows from what came out in one pass."""
        return jnp.sum(self.affine(y)[1], -1)


@cache
def masks_of(order: tuple[int, ...], hidden: tuple[int, ...]) -> list[np.ndarray]:
    """Which weights count, of each layer and of the linear part."""
    size = len(order)
    with jax.ensure_compile_time_eval():
        if not hidden:  # NumPyro's network has a hidden layer at least
            linear = np.asarray(refuse_without(MASKS)(size, [1], np.array(order), 2)[1])
            return [linear, linear]
        masks, linear = refuse_without(MASKS)(size, list(hidden), np.array(order), 2)
        return [np.asarray(mask) for mask in (*masks, linear)]
