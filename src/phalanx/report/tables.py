"""Tables of the report: the summary of the draws, the seconds of each phase, and the record of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from phalanx.diagnostics.judging.words import format_rhat
from phalanx.errors.words import count
from phalanx.report.headline import format_seconds
from phalanx.report.page import Lines, PhaseTime, Table, listed, pairs, words
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


def summary_table(table: DataFrame, *, has_log_density: bool, needed: int, high: float) -> Table:
    """Return the summary as a table: the log density, then all rows or, of many, those with the worst R-hat.

    Args:
        table: the summary, one row per scalar element.
        has_log_density: True if its first row is the log density.
        needed: effective draws that every row should have; fewer are highlighted.
        high: lowest R-hat that is highlighted.

    Returns:
        The table, with a note on its rows and columns.
    """
    from phalanx.diagnostics.table import MOST_QUANTITIES, worst_first  # imports pandas

    first = table.iloc[: int(has_log_density)]
    rest = table.iloc[len(first) :]
    shown = rest if len(rest) <= MOST_QUANTITIES else worst_first(rest).head(MOST_QUANTITIES)
    note = "The log density, and every scalar element of the variables."
    if len(rest) > MOST_QUANTITIES:
        note = f"The {MOST_QUANTITIES} of {len(rest):,} scalar elements with the worst R-hat, worst first."
    note += (
        " 94% low and high bound the narrowest interval with 94% of the draws; mcse is the Monte Carlo standard error, "
        f"ESS the effective sample size. Highlighted: R-hat of {high:g} or more, ESS below {needed:,}."
    )
    rows = [
        (kind, str(name), [_cell(c, float(v), needed, high) for c, v in zip(table.columns, values, strict=True)])
        for kind, part in (("first", first), ("", shown))
        for name, values in zip(part.index, part.itertuples(index=False), strict=True)
    ]
    return Table(note, list(_TITLES.values()), rows)


def _cell(column: str, value: float, needed: int, high: float) -> tuple[str, str]:
    """Return a mark if a number is out of bounds, and the number with its significant digits."""
    if np.isnan(value):
        return "none", "–"
    if column == "r_hat":
        return "warn" if value >= high else "", format_rhat(value, high)
    if column.startswith("ess"):
        return "warn" if value < needed else "", f"{value:,.0f}"
    return "", _number(value, 2 if column.startswith("mcse") else 4)


def _number(value: float, digits: int) -> str:
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
