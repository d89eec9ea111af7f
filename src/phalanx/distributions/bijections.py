"""Transforms from real vectors onto supports: NumPyro's, but for simplices, Cholesky factors, circles, computed ones.

Phalanx's bijection onto the simplex keeps more digits, and the one onto Cholesky factors needs no scatter. Angles are
those of points in the plane. Intervals may lack a bound in some rows, and images of supports are reached by the
transforms themselves.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.nn import log_sigmoid
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.constraints import Constraint
from numpyro.distributions.transforms import (
    ComposeTransform,
    IndependentTransform,
    ParameterFreeTransform,
    SigmoidTransform,
    Transform,
)

from phalanx.distributions.supports import CIRCLE, AnyOf, Image, RealInterval
from phalanx.mesh.specs import PyTree

RING_POWER = 20
"""Power $k$ in the density of the radius of a point whose angle is a variable's value."""

CORE = 0.05
"""Squared radius $c$ of the core, in which that density is nearly constant."""

LEAST_RADIUS = 1e-3
"""Radius below which no point is drawn: the probability is less than $10^{-11}$, and derivatives may overflow."""

EXPONENTIALS = RING_POWER // 2 + 1
"""Exponential variables whose sum determines a radius that has this density."""

LOG_RING = (
    math.log((1.0 + CORE) / 2.0)
    + RING_POWER / 2 * (1.0 - math.log(RING_POWER / 2))
    + math.lgamma(EXPONENTIALS)
    - math.log(RING_POWER / 2)
)
"""Log of the integral $Z$ of that density, relative to its greatest, over the points of one direction.

It is that over $w > 0$; the part below $w = c / (1 + c)$, where no point is, is less than $10^{-11}$ of it.
"""


def bijection_onto(support: Constraint) -> Transform:
    """Return the transform from real vectors onto `support`: a bijection, but for circles.

    Raises:
        NotImplementedError: when no bijection onto it is known.
    """
    if isinstance(support, Image):
        return ComposeTransform([bijection_onto(support.base), *support.transforms])
    if isinstance(support, AnyOf):
        return bijection_onto(support.hull)
    if isinstance(support, RealInterval):
        return OntoInterval(support.lower_bound, support.upper_bound)
    if isinstance(support, constraints.independent):
        return IndependentTransform(bijection_onto(support.base_constraint), support.reinterpreted_batch_ndims)
    if isinstance(support, CIRCLE):
        return OntoCircle()
    if support is constraints.simplex:
        return StickBreaking()
    if support is constraints.lower_cholesky:
        return LowerCholesky()
    return biject_to(support)


class StickBreaking(ParameterFreeTransform):
    r"""Stick-breaking in logarithms: $y_k = z_k \prod_{j<k} (1 - z_j)$ with $z_k = \sigma(u_k - \log(K - k))$.

    In float32 $1 - z$ rounds to zero if the logit of $z$ exceeds 16, and with it the rest of the stick, as happens to
    most draws of a sparse Dirichlet. $\log(1 - z) = \log \sigma(-\operatorname{logit} z)$ stays finite.

    Source:
        Carpenter et al. (2017), Stan: a probabilistic programming language, for the transform.
    """

    domain: Any = constraints.real_vector
    codomain: Any = constraints.simplex

    def __call__(self, x: Array) -> Array:
        """Map `(..., K - 1)` real numbers to `(..., K)` on the simplex."""
        y = jnp.exp(_log_pieces(x - _offsets(x)))
        return jnp.maximum(y, jnp.finfo(y.dtype).tiny)  # densities on the simplex take logarithms

    def _inverse(self, y: Array) -> Array:
        rest = jnp.flip(jnp.cumsum(jnp.flip(y, -1), -1), -1)[..., 1:]  # from the small end: 1 - sum loses digits
        tiny = jnp.finfo(y.dtype).tiny
        return jnp.log(jnp.maximum(y[..., :-1], tiny)) - jnp.log(jnp.maximum(rest, tiny)) + _offsets(y[..., 1:])

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: PyTree = None) -> Array:
        """Return the log determinant, of shape `(...)`."""
        logits = x - _offsets(x)
        return jnp.sum(_log_pieces(logits)[..., :-1] + log_sigmoid(-logits), -1)

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape with one more element."""
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape with one element less."""
        return (*shape[:-1], shape[-1] - 1)


