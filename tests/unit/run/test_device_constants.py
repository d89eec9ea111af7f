"""Small arguments of blocks stay on the host until their value returns, then they stay on the devices."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import PartitionSpec

import phalanx as phx
from phalanx.run.compile.device_constants import LARGEST_BYTES, USES, DeviceConstants


def test_a_value_is_placed_once_it_was_used_and_then_kept() -> None:
    sent = DeviceConstants(phx.make_mesh())
    used = [sent.array(np.float32(0.5), PartitionSpec()) for _ in range(USES + 3)]
    assert all(isinstance(value, np.ndarray) for value in used[:USES])
    assert all(value is used[USES] and isinstance(value, jax.Array) for value in used[USES:])
    assert isinstance(sent.array(np.float32(0.25), PartitionSpec()), np.ndarray)


def test_types_shapes_and_partitions_are_told_apart() -> None:
    sent, shared, chains = DeviceConstants(phx.make_mesh()), PartitionSpec(), PartitionSpec("chain")
    values = np.zeros(8, np.int32), np.zeros(8, np.float32), np.zeros((8, 1), np.int32)

    def placed_now() -> list[np.ndarray | jax.Array]:
        return [sent.array(value, spec) for spec in (shared, chains) for value in values]

    placed = [placed_now() for _ in range(USES + 1)][-1]
    assert len({id(value) for value in placed}) == 6
    assert [(value.dtype, value.shape) for value in placed] == [(value.dtype, value.shape) for value in values] * 2


def test_a_large_value_is_never_kept() -> None:
    sent, large = DeviceConstants(phx.make_mesh()), np.zeros(LARGEST_BYTES, np.int8)
    assert isinstance([sent.array(large, PartitionSpec()) for _ in range(USES + 2)][-1], jax.Array)
    larger = np.zeros(LARGEST_BYTES + 1, np.int8)
    assert all(sent.array(larger, PartitionSpec()) is larger for _ in range(USES + 2))
