r"""Pathfinder: normals met on the way to a maximum, and a mixture of those of several paths.

L-BFGS has an estimate of the covariance at each step. Each path keeps the normal of the step that comes closest to the
density, and paths from different places, climbed together, make a mixture. The estimate is diagonal plus a few
directions, $\Sigma = A + B \Gamma B^\top$; with $A^{-1/2} B = Q R$ draws and densities need no array larger than $Q$.

Source: Zhang, Carpenter, Gelman, Vehtari (2022), Pathfinder: parallel quasi-Newton variational inference; Byrd,
Nocedal, Schnabel (1994), Representations of quasi-Newton matrices, for the compact form; Gilbert, Lemaréchal (1989),
Some numerical experiments with variable-storage quasi-Newton algorithms, for the diagonal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.nn import logsumexp
from jax.scipy.linalg import solve_triangular
from numpyro.distributions import constraints

from phalanx.language.parameters import Parameter
from phalanx.learning.ascent import MEMORY, Climb, LogDensity, climb
from phalanx.variational.guides.coordinates import Latents, by_name, flat
from phalanx.variational.guides.guide import Guide, Traits
from phalanx.variational.guides.learned import Params
from phalanx.variational.guides.start import TOP, Beginning, ModelStart
from phalanx.variational.problem import Problem

if TYPE_CHECKING:
    from jaxtyping import Float, Int

MOST_STEPS = 200
"""Steps of a path at most."""

DRAWS = 16
"""Draws that estimate how close a normal comes to the density."""

LEAST_LOG_WEIGHT = -50.0
"""Least logarithm of a path's weight in the mixture, relative to the best path's."""


class SubspaceNormal(NamedTuple):
    """A normal whose covariance, in units of `scale`, is the identity outside of the subspace of `basis`.

    Attributes:
        loc, scale: `(coordinate,)`.
        basis: orthonormal, `(coordinate, direction)`.
        tril: Cholesky factor of the covariance in that subspace.
    """

    loc: Float[Array, "coordinate"]
    scale: Float[Array, "coordinate"]
    basis: Float[Array, "coordinate direction"]
    tril: Float[Array, "direction direction"]

    def at(self, noise: Float[Array, "coordinate"]) -> Float[Array, "coordinate"]:
        """Return the draw that standard normals make."""
        inside = noise @ self.basis
        return self.loc + self.scale * (noise + self.basis @ (self.tril @ inside - inside))

    def log_prob(self, vector: Float[Array, "coordinate"]) -> Float[Array, ""]:
        """Return the log density of a draw."""
        standard = (vector - self.loc) / self.scale
        inside = standard @ self.basis
        squares = jnp.sum((standard - self.basis @ inside) ** 2)
        inverse = solve_triangular(self.tril, jnp.eye(len(self.tril), dtype=self.tril.dtype), lower=True)
        squares += jnp.sum((inverse @ inside) ** 2)
        log_det = jnp.sum(jnp.log(self.scale)) + jnp.sum(jnp.log(jnp.diagonal(self.tril)))
        return -0.5 * squares - log_det - 0.5 * math.log(2 * math.pi) * self.loc.size


def normal_of(at: Climb, diagonal: Float[Array, "coordinate"]) -> SubspaceNormal:
    """Return a climb's covariance estimate as a normal, about the end of a Newton step."""
    steps, changes = (jnp.where(at.curved[:, None], rows, 0.0).T for rows in (at.steps, at.changes))
    products = steps.T @ changes
    curvatures = jnp.where(at.curved, jnp.diagonal(products), 1.0)
    upper = jnp.triu(products, 1) + jnp.diag(curvatures)
    inverse = solve_triangular(upper, jnp.eye(MEMORY, dtype=upper.dtype))
    inner = jnp.diag(curvatures) + changes.T @ (diagonal[:, None] * changes)
    middle = jnp.block([[jnp.zeros_like(inverse), -inverse], [-inverse.T, inverse.T @ inner @ inverse]])
    outer = jnp.concatenate([diagonal[:, None] * changes, steps], 1)
    scale = jnp.sqrt(diagonal)
    basis, within = jnp.linalg.qr(outer / scale[:, None])
    tril = jnp.linalg.cholesky(jnp.eye(len(within), dtype=within.dtype) + within @ middle @ within.T)
    loc = at.position + diagonal * at.gradient + outer @ (middle @ (outer.T @ at.gradient))
    return SubspaceNormal(loc, scale, basis, tril)


def next_diagonal(
    diagonal: Float[Array, "coordinate"], step: Float[Array, "coordinate"], change: Float[Array, "coordinate"]
) -> Float[Array, "coordinate"]:
    """Return the diagonal that the estimate starts from after a step, which shows the scales of the coordinates."""
    squares = change @ (diagonal * change)
    along = change @ step
    inverse = squares / (along * diagonal) + change**2 / along
    inverse -= squares * (step / diagonal) ** 2 / (along * (step @ (step / diagonal)))
    new_diagonal = 1.0 / inverse
    return jnp.where(jnp.isfinite(new_diagonal) & (new_diagonal > 0), new_diagonal, diagonal)