class OntoCircle(ParameterFreeTransform):
    r"""Angle of a point in the plane, $x = \operatorname{atan2}(b, a)$: $-\pi$ and $\pi$ are one place.

    No value depends on the point's radius $r$, which has a density of its own. That of the position is $p(x) f(r) / Z$
    with $f(r) = (w e^{1 - w})^{k / 2}$, $w = (r^2 + c) / (1 + c)$ and $Z = \int_0^\infty f(r) r\,dr$, so that the angle
    has the density $p$. $f$ is greatest on the circle $r = 1$.

    The width of the ring, $(1 + c) / \sqrt{2 k}$, is a compromise: in a wider ring fewer steps go around, but an arc is
    much shorter at the inner edge than at the outer, and the shortest arc limits the step size. The core $c$ bounds the
    slope near the origin, which trajectories may jump over.
    """

    domain: Any = constraints.real_vector
    codomain: Any = constraints.circular

    def __call__(self, x: Array) -> Array:
        """Map `(..., 2)` real numbers to angles `(...)`; the origin, which has none, to zero."""
        a = x[..., 0]
        b = x[..., 1]
        is_origin = (a == 0.0) & (b == 0.0)
        return jnp.arctan2(b, jnp.where(is_origin, 1.0, a))  # its derivatives at the origin would be NaN

    def _inverse(self, y: Array) -> Array:
        # pi is rounded up in float32, so that its sine is negative, as that of -pi
        return jnp.stack([jnp.cos(y), jnp.copysign(jnp.sin(y), y)], -1)

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: PyTree = None) -> Array:
        """Return the log density of the radius, per unit of area and radian, of shape `(...)`."""
        return self.log_radius(x) - LOG_RING

    def log_radius(self, x: Array) -> Array:
        """Return the log density of the radius relative to that of radius 1, the greatest, of shape `(...)`."""
        w = (jnp.sum(x**2, -1) + CORE) / (1.0 + CORE)
        return 0.5 * RING_POWER * (jnp.log(w) - w + 1.0)

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape without the two coordinates of a point."""
        return shape[:-1]

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape with the two coordinates of a point."""
        return (*shape, 2)


def radius_at(exponentials: Array) -> Array:
    """Return radii that have their density, from sums of `EXPONENTIALS` exponential variables, elementwise."""
    w = exponentials / (RING_POWER / 2)
    return jnp.sqrt(jnp.maximum((1.0 + CORE) * w - CORE, LEAST_RADIUS**2))


class OntoInterval(Transform[Array]):
    r"""Bijection onto intervals whose bounds, elementwise, may be infinite.

    Between finite bounds $x = a + (b - a) \sigma(u)$, above a lower one $a + e^u$, below an upper one $b - e^u$, and
    without bounds $x = u$.

    Args:
        lower, upper: the bounds.
    """

    domain: Any = constraints.real

    def __init__(self, lower: Any, upper: Any) -> None:
        self.lower = lower
        self.upper = upper

    @property
    def codomain(self) -> Any:
        """The intervals."""
        return RealInterval(self.lower, self.upper)

    def __call__(self, x: Array) -> Array:
        """Map real numbers into the intervals."""
        a, b, below, above = self._ends()
        grown = jnp.exp(jnp.where(below ^ above, x, 0.0))  # it would overflow in the branches that are not taken
        half = jnp.where(below, a + grown, b - grown)
        return jnp.where(below & above, a + (b - a) * SigmoidTransform()(x), jnp.where(below ^ above, half, x))

    def _inverse(self, y: Array) -> Array:
        a, b, below, above = self._ends()
        # log(1) for an absent bound
        from_a = jnp.where(below, y - a, 1.0)
        to_b = jnp.where(above, b - y, 1.0)
        return jnp.where(below | above, jnp.log(from_a) + jnp.where(below, -1.0, 1.0) * jnp.log(to_b), y)

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: PyTree = None) -> Array:
        """Return the log determinant, elementwise."""
        a, b, below, above = self._ends()
        width = jnp.where(below & above, b - a, 1.0)
        bounded = jnp.log(width) + log_sigmoid(x) + log_sigmoid(-x)
        return jnp.where(below & above, bounded, jnp.where(below ^ above, x, jnp.zeros_like(x)))

    def _ends(self) -> tuple[Array, Array, Array, Array]:
        """Return the bounds, zero in place of infinite ones, and which of them are finite."""
        lower, upper = (jnp.asarray(bound, jnp.result_type(float)) for bound in (self.lower, self.upper))
        below = jnp.isfinite(lower)
        above = jnp.isfinite(upper)
        return jnp.where(below, lower, 0.0), jnp.where(above, upper, 0.0), below, above

    def tree_flatten(self) -> tuple[PyTree, PyTree]:
        """Return the bounds, for JAX."""
        return (self.lower, self.upper), (("lower", "upper"), {})


