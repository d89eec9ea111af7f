"""Coordinates of a position as a vector: in the order in which the model meets its variables, or of their names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec

from phalanx.inputs.placement import partition_spec
from phalanx.programs.shares import Latent

Latents = Sequence[Latent]


def is_local(latent: Latent) -> bool:
    """Return whether a variable has a row for each row of sharded data, and lives where they do."""
    return latent.sharding.axes != ()


def globals_of(latents: Latents) -> list[Latent]:
    """Return those of which every device has all."""
    return [latent for latent in latents if not is_local(latent)]


def locals_of(latents: Latents) -> list[Latent]:
    """Return those whose rows lie with rows of the data."""
    return [latent for latent in latents if is_local(latent)]


def size_of(latents: Latents) -> int:
    """Return how many coordinates they have."""
    return sum(math.prod(latent.unconstrained_shape) for latent in latents)


def dtype_of(latents: Latents) -> Any:
    """Return the dtype of a position as a vector."""
    return jnp.result_type(*(latent.dtype for latent in latents))


def vector_of(position: Mapping[str, Array], latents: Latents) -> Array:
    """Return these variables' coordinates, in this order."""
    parts = [jnp.ravel(position[latent.name]) for latent in latents]
    return jnp.concatenate(parts) if parts else jnp.zeros(0)


def of_vector(vector: Array, latents: Latents) -> dict[str, Array]:
    """Return the position of a vector in this order: the inverse of `vector_of`."""
    found, begin = {}, 0
    for latent in latents:
        size = math.prod(latent.unconstrained_shape)
        found[latent.name] = vector[begin : begin + size].reshape(latent.unconstrained_shape).astype(latent.dtype)
        begin += size
    return found


def flat(position: Mapping[str, Array]) -> tuple[Array, Any]:
    """Return a position as a vector, variables in the order of their names; and the way back."""
    return ravel_pytree(dict(position))


def by_name(vector: Array, latents: Latents) -> dict[str, Array]:
    """Return the position of a vector in the order of names: the inverse of `flat`."""
    return of_vector(vector, named(latents))


def named(latents: Latents) -> list[Latent]:
    """Return them in the order of their names."""
    return sorted(latents, key=lambda latent: latent.name)


def row_spec(latent: Latent) -> PartitionSpec | None:
    """Return the layout of a parameter that has an entry for each coordinate of a variable: that of its rows."""
    shape = latent.unconstrained_shape
    return partition_spec(latent.sharding) if is_local(latent) and shape and shape[0] == latent.sharding.rows else None
