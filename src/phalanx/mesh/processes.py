"""Several processes, each with devices of its own, that run one program together.

Each runs the same script, and all must run the same operations on the devices in the same order: a decision of one
process, from its clock or keyboard, would leave the others waiting for ever. Therefore one process decides for all.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from jax.typing import ArrayLike

from phalanx.mesh.compatibility.shared_store import SharedStore
from phalanx.mesh.failure import Peers
from phalanx.mesh.forks import refuse_fork
from phalanx.mesh.random_numbers import is_key
from phalanx.mesh.specs import PyTree

HEARTBEAT_SECONDS = 12
"""Seconds without a heartbeat after which a process counts as dead, and all others are ended."""

COORDINATOR, NUM_PROCESSES, PROCESS_ID = "PHALANX_COORDINATOR", "PHALANX_NUM_PROCESSES", "PHALANX_PROCESS_ID"
"""Environment variables that `initialize` reads if it has no arguments; `phalanx launch` sets them."""

KUBERNETES = "KUBERNETES_SERVICE_HOST"
"""Environment variable of each container in Kubernetes."""

_joined: list[Peers] = []
"""The other processes, once this one has joined them."""

_BY_NAME = ("coordinator_address", "num_processes", "process_id")

EXCHANGED_BYTES = 2**24
"""Most bytes that each device receives at once where processes exchange arrays on the host."""

Made = TypeVar("Made")

PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "grpc_proxy", "all_proxy", "ALL_PROXY")


def initialize(
    coordinator: str | None = None,
    *,
    num_processes: int | None = None,
    process_id: int | None = None,
    coordinator_address: str | None = None,
    **options: Any,
) -> int:
    """Join the processes that run this script, before anything else is done with JAX.

    Each then sees the devices of all, and a run on a mesh of them is one run: all processes make the same calls with
    the same arguments. Each holds the draws of its own chains, and gets the results of all. An exception that ends one
    process ends all, and so does the death of one. SIGTERM ends a run with `checkpoint=` after a save.

    Under `phalanx launch` the processes have joined already, and a call without arguments returns the number. Elsewhere
    it reads the environment variables PHALANX_COORDINATOR, PHALANX_NUM_PROCESSES and PHALANX_PROCESS_ID, and without
    them it leaves the three to JAX, which knows Slurm, Open MPI, TPUs and, with the package kubernetes, Kubernetes.

    Args:
        coordinator: `host:port` of the first process, the same in all.
        num_processes: number of processes.
        process_id: number of this process, from 0.
        coordinator_address: JAX's name for `coordinator`.
        options: further options of `jax.distributed.initialize`.

    Returns:
        The number of this process.

    Raises:
        RuntimeError: when JAX has started already, or the others cannot be reached.
        TypeError: when an option is not one of `jax.distributed.initialize`.
        ValueError: when the coordinator is given twice, some of the three are given and others not, or all are left
            to JAX and it finds no cluster.

    Example:
        >>> import phalanx as phx
        >>> phx.initialize("127.0.0.1:12321", num_processes=2, process_id=0)  # doctest: +SKIP
        0
    """
    others = [name for name in inspect.signature(jax.distributed.initialize).parameters if name not in _BY_NAME]
    if unknown := [name for name in options if name not in others]:
        raise TypeError(
            f"initialize: there is no option {unknown[0]!r}. Besides {', '.join(_BY_NAME)} it takes "
            f"{', '.join(others)}, as jax.distributed.initialize does."
        )
    if coordinator is not None and coordinator_address is not None:
        raise ValueError(
            f"initialize: coordinator={coordinator!r} and coordinator_address={coordinator_address!r} are one and the "
            f"same. Give one of them."
        )
    coordinator = coordinator or coordinator_address
    if coordinator is None and num_processes is None and process_id is None:
        if jax.distributed.is_initialized():
            return jax.process_index()
        coordinator, num_processes, process_id = _from_environment(os.environ)
    process_options = (coordinator, num_processes, process_id)
    if any(value is None for value in process_options) and any(value is not None for value in process_options):
        raise ValueError(
            f"initialize: coordinator={coordinator!r}, num_processes={num_processes!r} and process_id={process_id!r} "
            f"belong together: give all three, or none on a cluster whose scheduler sets them."
        )
    if coordinator is not None and coordinator.partition(":")[0] in ("127.0.0.1", "localhost"):
        for name in PROXIES:  # through a proxy, processes on one machine cannot connect
            os.environ.pop(name, None)
        options.setdefault("coordinator_bind_address", coordinator)
    if coordinator is not None and KUBERNETES in os.environ:  # JAX would ask for a package that only finds the three
        options.setdefault("cluster_detection_method", "deactivate")
    if jax.distributed.is_initialized():
        raise RuntimeError(
            f"initialize: this process has joined the others already, as number {jax.process_index()} of "
            f"{jax.process_count()}. Call phx.initialize() once; under `phalanx launch` without arguments."
        )
    options.setdefault("heartbeat_timeout_seconds", HEARTBEAT_SECONDS)
    with suppress(AttributeError):  # a JAX without this setting
        jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM, and no run would end
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id, **options)
    except ValueError as error:
        if coordinator is not None:
            raise
        raise ValueError(
            f"initialize: JAX found no cluster ({str(error).rstrip('.')}). Start the script with srun under Slurm, "
            f"with mpirun under Open MPI, and with phalanx launch on one machine. Elsewhere give coordinator=, "
            f"num_processes= and process_id=, or set {COORDINATOR}, {NUM_PROCESSES} and {PROCESS_ID}."
        ) from error
    store = SharedStore.joined()
    if store is not None:
        peers = Peers(store, jax.process_index(), jax.process_count())
        peers.watch()
        _joined.append(peers)
    return jax.process_index()


def fail(message: str, status: int = 1) -> NoReturn:
    """End this process, and the others with a line that says why."""
    for peers in _joined:
        peers.fail(message, status)
    sys.exit(status)


def _from_environment(variables: Mapping[str, str]) -> tuple[str | None, int | None, int | None]:
    """Return coordinator, number of processes and number of this one; None each without the variables."""
    coordinator, *numbers = (variables.get(name) for name in (COORDINATOR, NUM_PROCESSES, PROCESS_ID))
    wrong = [name for name, value in zip((NUM_PROCESSES, PROCESS_ID), numbers, strict=True) if not _is_whole(value)]
    if wrong:
        raise ValueError(f"initialize: {wrong[0]}={variables[wrong[0]]!r} must be a whole number.")
    count, number = (None if value is None else int(value) for value in numbers)
    return coordinator, count, number


def _is_whole(value: str | None) -> bool:
    return value is None or value.isdecimal()


def is_first() -> bool:
    """Return whether this is the first process, which prints and writes for all."""
    return jax.process_index() == 0


def to_devices(value: ArrayLike, sharding: Sharding) -> Array:
    """Return a value that every process has as an array with this sharding."""
    refuse_fork()
    if sharding.is_fully_addressable or (isinstance(value, Array) and not value.is_fully_addressable):
        return jax.device_put(value, sharding)  # does not copy an array with this sharding
    if is_key(value):
        data = to_devices(jax.random.key_data(value), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
    value = np.asarray(value)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def all_to_devices(tree: PyTree, layout: PyTree) -> PyTree:
    """Return a tree of values as arrays with a tree of shardings, or all with one; one process sends them at once."""
    refuse_fork()
    if jax.process_count() == 1:
        return jax.device_put(tree, layout)
    return jax.tree.map(lambda where, part: jax.tree.map(lambda leaf: to_devices(leaf, where), part), layout, tree)


def on_all_processes(tree: PyTree) -> NamedSharding | None:
    """Return the sharding that replicates over the devices of the arrays in a tree; None if one process has them."""
    for leaf in jax.tree.leaves(tree):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and not sharding.is_fully_addressable:
            return NamedSharding(sharding.mesh, PartitionSpec())
    return None


def to_host(value: ArrayLike) -> np.ndarray:
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


def agreed(value: PyTree) -> PyTree:
    """Return the value of the first process."""
    return value if jax.process_count() == 1 else multihost_utils.broadcast_one_to_all(value)


def exchange(array: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
    """Return the arrays of all processes, bit for bit; all must call it at the same place.

    Devices would round float64 to float32, so that bytes are exchanged.

    Args:
        array: the array of this process.
        lengths: length of each process's array; the other axes are those of `array`.
    """
    row = array.itemsize * int(np.prod(array.shape[1:]))
    sizes = [length * row for length in lengths]
    sent = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    buffers = [np.empty(size, np.uint8) for size in sizes]
    most = max(sizes)
    piece = 1 << max(EXCHANGED_BYTES // len(lengths), 1).bit_length() - 1
    for begin in range(0, most, piece):
        length = min(piece, 1 << (most - begin - 1).bit_length())  # powers of two, since each size is compiled
        part = np.zeros(length, np.uint8)
        mine = sent[begin : begin + length]
        part[: len(mine)] = mine
        for into, received in zip(buffers, multihost_utils.process_allgather(part), strict=True):
            rest = into[begin : begin + length]
            rest[:] = received[: len(rest)]
    return [
        whole.view(array.dtype).reshape(length, *array.shape[1:])
        for whole, length in zip(buffers, lengths, strict=True)
    ]


def made_by_first(make: Callable[[], Made], otherwise: Made) -> Made:
    """Return what the first process makes, and `otherwise` in the others once it is made.

    Raises:
        OSError: in the others, when it raised an exception in the first.
    """
    value, failure = otherwise, None
    if is_first():
        try:
            value = make()
        except Exception as error:
            failure = error
    has_failed = bool(agreed(np.bool_(failure is not None)))
    if failure is not None:
        raise failure
    if has_failed:
        raise OSError("process 0 has failed to write a file for all processes; its own message says why.")
    return value
