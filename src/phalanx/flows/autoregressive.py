"""Autoregressive transforms: each coordinate is shifted and scaled by functions of the coordinates before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpyro.distributions import constraints

from phalanx.flows.networks import Weights, apply_dense, init_dense, shift_and_log_scale
from phalanx.flows.single_pass import SinglePassTransform
from phalanx.mesh.compatibility.numpyro_internals import MASKS, refuse_without
from phalanx.mesh.specs import PyTree

if TYPE_CHECKING:
    from jaxtyping import Float


class _Autoregressive(SinglePassTransform):
    """Base of both autoregressive transforms: a masked network, and the solution of one direction by coordinates."""

    domain: Any = constraints.real_vector
    codomain: Any = constraints.real_vector

    def __init__(
        self, weights: Weights, order: Sequence[int] | None = None, *, context: Array | np.ndarray | None = None
    ):
        if (context is None) != ("context" not in weights):
            raise ValueError(
                "context: weights from init(key, size, context=n) need a context of n numbers, and others take none."
            )
        self.weights = weights
        self.context = context
        self.order = tuple(range(weights["linear"].shape[0])) if order is None else tuple(map(int, order))
        if sorted(self.order) != list(range(weights["linear"].shape[0])):
            raise ValueError(
                f"order: expected each of the {weights['linear'].shape[0]} coordinates once; got {self.order}."
            )

    @staticmethod
    def init(key: Array, size: int, hidden: Sequence[int] = (32, 32), context: int = 0) -> Weights:
        """Return weights with which the transform is the identity.

        Args:
            key: a JAX key.
            size: number of coordinates.
            hidden: widths of the network's layers.
            context: number of additional inputs, such as an encoder's outputs for an image.
        """
        return init_dense(key, size, 2 * size, hidden, context)

    def affine(
        self, known: Float[Array | np.ndarray, "*batch size"]
    ) -> tuple[Float[Array, "*batch size"], Float[Array, "*batch size"]]:
        """Return shift and log scale of each coordinate, from the coordinates before it."""
        widths = tuple(len(bias) for _, bias in self.weights["layers"][:-1])
        return shift_and_log_scale(apply_dense(self.weights, known, masks_of(self.order, widths), self.context))

    def _solve(self, step: Callable[[Array], Array], like: Float[Array, "*batch size"]) -> Float[Array, "*batch size"]:
        """Return the fixed point of `step`, whose result for a coordinate depends only on the coordinates before it."""
        rank = np.empty(len(self.order), int)
        rank[list(self.order)] = np.arange(len(self.order))

        def next_one(i: Array, solved: Array) -> Array:
            return jnp.where(rank.reshape(*(1,) * (like.ndim - 1), -1) == i, step(solved), solved)

        return lax.fori_loop(0, len(self.order), next_one, jnp.zeros_like(like))

    def tree_flatten(self) -> tuple[PyTree, PyTree]:
        """Return weights and context as the leaves."""
        return (self.weights, self.context), (("weights", "context"), {"order": self.order})


class InverseAutoregressive(_Autoregressive):
    r"""$y_i = x_i e^{s_i(x_{<i})} + m_i(x_{<i})$: one pass forward, one pass for each coordinate back.

    Suited to a guide, whose density is evaluated at its own draws.

    Args:
        weights: a pytree, from `init`; or a `phx.param` of it.
        order: the coordinates in the order in which they depend on one another; by default their own.
        context: additional inputs of every coordinate, `(..., context)`, for weights made with `context=`.

    Raises:
        ValueError: when `order` is not a permutation of the coordinates, or weights and context do not match.

    Example:
        >>> import jax, jax.numpy as jnp, phalanx as phx
        >>> weights = phx.flows.InverseAutoregressive.init(jax.random.key(0), 3)
        >>> phx.flows.InverseAutoregressive(weights)(jnp.ones(3)).tolist()  # it begins as the identity
        [1.0, 1.0, 1.0]

    Source:
        Kingma, Salimans, Jozefowicz, Chen, Sutskever, Welling (2016), Improved variational inference with inverse
        autoregressive flow; Germain, Gregor, Murray, Larochelle (2015), MADE, for the masks.
    """

    def forward_and_log_det(
        self, x: Float[Array | np.ndarray, "*batch size"]
    ) -> tuple[Float[Array, "*batch size"], Float[Array, "*batch"]]:
        """Return the image of `x`, and the log determinant `(...)`."""
        x = jnp.asarray(x)
        shift, log_scale = self.affine(x)
        return x * jnp.exp(log_scale) + shift, jnp.sum(log_scale, -1)

    def inverse_and_log_det(
        self, y: Float[Array | np.ndarray, "*batch size"]
    ) -> tuple[Float[Array, "*batch size"], Float[Array, "*batch"]]:
        """Return the inverse image of `y`, and the log determinant of the forward direction there."""
        y = jnp.asarray(y)

        def step(x: Array) -> Array:
            shift, log_scale = self.affine(x)
            return (y - shift) * jnp.exp(-log_scale)

        x = self._solve(step, y)
        return x, jnp.sum(self.affine(x)[1], -1)


class MaskedAutoregressive(_Autoregressive):
    r"""$y_i = x_i e^{s_i(y_{<i})} + m_i(y_{<i})$: one pass back, one pass for each coordinate forward.

    Suited to densities of data, which take a single pass.

    Args:
        weights: a pytree, from `init`; or a `phx.param` of it.
        order: the coordinates in the order in which they depend on one another; by default their own.
        context: additional inputs of every coordinate, `(..., context)`, for weights made with `context=`.

    Raises:
        ValueError: when `order` is not a permutation of the coordinates, or weights and context do not match.

    Example:
        >>> import jax, numpyro.distributions as dist, phalanx as phx
        >>> weights = phx.flows.MaskedAutoregressive.init(jax.random.key(0), 3)
        >>> flow = phx.flows.MaskedAutoregressive(weights, order=(2, 1, 0))
        >>> dist.TransformedDistribution(dist.Normal(0.0, 1.0).expand([3]).to_event(1), flow).event_shape
        (3,)

    Source:
        Papamakarios, Pavlakou, Murray (2017), Masked autoregressive flow for density estimation.
    """

    def forward_and_log_det(
        self, x: Float[Array | np.ndarray, "*batch size"]
    ) -> tuple[Float[Array, "*batch size"], Float[Array, "*batch"]]:
        """Return the image of `x`, and the log determinant `(...)`."""
        x = jnp.asarray(x)

        def step(y: Array) -> Array:
            shift, log_scale = self.affine(y)
            return x * jnp.exp(log_scale) + shift

        y = self._solve(step, x)
        return y, self.log_det(x, y)

    def inverse_and_log_det(
        self, y: Float[Array | np.ndarray, "*batch size"]
    ) -> tuple[Float[Array, "*batch size"], Float[Array, "*batch"]]:
        """Return the inverse image of `y`, and the log determinant of the forward direction there."""
        y = jnp.asarray(y)
        shift, log_scale = self.affine(y)
        return (y - shift) * jnp.exp(-log_scale), jnp.sum(log_scale, -1)

    def log_det(
        self, x: Float[Array | np.ndarray, "*batch size"], y: Float[Array | np.ndarray, "*batch size"]
    ) -> Float[Array, "*batch"]:
        """Return the log determinant, from `y` in one pass."""
        return jnp.sum(self.affine(y)[1], -1)


@cache
def masks_of(order: tuple[int, ...], widths: tuple[int, ...]) -> list[np.ndarray]:
    """Return the masks of the weights of each layer and of the linear part."""
    size = len(order)
    with jax.ensure_compile_time_eval():
        if not widths:  # NumPyro's network has at least one hidden layer
            linear = np.asarray(refuse_without(MASKS)(size, [1], np.array(order), 2)[1])
            return [linear, linear]
        masks, linear = refuse_without(MASKS)(size, list(widths), np.array(order), 2)
        return [np.asarray(mask) for mask in (*masks, linear)]