class Path(NamedTuple):
    """State of a path: the climb, the diagonal that its estimate starts from, and the best normal with its bound."""

    climb: Climb
    diagonal: Float[Array, "coordinate"]
    best: SubspaceNormal
    bound: Float[Array, ""]
    count: Int[Array, ""]


def follow(log_density: LogDensity, position: Float[Array, "coordinate"], key: Array) -> Path:
    """Return the end of the path from a position."""
    size = position.size
    dtype = position.dtype
    width = min(size, 2 * MEMORY)
    first = SubspaceNormal(
        position, jnp.full(size, 0.1, dtype), jnp.eye(size, width, dtype=dtype), jnp.eye(width, dtype=dtype)
    )
    first_climb = Climb.begin(log_density, position)
    path = Path(
        first_climb, jnp.ones(size, dtype), first, jnp.full((), -jnp.inf, first_climb.value.dtype), jnp.int32(0)
    )

    def go_on(path: Path) -> Array:
        return path.climb.moved & (path.count < MOST_STEPS)

    def step(path: Path) -> Path:
        there = climb(log_density, path.climb, 1)
        new = jnp.any(there.changes != path.climb.changes)
        last = there.steps[-1]
        diagonal = jnp.where(new, next_diagonal(path.diagonal, last, there.changes[-1]), path.diagonal)
        normal = normal_of(there, diagonal)
        bound = _bound(log_density, normal, random.fold_in(key, path.count))
        better = bound > path.bound
        best = jax.tree.map(lambda a, b: jnp.where(better, a, b), normal, path.best)
        return Path(there, diagonal, best, jnp.where(better, bound, path.bound), path.count + 1)

    return lax.while_loop(go_on, step, path)


def _bound(log_density: LogDensity, normal: SubspaceNormal, key: Array) -> Float[Array, ""]:
    noise = random.normal(key, (DRAWS, normal.loc.size), normal.loc.dtype)

    def gain(noise: Array) -> Array:
        draw = normal.at(noise)
        return log_density(draw) - normal.log_prob(draw)

    bound = jnp.mean(jax.vmap(gain)(noise))
    return jnp.where(jnp.isfinite(bound), bound, -jnp.inf)


@dataclass(frozen=True)
class Pathfinder(Guide):
    """A mixture of the normals of several paths; see `phx.guides.pathfinder`."""

    num_paths: int
    name: str

    traits = Traits(is_solved=True, is_resampled=True)

    def parameters(self, problem: Problem) -> dict[str, Parameter]:
        """Return those of each path's normal, and the logarithms of the paths' weights."""
        real = constraints.real
        positive = constraints.positive
        tril = constraints.lower_cholesky
        kinds = {"loc": real, "scale": positive, "basis": real, "tril": tril, "log_weight": real}
        return {name: Parameter(None, kind) for name, kind in kinds.items()}

    def begin(self, start: ModelStart) -> Beginning:
        """Follow the paths, the first of which begins where all guides do."""
        key = random.fold_in(start.key, 4)
        others = jax.vmap(start.anywhere)(random.split(key, self.num_paths)[1:])
        positions = jnp.concatenate([start.vector[None], others])
        log_density = start.log_density()
        keys = random.split(key, self.num_paths)
        paths = jax.vmap(lambda position, key: follow(log_density, position, key))(positions, keys)
        best = jnp.max(paths.bound)
        weights = jnp.maximum(jnp.nan_to_num(paths.bound - best, nan=LEAST_LOG_WEIGHT), LEAST_LOG_WEIGHT)
        sentence = (
            f"guide: {self.name} found no normal along its paths whose draws have a finite log density. Give init=, "
            f"priors that rule out values where the model cannot be computed, or another parameterisation."
        )
        values = {**paths.best._asdict(), "log_weight": weights - logsumexp(weights)}
        return Beginning(values, {(TOP, sentence): ~jnp.isfinite(best)})

    def noise(self, key: Array, latents: Latents) -> Array:
        """Return the key: the weights, which are parameters, determine the path that is drawn."""
        return key

    def draw(self, params: Params, noise: Array, latents: Latents) -> dict[str, Array]:
        """Return a position."""
        of_path, of_normal = random.split(noise)
        path = random.categorical(of_path, params["log_weight"])
        normal = SubspaceNormal(*(params[name][path] for name in SubspaceNormal._fields))
        return by_name(normal.at(random.normal(of_normal, normal.loc.shape, normal.loc.dtype)), latents)

    def log_prob(self, params: Params, draw: Mapping[str, Array], latents: Latents) -> Array:
        """Return the log density of a position."""
        vector = flat(draw)[0]
        normals = SubspaceNormal(*(params[name] for name in SubspaceNormal._fields))
        log_probs = jax.vmap(lambda normal: normal.log_prob(vector))(normals)
        log_weight = params["log_weight"] - logsumexp(params["log_weight"])
        return logsumexp(log_probs + log_weight)
