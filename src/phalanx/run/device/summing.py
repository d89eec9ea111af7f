"""Sums over the recorded draws of a round, from which tuners learn: each device adds up its draws, the host merges.

The sums are those of statistics, with moments of positions and gradients, in float64: the sharding of chains over
devices changes at most the last of 53 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec

from phalanx.adaptation.acceptance import LEAST
from phalanx.adaptation.tuner import Sums, VectorMoments
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.processes import to_host
from phalanx.mesh.specs import PyTree
from phalanx.run.device.recorder import TOTALS, RowLayout, Rows

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64, Int

COUNTS = 3
"""Number of entries before the sums: draws, draws with finite coordinates, and the sum of inverse acceptance rates."""


@dataclass(frozen=True)
class Summing:
    """Sums of recorded draws: of statistics and, if rows have gradients for a metric to learn from, moments.

    Attributes:
        layout: layout of a row.
    """

    layout: RowLayout

    def __call__(self, rows: Rows, first: Int[Array, ""], end: Int[Array, ""]) -> tuple[Float64[Array, "1 _"], ...]:
        """Return sums over the slots from `first` to before `end`, which all lanes have filled.

        Returns:
            Vectors `(1, number)`, one for each group: means of position and gradient, then sums of squared deviations
            from them. The first vector begins with `COUNTS` numbers and the sums of statistics.
        """
        layout = self.layout
        vectors = [part[..., : layout.parts * size] for part, size in zip(rows, layout.position.lengths, strict=True)]
        parts, stats = vectors if self._has_moments else [], rows[0][..., layout.start_of_stats :]
        # subtracted from all draws: variances would lose digits as differences of large squares
        origins = [jnp.where(jnp.isfinite(part[0, 0]), part[0, 0], 0.0).astype(jnp.float64) for part in parts]

        def add(slot: Array, sums: PyTree) -> PyTree:
            *now, figures = (
                lax.dynamic_index_in_dim(part, slot, keepdims=False).astype(jnp.float64) for part in (*parts, stats)
            )
            good = self._are_finite(now)
            inverse = 1 / jnp.fmax(figures[:, layout.stats.index("acceptance_rate")], LEAST)
            apart = [jnp.where(good[:, None], x - origin[None], 0.0) for x, origin in zip(now, origins, strict=True)]
            ones = jnp.ones_like(inverse)  # a CPU computes sums over lanes several times faster as matrix products
            new = (
                jnp.stack([ones.sum(), good.sum(dtype=ones.dtype), inverse.sum()]),
                ones @ figures,
                [ones @ x for x in apart],
                [ones @ jnp.square(x) for x in apart],
            )
            return jax.tree.map(jnp.add, sums, new)

        zeros = [jnp.zeros_like(origin) for origin in origins]
        nothing = jnp.zeros(COUNTS, jnp.float64), jnp.zeros(stats.shape[-1], jnp.float64), zeros, zeros
        counts, sums, totals, squares = lax.fori_loop(first, end, add, nothing)
        draws = jnp.maximum(counts[1], 1)
        moments = [
            jnp.concatenate([origin + total / draws, jnp.maximum(square - jnp.square(total) / draws, 0)])
            for origin, total, square in zip(origins, totals, squares, strict=True)
        ]
        first, *others = moments or [jnp.zeros(0, jnp.float64)]
        return tuple(vector[None] for vector in (jnp.concatenate([counts, sums, first]), *others))

    def fetched(self, sums: Sequence[Array]) -> Sums:
        """Return the sums over all devices, on the host."""
        first, *others = (to_host(part) for part in sums)
        counts, (figures, vectors) = first[:, :COUNTS], np.split(first[:, COUNTS:], [self._stats], axis=1)
        (draws, _, inverse), totals = counts.sum(0), figures.sum(0)
        names = {name: number for number, name in enumerate(self.layout.stats) if name not in TOTALS}
        stats = {name: float(totals[number]) for name, number in names.items()}
        if not self._has_moments:
            return Sums(int(draws), stats, float(inverse))
        by_group = zip([vectors, *others], self.layout.position.lengths, strict=True)
        position, gradient = zip(*(_moments(values, counts[:, 1], size) for values, size in by_group), strict=True)
        return Sums(int(draws), stats, float(inverse), position, gradient)

    @property
    def specs(self) -> tuple[PartitionSpec, ...]:
        """Partition of the sums over the mesh."""
        return self.layout.position.specs(CHAIN)[: None if self._has_moments else 1]

    @property
    def _has_moments(self) -> bool:
        return self.layout.parts == 2

    @property
    def _stats(self) -> int:
        """Number of columns of statistics."""
        return len(self.layout.stats) + len(self.layout.totals)

    def _are_finite(self, now: Sequence[Array]) -> Bool[Array, "*lanes"]:
        """Return True for lanes with finite coordinates; gradients far from the mode may overflow in float32."""
        good = jnp.array(True)
        for part, axes in zip(now, self.layout.position.groups, strict=False):
            here = jnp.isfinite(part).all(-1)
            good &= lax.pmin(here.astype(jnp.int32), axes) > 0 if axes else here
        return good


def _moments(
    sums: Float64[np.ndarray, "devices number"], counts: Float64[np.ndarray, "devices"], size: int
) -> tuple[VectorMoments, VectorMoments]:
    """Return moments of position and gradient, merged from the sums of all devices.

    Args:
        sums: a row for each device along the chains: the vectors of one group, device by device along its axes.
        counts: finite draws of each device along the chains.
        size: coordinates of the group on one device.
    """
    devices = sums.shape[1] // (4 * size) if size else 1
    by_kind = sums.reshape(len(sums), devices, 4, size).transpose(2, 0, 1, 3).reshape(4, len(sums), devices * size)
    position, gradient = (VectorMoments.together(counts, by_kind[kind], by_kind[kind + 2]) for kind in range(2))
    return position, gradient
