"""Blocks of a run on many data sets: each lane has the arrays, the step size and the metric of its own data set."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec

from phalanx.adaptation.acceptance import LEAST
from phalanx.adaptation.metric import LowRankMetric
from phalanx.adaptation.tuner import Sums, VectorMoments
from phalanx.density.target import Target
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.chains import lane_chains
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.processes import to_devices, to_host
from phalanx.mesh.random_numbers import Keys
from phalanx.mesh.specs import PyTree
from phalanx.run.device.blocks import Blocks, InitResult
from phalanx.run.device.recorder import TOTALS, Rows
from phalanx.run.device.summing import Summing

if TYPE_CHECKING:
    from jaxtyping import Float64, Int

OF_CHAINS, SHARED = PartitionSpec(CHAIN), PartitionSpec()


class EachTarget(Target):
    """Target of one of many data sets; the arrays in `own` have a leading dimension of data sets on the devices."""

    own: tuple[int, ...]
    sets: int
    whole: tuple[Any, ...]

    @classmethod
    def of_one(cls, target: Target, whole: Sequence[Any], own: Sequence[int], sets: int) -> EachTarget:
        """Return the target of many data sets, given that of one and the arrays of all."""
        found = cls.__new__(cls)
        vars(found).update(vars(copy.copy(target)))
        found.whole, found.own, found.sets = tuple(whole), tuple(own), sets
        return found

    def array_specs(self) -> tuple[PartitionSpec, ...]:
        """Return the partition of each array of the data."""
        return tuple(OF_CHAINS if number in self.own else SHARED for number in range(len(self.arguments.arrays)))

    def place_arrays(self) -> tuple[Array, ...]:
        """Return the arrays on the mesh: a device has those of its data sets."""
        placed = zip(self.whole, self.array_specs(), strict=True)
        return tuple(to_devices(array, NamedSharding(self.mesh, spec)) for array, spec in placed)

    def without_arrays(self) -> EachTarget:
        """Return the target without its data."""
        other: Any = super().without_arrays()
        other.whole = ()
        return other

    def local_shapes(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Return the shapes of the arrays on one device."""
        here = self.sets // self.mesh.shape[CHAIN]
        return tuple(
            jax.ShapeDtypeStruct((here, *s.shape), s.dtype) if number in self.own else s
            for number, s in enumerate(self.arguments.local_shapes())
        )


