"""Coordinates of a position as a vector: in the order in which the model meets its variables, or of their names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec

from phalanx.programs.sites import Latent

if TYPE_CHECKING:
    from jaxtyping import Float

Latents = Sequence[Latent]


def is_local(latent: Latent) -> bool:
    """Return whether a variable has a row for each row of sharded data, on the same device."""
    return latent.sharding.axes != ()


def globals_of(latents: Latents) -> list[Latent]:
    """Return the variables that every device holds whole."""
    return [latent for latent in latents if not is_local(latent)]


def locals_of(latents: Latents) -> list[Latent]:
    """Return the variables whose rows lie with rows of the data."""
    return [latent for latent in latents if is_local(latent)]


def size_of(latents: Latents) -> int:
    """Return the number of coordinates."""
    return sum(math.prod(latent.unconstrained_shape) for latent in latents)


def dtype_of(latents: Latents) -> np.dtype:
    """Return the dtype of a position as a vector."""
    return jnp.result_type(*(latent.dtype for latent in latents))


def vector_of(position: Mapping[str, Array], latents: Latents) -> Float[Array, "coordinate"]:
    """Return these variables' coordinates, in this order."""
    parts = [jnp.ravel(position[latent.name]) for latent in latents]
    return jnp.concatenate(parts) if parts else jnp.zeros(0)


def of_vector(vector: Float[Array, "coordinate"], latents: Latents) -> dict[str, Array]:
    """Return the position of a vector in this order: the inverse of `vector_of`."""
    values = {}
    begin = 0
    for latent in latents:
        size = math.prod(latent.unconstrained_shape)
        values[latent.name] = vector[begin : begin + size].reshape(latent.unconstrained_shape).astype(latent.dtype)
        begin += size
    return values


def flat(
    position: Mapping[str, Array],
) -> tuple[Float[Array, "coordinate"], Callable[[Float[Array, "coordinate"]], dict[str, Array]]]:
    """Return a position as a vector, variables in the order of their names; and the inverse function."""
    return ravel_pytree(dict(position))


def by_name(vector: Float[Array, "coordinate"], latents: Latents) -> dict[str, Array]:
    """Return the position of a vector in the order of names: the inverse of `flat`."""
    return of_vector(vector, named(latents))


def named(latents: Latents) -> list[Latent]:
    """Return the variables in the order of their names."""
    return sorted(latents, key=lambda latent: latent.name)


def row_spec(latent: Latent) -> PartitionSpec | None:
    """Return the layout of a parameter with an entry for each coordinate of a variable: that of the variable's rows."""
    shape = latent.unconstrained_shape
    return latent.sharding.spec() if is_local(latent) and shape and shape[0] == latent.sharding.rows else None
