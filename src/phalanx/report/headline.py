"""Headline numbers of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from phalanx.diagnostics import Verdict, ebfmi
from phalanx.diagnostics.energy import has_energy
from phalanx.diagnostics.judging.words import format_rhat
from phalanx.errors.words import count
from phalanx.report.page import Card, Level
from phalanx.report.reported import Reported

if TYPE_CHECKING:
    from pandas import DataFrame


def headline_cards(posterior: Reported, verdict: Verdict) -> list[Card]:
    """Return the headline numbers of a run.

    Args:
        posterior: the run.
        verdict: its verdict, which decides the level of each number.

    Returns:
        One card for each number: draws, time, and the worst value of each diagnostic.
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
        return Card("lowest ESS", "–", "unknown", "unknown")
    row = int(np.nanargmin(values))
    return Card("lowest ESS", f"{values[row]:,.0f}", str(table.index[row]), level)


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
    return [Card("lowest E-BFMI", f"{fractions.min():.2f}", "of all chains", level)] if fractions.size else []


def format_seconds(seconds: float) -> str:
    """Write a duration in words: 0.42 s, 12.3 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
