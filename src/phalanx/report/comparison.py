"""Section that compares two runs: their headline numbers, and the elements whose means differ most."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from phalanx.errors.words import count
from phalanx.report.page import Row, Section, Table
from phalanx.report.reported import Reported
from phalanx.report.tables import format_number

if TYPE_CHECKING:
    from pandas import DataFrame

_FAR = 4
"""Distance of two means, in Monte-Carlo errors, that is highlighted: chance alone exceeds it once in 16,000."""

_TITLES = ("mean", "other mean", "distance / mcse", "distance / sd", "other sd / sd")
_DISTANCE = 2
_MOST_ROWS = 50_000


def comparison_section(posterior: Reported, beside: Reported) -> Section:
    r"""Return a table of the elements that both runs have, those whose means differ most first.

    The distance of two means is in units of its Monte-Carlo error, $\sqrt{e_1^2 + e_2^2}$ with the errors of both, and
    of the standard deviation of this run.

    Args:
        posterior: the run, with the variables to compare.
        beside: the other run.

    Returns:
        The section.
    """
    ours, theirs = (_unique(run.summary()) for run in (posterior, beside))
    both = [name for name in ours.index if name in theirs.index]
    title = "Beside another run"
    other = " · ".join(filter(None, [beside.record.model, beside.record.kernel, f"seed {beside.record.seed}"]))
    if not both:
        return Section(title, missing=[f"No element of this run is in the other one ({other})."])
    ours, theirs = ours.loc[both], theirs.loc[both]
    distance = (theirs["mean"] - ours["mean"]).to_numpy()
    error = np.hypot(ours["mcse_mean"], theirs["mcse_mean"]).to_numpy()
    with np.errstate(all="ignore"):  # constants have neither error nor spread
        numbers = np.column_stack([
            ours["mean"], theirs["mean"], distance / error, distance / ours["sd"], theirs["sd"] / ours["sd"]
        ])  # fmt: skip
    far = np.abs(numbers[:, _DISTANCE])
    order = np.argsort(-np.nan_to_num(far, nan=-1.0), kind="stable")[:_MOST_ROWS]
    rows: list[Row] = [("", str(both[row]), "", _cells(numbers[row])) for row in order]
    apart = int(np.sum(far >= _FAR))
    found = f"{count(apart, 'mean')} of {len(both):,} differ" if apart else f"none of {len(both):,} means differs"
    counts = f"{count(beside.num_chains, 'chain')} of {count(beside.num_draws, 'draw')}"
    note = (
        f"The other run: {other}; {counts}; verdict: {beside.verdict().headline} Of the elements that both have, "
        f"{found} by {_FAR} or more Monte Carlo standard errors (highlighted): chance explains smaller distances. Such "
        f"a distance is unimportant if it is a small part of the standard deviation."
    )
    return Section(title, note, table=Table(_TITLES, rows))


def _unique(table: DataFrame) -> DataFrame:
    """Return the rows of elements whose names are unique; the log density is of one model only."""
    return table.loc[~table.index.duplicated(keep=False) & (table.index != "log_density")]


def _cells(values: np.ndarray) -> list[tuple[str, str]]:
    """Return the cells of a row, and highlight a distance in Monte-Carlo errors that is large."""
    marks = ["warn" if column == _DISTANCE and abs(value) >= _FAR else "" for column, value in enumerate(values)]
    return [
        (mark, format_number(float(value), 3)) if np.isfinite(value) else ("none", "–")
        for mark, value in zip(marks, values, strict=True)
    ]
