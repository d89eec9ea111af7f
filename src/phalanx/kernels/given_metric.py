"""An inverse mass matrix that the user gives: checked where it is given, laid out where the model is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from phalanx.kernels.lanes import groups_of
from phalanx.kernels.low_rank import LowRank
from phalanx.programs.shares import Latent
from phalanx.programs.target import Target


class GivenMetric(NamedTuple):
    """Variances by variable, `(*shape)` on the unconstrained scale, or a covariance of all global coordinates."""

    variances: dict[str, Any] | None
    covariance: Any


def given_metric(kernel: str, inverse_mass_matrix: Any) -> GivenMetric:
    """An inverse mass matrix as it is given: a dict of variances by variable, or a covariance matrix.

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
        return GivenMetric(variances, None)
    matrix = np.asarray(inverse_mass_matrix, np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"{kernel}: inverse_mass_matrix: expected None, a dict of variances by variable name, or a square matrix; "
            f"got an array of shape {matrix.shape}."
        )
    if not np.allclose(matrix, matrix.T, rtol=1e-4) or not (np.linalg.eigvalsh(matrix) > 0).all():
        raise ValueError(f"{kernel}: inverse_mass_matrix: the matrix must be symmetric and positive definite.")
    return GivenMetric(None, matrix)


def metric_on(given: GivenMetric, target: Target) -> LowRank:
    """A given metric as the blocks of a run pass it around; coordinates of padded rows have unit mass.

    Raises:
        ValueError: when it does not fit the model's variables.
    """
    latents = sorted(target.shares.latents, key=lambda latent: latent.name)
    groups, dtype = groups_of(latents), np.result_type(jax.dtypes.canonicalize_dtype(float))
    members = {group: [latent for latent in latents if latent.spread.axes == group] for group in groups}
    variances = {latent.name: np.ones(_whole(latent)) for latent in latents}
    directions, along, rest = np.zeros((sum(_size(v) for v in members[()]), 0)), np.zeros(0), 1.0
    if given.variances is not None:
        _check_variances(given.variances, variances)
        variances = given.variances
    else:
        _check_covariance(given.covariance, len(directions), [latent.name for latent in latents])
        (along, directions), rest = np.linalg.eigh(given.covariance), 0.0
    sizes = target.mesh.shape
    flat = [_flat(members[group], variances, math.prod(sizes[axis] for axis in group)) for group in groups]
    return LowRank(
        tuple(part.astype(dtype) for part in flat),
        directions.astype(dtype),
        along.astype(dtype),
        np.asarray(rest, dtype),
        np.asarray(given.variances is None),
    )


def _flat(members: list[Latent], variances: Mapping[str, np.ndarray], devices: int) -> np.ndarray:
    """Variances of a group's coordinates, those of a device together."""
    pieces = [np.ones((devices, 0))]
    for latent in members:
        value = variances[latent.name]
        if latent.spread.axes:
            missing = devices * latent.spread.local_rows - len(value)
            value = np.concatenate([value, np.ones((missing, *value.shape[1:]))])
        pieces.append(value.reshape(devices, -1))
    return np.concatenate(pieces, axis=1).ravel()


def _check_variances(given: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    told, known = ({name: value.shape for name, value in values.items()} for values in (given, expected))
    if told != known:
        raise ValueError(
            f"inverse_mass_matrix: variances were given for {told}, but the model's unconstrained variables are "
            f"{known}."
        )


def _check_covariance(covariance: np.ndarray, size: int, names: list[str]) -> None:
    if covariance.shape[0] != size:
        raise ValueError(
            f"inverse_mass_matrix: a matrix of shape {covariance.shape} was given, but the model has {size} "
            f"unconstrained global coordinates ({', '.join(names)})."
        )


def _whole(latent: Latent) -> tuple[int, ...]:
    """The shape of a variable on all devices."""
    shape = latent.unconstrained_shape
    return (latent.spread.rows, *shape[1:]) if latent.spread.axes else shape


def _size(latent: Latent) -> int:
    return math.prod(latent.unconstrained_shape)
