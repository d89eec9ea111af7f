"""Devices and the mesh they form, with axes `chain`, `data` and `model`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Any

import jax
from jax.sharding import AxisType, Mesh

from phalanx.mesh.compatibility.jax_internals import settings
from phalanx.mesh.compatibility.jax_release import check_jax
from phalanx.mesh.forks import refuse_fork

CHAIN = "chain"
"""The mesh axis that chains are sharded over. One chain's model and data are sharded over the other axes."""

AXES = (CHAIN, "data", "model")

_is_chosen = False
"""True once the user has chosen the number of CPU devices."""


def make_mesh(chain: int | None = None, data: int = 1, model: int = 1, devices: Iterable[Any] | None = None) -> Mesh:
    """Arrange devices in a mesh with the axes `chain`, `data` and `model`.

    Args:
        chain: devices along `chain`; None means all devices that `data` and `model` leave.
        data: devices that one chain's data (and local latent variables) are sharded over.
        model: devices that one chain's model (its large weights) is sharded over.
        devices: the devices to use, all of JAX's by default. With `chain` given, the first `chain * data * model`.

    Returns:
        A `jax.sharding.Mesh` of shape `(chain, data, model)` with Auto axis types.

    Raises:
        ValueError: when a size is below one, there are too few devices, or they do not divide evenly.

    Example:
        >>> import phalanx as phx
        >>> dict(phx.make_mesh(chain=1).shape)
        {'chain': 1, 'data': 1, 'model': 1}
    """
    if devices is not None and (isinstance(devices, str) or not isinstance(devices, Iterable)):
        raise TypeError(f"make_mesh: devices must be a list of JAX's, such as jax.devices()[:2]; got {devices!r}.")
    use_every_core()
    devices = list(jax.devices() if devices is None else devices)
    if devices:
        check_jax(devices[0].platform)
    for name, size in (("chain", chain), ("data", data), ("model", model)):
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise ValueError(f"make_mesh: {name} must be a whole number of devices, at least 1; got {size!r}.")
    if chain is None:
        chain, remainder = divmod(len(devices), data * model)
        if remainder or not chain:
            raise ValueError(
                f"make_mesh: {len(devices)} devices cannot be split into groups of data * model = {data} * {model}; "
                f"choose sizes whose product divides {len(devices)}, or pass devices=."
            )
    num_needed = math.prod((chain, data, model))
    if num_needed > len(devices):
        raise ValueError(
            f"make_mesh: chain * data * model = {chain} * {data} * {model} = {num_needed} devices were asked for, "
            f"but there are {len(devices)}. On a CPU machine call phx.use_cpu_devices({num_needed}) before anything "
            f"else."
        )
    return jax.make_mesh(
        (chain, data, model), AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices[:num_needed]
    )


def with_auto_axes(mesh: Mesh) -> Mesh:
    """Return the mesh with Auto axis types; under the Explicit ones of `jax.make_mesh` all arrays need shardings."""
    check_jax(mesh.devices.flat[0].platform)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def axes_but_chain(mesh: Mesh) -> dict[str, int]:
    """Return the number of devices along every axis that a target may be sharded over."""
    return {axis: size for axis, size in mesh.shape.items() if axis != CHAIN}


def default_mesh(num_chains: int) -> Mesh:
    """Return the default mesh of a run: along `chain` the greatest divisor of both chains and devices."""
    use_every_core()
    count = len(jax.devices())
    return make_mesh(chain=math.gcd(num_chains, count) if num_chains > 0 else 1)


def use_cpu_devices(n: int | None = None) -> int:
    """Ask JAX for `n` CPU devices (one per core by default). Call it before the first array is made.

    Args:
        n: the number of devices; None means one for each core this process may use.

    Returns:
        The number of CPU devices.

    Raises:
        ValueError: when `n` is not a positive whole number.
        RuntimeError: when JAX has already started with another number of CPU devices.

    Example:
        >>> import phalanx as phx
        >>> phx.use_cpu_devices(4)  # doctest: +SKIP
        4
    """
    n = count_cores() if n is None else n
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ValueError(f"use_cpu_devices: n must be a whole number of devices, at least 1; got {n!r}.")
    if not _ask_for_cpu_devices(n) and (num_devices := len(jax.devices("cpu"))) != n:
        raise RuntimeError(
            f"use_cpu_devices({n}): JAX has already started with {num_devices} CPU device(s). Call "
            f"phx.use_cpu_devices({n}) at the top of the script, before the first array is made or jax.devices() is "
            f"called, or set the environment variable XLA_FLAGS=--xla_force_host_platform_device_count={n}."
        )
    global _is_chosen
    _is_chosen = True
    return n  # counting the devices would start JAX before `phx.initialize`


def use_every_core() -> str | None:
    """Ask for one CPU device per core if JAX has not started; otherwise return advice on how to get them.

    A number of devices that the user has chosen is kept, without advice. All that makes a first array calls this, such
    as a key, a placed argument or a mesh: JAX starts with the number of devices that it finds then.

    Raises:
        RuntimeError: when this process was forked after JAX had started.
    """
    refuse_fork()
    cores = count_cores()
    if cores == 1 or _ask_for_cpu_devices(cores) or _has_chosen() or not _is_one_cpu():
        return None
    return (
        f"phalanx: JAX had already started with one CPU device, so 1 of {cores} cores runs chains. "
        f"Call phx.use_cpu_devices({cores}) before the first array is made to use them all."
    )


def _is_one_cpu() -> bool:
    return jax.default_backend() == "cpu" and jax.device_count() == 1


def count_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _has_chosen() -> bool:
    """Return whether the number of CPU devices has been chosen, by the user or by an earlier call."""
    by_flag = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    return _is_chosen or by_flag or (settings().get("jax_num_cpu_devices") or 0) > 0


def _ask_for_cpu_devices(n: int) -> bool:
    if _has_chosen():
        return False  # JAX refuses a second number
    try:
        jax.config.update("jax_num_cpu_devices", n)
    except RuntimeError:  # JAX has started; its public API does not report it in advance
        return False
    return True
