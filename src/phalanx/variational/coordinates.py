"""Coordinates of a position as a vector, in the order in which the model meets its variables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jax import Array

from phalanx.programs.shares import Latent


def is_local(latent: Latent) -> bool:
    """Whether a variable has a row for each row of sharded data, and lives where they do."""
    return latent.sharding.axes != ()


def globals_of(latents: Sequence[Latent]) -> list[Latent]:
    """Those of which every device has all."""
    return [latent for latent in latents if not is_local(latent)]


def locals_of(latents: Sequence[Latent]) -> list[Latent]:
    """Those whose rows lie with rows of the data."""
    return [latent for latent in latents if is_local(latent)]


def size_of(latents: Sequence[Latent]) -> int:
    """How many coordinates they have."""
    return sum(math.prod(latent.unconstrained_shape) for latent in latents)


def vector_of(position: Mapping[str, Array], latents: Sequence[Latent]) -> Array:
    """These variables' coordinates."""
    parts = [jnp.ravel(position[latent.name]) for latent in latents]
    return jnp.concatenate(parts) if parts else jnp.zeros(0)


def of_vector(vector: Array, latents: Sequence[Latent]) -> dict[str, Array]:
    """The inverse of `vector_of`."""
    found, begin = {}, 0
    for latent in latents:
        size = math.prod(latent.unconstrained_shape)
        found[latent.name] = vector[begin : begin + size].reshape(latent.unconstrained_shape).astype(latent.dtype)
        begin += size
    return found
