"""Inverse mass matrix that the user gives: checked at the call, laid out when the model is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from phalanx.adaptation.metric import LowRankMetric
from phalanx.density.target import Target

if TYPE_CHECKING:
    from jaxtyping import Float64


class GivenMetric(NamedTuple):
    """Variances by variable, `(*shape)` on the unconstrained scale, or a covariance of all global coordinates."""

    variances: dict[str, np.ndarray]
    covariance: Float64[np.ndarray, "size size"] | None = None


def given_metric(kernel: str, inverse_mass_matrix: Mapping[str, ArrayLike] | ArrayLike) -> GivenMetric:
    """Return the user's inverse mass matrix, a dict of variances by variable or a covariance matrix, after checks.

    Raises:
        ValueError: when a variance is not positive, or the matrix is not symmetric positive definite.
    """
    if isinstance(inverse_mass_matrix, Mapping):
        variances = {name: np.asarray(value, np.float64) for name, value in inverse_mass_matrix.items()}
        for name, value in variances.items():
            if not (np.isfinite(value).all() and (value > 0).all()):
                raise ValueError(
                    f"{kernel}: inverse_mass_matrix: the variances of {name!r} must be positive and finite."
                )
        return GivenMetric(variances)
    matrix = np.asarray(inverse_mass_matrix, np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"{kernel}: inverse_mass_matrix: expected None, a dict of variances by variable name, or a square matrix; "
            f"got an array of shape {matrix.shape}."
        )
    if not np.allclose(matrix, matrix.T, rtol=1e-4) or not (np.linalg.eigvalsh(matrix) > 0).all():
        raise ValueError(f"{kernel}: inverse_mass_matrix: the matrix must be symmetric and positive definite.")
    return GivenMetric({}, matrix)


def metric_on(metric: GivenMetric, target: Target) -> LowRankMetric:
    """Return a given metric as compiled blocks take it; padded rows do not move, so their mass does not matter.

    Raises:
        ValueError: when it does not fit the model's variables.
    """
    layout = target.sites.layout
    shapes = layout.whole_shapes
    dtype = np.result_type(jax.dtypes.canonicalize_dtype(float))
    size = layout.lengths[0]
    variances = {name: np.ones(shape) for name, shape in shapes.items()}
    directions = np.zeros((size, 0))
    along = np.zeros(0)
    outside = 1.0
    if metric.covariance is None:
        if (given_shapes := {name: value.shape for name, value in metric.variances.items()}) != shapes:
            raise ValueError(
                f"inverse_mass_matrix: variances were given for {given_shapes}, but the model's unconstrained "
                f"variables are {shapes}."
            )
        variances = metric.variances
    else:
        if len(metric.covariance) != size:
            raise ValueError(
                f"inverse_mass_matrix: a matrix of shape {metric.covariance.shape} was given, but the model has {size} "
                f"unconstrained global coordinates ({', '.join(sorted(shapes))})."
            )
        (along, directions), outside = np.linalg.eigh(metric.covariance), 0.0
    return LowRankMetric(
        tuple(part.astype(dtype) for part in layout.of_whole(variances).parts),
        directions.astype(dtype),
        along.astype(dtype),
        np.asarray(outside, dtype),
        np.asarray(metric.covariance is not None),
    )
