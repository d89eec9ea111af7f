"""Several processes, each with devices of its own, that run one program together.

Each runs the same script, and all must run the same operations on the devices in the same order: a decision of one
process, from its clock or keyboard, would leave the others waiting for ever. Therefore one process decides for all.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Sharding

HEARTBEAT_SECONDS = 10
"""Seconds without a heartbeat after which a process counts as dead, and all others are ended."""

_BY_NAME = ("coordinator_address", "num_processes", "process_id")

PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "grpc_proxy", "all_proxy", "ALL_PROXY")


def initialize(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    coordinator_address: str | None = None,
    **options: Any,
) -> int:
    """Join the processes that run this script, before anything else is done with JAX.

    Each then sees the devices of all, and a run on a mesh of them is one run: the same calls with the same arguments
    in every process give every process the same posterior.

    Args:
        coordinator: `host:port` of the first process, the same in all.
        num_processes: number of processes.
        process_id: number of this process, from 0. On Slurm, Open MPI and TPUs JAX detects all three.
        coordinator_address: JAX's name for `coordinator`.
        options: further options of `jax.distributed.initialize`.

    Returns:
        The number of this process.

    Raises:
        RuntimeError: when JAX has started already, or the others cannot be reached.
        TypeError: when an option is not one of `jax.distributed.initialize`.
        ValueError: when the coordinator is given twice, or some of the three are given and others not.

    Example:
        >>> import phalanx as phx
        >>> phx.initialize("127.0.0.1:12321", num_processes=2, process_id=0)  # doctest: +SKIP
        0
    """
    known = [name for name in inspect.signature(jax.distributed.initialize).parameters if name not in _BY_NAME]
    if unknown := [name for name in options if name not in known]:
        raise TypeError(
            f"initialize: there is no option {unknown[0]!r}. Besides {', '.join(_BY_NAME)} it takes "
            f"{', '.join(known)}, as jax.distributed.initialize does."
        )
    if coordinator is not None and coordinator_address is not None:
        raise ValueError(
            f"initialize: coordinator={coordinator!r} and coordinator_address={coordinator_address!r} are one and the "
            f"same. Give one of them."
        )
    coordinator = coordinator or coordinator_address
    given = (coordinator, num_processes, process_id)
    if any(value is None for value in given) and any(value is not None for value in given):
        raise ValueError(
            f"initialize: coordinator={coordinator!r}, num_processes={num_processes!r} and process_id={process_id!r} "
            f"belong together: give all three, or none on a cluster whose scheduler sets them."
        )
    if coordinator is not None and coordinator.partition(":")[0] in ("127.0.0.1", "localhost"):
        for name in PROXIES:  # through a proxy, processes on one machine cannot connect
            os.environ.pop(name, None)
        options.setdefault("coordinator_bind_address", coordinator)
    options.setdefault("heartbeat_timeout_seconds", HEARTBEAT_SECONDS)
    jax.distributed.initialize(coordinator, num_processes, process_id, **options)
    return jax.process_index()


def is_first() -> bool:
    """Return whether this is the first process, which prints and writes for all."""
    return jax.process_index() == 0


def to_devices(value: Any, sharding: Sharding) -> Array:
    """Return a value that every process has as an array with this sharding."""
    if sharding.is_fully_addressable or (isinstance(value, Array) and not value.is_fully_addressable):
        return jax.device_put(value, sharding)  # does not copy an array with this sharding
    value = np.asarray(value)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def all_to_devices(tree: Any, layout: Any) -> Any:
    """Return a tree of values as arrays with a tree of shardings; a single process transfers them in one call."""
    if jax.process_count() == 1:
        return jax.device_put(tree, layout)
    return jax.tree.map(to_devices, tree, layout)


def to_host(value: Any) -> np.ndarray:
    """Return the whole array, in every process."""
    if not isinstance(value, Array) or value.is_fully_replicated:
        return np.asarray(value)
    if not value.is_fully_addressable:
        return np.asarray(multihost_utils.process_allgather(value, tiled=True))
    whole = np.empty(value.shape, value.dtype)  # shard by shard: JAX takes several times as long for small arrays
    for shard in value.addressable_shards:
        if shard.replica_id == 0:
            whole[shard.index] = np.asarray(shard.data)
    return whole


def agreed(value: Any) -> Any:
    """Return the value of the first process."""
    return value if jax.process_count() == 1 else multihost_utils.broadcast_one_to_all(value)
