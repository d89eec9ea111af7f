r"""Location-scale distributions, and the partially centred position of a variable that has one.

A variable $x = \mu + \tau z$, where $z$ is standard, has a position $u$ for each weight $\lambda$ from 0 to 1:

$$u = \lambda \mu + (\tau / \tau_0)^{\lambda - 1} (x - \mu), \qquad
x = \mu + (\tau / \tau_0)^{1 - \lambda} (u - \lambda \mu).$$

With $\lambda = 1$ the position is the value, and the variable is *centred*; with $\lambda = 0$ it is $\tau_0 z$. The
constant $\tau_0$, a typical scale, makes the weights independent of the unit of $x$.

An element of a multivariate normal vector has the location and scale that it has given the elements before it: with the
Cholesky factor $L$ of the covariance, $\mu_i + \sum_{j < i} L_{ij} z_j$ and $L_{ii}$. With $\lambda = 0$ the position
is the whitened vector.

Source: Gorinova, Moore, Hoffman (2020), Automatic reparameterisation of probabilistic programs.
"""

from __future__ import annotations

from copy import copy
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular
from numpyro.distributions import (
    Cauchy,
    Distribution,
    ExpandedDistribution,
    GaussianRandomWalk,
    Gumbel,
    Independent,
    Laplace,
    Logistic,
    LogNormal,
    MaskedDistribution,
    MultivariateNormal,
    MultivariateStudentT,
    Normal,
    SoftLaplace,
    StudentT,
    constraints,
)
from numpyro.distributions.transforms import Transform

from phalanx.distributions.precise import precise
from phalanx.distributions.supports import PrecomputedDensity
from phalanx.mesh.specs import PyTree

SCALARS = (Normal, StudentT, Cauchy, Laplace, Logistic, Gumbel, SoftLaplace)
"""Families whose elements have a location and a scale each."""

VECTORS = (MultivariateNormal, MultivariateStudentT)
"""Families of vectors whose elements have a location and a scale given those before them."""

UNROLLED = 8
"""Length of vectors up to which a triangular system is solved element by element: a library call for each vector, of
which there may be thousands, would take longer."""

NAMES = ", ".join(family.__name__ for family in (*SCALARS, *VECTORS, LogNormal, GaussianRandomWalk))


class LocationScale(NamedTuple):
    """Location and scale of a variable's elements; of a LogNormal, those of the logarithm.

    Attributes:
        location: location.
        scale: scale; of a vector, the diagonal of `factor`.
        factor: Cholesky factor of the scale matrix of a vector, `(..., size, size)`; None for other variables.
    """

    location: Array
    scale: Array
    factor: Array | None = None


def location_scale(distribution: Any) -> LocationScale | None:
    """Return the location and scale of a distribution, or None if it has none. Subclasses of users have none."""
    if isinstance(distribution, Independent | ExpandedDistribution | MaskedDistribution):
        return location_scale(distribution.base_dist)
    family = type(distribution)
    if family in (*SCALARS, LogNormal):
        return LocationScale(jnp.asarray(distribution.loc), jnp.asarray(distribution.scale))
    if family in VECTORS:
        factor = jnp.asarray(distribution.scale_tril)
        return LocationScale(jnp.asarray(distribution.loc), jnp.diagonal(factor, axis1=-2, axis2=-1), factor)
    if family is GaussianRandomWalk:
        return LocationScale(jnp.zeros(()), jnp.asarray(distribution.scale)[..., None])
    return None


def at_residual(distribution: Any, residual: Array) -> Distribution:
    r"""Return the distribution with its log density fixed at that of the value with these residuals.

    $x - \mu$ cancels where the scale is small: computed from $x$, the density would lose its digits there.

    Args:
        distribution: of a partially centred variable.
        residual: value minus location, by element; see `PartlyCentred.residual`.
    """
    if isinstance(distribution, Independent | ExpandedDistribution | MaskedDistribution):
        base = at_residual(distribution.base_dist, residual)
        if base is distribution.base_dist:
            return distribution
        distribution = copy(distribution)
        distribution.base_dist = base
        return distribution
    family = type(distribution)
    if family not in (*SCALARS, *VECTORS):
        return distribution
    if family in VECTORS:
        factor = jnp.asarray(distribution.scale_tril)
        scale = jnp.broadcast_to(jnp.diagonal(factor, axis1=-2, axis2=-1), residual.shape)
        z = residual / scale
        if family is MultivariateNormal:
            return PrecomputedDensity(distribution, jnp.sum(Normal(0.0, 1.0).log_prob(z) - jnp.log(scale), -1))
        residual = _times(factor, z)
    around_zero: Distribution = copy(distribution)
    around_zero.loc = jnp.zeros_like(distribution.loc)  # pyright: ignore[reportAttributeAccessIssue]
    return PrecomputedDensity(distribution, jnp.asarray(precise(around_zero).log_prob(residual)))


class PartlyCentred(Transform[Array]):
    """Transform of a partially centred position to the variable's value.

    Args:
        parts: location and scale of the variable's elements, of the shape of its value.
        centring: λ and log τ₀ of each element, `(2, *shape)`, or of all, `(2,)`.
    """

    domain: Any = constraints.real
    codomain: Any = constraints.real

    def __init__(self, parts: LocationScale, centring: Array):
        self.parts = parts
        self.weight = centring[0]
        self.log_scale = jnp.log(parts.scale) - centring[1]

    def __call__(self, x: Array) -> Array:
        """Return the value."""
        if self.parts.factor is None:
            return self.parts.location + self.residual(x)
        return self.parts.location + _times(self.parts.factor, self.residual(x) / self.parts.scale)

    def residual(self, x: Array) -> Array:
        """Return the value minus the location, by element, without cancellation."""
        return self._residual(x, self.weight)

    def _residual(self, x: Array, weight: Array | float) -> Array:
        location, scale, factor = self.parts
        slope = jnp.exp((1 - weight) * self.log_scale)
        first = slope * (x - weight * location)
        if factor is None:
            return first
        # z of an element: scale * z + slope * weight * (factor, left of the diagonal) @ z = first
        more = slope * weight
        size = x.shape[-1]
        if size <= UNROLLED:
            z: list[Array] = []
            for i in range(size):
                before = sum((factor[..., i, j] * z[j] for j in range(i)), jnp.zeros(()))
                z.append((first[..., i] - more[..., i] * before) / scale[..., i])
            return scale * jnp.stack(z, -1)
        lower_part = jnp.broadcast_to(more, x.shape)[..., None] * jnp.broadcast_to(
            jnp.tril(factor, -1), (*x.shape, size)
        )
        system = lower_part + scale[..., None] * jnp.eye(size, dtype=x.dtype)
        return scale * solve_triangular(system, first[..., None], lower=True)[..., 0]

    def _inverse(self, y: Array) -> Array:
        location = self.parts.location
        residual = y - self.parts.location
        if self.parts.factor is not None:
            residual = self._residual(y, jnp.ones_like(y))
            location = y - residual
        return self.weight * location + jnp.exp((self.weight - 1) * self.log_scale) * residual

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: PyTree = None) -> Array:
        """Return the log determinant, elementwise."""
        return jnp.broadcast_to((1 - self.weight) * self.log_scale, jnp.shape(x))

    def tree_flatten(self) -> tuple[PyTree, PyTree]:
        """Return the arrays, for JAX."""
        return (self.parts, self.weight, self.log_scale), (("parts", "weight", "log_scale"), {})


def _times(factor: Array, z: Array) -> Array:
    """Return the product of a matrix, or one for each vector, with vectors."""
    return jnp.matmul(factor, z[..., None])[..., 0]
