"""Gaussian families on the unconstrained scale: independent coordinates, a full covariance, and one of low rank."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, random
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from numpyro.distributions import constraints

from phalanx.mesh.space import Spread
from phalanx.programs.parameters import Parameter
from phalanx.variational.family import Latents, row_spec
from phalanx.variational.learned import Params

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True)
class MeanField:
    """Independent normals; see `phx.guides.mean_field`."""

    init_scale: float = 0.1
    name: str = "mean_field()"

    def parameters(self, latents: Latents, spreads: Mapping[str, Spread]) -> dict[str, Parameter]:
        """A location and a scale for each coordinate, which lie where the rows of the variable lie."""
        found = {}
        for latent in latents:
            spec = row_spec(spreads, latent)
            found[f"{latent.name}.loc"] = Parameter(None, constraints.real, spec)
            found[f"{latent.name}.scale"] = Parameter(None, constraints.positive, spec)
        return found

    def begin(self, position: Mapping[str, Array]) -> dict[str, Array]:
        """About a position."""
        locs = {f"{name}.loc": value for name, value in position.items()}
        return locs | {f"{name}.scale": jnp.full_like(value, self.init_scale) for name, value in position.items()}

    def draw(self, params: Params, key: Array, latents: Latents) -> dict[str, Array]:
        """A position."""
        keys = random.split(key, len(latents))
        return {
            v.name: params[f"{v.name}.loc"] + params[f"{v.name}.scale"] * random.normal(k, v.unconstrained_shape, v.dtype)
            for k, v in zip(keys, latents, strict=True)
        }

    def log_prob(self, params: Params, position: Mapping[str, Array], latents: Latents) -> Array:
        """The log density of a position."""
        total = jnp.zeros(())
        for name in (latent.name for latent in latents):
            scale = params[f"{name}.scale"]
            standard = (position[name] - params[f"{name}.loc"]) / scale
            total = total - jnp.sum(0.5 * standard**2 + jnp.log(scale) + HALF_LOG_2PI)
        return total


@dataclass(frozen=True)
class FullRank:
    """One multivariate normal; see `phx.guides.full_rank`."""

    init_scale: float = 0.1
    name: str = "full_rank()"

    def parameters(self, latents: Latents, spreads: Mapping[str, Spread]) -> dict[str, Parameter]:
        """A location, and the Cholesky factor of the covariance."""
        return {"loc": Parameter(None, constraints.real), "scale_tril": Parameter(None, constraints.lower_cholesky)}

    def begin(self, position: Mapping[str, Array]) -> dict[str, Array]:
        """About a position."""
        loc, _ = flat(position)
        return {"loc": loc, "scale_tril": self.init_scale * jnp.eye(loc.size, dtype=loc.dtype)}

    def draw(self, params: Params, key: Array, latents: Latents) -> dict[str, Array]:
        """A position."""
        noise = random.normal(key, params["loc"].shape, params["loc"].dtype)
        return by_name(params["loc"] + params["scale_tril"] @ noise, latents)

    def log_prob(self, params: Params, position: Mapping[str, Array], latents: Latents) -> Array:
        """The log density of a position."""
        tril = params["scale_tril"]
        standard = solve_triangular(tril, flat(position)[0] - params["loc"], lower=True)
        return -jnp.sum(0.5 * standard**2 + jnp.log(jnp.diagonal(tril)) + HALF_LOG_2PI)


@dataclass(frozen=True)
class LowRank:
    """A multivariate normal whose covariance is diagonal but for a few directions; see `phx.guides.low_rank`."""

    rank: int
    init_scale: float = 0.1

    @property
    def name(self) -> str:
        """How the user wrote it."""
        return f"low_rank(rank={self.rank})"

    def parameters(self, latents: Latents, spreads: Mapping[str, Spread]) -> dict[str, Parameter]:
        """A location, scales, and the directions."""
        real = constraints.real
        return {
            "loc": Parameter(None, real),
            "scale": Parameter(None, constraints.positive),
            "factor": Parameter(None, real),
        }

    def begin(self, position: Mapping[str, Array]) -> dict[str, Array]:
        """About a position, with directions that are unlike one another and short."""
        loc, _ = flat(position)
        directions = random.normal(random.key(0), (loc.size, min(self.rank, loc.size)), loc.dtype)
        factor = 0.1 * self.init_scale * directions
        return {"loc": loc, "scale": jnp.full_like(loc, self.init_scale), "factor": factor}

    def draw(self, params: Params, key: Array, latents: Latents) -> dict[str, Array]:
        """A position."""
        own, shared = random.split(key)
        loc, factor = params["loc"], params["factor"]
        moved = factor @ random.normal(shared, factor.shape[1:], loc.dtype)
        return by_name(loc + params["scale"] * random.normal(own, loc.shape, loc.dtype) + moved, latents)

    def log_prob(self, params: Params, position: Mapping[str, Array], latents: Latents) -> Array:
        """The log density of a position."""
        normal = dist.LowRankMultivariateNormal(
            params["loc"], cov_factor=params["factor"], cov_diag=params["scale"] ** 2, validate_args=False
        )
        return jnp.asarray(normal.log_prob(flat(position)[0]))


def flat(position: Mapping[str, Array]) -> tuple[Array, Any]:
    """A position as a vector, variables in the order of their names; and the way back."""
    return ravel_pytree(dict(position))


def by_name(vector: Array, latents: Latents) -> dict[str, Array]:
    """The inverse of `flat`."""
    found, begin = {}, 0
    for latent in sorted(latents, key=lambda latent: latent.name):
        size = math.prod(latent.unconstrained_shape)
        found[latent.name] = vector[begin : begin + size].reshape(latent.unconstrained_shape).astype(latent.dtype)
        begin += size
    return found
