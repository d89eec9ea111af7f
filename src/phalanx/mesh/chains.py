"""Chains over devices and lanes: one chain per lane, several lanes per device along the `chain` axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from phalanx.mesh.devices import CHAIN


def lane_chains(lanes: int) -> Array:
    """Numbers of the chains that this device's lanes run."""
    return lax.axis_index(CHAIN) * lanes + jnp.arange(lanes)


def pooled_mean(values: Array) -> Array:
    """Mean over all chains: over this device's lanes (leading dimension), then over the devices along `chain`."""
    return lax.pmean(jnp.mean(values, axis=0), CHAIN)


def pooled_sum(values: Array) -> Array:
    """Sum over all chains: over this device's lanes (leading dimension), then over the devices along `chain`."""
    return lax.psum(jnp.sum(values, axis=0, dtype=values.dtype), CHAIN)


def over_lanes(f: Callable[..., Any], lanes: int) -> Callable[..., Any]:
    """`f` over the leading dimension of its arguments, one entry per lane.

    A single lane is called as it is: a batch of one turns a plain matrix product into a batched one, which is slower.
    """
    if lanes > 1:
        return jax.vmap(f)

    def single(*args):
        out = f(*jax.tree.map(lambda leaf: leaf[0], args))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], out)

    return single
