"""The tables of the report: the summary of the draws, and what was run where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from phalanx.diagnostics.words import format_rhat
from phalanx.errors.words import count
from phalanx.report.headline import format_seconds
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


def summary_html(table: DataFrame, *, has_log_density: bool, needed: int, high: float) -> str:
    """Write the summary as an HTML table: the log density, then the rows with the worst R-hat when there are many.

    Args:
        table: the summary, one row per scalar element.
        has_log_density: whether its first row is the log density.
        needed: effective draws that every row should have; fewer are marked.
        high: the R-hat from which on it is marked.

    Returns:
        A sentence that says which rows are shown, and the table.
    """
    from phalanx.diagnostics.table import MOST_QUANTITIES, worst_first  # imports pandas

    first = table.iloc[: int(has_log_density)]
    rest = table.iloc[len(first) :]
    shown = rest if len(rest) <= MOST_QUANTITIES else worst_first(rest).head(MOST_QUANTITIES)
    note = "The log density, and every scalar element of the variables."
    if len(rest) > MOST_QUANTITIES:
        note = f"The {MOST_QUANTITIES} of {len(rest):,} scalar elements with the worst R-hat, worst first."
    head = "".join(f"<th>{title}</th>" for title in _TITLES.values())
    body = _rows(first, "first", needed, high) + _rows(shown, "", needed, high)
    return (
        f'<p class="note">{note}</p>\n<div class="scroll"><table class="summary">\n'
        f"<thead><tr><th></th>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
    )


def _rows(table: DataFrame, kind: str, needed: int, high: float) -> str:
    rows = []
    for name, values in zip(table.index, table.itertuples(index=False), strict=True):
        cells = [_cell(column, float(value), needed, high) for column, value in zip(table.columns, values, strict=True)]
        rows.append(f'<tr class="{kind}"><th>{escape(str(name))}</th>{"".join(cells)}</tr>\n')
    return "".join(rows)


def _cell(column: str, value: float, needed: int, high: float) -> str:
    """Write one number with the digits it deserves, and mark it when it is out of bounds."""
    if np.isnan(value):
        return '<td class="none">–</td>'
    if column == "r_hat":
        return f"<td{_mark(value >= high)}>{format_rhat(value, high)}</td>"
    if column.startswith("ess"):
        return f"<td{_mark(value < needed)}>{value:,.0f}</td>"
    return f"<td>{_number(value, 2 if column.startswith('mcse') else 4)}</td>"


def _mark(wrong: bool) -> str:
    return ' class="warn"' if wrong else ""


def _number(value: float, digits: int) -> str:
    """Write a number with so many significant digits, with a true minus sign."""
    if value == 0:
        return "0"
    return f"{value:#.{digits}g}".rstrip(".").replace("-", "−")


def phases_html(posterior: Reported) -> str:
    """Write the seconds of each phase as a bar and a legend."""
    timing = posterior.timing
    phases = {"compile": timing.compile, "warm-up": timing.warmup, "sampling": timing.sampling}
    total = timing.total or 1.0
    bars = "".join(
        f'<span class="phase{index}" style="width:{100 * seconds / total:.2f}%"></span>'
        for index, seconds in enumerate(phases.values())
    )
    legend = "".join(
        f'<li><i class="phase{index}"></i>{name} <b>{format_seconds(seconds)}</b></li>'
        for index, (name, seconds) in enumerate(phases.items())
    )
    return f'<div class="phases">{bars}</div>\n<ul class="legend">{legend}</ul>'


def record_html(posterior: Reported) -> str:
    """Write what was run where, and the source of the model."""
    record, timing = posterior.record, posterior.timing
    axes = " × ".join(f"{name} {size}" for name, size in record.mesh.items())
    sizes = f"{count(record.num_chains, 'chain')}, {record.num_warmup:,} warm-up, {count(record.num_samples, 'draw')}"
    rows = [
        ("model", escape(record.model)),
        ("kernel", f"<code>{escape(record.kernel)}</code>"),
        ("asked for", sizes),
        ("seed", escape(str(record.seed))),
        ("mesh", escape(axes) or "–"),
        ("devices", _lines(record.devices)),
        ("data", _pairs(record.data)),
        ("latent variables", _pairs(record.latents)),
        ("gradients", f"{timing.gradient_evaluations:,} evaluations over all chains, warm-up included"),
        ("compiled", f"{count(timing.compilations, 'program')} for this run"),
        ("matrix products", escape(record.matmul_precision)),
        ("versions", escape(", ".join(f"{name} {version}" for name, version in record.versions.items())) or "–"),
        ("started", escape(record.started) or "–"),
    ]
    body = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>\n" for name, value in rows)
    source = f"<pre><code>{escape(record.source.rstrip())}</code></pre>" if record.source.strip() else ""
    return f'<table class="record"><tbody>\n{body}</tbody></table>\n{source}'


def _pairs(items: Mapping[str, str]) -> str:
    return "<br>".join(f"<code>{escape(name)}</code> {escape(words)}" for name, words in items.items()) or "–"


def _lines(items: Iterable[str]) -> str:
    """Write one item a line; of hundreds of devices, the first few and how many more."""
    items = list(items)
    lines = [escape(item) for item in items[:8]]
    if len(items) > len(lines):
        lines.append(f"and {len(items) - len(lines):,} more")
    return "<br>".join(lines) or "–"
