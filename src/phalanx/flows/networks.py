"""The networks in transforms: dense layers, and a linear part beside them, with weights as a plain pytree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, random

FARTHEST = 1e4
"""What a network sees of inputs that are farther from zero: beyond it shifts and scales stay as they are."""

MOST_LOG_SCALE = 10.0
"""Of a single layer: e to this is a factor of 22,000."""

Weights = dict[str, Any]


def init_dense(key: Array, inputs: int, outputs: int, hidden: Sequence[int], context: int = 0) -> Weights:
    """Weights of layers that give zero: a transform begins as the identity.

    Args:
        key: a JAX key.
        inputs: how many numbers go in.
        outputs: how many come out.
        hidden: widths of the layers between.
        context: how many numbers go in beside, which masks have no say in.
    """
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
    heard = random.normal(beside, (context, hidden[0])) / math.sqrt(context) if hidden else ()
    return {**weights, "context": {"layers": heard, "linear": jnp.zeros((context, outputs))}}


def apply_dense(
    weights: Weights, x: Array, masks: Sequence[np.ndarray] | None = None, context: Array | None = None
) -> Array:
    """From `(..., inputs)` to `(..., outputs)`.

    Args:
        weights: from `init_dense`.
        x: the inputs.
        masks: of each layer and then of the linear part, which weights count; None for all.
        context: `(..., context)`, which all of the first layer hears, and the outputs.
    """
    kernels = [kernel for kernel, _ in weights["layers"]] + [weights["linear"]]
    if masks is not None:
        kernels = [kernel * mask for kernel, mask in zip(kernels, masks, strict=True)]
    x = jnp.clip(x, -FARTHEST, FARTHEST)
    found, heard = x @ kernels[-1], 0.0
    if context is not None:
        found += context @ weights["context"]["linear"]
        heard = context @ weights["context"]["layers"] if len(kernels) > 2 else 0.0
    for kernel, (_, bias) in zip(kernels[:-2], weights["layers"][:-1], strict=True):
        x, heard = jnp.tanh(x @ kernel + heard + _as_row(bias, x)), 0.0
    return found + x @ kernels[-2] + _as_row(weights["layers"][-1][1], found)


def shift_and_log_scale(raw: Array) -> tuple[Array, Array]:
    """The two halves of a network's last axis, the second kept from growing without bound.

    Up to half of the bound it is as it is, to 0.3%: a log scale that is linear in what stays must come out as linear.
    """
    shift, log_scale = jnp.split(raw, 2, -1)
    part = jnp.clip(log_scale / MOST_LOG_SCALE, -FARTHEST, FARTHEST)
    return shift, MOST_LOG_SCALE * part / (1.0 + part**6) ** (1 / 6)


def _as_row(bias: Array, like: Array) -> Array:
    return bias.reshape(*(1,) * (like.ndim - 1), -1)
