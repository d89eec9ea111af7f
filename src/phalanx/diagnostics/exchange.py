"""Draws and statistics in ArviZ's own container, for everything ArviZ can do with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from phalanx.extras import require

# Where ArviZ has its own word for a statistic.
_ARVIZ_NAMES = {"num_steps": "n_steps", "log_density": "lp", "reached_max_depth": "reached_max_treedepth"}


def to_arviz(draws: Mapping[str, np.ndarray], stats: Mapping[str, np.ndarray]) -> Any:
    """Put draws and statistics into ArviZ's container.

    Args:
        draws: arrays of shape `(chain, draw, ...)` by variable name: the group `posterior`.
        stats: arrays of shape `(chain, draw)` by name: the group `sample_stats`, where `num_steps` is called `n_steps`,
            `log_density` is called `lp`, and `reached_max_depth` is called `reached_max_treedepth`.

    Returns:
        `arviz.InferenceData` with ArviZ 0.2x, `xarray.DataTree` with ArviZ 1.x. Dimensions are called `chain`, `draw`
        and `<name>_dim_0`, ..., as ArviZ calls them.

    Raises:
        ImportError: when ArviZ is not installed.
        ValueError: when a variable is called `chain` or `draw`.

    Example:
        >>> import numpy as np
        >>> from phalanx.diagnostics import to_arviz
        >>> data = to_arviz({"b": np.zeros((4, 10, 2))}, {"log_density": np.zeros((4, 10))})
        >>> data.posterior["b"].dims
        ('chain', 'draw', 'b_dim_0')

    Source: R. Kumar, C. Carroll, A. Hartikainen, O. Martin (2019), ArviZ: a unified library for exploratory analysis of
    Bayesian models in Python.
    """
    arviz = require("arviz", "report")
    groups = {
        "posterior": _dataset(draws),
        "sample_stats": _dataset({_ARVIZ_NAMES.get(name, name): value for name, value in stats.items()}),
    }
    # Asking ArviZ 1.x for InferenceData, even with hasattr, raises a warning; its version does not.
    if arviz.__version__.startswith("0."):
        return arviz.InferenceData(**groups)
    return require("xarray", "report").DataTree.from_dict(groups)


def _dataset(arrays: Mapping[str, np.ndarray]) -> Any:
    """Lay out arrays `(chain, draw, ...)` as ArviZ does, whose own converter warns of more chains than draws."""
    if clash := [repr(name) for name in ("chain", "draw") if name in arrays]:
        raise ValueError(
            f"to_arviz: {' and '.join(clash)} is the name of a variable here and of a dimension in ArviZ. Rename the "
            f"variable in the model; draws, summary and report take it as it is."
        )
    variables, sizes = {}, {}
    for name, value in arrays.items():
        dims = ("chain", "draw", *(f"{name}_dim_{axis}" for axis in range(value.ndim - 2)))
        variables[name] = (dims, value)
        sizes.update(zip(dims, value.shape, strict=True))
    coords = {dim: np.arange(size) for dim, size in sizes.items()}
    return require("xarray", "report").Dataset(variables, coords, attrs={"inference_library": "phalanx"})
