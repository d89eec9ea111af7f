"""The tally of draws that are not stored: what each lane has done, added up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.devices import CHAIN
from phalanx.run.device.sink import Draws


class Counts(NamedTuple):
    """What each lane has done.

    Attributes:
        draws: draws made, those that thinning drops among them.
        acceptance: sum of their acceptance rates.
        num_steps: evaluations.
        diverging: draws that diverged.
    """

    draws: Any
    acceptance: Any
    num_steps: Any
    diverging: Any


@dataclass(frozen=True)
class Tally:
    """The sink that counts."""

    def empty(self, target: LaneTarget, before: Array) -> Counts:
        """Nothing yet."""
        zero = jnp.zeros(target.count, jnp.int32)
        return Counts(zero, jnp.zeros(target.count, jnp.float32), zero, zero)

    def update(self, state: Counts, draws: Draws, target: LaneTarget) -> Counts:
        """With the draws of a tick."""
        done, info = draws.done, draws.info
        return Counts(
            state.draws + done,
            state.acceptance + jnp.where(done, info.acceptance_rate, 0.0).astype(jnp.float32),
            state.num_steps + jnp.where(done, info.num_steps, 0),
            state.diverging + (done & info.diverging),
        )

    @property
    def specs(self) -> PartitionSpec:
        """Everything is by lane."""
        return PartitionSpec(CHAIN)
