"""Scalar quantities chosen for plots: the log density, and the elements with the worst R-hat."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.report.reported import Reported

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped
    from pandas import DataFrame

_MOST = 5


class Quantity(NamedTuple):
    """Scalar of a run: its name and its values, with NaN in place of those that are not finite."""

    name: str
    values: Float[np.ndarray, "chain draw"]


def choose_quantities(posterior: Reported) -> list[Quantity]:
    """Return the log density and up to five scalar elements with the worst R-hat, worst first.

    Args:
        posterior: the run.

    Returns:
        The quantities.
    """
    from phalanx.diagnostics.table import worst_first  # imports pandas

    worst = worst_first(element_rows(posterior)).head(_MOST)
    return [*log_density(posterior), *take_elements(posterior, worst)]


def log_density(posterior: Reported) -> list[Quantity]:
    """Return the log density as the only quantity, or an empty list if the run has no log density."""
    return [_quantity("log_density", posterior.stats["log_density"])] if "log_density" in posterior.stats else []


def element_rows(posterior: Reported) -> DataFrame:
    """Return the summary's rows of elements of variables, in the order of the draws, with a column `name`.

    The index is a number, since names need not be unique.
    """
    return posterior.summary().iloc[len(log_density(posterior)) :].reset_index(names="name")


def take_elements(posterior: Reported, rows: DataFrame) -> list[Quantity]:
    """Return the elements of some rows of `element_rows`."""
    ends = np.cumsum([elements(draws).shape[2] for draws in posterior.draws.values()])
    taken = []
    for row, name in zip(rows.index.to_numpy(), rows["name"], strict=True):
        variable = int(np.searchsorted(ends, row, side="right"))
        values = elements(list(posterior.draws.values())[variable])
        taken.append(_quantity(str(name), values[:, :, values.shape[2] + row - ends[variable]]))
    return taken


def elements(draws: Shaped[np.ndarray, "chain draw ..."]) -> Shaped[np.ndarray, "chain draw element"]:
    """View draws as `(chain, draw, element)`."""
    return draws.reshape(*draws.shape[:2], int(np.prod(draws.shape[2:])))


def _quantity(name: str, values: Shaped[np.ndarray, "chain draw"]) -> Quantity:
    values = values.astype(np.float64)
    return Quantity(name, np.where(np.isfinite(values), values, np.nan))
