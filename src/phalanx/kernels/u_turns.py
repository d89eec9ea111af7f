r"""When a trajectory turns back: the generalised U-turn criterion, in memory logarithmic in the trajectory's length.

A stretch of a trajectory, with momenta $p_-$ and $p_+$ at its ends, goes on as long as
$p_-^\top M^{-1} \rho > 0$ and $p_+^\top M^{-1} \rho > 0$, where $\rho = \int p \, dt$. Under a metric that does not
depend on the position, $M^{-1} \rho$ is the displacement $x_+ - x_-$: leapfrogs add up exactly to it, so it is taken
from the positions, which saves the sum of momenta and any product with the metric.

The criterion holds for every subtree of the doubling. When the leaf numbered n (from 0) is odd, the subtrees that end
there began at corners that are still kept: one for each bit of n, overwritten by the next corner at the same level.

Source: Betancourt (2017), A conceptual introduction to Hamiltonian Monte Carlo, appendix A.4; Hoffman, Gelman (2014),
The No-U-Turn Sampler; Phan, Pradhan, Jankowiak (2019), Composable effects for flexible and accelerated probabilistic
programming in NumPyro, for the iterative form.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from phalanx.kernels.lanes import Columns


class Corners(NamedTuple):
    """Position and momentum where subtrees of the subtree being built begin, `(level, coordinate, lane)`."""

    position: Columns
    momentum: Columns

    def spans(self, position: Columns, momentum: Columns) -> list[tuple[Columns, Columns]]:
        """The way from each corner to this leaf, with the momentum at either end."""
        span = tuple(x[None] - corner for x, corner in zip(position, self.position, strict=True))
        return [(span, self.momentum), (span, tuple(p[None] for p in momentum))]

    def turning(self, start: Array, end: Array, leaf: Array, way: Array) -> Array:
        """Whether a subtree that ends at this leaf has turned, given the inner products of `spans` at every level."""
        level = jnp.arange(start.shape[0])[:, None]
        last = lax.population_count(leaf >> 1)
        # an odd leaf ends as many subtrees as its number has trailing ones
        trailing = lax.population_count((leaf ^ (leaf + 1)) >> 1)
        ends = (leaf & 1 == 1)[None] & (level <= last[None]) & (level > (last - trailing)[None])
        return (ends & turning_ends(start, end, way[None])).any(0)


def update_corners(corners: Corners, leaf: Array, position: Columns, momentum: Columns) -> Corners:
    """Keep an even leaf as the corner of the subtrees that begin with it."""
    level = jnp.arange(corners.position[0].shape[0])[:, None]
    begins = (leaf & 1 == 0)[None] & (level == lax.population_count(leaf >> 1)[None])

    def put(kept: Columns, now: Columns) -> Columns:
        return tuple(jnp.where(begins[:, None], x[None], old) for x, old in zip(now, kept, strict=True))

    return Corners(put(corners.position, position), put(corners.momentum, momentum))


def turning_ends(start: Array, end: Array, way: Array) -> Array:
    """Whether either end moves against the way from start to end, given both inner products and time's direction."""
    return (way * start <= 0) | (way * end <= 0)
