"""Elements chosen for pair plots: those that predict divergences or energies best, and those that mix worst."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from phalanx.diagnostics.energy import has_energy
from phalanx.report.plots.chosen import Quantity, element_rows, elements, log_density, take_elements
from phalanx.report.reported import Reported

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped

_MOST = 4
_MOST_TIED = 2
# Enough draws to estimate the correlations.
_MOST_DRAWS = 1000
_AT_ONCE = 1000


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
    worst = worst_first(rows.drop(tied.index)).head(_MOST - len(tied))
    chosen = take_elements(posterior, tied) + take_elements(posterior, worst)
    return chosen if len(chosen) > 1 else chosen + log_density(posterior)


def _ties(posterior: Reported) -> Float[np.ndarray, "element"]:
    """Return how strongly each element correlates with divergences or energies, from 0 to 1."""
    chosen, trouble = _trouble(posterior)
    parts = [np.zeros(0)]
    for draws in posterior.draws.values():
        flat = elements(draws).reshape(posterior.num_chains * posterior.num_draws, -1)
        for first in range(0, flat.shape[1], _AT_ONCE):
            parts.append(_strength(_ranks(flat[chosen, first : first + _AT_ONCE]), trouble))
    return np.concatenate(parts)


def _trouble(posterior: Reported) -> tuple[Int[np.ndarray, "draw"], Float[np.ndarray, "draw"]]:
    """Return a selection of draws, and for each 1.0 if it diverged or, if no draw did, the rank of its energy."""
    count = posterior.num_chains * posterior.num_draws
    chosen = np.arange(0, count, -(-count // _MOST_DRAWS))
    diverging = posterior.stats.get("diverging", np.zeros(count, bool)).astype(bool).ravel()
    if diverging.any():
        divergent = np.flatnonzero(diverging)
        chosen = np.union1d(chosen, divergent[:: -(-len(divergent) // _MOST_DRAWS)])
        return chosen, diverging[chosen].astype(np.float64)
    if has_energy(posterior.stats):
        return chosen, _ranks(posterior.stats["energy"].reshape(count, 1)[chosen])[:, 0]
    return chosen, np.zeros(len(chosen))


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
    columns, target = columns - columns.mean(axis=0), target - target.mean()
    size = np.sqrt((columns**2).sum(axis=0) * (target**2).sum())
    return np.divide(target @ columns, size, out=np.zeros(columns.shape[1]), where=size > 0)
