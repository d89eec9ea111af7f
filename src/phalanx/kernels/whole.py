"""What chains carry, from devices to the host and back: whole, without padded rows, and so of no mesh."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from phalanx.kernels.lanes import groups_of
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.placement import partition_spec
from phalanx.mesh.processes import to_devices, to_host
from phalanx.programs.shares import Latent
from phalanx.programs.target import Target


def whole_shapes(target: Target) -> dict[str, tuple[int, ...]]:
    """The shapes of the latent variables, without padding."""
    return {
        latent.name: (latent.sharding.rows, *latent.shape[1:]) if latent.sharding.axes else latent.shape
        for latent in target.shares.latents
    }


def unconstrained_shapes(target: Target) -> dict[str, tuple[int, ...]]:
    """The shapes of unconstrained positions, without padding."""
    return {
        v.name: (v.sharding.rows, *v.unconstrained_shape[1:]) if v.sharding.axes else v.unconstrained_shape
        for v in target.shares.latents
    }


def by_variable(target: Target, vectors: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Vectors `(..., coordinate)` by group, as blocks hand them over, as arrays `(..., *shape)` by variable.

    In a group the devices follow one another, and on each device its part of every variable.
    """
    found: dict[str, np.ndarray] = {}
    for group, vector in zip(groups_of(target.shares.latents), vectors, strict=True):
        members, devices, leading = _members(target, group), _devices(target, group), vector.shape[:-1]
        parts = vector.reshape(*leading, devices, vector.shape[-1] // devices)
        sizes = [math.prod(latent.unconstrained_shape) for latent in members]
        for latent, part in zip(members, np.split(parts, np.cumsum(sizes, dtype=int)[:-1], axis=-1), strict=False):
            first, *rest = latent.unconstrained_shape or (1,)
            rows = part.reshape(*leading, devices * first, *rest)
            shape = rows.shape[len(leading) :] if group else latent.unconstrained_shape
            found[latent.name] = target.trim(latent.name, rows.reshape((*leading, *shape)), leading=len(leading))
    return found


def by_group(target: Target, values: Mapping[str, np.ndarray], zero: bool = False) -> tuple[np.ndarray, ...]:
    """The inverse of `by_variable`; a padded row repeats the last, so that a variance is one, or is zero."""
    latents = target.shares.latents
    leading = values[latents[0].name].shape[: values[latents[0].name].ndim - len(latents[0].unconstrained_shape)]
    vectors = []
    for group in groups_of(latents):
        members, devices = _members(target, group), _devices(target, group)
        parts = [
            padded(values[latent.name], latent, target, leading=len(leading), zero=zero).reshape(*leading, devices, -1)
            for latent in members
        ]
        whole = np.concatenate(parts, axis=-1) if parts else np.zeros((*leading, 0), values[latents[0].name].dtype)
        vectors.append(whole.reshape(*leading, -1))
    return tuple(vectors)


def is_by_variable(node: Any, target: Target) -> bool:
    """Whether a node of a tree is a dict with the model's variables."""
    return isinstance(node, dict) and set(node) == {latent.name for latent in target.shares.latents}


def is_key(leaf: Any) -> bool:
    """Whether an array is one of typed keys, which NumPy does not know."""
    return jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)


def fetched(tree: Any, target: Target) -> Any:
    """Arrays `(chain, ...)` on devices, as arrays of NumPy without padded rows."""

    def whole(node: Any) -> Any:
        if not is_by_variable(node, target):
            return node if is_key(node) else to_host(node)
        return {name: target.trim(name, to_host(values), leading=1) for name, values in node.items()}

    return jax.tree.map(whole, tree, is_leaf=lambda node: is_by_variable(node, target))


def placed(tree: Any, target: Target) -> Any:
    """The inverse of `fetched`; a padded row is zero, as it is in a run."""
    latents = {latent.name: latent for latent in target.shares.latents}

    def place(node: Any) -> Any:
        if not is_by_variable(node, target):
            return to_devices(node, NamedSharding(target.mesh, PartitionSpec(CHAIN)))
        return {
            name: to_devices(
                padded(values, latents[name], target, leading=1, zero=True),
                NamedSharding(target.mesh, partition_spec(latents[name].sharding, CHAIN)),
            )
            for name, values in node.items()
        }

    return jax.tree.map(place, tree, is_leaf=lambda node: is_by_variable(node, target))


def chain_specs(tree: Any, target: Target) -> Any:
    """Layout over the mesh of what has the chains first; a dict by variable is laid out as positions are."""
    return jax.tree.map(
        lambda node: target.position_specs(CHAIN) if is_by_variable(node, target) else PartitionSpec(CHAIN),
        tree, is_leaf=lambda node: is_by_variable(node, target),
    )  # fmt: skip


def padded(values: np.ndarray, latent: Latent, target: Target, leading: int = 0, zero: bool = False) -> np.ndarray:
    """Whole values with the last row again, or zeros, for every padded one; rows lie behind `leading` dimensions."""
    if not latent.sharding.axes:
        return values
    missing = latent.sharding.local_rows * _devices(target, latent.sharding.axes) - latent.sharding.rows
    last = np.take(values, [-1], axis=leading) * (1 - zero)
    return np.concatenate([values, np.repeat(last, missing, axis=leading)], axis=leading) if missing else values


def _members(target: Target, group: tuple[str, ...]) -> list[Latent]:
    """The variables of a group in the order of their coordinates."""
    return sorted((v for v in target.shares.latents if v.sharding.axes == group), key=lambda latent: latent.name)


def _devices(target: Target, axes: tuple[str, ...]) -> int:
    return math.prod(target.mesh.shape[axis] for axis in axes)
