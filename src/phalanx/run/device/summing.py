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

from phalanx.adaptation.acceptance import LEAST_RATE
from phalanx.adaptation.tuner import Sums, VectorMoments
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.processes import to_host
from phalanx.mesh.specs import PyTree
from phalanx.run.device.recorder import TOTALS, RowLayout, Rows

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64, Int, Shaped

COUNTS = 3
"""Number of entries before the sums: draws, draws with finite coordinates, and the sum of inverse acceptance rates."""


@dataclass(frozen=True)
class Summing:
    """Sums of recorded draws: of statistics and, if rows have gradients for a metric to learn from, moments.

    Attributes:
        layout: layout of a row, without sharded coordinates if there are groups of chains.
        chains: chains of each group of chains, which has its own sums; None for sums over all chains.
        has_moments: false for sums of statistics alone.
    """

    layout: RowLayout
    chains: int | None = None
    has_moments: bool = True

    def __call__(
        self, rows: Rows, first: Int[Array, ""], end: Int[Array, ""]
    ) -> tuple[Float64[Array, "groups _"], ...]:
        """Return sums over the slots from `first` to before `end`, which all lanes have filled.

        Returns:
            Vectors `(group of chains, number)`, one for each group of coordinates: means of position and gradient, then
            sums of squared deviations from them. The first vector begins with `COUNTS` numbers and the sums of
            statistics.
        """
        layout = self.layout
        vectors = [part[..., : layout.parts * size] for part, size in zip(rows, layout.position.lengths, strict=True)]
        parts = vectors if self._has_moments else []
        stats = rows[0][..., layout.start_of_stats :]
        # subtracted from all draws: variances would lose digits as differences of large squares
        begins = [self._by_group(part[0])[..., 0, :] for part in parts]
        origins = [jnp.where(jnp.isfinite(x), x, 0.0).astype(jnp.float64) for x in begins]

        def of_slot(origins: Sequence[Array], figures: Array, *now: Array) -> PyTree:
            good = self._are_finite(now)
            inverse = 1 / jnp.fmax(figures[:, layout.stats.index("acceptance_rate")], LEAST_RATE)
            apart = [jnp.where(good[:, None], x - origin[None], 0.0) for x, origin in zip(now, origins, strict=True)]
            ones = jnp.ones_like(inverse)  # a CPU computes sums over lanes several times faster as matrix products

            def over_chains(x: Array) -> Array:
                return ones @ x if self.chains is None else x.sum(0)  # a group has few chains

            return (
                jnp.stack([ones.sum(), good.sum(dtype=ones.dtype), inverse.sum()]),
                over_chains(figures),
                [over_chains(x) for x in apart],
                [over_chains(jnp.square(x)) for x in apart],
            )

        of_groups = of_slot if self.chains is None else jax.vmap(of_slot)

        def add(slot: Array, sums: PyTree) -> PyTree:
            *now, figures = (
                self._by_group(lax.dynamic_index_in_dim(part, slot, keepdims=False).astype(jnp.float64))
                for part in (*parts, stats)
            )
            return jax.tree.map(jnp.add, sums, of_groups(origins, figures, *now))

        zeros = [jnp.zeros_like(origin) for origin in origins]
        groups = self._by_group(stats[0]).shape[:-2]
        no_counts, no_stats = (jnp.zeros((*groups, size), jnp.float64) for size in (COUNTS, stats.shape[-1]))
        nothing = no_counts, no_stats, zeros, zeros
        counts, sums, totals, squares = lax.fori_loop(first, end, add, nothing)
        draws = jnp.maximum(counts[..., 1:2], 1)
        moments = [
            jnp.concatenate([origin + total / draws, jnp.maximum(square - jnp.square(total) / draws, 0)], -1)
            for origin, total, square in zip(origins, totals, squares, strict=True)
        ]
        vectors = [jnp.concatenate([counts, sums, *moments[:1]], -1), *moments[1:]]
        return tuple(vector.reshape(-1, vector.shape[-1]) for vector in vectors)

    def fetched(self, sums: Sequence[Array]) -> Sums:
        """Return the sums over all devices, on the host; of groups of chains, with an entry for each."""
        first, *others = (to_host(part) for part in sums)
        counts, (figures, vectors) = first[:, :COUNTS], np.split(first[:, COUNTS:], [self._stats], axis=1)
        if self.chains is not None:
            return self._of_groups(counts, figures, vectors)
        totals = self.totals(np.concatenate([counts.sum(0), figures.sum(0)]))
        stats = {name: float(total) for name, total in totals.stats.items()}
        without_moments = Sums(int(totals.draws), stats, float(totals.inverse_rates))
        if not self._has_moments:
            return without_moments
        by_group = zip([vectors, *others], self.layout.position.lengths, strict=True)
        position, gradient = zip(*(_moments(values, counts[:, 1], size) for values, size in by_group), strict=True)
        return without_moments._replace(position=position, gradient=gradient)

    def totals(self, numbers: Shaped[Array, "number"] | Shaped[np.ndarray, "number"]) -> Sums:
        """Return sums without moments, given their numbers summed over devices."""
        names = {name: number for number, name in enumerate(self.layout.stats, COUNTS) if name not in TOTALS}
        return Sums(numbers[0], {name: numbers[number] for name, number in names.items()}, numbers[2])

    def _of_groups(
        self,
        counts: Float64[np.ndarray, "groups count"],
        figures: Float64[np.ndarray, "groups statistic"],
        vectors: Float64[np.ndarray, "groups number"],
    ) -> Sums:
        """Return sums with an entry for each group of chains, whose coordinates are one group."""
        draws, good, inverse = counts.T
        stats = {name: figures[:, number] for number, name in enumerate(self.layout.stats) if name not in TOTALS}
        position = gradient = ()
        if self._has_moments:
            means, squares = (np.split(part, 2, axis=1) for part in np.split(vectors, 2, axis=1))
            position, gradient = (
                (VectorMoments(good.astype(int), *moments),) for moments in zip(means, squares, strict=True)
            )
        return Sums(draws.astype(int), stats, inverse, position, gradient)

    def _by_group(self, x: Shaped[Array, "lanes number"]) -> Shaped[Array, "*groups chains number"]:
        """Return values of lanes by group of chains, if there are groups."""
        return x if self.chains is None else x.reshape(-1, self.chains, x.shape[-1])

    @property
    def specs(self) -> tuple[PartitionSpec, ...]:
        """Partition of the sums over the mesh."""
        return self.layout.position.specs(CHAIN)[: None if self._has_moments else 1]

    @property
    def _has_moments(self) -> bool:
        return self.has_moments and self.layout.parts == 2

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
