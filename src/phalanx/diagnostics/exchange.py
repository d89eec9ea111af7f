"""Conversion of draws and statistics to ArviZ's container."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from phalanx.diagnostics.elements import Names
from phalanx.extras import require
from phalanx.inputs.axis_names import AxisNames
from phalanx.mesh.specs import PyTree

ARVIZ_NAMES = {"num_steps": "n_steps", "log_density": "lp", "reached_max_depth": "reached_max_treedepth"}
"""ArviZ's names of statistics, by ours where they differ."""

MADE_BY = {"inference_library": "phalanx"}
"""Attributes of all data sets."""


def to_arviz(draws: Mapping[str, np.ndarray], stats: Mapping[str, np.ndarray], labels: Names | None = None) -> Any:
    """Put draws and statistics into ArviZ's container.

    Args:
        draws: arrays of shape `(chain, draw, ...)` by variable name: the group `posterior`.
        stats: arrays of shape `(chain, draw)` by name: the group `sample_stats`, where `num_steps` is called `n_steps`,
            `log_density` is called `lp`, and `reached_max_depth` is called `reached_max_treedepth`.
        labels: labels of the entries along each axis, by variable; None for an axis that is numbered.

    Returns:
        `arviz.InferenceData` with ArviZ 0.2x, `xarray.DataTree` with ArviZ 1.x. Dimensions are `chain`, `draw` and
        `<name>_dim_0`, ..., the names that ArviZ uses; the coordinates along these are labels or numbers.
        Slashes in names become full stops, since a slash separates groups.

    Raises:
        ImportError: when ArviZ is not installed.
        ValueError: when a variable has the name of a dimension.

    Example:
        >>> import numpy as np
        >>> from phalanx.diagnostics import to_arviz
        >>> data = to_arviz({"b": np.zeros((4, 10, 2))}, {"log_density": np.zeros((4, 10))})
        >>> data.posterior["b"].dims
        ('chain', 'draw', 'b_dim_0')

    Source: R. Kumar, C. Carroll, A. Hartikainen, O. Martin (2019), ArviZ: a unified library for exploratory analysis of
    Bayesian models in Python.
    """
    require("arviz")
    check_dimensions("to_arviz", draws)
    posterior = dataset(draws, AxisNames(labels=labels or {}))
    return container({"posterior": posterior, "sample_stats": dataset(in_arviz_names(stats))})


def in_arviz_names(stats: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return statistics by ArviZ's names."""
    return {ARVIZ_NAMES.get(name, name): value for name, value in stats.items()}


def container(groups: Mapping[str, Any], attrs: Mapping[str, Any] | None = None) -> Any:
    """Return data sets of xarray by group in the container of the installed ArviZ."""
    arviz = require("arviz")
    attrs = {**MADE_BY, **(attrs or {})}
    groups = {group: _without_slashes(data) for group, data in groups.items()}
    # Asking ArviZ 1.x for InferenceData, even with hasattr, raises a warning; its version does not.
    if arviz.__version__.startswith("0."):
        return arviz.InferenceData(attrs=attrs, **groups)
    tree = require("xarray").DataTree.from_dict(groups)
    tree.attrs.update(attrs)
    return tree


def _without_slashes(data: PyTree) -> PyTree:
    """Return a data set whose names have full stops for slashes, which would separate groups."""
    return data.rename({name: name.replace("/", ".") for name in (*data.variables, *data.dims) if "/" in name})


def check_dimensions(what: str, names: Iterable[str]) -> None:
    """Raise if a variable has the name of a dimension; `what` begins the message."""
    names = list(names)
    dims_of_names = {f"{name}_dim_" for name in names}
    reserved_names = [
        n for n in names if n in ("chain", "draw") or (n.rstrip("0123456789") in dims_of_names and n[-1].isdigit())
    ]
    if reserved_names:
        raise ValueError(
            f"{what}: the variable {reserved_names[0]!r} has the name of a dimension of ArviZ's container. Rename it "
            f"in the model; or convert it under another name, dataclasses.replace(posterior, draws={{...}}).to_arviz()."
        )


def dataset(
    arrays: Mapping[str, Any], names: AxisNames | None = None, leading: Sequence[str] = ("chain", "draw")
) -> Any:
    """Return arrays as a data set of xarray; ArviZ's own converter warns of more chains than draws.

    Args:
        arrays: arrays by name.
        names: names of their axes but the leading ones; None if they have none.
        leading: names of the first axes, whose entries are numbered.
    """
    names = AxisNames() if names is None else names
    variables = {}
    coords = {}
    for name, values in arrays.items():
        shape = np.shape(values)
        of_value = shape[len(leading) :]
        variables[name] = ((*leading, *names.dims_of(name, len(of_value))), np.asarray(values))
        coords |= {dim: np.arange(size) for dim, size in zip(leading, shape, strict=False)}
        coords |= names.coords_of(name, of_value)
    return require("xarray").Dataset(variables, coords, attrs=MADE_BY)
