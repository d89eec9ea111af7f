"""A run in a few figures and a few sentences: is it fit to be used, and if not, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from phalanx.diagnostics import ebfmi
from phalanx.report.energy import LOW_EBFMI
from phalanx.report.reported import Reported, has_energy

if TYPE_CHECKING:
    from pandas import DataFrame

# Vehtari et al. (2021): below these, quantiles and the diagnostics themselves are not reliable.
HIGHEST_RHAT = 1.01
LEAST_ESS = 400

Level = Literal["good", "warn", "unknown"]


class Card(NamedTuple):
    """A headline number: what it is, the number, a remark under it, and whether it is good."""

    label: str
    value: str
    remark: str
    level: Level


class Finding(NamedTuple):
    """A sentence about the run."""

    level: Level
    words: str


def headline(posterior: Reported, table: DataFrame) -> tuple[list[Card], list[Finding]]:
    """Boil a run down to figures and findings.

    Args:
        posterior: the run.
        table: its summary, one row per scalar element.

    Returns:
        Headline figures, and what they mean in sentences.
    """
    parts = [_rhat(table), _ess(table), _divergences(posterior), _energy(posterior)]
    cards = [_sizes(posterior), _seconds(posterior), *(card for card, _ in parts if card)]
    findings = [finding for _, finding in parts if finding]
    if posterior.record.interrupted:
        words = f"The run was interrupted after {posterior.num_draws:,} of {posterior.record.num_samples:,} draws."
        findings.insert(0, Finding("warn", words))
    return cards, findings


def _sizes(posterior: Reported) -> Card:
    remark = f"{_count(posterior.num_chains, 'chain')}, {_count(posterior.num_draws, 'draw')} each"
    return Card("draws", f"{posterior.num_chains * posterior.num_draws:,}", remark, "unknown")


def _seconds(posterior: Reported) -> Card:
    seconds = posterior.timing.sampling
    rate = posterior.num_chains * posterior.num_draws / seconds if seconds else 0.0
    remark = f"{rate:,.{0 if rate >= 10 else 1}f} draws per second of sampling" if rate else "in all"
    return Card("time", format_seconds(posterior.timing.total), remark, "unknown")


def _rhat(table: DataFrame) -> tuple[Card, Finding]:
    values = table["r_hat"].to_numpy()
    if np.isnan(values).all():
        words = "R-hat is unknown: it compares chains, and takes two of them and four draws of each."
        return Card("worst R-hat", "–", "unknown", "unknown"), Finding("unknown", words)
    row = int(np.nanargmax(values))
    name, shown = str(table.index[row]), format_rhat(values[row])
    if values[row] <= HIGHEST_RHAT:
        finding = Finding("good", f"The chains agree: no R-hat is above {HIGHEST_RHAT}.")
        return Card("worst R-hat", shown, name, "good"), finding
    count = int((values > HIGHEST_RHAT).sum())
    words = (
        f"The chains do not agree yet: {count:,} of {_count(len(values), 'quantity')} "
        f"{'has' if count == 1 else 'have'} an R-hat above {HIGHEST_RHAT}, the worst is {shown} ({name}). "
        "A longer warm-up and more draws may help; so may another parametrisation."
    )
    return Card("worst R-hat", shown, name, "warn"), Finding("warn", words)


def _ess(table: DataFrame) -> tuple[Card, Finding]:
    values = np.fmin(table["ess_bulk"].to_numpy(), table["ess_tail"].to_numpy())
    if np.isnan(values).all():
        words = "The effective sample size is unknown: it takes four finite draws that are not all the same."
        return Card("least ESS", "–", "unknown", "unknown"), Finding("unknown", words)
    row = int(np.nanargmin(values))
    name, shown = str(table.index[row]), f"{values[row]:,.0f}"
    if values[row] >= LEAST_ESS:
        words = f"There are enough draws: every quantity has {shown} effective draws or more, in bulk and tails."
        return Card("least ESS", shown, name, "good"), Finding("good", words)
    words = f"There are few draws: {name} has only {shown} effective ones; for intervals {LEAST_ESS} are advised."
    return Card("least ESS", shown, name, "warn"), Finding("warn", words)


def _divergences(posterior: Reported) -> tuple[Card, Finding]:
    count, draws = posterior.num_divergences, posterior.num_chains * posterior.num_draws
    if not count:
        return Card("divergences", "0", "no draw diverged", "good"), Finding("good", "No draw diverged.")
    chains = int(posterior.stats["diverging"].any(axis=1).sum())
    share = f"{count / draws:.1%} of the draws, in {_count(chains, 'chain')}"
    words = (
        f"{_count(count, 'draw')} diverged ({share}): the sampler could not follow the density there, and a part of "
        "it may be missing. A smaller step size or another parametrisation helps."
    )
    return Card("divergences", f"{count:,}", share, "warn"), Finding("warn", words)


def _energy(posterior: Reported) -> tuple[Card | None, Finding | None]:
    fractions = ebfmi(posterior.stats["energy"]) if has_energy(posterior) else np.array([])
    fractions = fractions[np.isfinite(fractions)]
    if not fractions.size:
        return None, None
    least = float(fractions.min())
    if least >= LOW_EBFMI:
        finding = Finding("good", f"Every chain moves freely through its energies: E-BFMI is at least {least:.2f}.")
        return Card("least E-BFMI", f"{least:.2f}", "one number per chain", "good"), finding
    low = _count(int((fractions < LOW_EBFMI).sum()), "chain")
    words = (
        f"E-BFMI is below {LOW_EBFMI} in {low} (least: {least:.2f}): the momentum moves the energy too little, and the "
        "tails are not to be trusted. Another parametrisation helps."
    )
    return Card("least E-BFMI", f"{least:.2f}", f"low in {low}", "warn"), Finding("warn", words)


def _count(number: int, noun: str) -> str:
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{number:,} {noun if number == 1 else plural}"


def format_rhat(value: float) -> str:
    """Write R-hat with three decimals; of chains that stand still it is beyond all bounds."""
    return f"{value:.3f}" if value < 100 else "over 100"


def format_seconds(seconds: float) -> str:
    """Write a duration as people say it: 0.42 s, 12.3 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
