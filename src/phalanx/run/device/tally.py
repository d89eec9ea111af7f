"""Sink that counts draws that are not stored, and adds up their statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.devices import CHAIN
from phalanx.run.device.sink import Draws

if TYPE_CHECKING:
    from jaxtyping import Int


class Counts(NamedTuple):
    """Totals of each lane, over draws before thinning.

    Attributes:
        draws: number of draws.
        acceptance: sum of their acceptance rates.
        num_steps: number of evaluations.
        diverging: number of divergent draws.
    """

    draws: Any
    acceptance: Any
    num_steps: Any
    diverging: Any


@dataclass(frozen=True)
class Tally:
    """Sink that counts draws."""

    def empty(self, target: LaneTarget, before: Int[Array, "lanes"]) -> Counts:
        """Return totals of 0."""
        zero = jnp.zeros(target.count, jnp.int32)
        return Counts(zero, jnp.zeros(target.count, jnp.float32), zero, zero)

    def update(self, state: Counts, draws: Draws, target: LaneTarget) -> Counts:
        """Return the totals after a tick."""
        done, info = draws.done, draws.info
        return Counts(
            state.draws + done,
            state.acceptance + jnp.where(done, info.acceptance_rate, 0.0).astype(jnp.float32),
            state.num_steps + jnp.where(done, info.num_steps, 0),
            state.diverging + (done & info.diverging),
        )

    @property
    def specs(self) -> PartitionSpec:
        """Partition of the totals: by lane."""
        return PartitionSpec(CHAIN)
