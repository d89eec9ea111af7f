r"""Metric that warm-up adapts: a variance for every coordinate, and correlations along a few directions.

$$M^{-1} = S \bigl(c I + U (\Lambda - c I) U^\top\bigr) S$$

with $S$ the square roots of the variances, $U$ orthonormal columns over the global coordinates and $\Lambda$ the
variances along them. Below, $A$ is the matrix in brackets, or the identity where $U$ is not used, so that
$M^{-1} = S A S$. With few columns and $c = 1$ the metric is diagonal plus low rank; with as many columns as coordinates
and $c = 0$ it is any covariance, multiplied without cancellation. Sharded coordinates have variances only: a covariance
between devices would cost communication in every step.

Source: Bales, Pourzanjani, Vehtari, Petzold (2019), Selecting the metric in Hamiltonian Monte Carlo; Seyboldt, Carlson,
Carpenter (2024), Preconditioning Hamiltonian Monte Carlo by minimizing Fisher divergence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from phalanx.adaptation.metric import LowRankMetric as LowRankMetric
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.compatibility.workarounds import Workaround
from phalanx.mesh.position import Vector

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

FEW_TERMS = 16
"""Most terms in each sum of a matrix product that is written out as a sum of products of vectors."""

FEW_LANES = 16
"""Most lanes that are the rows of a matrix product, and not its columns: on a CPU XLA multiplies a few rows faster than
as many columns, and many rows slower."""


class LaneMetric(NamedTuple):
    """Metric that acts on vectors of all lanes.

    Attributes:
        scale: the diagonal of S, `(coordinates, 1)` if it is equal in all lanes, else `(coordinates, lanes)`.
        directions: U, orthonormal columns over the global coordinates.
        variances: the diagonal of Λ, the variances along U of coordinates divided by S.
        outside: c, the variance of these coordinates along all directions orthogonal to U.
        correlated: true if U is used; false if the metric is the square of S.
    """

    scale: Vector
    directions: Float[Array, "coordinates rank"]
    variances: Float[Array, "rank"]
    outside: Float[Array, ""]
    correlated: Bool[Array, ""]

    @classmethod
    def of(cls, metric: LowRankMetric | None, target: LaneTarget) -> LaneMetric:
        """Return a metric as it acts on vectors of a target; None is unit mass.

        Variances are the same in all lanes, `(coordinates,)`, or each lane's own, `(coordinates, lanes)`.
        """
        if metric is not None:
            scale = Vector(tuple(jnp.sqrt(x if x.ndim == 2 else x[:, None]) for x in metric.variance))
            return cls(scale, *metric[1:])
        one = jnp.ones((), target.dtype)
        none = jnp.zeros((0, 0), target.dtype)
        scale = Vector((one[None, None],) * len(target.layout.groups))
        return cls(scale, none, jnp.zeros(0, target.dtype), one, jnp.zeros((), bool))

    def velocity(self, momentum: Vector) -> Vector:
        r"""Return $M^{-1} p$."""
        return self.scale * self._along(self.variances - self.outside, self.outside, self.scale * momentum)

    def momentum(self, normals: Vector, where: Bool[Array, "lanes"] | None = None) -> Vector:
        """Return momenta $p = S^{-1} A^{-1/2} z$, of covariance $M$, made of standard normals z.

        Momenta of lanes outside of `where` may be wrong: if it is false in all lanes, products with U are skipped.
        """
        # with c = 0, U spans all coordinates
        unit = jnp.where(self.outside > 0, 1.0, 0.0).astype(self.outside.dtype)
        return self._along(1 / jnp.sqrt(self.variances) - unit, unit, normals, where) / self.scale

    def unwhiten(self, whitened: Vector) -> Vector:
        r"""Return $S A^{1/2} z$: map a vector in whitened coordinates, whose metric is the identity, to positions."""
        return self.scale * self._times_root(whitened)

    def whiten_gradient(self, gradient: Vector) -> Vector:
        r"""Return $A^{1/2} S g$: map the gradient by the position to that by whitened coordinates; see `unwhiten`."""
        return self._times_root(self.scale * gradient)

    def _times_root(self, vector: Vector) -> Vector:
        r"""Return $A^{1/2} v$."""
        return self._along(jnp.sqrt(self.variances) - jnp.sqrt(self.outside), jnp.sqrt(self.outside), vector)

    def _along(
        self,
        factors: Float[Array, "rank"],
        outside: Float[Array, ""],
        vector: Vector,
        where: Bool[Array, "lanes"] | None = None,
    ) -> Vector:
        r"""Return $(c I + U F U^\top) v$ on the global coordinates, with c `outside` and F of diagonal `factors`."""
        if not self.variances.size:
            return vector

        def correlated(first: Float[Array, "coordinates lanes"]) -> Float[Array, "coordinates lanes"]:
            return outside * first + _product(self.directions, factors[:, None] * _product(self.directions.T, first))

        first, *others = vector.parts
        is_correlated = self.correlated if where is None else self.correlated & where.any()
        return Vector((lax.cond(is_correlated, correlated, lambda first: first, first), *others), vector.layout)


def _product(matrix: Float[Array, "rows inner"], columns: Float[Array, "inner lanes"]) -> Float[Array, "rows lanes"]:
    """Return a matrix product.

    On a CPU XLA does not fuse a dot with the other operations of a tick, but fuses a small product that is written out.
    """
    inner = matrix.shape[1]
    if inner <= FEW_TERMS and Workaround.WRITTEN_OUT_PRODUCTS.is_on:
        return sum(
            (matrix[:, i, None] * columns[i, None] for i in range(1, inner)), matrix[:, 0, None] * columns[0, None]
        )
    if columns.shape[1] <= FEW_LANES and jax.default_backend() == "cpu" and Workaround.ROWS_OF_LANES.is_on:
        rows = lax.optimization_barrier(columns.T)  # or XLA turns them into columns
        return lax.optimization_barrier(jnp.matmul(rows, matrix.T, precision="highest")).T
    return jnp.matmul(matrix, columns, precision="highest")  # whatever the model's precision
