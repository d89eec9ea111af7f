"""Tables of the report: the summary of the draws, the seconds of each phase, and the record of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from phalanx.diagnostics.judging.words import format_rhat
from phalanx.errors.words import count
from phalanx.report.headline import format_seconds
from phalanx.report.page import Lines, PhaseTime, Row, Section, Table, listed, pairs, words
from phalanx.report.reported import Reported

if TYPE_CHECKING:
    from pandas import DataFrame

_TITLES = {
    "mean": "mean",
    "sd": "sd",
    "hdi_low": "94% low",
    "hdi_high": "94% high",
    "mcse_mean": "mcse mean",
    "mcse_sd": "mcse sd",
    "ess_bulk": "ESS bulk",
    "ess_tail": "ESS tail",
    "r_hat": "R-hat",
}

MOST_ROWS = 50_000
"""Rows of elements in the page."""

_BINS = 20
_MOST_DRAWS = 2000
_AT_ONCE = 1000


def summary_section(
    table: DataFrame, draws: Mapping[str, np.ndarray], *, has_log_density: bool, needed: int, high: float
) -> Section:
    """Return the summary as a section: the log density, then all rows; of many, those with the worst R-hat first.

    Args:
        table: the summary, one row per scalar element.
        draws: `(chain, draw, ...)` by variable, in the order of the rows.
        has_log_density: True if its first row is the log density.
        needed: effective draws that every row should have; fewer are highlighted.
        high: lowest R-hat that is highlighted.

    Returns:
        The section, with a note on its rows and columns.
    """
    from phalanx.diagnostics.table import MOST_QUANTITIES, worst_first  # imports pandas

    heads = int(has_log_density)
    table = table.assign(marginal=[""] * heads + [line for part in draws.values() for line in histograms(part)])
    rest = table.iloc[heads:]
    is_long = len(rest) > MOST_QUANTITIES
    rest = worst_first(rest) if is_long else rest
    note = "The log density, and every scalar element of the variables."
    if len(rest) > MOST_ROWS:
        note = f"The {MOST_ROWS:,} of {len(rest):,} scalar elements with the worst R-hat. names= chooses others."
    note += (
        " 94% low and high bound the narrowest interval with 94% of the draws; mcse is the Monte Carlo standard error, "
        f"ESS the effective sample size. Highlighted: R-hat of {high:g} or more, ESS below {needed:,}."
    )
    rows: list[Row] = [
        (kind, str(name), line, [_cell(c, v, needed, high) for c, v in zip(_TITLES, values, strict=True)])
        for kind, part in (("first", table.iloc[:heads]), ("", rest.head(MOST_ROWS)))
        for name, line, values in zip(part.index, part["marginal"], part[[*_TITLES]].to_numpy(), strict=True)
    ]
    columns = list(_TITLES.values())
    return Section("Summary", note, table=Table(columns, rows, columns.index("R-hat") if is_long else None))


def histograms(draws: np.ndarray) -> list[str]:
    """Return a histogram of each element as one digit per bin, of nearly all its draws; empty if not drawable.

    Args:
        draws: `(chain, draw, ...)`.

    Returns:
        Words of digits from 0 to 9, the highest bin.
    """
    flat = np.asarray(draws).reshape(draws.shape[0] * draws.shape[1], -1)
    lines = []
    for first in range(0, flat.shape[1], _AT_ONCE):
        part = flat[:: -(-len(flat) // _MOST_DRAWS), first : first + _AT_ONCE].astype(np.float64)
        with np.errstate(all="ignore"):  # elements that are constant or not finite have no histogram
            low, high = np.quantile(part, [0.005, 0.995], axis=0)
            bins = np.floor((part - low) / (high - low) * _BINS)
        drawable = np.isfinite(bins).all(axis=0)
        known = np.where((bins >= 0) & (bins < _BINS) & drawable, bins, _BINS).astype(np.intp)
        size = known.shape[1]
        counts = np.bincount((known + np.arange(size) * (_BINS + 1)).ravel(), minlength=size * (_BINS + 1))
        counts = counts.reshape(size, _BINS + 1)[:, :_BINS]
        heights = np.rint(9 * counts / np.maximum(counts.max(axis=1, keepdims=True), 1)).astype(int)
        lines += ["".join(map(str, row)) if good else "" for row, good in zip(heights.tolist(), drawable, strict=True)]
    return lines


def _cell(column: str, value: float, needed: int, high: float) -> tuple[str, str]:
    """Return a mark if a number is out of bounds, and the number with its significant digits."""
    if np.isnan(value):
        return "none", "–"
    if column == "r_hat":
        return "warn" if value >= high else "", format_rhat(value, high)
    if column.startswith("ess"):
        return "warn" if value < needed else "", f"{value:,.0f}"
    return "", format_number(value, 2 if column.startswith("mcse") else 4)


def format_number(value: float, digits: int) -> str:
    """Write a number with `digits` significant digits and a true minus sign."""
    if value == 0:
        return "0"
    return f"{value:#.{digits}g}".rstrip(".").replace("-", "−")


def phases_of(timing: Any) -> list[PhaseTime]:
    """Return the seconds of each phase."""
    phases = {"compile": timing.compile, "warm-up": timing.warmup, "sampling": timing.sampling}
    total = timing.total or 1.0
    return [PhaseTime(name, format_seconds(seconds), 100 * seconds / total) for name, seconds in phases.items()]


def facts_of(posterior: Reported) -> dict[str, Lines]:
    """Return the record of the run as named cells."""
    record, timing = posterior.record, posterior.timing
    axes = " × ".join(f"{name} {size}" for name, size in record.mesh.items())
    warmup, draws = f"{record.num_warmup:,} warm-up iterations", count(record.num_samples, "draw")
    return {
        "model": words(record.model),
        "kernel": [(record.kernel, "")],
        "requested": words(f"{count(record.num_chains, 'chain')}, {warmup}, {draws}"),
        "seed": words(str(record.seed)),
        "mesh": words(axes),
        "devices": listed(record.devices),
        "data": pairs(record.data),
        "latent variables": pairs(record.latents),
        "gradients": words(f"{timing.gradient_evaluations:,} evaluations over all chains, warm-up included"),
        "compiled": words(f"{count(timing.compilations, 'program')} for this run"),
        "matrix products": words(record.matmul_precision),
        "versions": words(", ".join(f"{name} {version}" for name, version in record.versions.items())),
        "started": words(record.started),
    }