class LowerCholesky(ParameterFreeTransform):
    r"""Bijection onto lower triangular matrices of positive diagonal: $L_{ii} = \exp F_{ii}$, else $L_{ij} = F_{ij}$.

    The vector $u$ of $n (n + 1) / 2$ numbers fills $F$ as TensorFlow's `fill_triangular` does: the numbers from the
    $n$-th on, then all in reverse, row by row; the lower triangle contains each number once. Both directions are slices
    and sums, which XLA fuses with the operations around them. A scatter by index takes longer to compile than all other
    operations of a small fit, and longer to run than most of its steps.

    Source:
        Dillon et al. (2017), TensorFlow Distributions, for the order.
    """

    domain: Any = constraints.real_vector
    codomain: Any = constraints.lower_cholesky

    def __call__(self, x: Array) -> Array:
        """Map `(..., n (n + 1) / 2)` real numbers to `(..., n, n)`."""
        n = self.forward_shape(x.shape)[-1]
        square = jnp.concatenate([x[..., n:], jnp.flip(x, -1)], -1).reshape(*x.shape[:-1], n, n)
        lower = jnp.tri(n, k=-1, dtype=bool)
        diagonal = jnp.eye(n, dtype=bool)
        return jnp.where(diagonal, jnp.exp(jnp.where(diagonal, square, 0.0)), jnp.where(lower, square, 0.0))

    def _inverse(self, y: Array) -> Array:
        n = y.shape[-1]
        lower = jnp.tri(n, k=-1, dtype=bool)
        diagonal = jnp.eye(n, dtype=bool)
        square = jnp.where(diagonal, jnp.log(jnp.where(diagonal, y, 1.0)), jnp.where(lower, y, 0.0))
        above = square[..., :-1, :]
        rest = (above + jnp.flip(above, (-2, -1))).reshape(*y.shape[:-2], n * (n - 1))
        return jnp.concatenate([jnp.flip(square[..., -1, :], -1), rest[..., : n * (n - 1) // 2]], -1)

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: PyTree = None) -> Array:
        """Return the log determinant, of shape `(...)`."""
        return jnp.sum(jnp.log(jnp.diagonal(y, axis1=-2, axis2=-1)), -1)

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the matrix of a vector."""
        n = (math.isqrt(1 + 8 * shape[-1]) - 1) // 2
        return (*shape[:-1], n, n)

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the vector of a matrix."""
        return (*shape[:-2], shape[-1] * (shape[-1] + 1) // 2)


def _offsets(x: Array) -> Array:
    """Return the offsets that map the zero vector to the middle of the simplex."""
    offsets = jnp.log(jnp.arange(x.shape[-1], 0, -1, dtype=x.dtype))
    return jnp.broadcast_to(offsets, x.shape)


def _log_pieces(logits: Array) -> Array:
    log_rest = jnp.cumsum(log_sigmoid(-logits), -1)
    nothing = jnp.zeros((*log_rest.shape[:-1], 1), log_rest.dtype)
    return jnp.concatenate([log_sigmoid(logits), nothing], -1) + jnp.concatenate([nothing, log_rest], -1)
