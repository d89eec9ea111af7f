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


def choose_quantities(posterior: Reported) -> list[Quantity]:
    """Return the log density and up to five scalar elements with the worst R-hat, worst first.

    Args:
        posterior: the run.

    Returns:
        The quantities, with their values `(chain, draw)`.
    """
    from phalanx.diagnostics.table import worst_first  # imports pandas

    worst = worst_first(element_rows(posterior)).head(_MOST)
    return [*log_density(posterior), *take_elements(posterior, worst)]


def log_density(posterior: Reported) -> list[Quantity]:
    """Return the log density, if the run has it."""
    return [_quantity("log_density", posterior.stats["log_density"])] if "log_density" in posterior.stats else []


def element_rows(posterior: Reported) -> DataFrame:
    """Return the rows of the summary that are elements of variables, numbered, with their names in a column `name`.

    They stand in the order of the draws, behind the log density; by number, since names need not be unique.
    """
    return posterior.summary().iloc[len(log_density(posterior)) :].reset_index(names="name")


def take_elements(posterior: Reported, rows: DataFrame) -> list[Quantity]:
    """Return the elements that belong to some rows of `element_rows`."""
    ends = np.cumsum([elements(draws).shape[2] for draws in posterior.draws.values()])
    taken = []
    for row, name in zip(rows.index.to_numpy(), rows["name"], strict=True):
        variable = int(np.searchsorted(ends, row, side="right"))
        values = elements(list(posterior.draws.values())[variable])
        taken.append(_quantity(str(name), values[:, :, values.shape[2] + row - ends[variable]]))
    return taken


def elements(draws: np.ndarray) -> np.ndarray:
    """View draws as `(chain, draw, element)`."""
    return draws.reshape(*draws.shape[:2], int(np.prod(draws.shape[2:])))


def _quantity(name: str, values: np.ndarray) -> Quantity:
    values = values.astype(np.float64)
    return Quantity(name, np.where(np.isfinite(values), values, np.nan))
