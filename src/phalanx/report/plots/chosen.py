"""Quantities chosen for plots: the log density, and the elements that mix worst or predict divergences best."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.diagnostics.energy import has_energy
from phalanx.report.posterior_protocol import Reported

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped
    from pandas import DataFrame

_MOST = 5
_MOST_SUSPECTS = 4
_MOST_TIED = 2
# Enough draws to estimate the correlations.
_MOST_DRAWS = 1000
_AT_ONCE = 1000


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
    quantities = []
    for row, name in zip(rows.index.to_numpy(), rows["name"], strict=True):
        variable = int(np.searchsorted(ends, row, side="right"))
        values = elements(list(posterior.draws.values())[variable])
        quantities.append(_quantity(str(name), values[:, :, values.shape[2] + row - ends[variable]]))
    return quantities


def elements(draws: Shaped[np.ndarray, "chain draw ..."]) -> Shaped[np.ndarray, "chain draw element"]:
    """View draws as `(chain, draw, element)`."""
    return draws.reshape(*draws.shape[:2], int(np.prod(draws.shape[2:])))


def _quantity(name: str, values: Shaped[np.ndarray, "chain draw"]) -> Quantity:
    values = values.astype(np.float64)
    return Quantity(name, np.where(np.isfinite(values), values, np.nan))


def choose_suspects(posterior: Reported) -> list[Quantity]:
    """Return up to four scalar elements for the pair plots.

    The first two correlate most with divergences or, without any, with the energy; the others have the worst R-hat.
    Constant elements and those that are not finite are left out. With fewer than two elements the log density is added.

    Args:
        posterior: the run.

    Returns:
        The quantities.
    """
    from phalanx.diagnostics.table import worst_first  # imports pandas

    rows = element_rows(posterior).dropna(subset="ess_bulk")
    strength = _ties(posterior)[rows.index]
    tied = rows.iloc[np.argsort(-strength, kind="stable")[:_MOST_TIED]] if strength.any() else rows.head(0)
    worst = worst_first(rows.drop(tied.index)).head(_MOST_SUSPECTS - len(tied))
    suspects = take_elements(posterior, tied) + take_elements(posterior, worst)
    return suspects if len(suspects) > 1 else suspects + log_density(posterior)


def _ties(posterior: Reported) -> Float[np.ndarray, "element"]:
    """Return how strongly each element correlates with divergences or energies, from 0 to 1."""
    draw_numbers, trouble = _trouble(posterior)
    parts = [np.zeros(0)]
    for draws in posterior.draws.values():
        flat = elements(draws).reshape(posterior.num_chains * posterior.num_draws, -1)
        for first in range(0, flat.shape[1], _AT_ONCE):
            parts.append(_strength(_ranks(flat[draw_numbers, first : first + _AT_ONCE]), trouble))
    return np.concatenate(parts)


def _trouble(posterior: Reported) -> tuple[Int[np.ndarray, "draw"], Float[np.ndarray, "draw"]]:
    """Return a selection of draws, and for each 1.0 if it diverged or, if no draw did, the rank of its energy."""
    count = posterior.num_chains * posterior.num_draws
    draw_numbers = np.arange(0, count, -(-count // _MOST_DRAWS))
    diverging = posterior.stats.get("diverging", np.zeros(count, bool)).astype(bool).ravel()
    if diverging.any():
        divergent = np.flatnonzero(diverging)
        draw_numbers = np.union1d(draw_numbers, divergent[:: -(-len(divergent) // _MOST_DRAWS)])
        return draw_numbers, diverging[draw_numbers].astype(np.float64)
    if has_energy(posterior.stats):
        return draw_numbers, _ranks(posterior.stats["energy"].reshape(count, 1)[draw_numbers])[:, 0]
    return draw_numbers, np.zeros(len(draw_numbers))


def _ranks(values: Shaped[np.ndarray, "draw column"]) -> Float[np.ndarray, "draw column"]:
    """Return the ranks of the values down each column."""
    return values.argsort(axis=0).argsort(axis=0).astype(np.float64)


def _strength(
    ranks: Float[np.ndarray, "draw column"], trouble: Float[np.ndarray, "draw"]
) -> Float[np.ndarray, "column"]:
    """Return the absolute correlation of `trouble` with the ranks of each column, or their distances from the mean."""
    folded = np.abs(ranks - ranks.mean(axis=0))
    return np.maximum(*(np.abs(_correlation(values, trouble)) for values in (ranks, folded)))


def _correlation(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    columns = columns - columns.mean(axis=0)
    target = target - target.mean()
    size = np.sqrt((columns**2).sum(axis=0) * (target**2).sum())
    return np.divide(target @ columns, size, out=np.zeros(columns.shape[1]), where=size > 0)
