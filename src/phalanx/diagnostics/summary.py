"""The table people look at first: one row for every scalar element of every variable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from phalanx.diagnostics.convergence import ess, mcse, rhat
from phalanx.diagnostics.elements import as_draws, element_names
from phalanx.diagnostics.interval import hdi
from phalanx.extras import require

if TYPE_CHECKING:
    from pandas import DataFrame


def summary_table(
    draws: Mapping[str, np.ndarray], names: Iterable[str] | None = None, hdi_prob: float = 0.94
) -> DataFrame:
    """Summarise the draws: one row per scalar element, with its location, spread, interval, errors and convergence.

    Args:
        draws: arrays of shape `(chain, draw, ...)` by variable name.
        names: the variables wanted, in this order; None for all of them.
        hdi_prob: the share of the draws inside the interval from `hdi_low` to `hdi_high`.

    Returns:
        A table with the columns mean, sd, hdi_low, hdi_high, mcse_mean, mcse_sd, ess_bulk, ess_tail and r_hat. Rows are
        called `b` (a scalar), `b[0]`, or `w[0,1]`. What cannot be known is NaN, such as R-hat of a constant.

    Raises:
        ValueError: when a name is unknown, there are no draws, or `hdi_prob` is out of range.
        ImportError: when ArviZ is not installed.

    Example:
        >>> import numpy as np
        >>> from phalanx.diagnostics import summary_table
        >>> table = summary_table({"b": np.random.default_rng(0).normal(size=(4, 1000, 2))})
        >>> list(table.index)
        ['b[0]', 'b[1]']
    """
    chosen = _choose(draws, names)
    if not chosen:
        raise ValueError("summary: there are no variables to summarise; keep at least one when running (keep=None).")
    rows = [row for name, value in chosen for row in element_names(name, value.shape[2:])]
    parts = [_columns(value, hdi_prob) for _, value in chosen]
    columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    require("pandas", "report")
    from phalanx.diagnostics.table import SummaryTable  # a pandas class, so it needs pandas to be defined

    return SummaryTable(columns, index=rows)


def _choose(draws: Mapping[str, np.ndarray], names: Iterable[str] | None) -> list[tuple[str, np.ndarray]]:
    """Return the variables asked for, checked."""
    wanted = list(draws) if names is None else [names] if isinstance(names, str) else list(names)
    for name in wanted:
        if name not in draws:
            known = ", ".join(map(repr, draws)) or "none"
            raise ValueError(f"summary: there is no variable {name!r} among the draws; they are: {known}.")
    return [(name, as_draws(draws[name], name)) for name in wanted]


def _columns(draws: np.ndarray, hdi_prob: float) -> dict[str, np.ndarray]:
    """Return the columns of one variable's rows."""
    interval = hdi(draws, hdi_prob).reshape(-1, 2)
    mean, deviation = _moments(draws)
    return {
        "mean": mean.ravel(),
        "sd": deviation.ravel(),
        "hdi_low": interval[:, 0],
        "hdi_high": interval[:, 1],
        "mcse_mean": mcse(draws, "mean").ravel(),
        "mcse_sd": mcse(draws, "sd").ravel(),
        "ess_bulk": ess(draws, "bulk").ravel(),
        "ess_tail": ess(draws, "tail").ravel(),
        "r_hat": rhat(draws).ravel(),
    }


def _moments(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and sample standard deviation over all draws; a single draw has no deviation."""
    # Of infinite or huge draws the mean or the deviation is not a number, and that is what the table shows.
    with np.errstate(invalid="ignore", over="ignore"):
        mean = draws.mean(axis=(0, 1), dtype=np.float64)
        if draws.shape[0] * draws.shape[1] < 2:
            return mean, np.full_like(mean, np.nan)
        return mean, draws.std(axis=(0, 1), ddof=1, dtype=np.float64)
