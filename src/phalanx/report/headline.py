"""A run in one line, a few figures and a few sentences: is it fit to be used, and if not, what to try."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from phalanx.diagnostics import Check, Verdict, ebfmi
from phalanx.diagnostics.energy import has_energy
from phalanx.diagnostics.words import format_rhat
from phalanx.errors.words import count
from phalanx.report.reported import Reported

if TYPE_CHECKING:
    from pandas import DataFrame

Level = Literal["good", "warn", "unknown"]


class Card(NamedTuple):
    """A headline number: what it is, the number, a remark under it, and whether it is good."""

    label: str
    value: str
    remark: str
    level: Level


def headline_html(posterior: Reported, checks: Sequence[Check] = ()) -> str:
    """Write the verdict, the headline figures, and what was found: what needs attention first.

    Args:
        posterior: the run.
        checks: the user's, for the verdict.

    Returns:
        A paragraph, boxes and a list.
    """
    verdict = posterior.verdict(checks)
    boxes = "".join(
        f'<div class="card {level}"><div class="label">{escape(label)}</div><div class="value">{escape(value)}</div>'
        f'<div class="remark">{escape(remark)}</div></div>\n'
        for label, value, remark, level in headline_cards(posterior, verdict)
    )
    sentences = [("good", escape(words)) for words in verdict.passed]
    sentences[:0] = [
        ("warn", f"{escape(wrong)} <em>Try {escape(advice)}.</em>") for _, wrong, advice, _ in verdict.findings
    ]
    if posterior.record.interrupted:
        words = f"The run was interrupted after {posterior.num_draws:,} of {posterior.record.num_samples:,} draws."
        sentences.insert(0, ("warn", words))
    items = "".join(f'<li class="{level}">{words}</li>\n' for level, words in sentences)
    return (
        f'<p class="verdict {"good" if verdict.good else "warn"}">{escape(verdict.headline)}</p>\n'
        f'<div class="cards">\n{boxes}</div>\n<ul class="findings">\n{items}</ul>'
    )


def headline_cards(posterior: Reported, verdict: Verdict) -> list[Card]:
    """Boil a run down to figures.

    Args:
        posterior: the run.
        verdict: the verdict on it, which says which figures are good.

    Returns:
        The figures: draws, time, and the worst of each diagnostic that the run has.
    """
    wrong, table = {finding.topic for finding in verdict.findings}, posterior.summary()
    return [
        _sizes(posterior),
        _seconds(posterior),
        _rhat(table, "warn" if "high R-hat" in wrong else "good"),
        _ess(table, "warn" if "low ESS" in wrong else "good"),
        _divergences(posterior, "warn" if "divergences" in wrong else "good"),
        *_energy(posterior, "warn" if "low E-BFMI" in wrong else "good"),
    ]


def _sizes(posterior: Reported) -> Card:
    remark = f"{count(posterior.num_chains, 'chain')}, {count(posterior.num_draws, 'draw')} each"
    return Card("draws", f"{posterior.num_chains * posterior.num_draws:,}", remark, "unknown")


def _seconds(posterior: Reported) -> Card:
    seconds = posterior.timing.sampling
    rate = posterior.num_chains * posterior.num_draws / seconds if seconds else 0.0
    remark = f"{rate:,.{0 if rate >= 10 else 1}f} draws per second of sampling" if rate else "in all"
    return Card("time", format_seconds(posterior.timing.total), remark, "unknown")


def _rhat(table: DataFrame, level: Level) -> Card:
    values = table["r_hat"].to_numpy()
    if np.isnan(values).all():
        return Card("worst R-hat", "–", "unknown", "unknown")
    row = int(np.nanargmax(values))
    return Card("worst R-hat", format_rhat(values[row]), str(table.index[row]), level)


def _ess(table: DataFrame, level: Level) -> Card:
    values = np.fmin(table["ess_bulk"].to_numpy(), table["ess_tail"].to_numpy())
    if np.isnan(values).all():
        return Card("least ESS", "–", "unknown", "unknown")
    row = int(np.nanargmin(values))
    return Card("least ESS", f"{values[row]:,.0f}", str(table.index[row]), level)


def _divergences(posterior: Reported, level: Level) -> Card:
    number = posterior.num_divergences
    if not number:
        return Card("divergences", "0", "no draw diverged", level)
    chains = count(int(posterior.stats["diverging"].any(axis=1).sum()), "chain")
    share = f"{number / (posterior.num_chains * posterior.num_draws):.1%} of the draws, in {chains}"
    return Card("divergences", f"{number:,}", share, level)


def _energy(posterior: Reported, level: Level) -> list[Card]:
    fractions = ebfmi(posterior.stats["energy"]) if has_energy(posterior.stats) else np.array([])
    fractions = fractions[np.isfinite(fractions)]
    return [Card("least E-BFMI", f"{fractions.min():.2f}", "one number per chain", level)] if fractions.size else []


def format_seconds(seconds: float) -> str:
    """Write a duration as people say it: 0.42 s, 12.3 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
