"""Gaussian families on the unconstrained scale: independent coordinates, a full covariance, and one of low rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, lax, random
from jax.scipy.linalg import solve_triangular
from numpyro.distributions import constraints

from phalanx.distributions.bijections import bijection_onto
from phalanx.language.parameters import Parameter
from phalanx.learning.ascent import StartingPoint, climb_to_top
from phalanx.mesh.random_numbers import rolled_hashes, standard_normals
from phalanx.programs.sites import Latent
from phalanx.variational.guides.coordinates import (
    Latents,
    by_name,
    dtype_of,
    flat,
    globals_of,
    locals_of,
    of_vector,
    row_spec,
    size_of,
)
from phalanx.variational.guides.guide import Guide, Pushed, Traits
from phalanx.variational.guides.learned import Params
from phalanx.variational.guides.start import TOP, Beginning, ModelStart
from phalanx.variational.problem import Problem

if TYPE_CHECKING:
    from jaxtyping import Float

LEAST_OWN = 0.02
"""Least own standard deviation of a coordinate, relative to that along the directions; with less, digits are lost."""

FARTHEST = 0.2
"""Longest step of a normal with a full covariance along a direction, or stretch of it, in standard deviations."""

FEW = 64
"""Number of coordinates up to which the default particles determine a full covariance well enough for the rate."""

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def standard_log_prob(noise: Float[Array, "..."]) -> Float[Array, ""]:
    """Return the log density of standard normals."""
    return -jnp.sum(0.5 * noise**2 + HALF_LOG_2PI)


def noise_by_coordinate(key: Array, latents: Latents) -> dict[str, Array]:
    """Return standard normals, one for each coordinate of a position: the same ones on any mesh.

    Those that every device holds are made at once, because each call of the generator takes long to compile; those of
    sharded rows are made on the rows' devices.
    """
    whole = globals_of(latents)
    ends = list(accumulate(math.prod(v.unconstrained_shape) for v in latents))
    numbers = {
        v.name: jnp.arange(*ends_of, dtype=jnp.uint32) for v, ends_of in zip(latents, pairwise([0, *ends]), strict=True)
    }
    with rolled_hashes():  # XLA would recompute an unrolled hash in each consumer
        noise = {
            v.name: standard_normals(key, numbers[v.name].reshape(v.unconstrained_shape), v.dtype)
            for v in locals_of(latents)
        }
        if not whole:
            return noise
        vector = standard_normals(key, jnp.concatenate([numbers[v.name] for v in whole]), dtype_of(whole))
    return {**of_vector(vector, whole), **noise}


def locs_and_scales(latents: Latents) -> dict[str, Parameter]:
    """Return a location and a scale for each coordinate, sharded as the rows of the variable are."""
    parameters = {}
    for latent in latents:
        spec = row_spec(latent)
        parameters[f"{latent.name}.loc"] = Parameter(None, constraints.real, spec)
        parameters[f"{latent.name}.scale"] = Parameter(None, constraints.positive, spec)
    return parameters


def placed(params: Params, latent: Latent, standard: Array) -> Array:
    """Return the unconstrained values of a variable at these standardized ones.

    Of a point that determines an angle, the first number is the part along the location, and the second that across it:
    radius and angle are independent, and so are these, but not the point's coordinates.
    """
    loc = params[f"{latent.name}.loc"]
    part = params[f"{latent.name}.scale"] * standard
    return loc + (_turn_points(part, _direction(loc)) if latent.is_of_points else part)


def standardized(params: Params, latent: Latent, values: Array) -> Array:
    """Return the standardized values of a variable: the inverse of `placed`."""
    loc = params[f"{latent.name}.loc"]
    part = values - loc
    if latent.is_of_points:
        part = _turn_points(part, _direction(loc) * jnp.array([1.0, -1.0], loc.dtype))
    return part / params[f"{latent.name}.scale"]


def _direction(points: Float[Array, "... 2"]) -> Float[Array, "... 2"]:
    """Return the unit vectors of points."""
    square = jnp.sum(points**2, -1, keepdims=True)
    return points * lax.rsqrt(jnp.maximum(square, jnp.finfo(points.dtype).tiny))


def _turn_points(points: Float[Array, "... 2"], by: Float[Array, "... 2"]) -> Float[Array, "... 2"]:
    """Return points turned by the angles of unit vectors."""
    (x, y), (cosine, sine) = jnp.moveaxis(points, -1, 0), jnp.moveaxis(by, -1, 0)
    return jnp.stack([cosine * x - sine * y, sine * x + cosine * y], -1)


def transport_of_draws(guide: Guide, params: Params, latents: Latents) -> Callable[[Array], Pushed]:
    """Return the transform that a guide draws by, where its determinant is the product of the scales `x.scale`."""
    mine = globals_of(latents)

    def push(noise: Float[Array, "coordinate"]) -> Pushed:
        scales = jnp.concatenate([jnp.ravel(params[f"{latent.name}.scale"]) for latent in mine])
        return Pushed(guide.draw(params, of_vector(noise, mine), mine), jnp.sum(jnp.log(scales)))

    return push


@dataclass(frozen=True)
class MeanField(Guide):
    """Independent normals; see `phx.guides.mean_field`."""

    init_scale: float | None = None

    name = "mean_field()"
    traits = Traits(is_linear=True, is_antithetic=True, by_widths=True)

    def parameters(self, problem: Problem) -> dict[str, Parameter]:
        """Return a location and a scale for each coordinate."""
        return locs_and_scales(problem.latents)

    def begin(self, start: ModelStart) -> Beginning:
        """Return normals about a point of high density."""
        return Beginning(self.about(start.point(self.init_scale), start.latents))

    def about(self, point: StartingPoint, latents: Latents) -> dict[str, Array]:
        """Return the parameters of the normals about a point."""
        locs = by_name(point.position, latents)
        scales = by_name(point.scale, latents)
        return {f"{name}.loc": v for name, v in locs.items()} | {f"{name}.scale": v for name, v in scales.items()}

    def moved(self, params: Params, change: Params, latents: Latents) -> dict[str, Array]:
        """Move locations by parts of the scales, scales by factors."""
        new_params = {}
        for latent in latents:
            loc = f"{latent.name}.loc"
            scale = f"{latent.name}.scale"
            new_params[loc] = placed(params, latent, change[loc])
            new_params[scale] = params[scale] * jnp.exp(change[scale])
        return new_params

    def noise(self, key: Array, latents: Latents) -> dict[str, Array]:
        """Return standard normals."""
        return noise_by_coordinate(key, latents)

    def draw(self, params: Params, noise: Mapping[str, Array], latents: Latents) -> dict[str, Array]:
        """Return a position."""
        return {latent.name: placed(params, latent, noise[latent.name]) for latent in latents}

    def log_prob(self, params: Params, draw: Mapping[str, Array], latents: Latents) -> Array:
        """Return the log density of a position."""
        total = jnp.zeros(())
        for latent in latents:
            standard = standardized(params, latent, draw[latent.name])
            total = total + standard_log_prob(standard) - jnp.sum(jnp.log(params[f"{latent.name}.scale"]))
        return total

    def transport(self, params: Params, latents: Latents) -> Callable[[Array], Pushed]:
        """Return each coordinate's own shift and scale."""
        return transport_of_draws(self, params, latents)