@dataclass(frozen=True)
class EachBlocks(Blocks):
    """Functions of a run on many data sets to be compiled. Chains are in the order of their data sets.

    Attributes:
        sets: number of data sets.
    """

    sets: int = 1

    @property
    def chains_of_one(self) -> int:
        """Chains of each data set."""
        return self.num_chains // self.sets

    @property
    def sets_here(self) -> int:
        """Data sets of each device."""
        return self.count // self.chains_of_one

    def lanes(self, arrays: Sequence[Array], chains: Int[Array, "lanes"] | None = None) -> LaneTarget:
        """Return the target for all lanes of this device, or for those with some of its chains."""
        assert isinstance(self.target, EachTarget)
        chains = lane_chains(self.count) if chains is None else chains
        here = self._sets_of(chains)
        own = {number: jnp.moveaxis(arrays[number][here], 0, -1) for number in self.target.own}
        return LaneTarget(self.target.on_device(arrays, len(chains)), len(chains), own)

    def keys(self, seed: Array, chains: Int[Array, "lanes"] | None = None) -> Keys:
        """Return the keys of lanes: those of a run on their data set alone with `seed` plus the data set's number."""
        chains = lane_chains(self.count) if chains is None else chains
        numbers = (chains // self.chains_of_one).astype(jnp.uint32)
        return Keys.of_chains(jnp.asarray(seed, jnp.uint32) + numbers, chains % self.chains_of_one)

    def of_lanes(self, tuning: PyTree, chains: Int[Array, "lanes"]) -> PyTree:
        """Return the tuning of each lane's data set; a variance of the metric as `(coordinates, lanes)`."""
        here = self._sets_of(chains)

        def of_sets(leaf: Array) -> Array:
            return jnp.moveaxis(leaf[here], 0, -1)

        if not hasattr(tuning, "_fields"):  # the step size of an order
            return of_sets(tuning)
        if (metric := getattr(tuning, "metric", None)) is not None:
            tuning = tuning._replace(metric=metric._replace(variance=jax.tree.map(of_sets, metric.variance)))
        return tuning._replace(step_size=of_sets(tuning.step_size))

    def invalid(self, target: LaneTarget) -> dict[tuple[str, str], Int[Array, "lanes"]]:
        """Return the number of values of each lane outside of their support, by site and parameter."""
        return jax.vmap(lambda own: target.density.with_own(own).invalid())(target.own_first)

    def init_specs(self) -> InitResult:
        """Return the partition of chains at their initial positions."""
        return super().init_specs()._replace(invalid=OF_CHAINS)

    def tuning_specs(self, tuning: PyTree) -> PyTree:
        """Return the partition of a tuning: step sizes and metrics are those of a device's data sets."""
        if isinstance(tuning, LowRankMetric):
            specs = jax.tree.map(lambda _: SHARED, tuning)
            return specs._replace(variance=tuple(PartitionSpec(CHAIN, None) for _ in tuning.variance))
        specs = jax.tree.map(lambda _: SHARED, tuning, is_leaf=lambda node: isinstance(node, LowRankMetric))
        if getattr(tuning, "metric", None) is not None:
            specs = specs._replace(metric=self.tuning_specs(tuning.metric))
        return specs._replace(step_size=OF_CHAINS)

    def later_spec(self) -> PartitionSpec:
        """Return the partition of the step size of draws beyond an order."""
        return OF_CHAINS

    def no_sums(self) -> Sums:
        """Return sums over no draws, of each data set."""
        sizes = self.layout.whole_lengths
        none = tuple(
            VectorMoments(np.zeros(self.sets, int), np.zeros((self.sets, size)), np.zeros((self.sets, size)))
            for size in sizes
        )
        return Sums(np.zeros(self.sets, int), {}, np.zeros(self.sets), none, none)

    @property
    def summing(self) -> EachSumming:
        """Sums of recorded draws, by data set."""
        return EachSumming(self.row_layout, self.chains_of_one)

    @property
    def _arrays(self) -> PyTree:
        assert isinstance(self.target, EachTarget)
        return self.target.local_shapes()

    def _sets_of(self, chains: Int[Array, "lanes"]) -> Int[Array, "lanes"]:
        """Return the number on this device of each chain's data set."""
        return chains // self.chains_of_one - lax.axis_index(CHAIN) * self.sets_here


@dataclass(frozen=True)
class EachSumming(Summing):
    """Sums of the recorded draws of each data set, whose coordinates are not sharded.

    Attributes:
        chains: chains of each data set.
    """

    chains: int

    def __call__(self, rows: Rows, first: Int[Array, ""], end: Int[Array, ""]) -> Float64[Array, "sets _"]:
        """Return sums over the slots from `first` to before `end`, a vector of numbers for each data set.

        They are the number of draws with finite coordinates, the sum of inverse acceptance rates, sums of statistics;
        and of positions and gradients the means and the sums of squared deviations from them.
        """
        layout = self.layout
        width = layout.start_of_stats if self._has_moments else 0
        vectors, stats = rows[0][..., :width], rows[0][..., layout.start_of_stats :]
        sets = rows[0].shape[1] // self.chains
        begins = vectors[0].reshape(sets, self.chains, width)[:, 0]
        origin = jnp.where(jnp.isfinite(begins), begins, 0.0).astype(jnp.float64)  # so that squares do not cancel

        def of_sets(x: Array) -> Array:
            return x.reshape(sets, self.chains, x.shape[-1]).sum(1)

        def add(slot: Array, sums: PyTree) -> PyTree:
            now, figures = (
                lax.dynamic_index_in_dim(part, slot, keepdims=False).astype(jnp.float64) for part in (vectors, stats)
            )
            good = jnp.isfinite(now).all(-1, keepdims=True)
            inverse = 1 / jnp.fmax(figures[:, layout.stats.index("acceptance_rate"), None], LEAST)
            apart = jnp.where(good, now - jnp.repeat(origin, self.chains, 0), 0.0)
            counts = jnp.concatenate([good.astype(jnp.float64), inverse, figures], -1)
            return jax.tree.map(jnp.add, sums, tuple(map(of_sets, (counts, apart, jnp.square(apart)))))

        nothing = jnp.zeros((sets, 2 + stats.shape[-1]), jnp.float64), jnp.zeros_like(origin), jnp.zeros_like(origin)
        counts, totals, squares = lax.fori_loop(first, end, add, nothing)
        draws = jnp.maximum(counts[:, :1], 1)
        spread = jnp.maximum(squares - jnp.square(totals) / draws, 0)
        made = jnp.full((sets, 1), (end - first) * self.chains, jnp.float64)
        return jnp.concatenate([made, counts, origin + totals / draws, spread], -1)

    def fetched(self, sums: Array) -> Sums:
        """Return the sums on the host, with an entry for each data set."""
        found = to_host(sums)
        draws, good, inverse = found[:, 0], found[:, 1].astype(int), found[:, 2]
        names = {name: 3 + number for number, name in enumerate(self.layout.stats) if name not in TOTALS}
        stats = {name: found[:, number] for name, number in names.items()}
        if not self._has_moments:
            return Sums(draws.astype(int), stats, inverse)
        size = self.layout.position.lengths[0]
        after = 3 + self._stats
        means, squares = np.split(found[:, after:], 2, axis=1)
        position, gradient = (
            (VectorMoments(good, means[:, part : part + size], squares[:, part : part + size]),)
            for part in (0, size)
        )  # fmt: skip
        return Sums(draws.astype(int), stats, inverse, position, gradient)

    @property
    def specs(self) -> PartitionSpec:
        """Partition of the sums over the mesh."""
        return OF_CHAINS
