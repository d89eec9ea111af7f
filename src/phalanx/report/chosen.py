"""The few scalar quantities worth a picture: the log density, and the elements whose chains agree least."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.report.reported import Reported

if TYPE_CHECKING:
    from pandas import DataFrame

_MOST = 5


class Quantity(NamedTuple):
    """One scalar followed over the run: its name, and its values `(chain, draw)` with NaN where they are not finite."""

    name: str
    values: np.ndarray


def worst_first(table: DataFrame) -> DataFrame:
    """Sort rows by R-hat, the largest first, then by effective sample size, the smallest first; unknown ones last."""
    return table.sort_values(["r_hat", "ess_bulk"], ascending=[False, True], na_position="last", kind="stable")


def choose_quantities(posterior: Reported) -> list[Quantity]:
    """Return the log density and up to five scalar elements with the worst R-hat, worst first.

    Args:
        posterior: the run.

    Returns:
        The quantities, with their values `(chain, draw)`.
    """
    chosen = []
    if "log_density" in posterior.stats:
        chosen.append(_quantity("log_density", posterior.stats["log_density"]))
    # Rows stand in the order of the draws, behind the log density; by number, since names need not be unique.
    rows = posterior.summary().iloc[len(chosen) :].reset_index(names="name")
    worst = worst_first(rows).head(_MOST)
    ends = np.cumsum([_elements(draws).shape[2] for draws in posterior.draws.values()])
    for row, name in zip(worst.index.to_numpy(), worst["name"], strict=True):
        variable = int(np.searchsorted(ends, row, side="right"))
        elements = _elements(list(posterior.draws.values())[variable])
        element = elements.shape[2] + row - ends[variable]
        chosen.append(_quantity(str(name), elements[:, :, element]))
    return chosen


def _elements(draws: np.ndarray) -> np.ndarray:
    """View draws as `(chain, draw, element)`."""
    return draws.reshape(*draws.shape[:2], int(np.prod(draws.shape[2:])))


def _quantity(name: str, values: np.ndarray) -> Quantity:
    values = values.astype(np.float64)
    return Quantity(name, np.where(np.isfinite(values), values, np.nan))
