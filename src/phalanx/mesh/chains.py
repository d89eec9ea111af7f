"""Assignment of chains to devices and lanes: one chain per lane, several lanes per device along the `chain` axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from phalanx.mesh.devices import CHAIN

if TYPE_CHECKING:
    from jaxtyping import Int


def lane_chains(lanes: int) -> Int[Array, "{lanes}"]:
    """Return the numbers of the chains in this device's lanes."""
    return lax.axis_index(CHAIN) * lanes + jnp.arange(lanes)


def over_lanes(f: Callable[..., Any], lanes: int) -> Callable[..., Any]:
    """Return `f` mapped over the leading dimension of its arguments, one entry per lane.

    A single lane is not mapped: a batch of one turns a plain matrix product into a batched one, which is slower.
    """
    if lanes > 1:
        return jax.vmap(f)

    def single(*args):
        out = f(*jax.tree.map(lambda leaf: leaf[0], args))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], out)

    return single