NO_TOP = (
    "guide: laplace() found no maximum of the log density on the unconstrained scale: where the climb ended, the "
    "density still rises, or does not curve downward in every direction. It may have no maximum, as where the scale of "
    "a hierarchy goes to zero. Give init=, another parameterisation, or learn a guide, such as phx.guides.full_rank()."
)


FULL_RANK = Traits(is_linear=True, by_widths=True, matches_scores=True)
LAPLACE = Traits(is_linear=True, by_widths=True, is_solved=True)


@dataclass(frozen=True)
class FullRank(Guide):
    """One multivariate normal; see `phx.guides.full_rank` and `phx.guides.laplace`.

    With `traits.is_solved` it is the normal of the log density's top and its curvature there.
    """

    init_scale: float | None = None
    name: str = "full_rank()"
    traits: Traits = FULL_RANK

    def parameters(self, problem: Problem) -> dict[str, Parameter]:
        """Return a location, and the Cholesky factor of the covariance."""
        return {"loc": Parameter(None, constraints.real), "scale_tril": Parameter(None, constraints.lower_cholesky)}

    def begin(self, start: ModelStart) -> Beginning:
        """Return a normal about a point of high density, or climb to the top."""
        if not self.traits.is_solved:
            point = start.point(self.init_scale)
            return Beginning({"loc": point.position, "scale_tril": jnp.diag(point.scale)})
        top = climb_to_top(start.log_density(), start.vector)
        fine = top.reached & jnp.all(jnp.isfinite(top.scale_tril))
        tril = jnp.where(fine, top.scale_tril, jnp.eye(top.position.size))
        return Beginning({"loc": top.position, "scale_tril": tril}, {(TOP, NO_TOP): ~fine})

    def moved(self, params: Params, change: Params, latents: Latents) -> dict[str, Array]:
        """Move the location by parts of the scales, and multiply these by a triangular factor.

        Independent changes of all entries stretch a direction by the square root of the row's length, so entries are
        divided by that. A few draws determine each entry less, the more there are: above `FEW` coordinates entries are
        divided by more. Changes of factor and location that are still long are cut.
        """
        tril = params["scale_tril"]
        size = len(tril)
        stretch = change["scale_tril"] / math.sqrt(size * max(1.0, size / FEW))
        factor = bijection_onto(constraints.lower_cholesky)(_held_back(stretch))
        return {"loc": params["loc"] + tril @ _held_back(change["loc"]), "scale_tril": tril @ factor}

    def noise(self, key: Array, latents: Latents) -> Array:
        """Return standard normals."""
        return standard_normals(key, jnp.arange(size_of(latents), dtype=jnp.uint32), dtype_of(latents))

    def draw(self, params: Params, noise: Array, latents: Latents) -> dict[str, Array]:
        """Return a position."""
        return by_name(params["loc"] + params["scale_tril"] @ noise, latents)

    def draw_with_density(
        self, params: Params, noise: Array, latents: Latents, is_constant: bool
    ) -> tuple[dict[str, Array], Array]:
        r"""Return a position and its log density.

        With $x = m + L z$ and parameters held, the value follows from $z$, and the derivative by $x$ is
        $-L^{-\top} z$: one triangular system, where from $x$ alone there are two.
        """
        if not is_constant:
            return super().draw_with_density(params, noise, latents, is_constant)
        tril = lax.stop_gradient(params["scale_tril"])
        vector = params["loc"] + params["scale_tril"] @ noise
        value = standard_log_prob(noise) - jnp.sum(jnp.log(jnp.diagonal(tril)))
        slope = -solve_triangular(tril, noise, lower=True, trans=1)
        return by_name(vector, latents), value + slope @ (vector - lax.stop_gradient(vector))

    def log_prob(self, params: Params, draw: Mapping[str, Array], latents: Latents) -> Array:
        """Return the log density of a position."""
        tril = params["scale_tril"]
        standard = solve_triangular(tril, flat(draw)[0] - params["loc"], lower=True)
        return -jnp.sum(0.5 * standard**2 + jnp.log(jnp.diagonal(tril)) + HALF_LOG_2PI)

    def transport(self, params: Params, latents: Latents) -> Callable[[Array], Pushed]:
        """Return the affine transform."""
        check_no_rows(self.name, latents)
        tril = params["scale_tril"]

        def push(noise: Float[Array, "coordinate"]) -> Pushed:
            log_det = jnp.sum(jnp.log(jnp.diagonal(tril)))
            return Pushed(by_name(params["loc"] + tril @ noise, latents), log_det)

        return push


