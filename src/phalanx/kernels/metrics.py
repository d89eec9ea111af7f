r"""Metrics: the Gaussian a momentum is drawn from, and the velocity it gives.

A momentum $p \sim N(0, M)$ moves the position with velocity $M^{-1} p$ and has kinetic energy
$\tfrac12 p^\top M^{-1} p$. $M^{-1}$, the inverse mass matrix, should resemble the posterior's covariance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular

from phalanx.mesh.space import Position, Space


class Identity(NamedTuple):
    """$M = I$."""

    def momentum(self, space: Space, key: Array, like: Position) -> Position:
        """Draw a momentum."""
        return space.normal(key, like)

    def velocity(self, space: Space, momentum: Position) -> Position:
        r"""$M^{-1} p$."""
        return momentum


class Diagonal(NamedTuple):
    """$M^{-1}$ diagonal: a variance for every coordinate, shaped like the position."""

    variance: Position

    def momentum(self, space: Space, key: Array, like: Position) -> Position:
        """Draw a momentum."""
        return jax.tree.map(lambda z, v: z / jnp.sqrt(v), space.normal(key, like), self.variance)

    def velocity(self, space: Space, momentum: Position) -> Position:
        r"""$M^{-1} p$."""
        return jax.tree.map(jnp.multiply, self.variance, momentum)


class Dense(NamedTuple):
    r"""$M^{-1}$ a full covariance over the global coordinates; coordinates spread over devices have unit mass.

    A covariance between devices' coordinates would cost communication in every step, and more memory than the data.
    """

    covariance: Array | np.ndarray
    cholesky: Array | np.ndarray  # lower factor, computed once: every momentum needs it

    def momentum(self, space: Space, key: Array, like: Position) -> Position:
        """Draw a momentum: with covariance L Lᵀ = M⁻¹, p = L⁻ᵀ z."""
        return self._on_global(
            space, space.normal(key, like), lambda z: solve_triangular(self.cholesky.T, z, lower=False)
        )

    def velocity(self, space: Space, momentum: Position) -> Position:
        r"""$M^{-1} p$."""
        return self._on_global(space, momentum, lambda p: self.covariance @ p)

    def _on_global(self, space: Space, tree: Position, f: Any) -> Position:
        leaves, treedef = jax.tree.flatten(tree)
        alike = [leaf for leaf, spread in zip(leaves, space.spreads, strict=True) if not spread.axes]
        flat, unravel = ravel_pytree(alike)
        changed = iter(unravel(f(flat)))
        return treedef.unflatten(
            [leaf if spread.axes else next(changed) for leaf, spread in zip(leaves, space.spreads, strict=True)]
        )


Metric = Identity | Diagonal | Dense


def kinetic_energy(metric: Metric, space: Space, momentum: Position) -> Array:
    r"""$\tfrac12 p^\top M^{-1} p$, over every device."""
    return 0.5 * space.dot(momentum, metric.velocity(space, momentum))


def as_metric(inverse_mass_matrix: Any) -> Metric:
    """The metric of a kernel's argument: None, a dict of variances by variable, or a covariance matrix.

    Raises:
        ValueError: when a variance is not positive, or the matrix is not symmetric positive definite.
    """
    real = np.result_type(jax.dtypes.canonicalize_dtype(float))
    if inverse_mass_matrix is None:
        return Identity()
    if isinstance(inverse_mass_matrix, Mapping):
        variance = {name: np.asarray(value, real) for name, value in inverse_mass_matrix.items()}
        for name, value in variance.items():
            if not (np.isfinite(value).all() and (value > 0).all()):
                raise ValueError(f"inverse_mass_matrix: the variances of {name!r} must be positive and finite.")
        return Diagonal(variance)  # NumPy's arrays: a kernel may be made before JAX starts
    matrix = np.asarray(inverse_mass_matrix, np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"inverse_mass_matrix: expected None, a dict of variances by variable name, or a square matrix; got an "
            f"array "
            f"of shape {matrix.shape}."
        )
    if not np.allclose(matrix, matrix.T, rtol=1e-4) or not (np.linalg.eigvalsh(matrix) > 0).all():
        raise ValueError("inverse_mass_matrix: the matrix must be symmetric and positive definite.")
    return Dense(matrix.astype(real), np.linalg.cholesky(matrix).astype(real))
