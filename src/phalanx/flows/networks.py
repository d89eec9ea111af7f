"""Networks of the transforms: dense layers plus a linear part, with weights as a plain pytree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import Array, random

if TYPE_CHECKING:
    from jaxtyping import Float

FARTHEST = 1e4
"""Bound to which inputs of a network are clipped: beyond it shifts and scales are constant."""

MOST_LOG_SCALE = 10.0
"""Largest log scale of a single layer: a factor of 22,000."""

Weights = dict[str, Any]
"""Layers (kernel and bias each), linear part, and the kernels of a context if there is one."""


def init_dense(key: Array, inputs: int, outputs: int, hidden: Sequence[int], context: int = 0) -> Weights:
    """Return weights of layers whose outputs are zero, so that a transform is the identity at first.

    Args:
        key: a JAX key.
        inputs: number of inputs.
        outputs: number of outputs.
        hidden: widths of the hidden layers.
        context: number of additional inputs, to which masks do not apply.
    """
    _check_sizes(inputs, hidden, context)
    sizes = [inputs, *hidden]
    key, beside = random.split(key) if context else (key, key)
    layers = [
        (random.normal(k, pair) / math.sqrt(pair[0]), jnp.zeros(pair[1]))
        for k, pair in zip(random.split(key, len(hidden)), pairwise(sizes), strict=True)
    ]
    last = jnp.zeros((sizes[-1], outputs)), jnp.zeros(outputs)
    weights = {"layers": [*layers, last], "linear": jnp.zeros((inputs, outputs))}
    if not context:
        return weights
    kernel = random.normal(beside, (context, hidden[0])) / math.sqrt(context) if hidden else ()
    return {**weights, "context": {"layers": kernel, "linear": jnp.zeros((context, outputs))}}


def _check_sizes(size: object, hidden: object, context: object) -> None:
    """Raise unless the sizes of a network are whole numbers."""

    def is_whole(value: object, least: int) -> bool:
        return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= least

    if not is_whole(size, 1):
        raise ValueError(f"init: size must be the number of coordinates, a whole number; got {size!r}.")
    if not isinstance(hidden, Sequence) or not all(is_whole(width, 1) for width in hidden):
        raise ValueError(f"init: hidden must be the widths of the layers, such as (32, 32); got {hidden!r}.")
    if not is_whole(context, 0):
        raise ValueError(f"init: context must be a number of inputs, a whole number; got {context!r}.")


def apply_dense(
    weights: Weights,
    x: Float[Array | np.ndarray, "*batch inputs"],
    masks: Sequence[np.ndarray] | None = None,
    context: Float[Array | np.ndarray, "*#batch context"] | None = None,
) -> Float[Array, "*batch outputs"]:
    """Return the outputs of the network.

    Args:
        weights: from `init_dense`.
        x: the inputs.
        masks: masks of the weights of each layer and then of the linear part; None for no masks.
        context: additional inputs of the first layer and of the outputs.
    """
    kernels = [kernel for kernel, _ in weights["layers"]] + [weights["linear"]]
    if masks is not None:
        kernels = [kernel * mask for kernel, mask in zip(kernels, masks, strict=True)]
    x = jnp.clip(x, -FARTHEST, FARTHEST)
    outputs = x @ kernels[-1]
    from_context = 0.0
    if context is not None:
        outputs += context @ weights["context"]["linear"]
        from_context = context @ weights["context"]["layers"] if len(kernels) > 2 else 0.0
    for kernel, (_, bias) in zip(kernels[:-2], weights["layers"][:-1], strict=True):
        x = jnp.tanh(x @ kernel + from_context + _as_row(bias, x))
        from_context = 0.0
    return outputs + x @ kernels[-2] + _as_row(weights["layers"][-1][1], outputs)


def shift_and_log_scale(
    raw: Float[Array, "*batch outputs"],
) -> tuple[Float[Array, "*batch half"], Float[Array, "*batch half"]]:
    """Return the two halves of a network's last axis, the second bounded smoothly.

    Up to half of the bound the log scale changes by less than 0.3%, so that one that is linear in the inputs stays so.
    """
    shift, log_scale = jnp.split(raw, 2, -1)
    part = jnp.clip(log_scale / MOST_LOG_SCALE, -FARTHEST, FARTHEST)
    return shift, MOST_LOG_SCALE * part / (1.0 + part**6) ** (1 / 6)


def _as_row(bias: Array, like: Array) -> Array:
    return bias.reshape(*(1,) * (like.ndim - 1), -1)