USUAL_RANK = 10
"""Default number of directions of a guide of low rank, of models with as many coordinates."""


@dataclass(frozen=True)
class LowRankNormal(Guide):
    """A multivariate normal whose covariance is diagonal plus a few directions; see `phx.guides.low_rank`."""

    rank: int | None = None
    init_scale: float | None = None
    name: str = f"low_rank(rank={USUAL_RANK})"

    traits = Traits(is_linear=True, by_widths=True)

    def directions(self, size: int) -> int:
        """Return the number of directions among so many coordinates.

        Raises:
            ValueError: when the rank is above the number of coordinates.
        """
        if self.rank is not None and self.rank > size:
            raise ValueError(
                f"guides: low_rank(rank={self.rank}) has more directions than the model has coordinates, {size}. Give "
                f"a smaller rank; or use phx.guides.full_rank(), which has all of them."
            )
        return min(self.rank or USUAL_RANK, size)

    def parameters(self, problem: Problem) -> dict[str, Parameter]:
        """Return a location, scales in addition to those of the directions, and the directions."""
        self.directions(size_of(problem.latents))  # refuses too many
        real = constraints.real
        return {
            "loc": Parameter(None, real),
            "scale": Parameter(None, constraints.positive),
            "factor": Parameter(None, real),
        }

    def begin(self, start: ModelStart) -> Beginning:
        """Return a normal about a point of high density, with directions that are short and differ."""
        point = start.point(self.init_scale)
        size = point.position.size
        directions = random.normal(random.key(0), (size, self.directions(size)), point.position.dtype)
        factor = 0.1 * point.scale[:, None] * directions
        return Beginning({"loc": point.position, "scale": point.scale, "factor": factor})

    def moved(self, params: Params, change: Params, latents: Latents) -> dict[str, Array]:
        """Move the location and the directions by parts of the standard deviations, scales by factors."""
        sd = jnp.sqrt(params["scale"] ** 2 + jnp.sum(params["factor"] ** 2, 1))
        return {
            "loc": params["loc"] + sd * change["loc"],
            "scale": params["scale"] * jnp.exp(change["scale"]),
            "factor": params["factor"] + sd[:, None] * change["factor"],
        }

    def noise(self, key: Array, latents: Latents) -> tuple[Array, Array]:
        """Return standard normals, of the coordinates and of the directions."""
        of_coordinate, of_direction = random.split(key)
        size = size_of(latents)
        dtype = dtype_of(latents)
        return random.normal(of_coordinate, (size,), dtype), random.normal(
            of_direction, (self.directions(size),), dtype
        )

    def draw(self, params: Params, noise: tuple[Array, Array], latents: Latents) -> dict[str, Array]:
        """Return a position."""
        of_coordinate, of_direction = noise
        return by_name(params["loc"] + own_scale(params) * of_coordinate + params["factor"] @ of_direction, latents)

    def log_prob(self, params: Params, draw: Mapping[str, Array], latents: Latents) -> Array:
        """Return the log density of a position."""
        normal = dist.LowRankMultivariateNormal(
            params["loc"], cov_factor=params["factor"], cov_diag=own_scale(params) ** 2, validate_args=False
        )
        return jnp.asarray(normal.log_prob(flat(draw)[0]))

    def transport(self, params: Params, latents: Latents) -> Callable[[Array], Pushed]:
        """Return the symmetric root of $I + W W^T$ in units of the own scales: it needs only the directions."""
        check_no_rows(self.name, latents)
        scale = own_scale(params)
        directions, lengths, _ = jnp.linalg.svd(params["factor"] / scale[:, None], full_matrices=False)
        longer = jnp.sqrt(1.0 + lengths**2)

        def push(noise: Float[Array, "coordinate"]) -> Pushed:
            stretched = noise + directions @ ((longer - 1.0) * (directions.T @ noise))
            log_det = jnp.sum(jnp.log(scale)) + jnp.sum(jnp.log(longer))
            return Pushed(by_name(params["loc"] + scale * stretched, latents), log_det)

        return push


def check_no_rows(name: str, latents: Latents) -> None:
    """Raise if variables lie with rows of sharded data, in a guide that moves all variables together."""
    if local := locals_of(latents):
        raise ValueError(
            f"reparameterize: variable {local[0].name!r} has its rows where the data's rows lie, on several devices, "
            f"and the guide {name} moves it together with all others. Fit phx.guides.flow() or "
            f"phx.guides.mean_field(), which keep it separate."
        )


def _held_back(change: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return a change, cut to the length `FARTHEST`."""
    length = jnp.sqrt(jnp.maximum(jnp.sum(change**2), FARTHEST**2))
    return change * (FARTHEST / length)


def own_scale(params: Params) -> Array:
    """Return the standard deviations of a low-rank normal that its directions do not account for."""
    return jnp.sqrt(params["scale"] ** 2 + LEAST_OWN**2 * jnp.sum(params["factor"] ** 2, 1))
