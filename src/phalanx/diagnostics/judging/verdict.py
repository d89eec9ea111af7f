"""Verdict on a run: all diagnostics together, in words, with an advice for each problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from phalanx.diagnostics.elements import Names
from phalanx.diagnostics.judging.checked_run import CheckedRun, format_rhat
from phalanx.diagnostics.judging.checks import CHECKS, Check, Finding, together

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, repr=False)
class Verdict:
    """Verdict on a run: good, usable or not good; true where it is good, printed as its headline and its findings.

    Attributes:
        good: true if every check was passed.
        headline: the verdict in one line.
        findings: problems with their grades and advice, the worst first; empty for a good run.
        passed: sentences that report the checks that were passed.

    Example:
        >>> from phalanx.diagnostics import Finding, judged
        >>> print(judged([Finding("few draws", "There are 10 draws.", "a larger num_samples")], ()))
        Not good to use yet: few draws.
        - There are 10 draws.
          Try a larger num_samples.
    """

    good: bool
    headline: str
    findings: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()

    @property
    def grade(self) -> str:
        """The grade, "good", "usable" (with the findings in mind) or "not good"."""
        if self.good:
            return "good"
        usable = bool(self.findings) and all(finding.grade == "usable" for finding in self.findings)
        return "usable" if usable else "not good"

    def __bool__(self) -> bool:
        return self.good

    def __repr__(self) -> str:
        return str(self)  # a notebook shows this

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"- {finding}" for finding in self.findings)])

    def _repr_html_(self) -> str:
        """Return the headline and the findings as HTML, for notebooks."""
        items = (f"<li>{escape(one.problem)}<br><em>Try {escape(one.advice)}.</em></li>" for one in self.findings)
        findings = f"<ul>{''.join(items)}</ul>" if self.findings else ""
        colour = {"good": "#2e7d32", "usable": "#b26a00"}.get(self.grade, "#c62828")
        return f'<div><strong style="color: {colour}">{escape(self.headline)}</strong>{findings}</div>'


def judge(
    table: DataFrame | None,
    stats: Mapping[str, np.ndarray],
    *,
    findings: Sequence[Finding] = (),
    passed: Sequence[str] = (),
    draws: Mapping[str, np.ndarray] | None = None,
    labels: Names | None = None,
    checks: Sequence[Check] = (),
    superchains: int = 0,
) -> Verdict:
    r"""Grade draws as good, usable or not good, and report problems with an advice for each.

    They are good when every $\hat R$ is below 1.01, or chains that agree would reach it by chance in more than one
    of a hundred runs of as many quantities; when bulk and tail ESS of every quantity are 100 per chain or more, for at
    most four chains; when no draw diverged, E-BFMI is not below 0.3, fewer than 1% of the trajectories were cut off at
    the largest tree depth, and proposals are accepted; and when all draws are finite. A check that does not apply is
    left out, such as that of the energy of a random walk.

    Of chains with fewer than 100 draws each that start in superchains, nested $\hat R$ is judged in place of $\hat R$:
    superchains, and the two halves of the draws, must have one mean.

    They are usable, with a caution, when the only findings are mild ones: an ESS down to a quarter of that, a small
    $\hat R$ that chance hardly explains, a few divergences that do not gather, in a run that has no other finding but
    cut-off trajectories, an E-BFMI that may be low by chance.

    Args:
        table: the summary of the draws, one row per scalar element, see `summary_table`; None when there are no draws.
        stats: arrays of shape `(chain, draw)` by name, at least one of: diverging, energy, reached_max_depth,
            acceptance_rate, log_density.
        findings: further findings, such as those of the run's record; named first.
        passed: further sentences that report a pass.
        draws: arrays of shape `(chain, draw, ...)` by variable name, to locate the chains when they disagree.
        labels: labels of the entries in the table, by variable and axis.
        checks: checks of yours, after ours: each receives the `CheckedRun` and returns a `Finding`, a sentence that
            reports a pass, or None where it does not apply.
        superchains: number of groups of consecutive chains that start at one point; 0 if every chain has its own.

    Returns:
        The verdict.

    Raises:
        ValueError: when there are no statistics.

    Example:
        >>> import numpy as np
        >>> from phalanx.diagnostics import judge, summary_table
        >>> random = np.random.default_rng(0)
        >>> table = summary_table({"b": random.normal(size=(4, 1000))})
        >>> print(judge(table, {"diverging": random.random((4, 1000)) < 0.01}).findings[0].topic)
        divergences

    Source: A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Bürkner (2021), Rank-normalization, folding, and
    localization: an improved R-hat for assessing convergence of MCMC; M. Betancourt (2016), Diagnosing suboptimal
    cotangent disintegrations in Hamiltonian Monte Carlo; C. C. Margossian, M. D. Hoffman, P. Sountsov, L. Riou-Durand,
    A. Vehtari, A. Gelman (2024), Nested R-hat: assessing the convergence of Markov chain Monte Carlo when running many
    short chains.
    """
    if not stats:
        raise ValueError("judge: there are no statistics; give one array of shape (chain, draw) at least, by name.")
    if table is None or table.empty:
        nothing = Finding("no draws", "There are no draws to judge.", "a larger num_samples, and keep=None")
        return judged((*findings, nothing), passed)
    num_chains, num_draws = next(iter(stats.values())).shape[:2]
    run = CheckedRun(table, stats, num_chains, num_draws, draws or {}, labels or {}, superchains)
    results = [result for check in (*CHECKS, *checks) if (result := check(run)) is not None]
    problems = together([result for result in results if isinstance(result, Finding)], run)
    findings = (*findings, *problems)
    passed = (*passed, *(result for result in results if isinstance(result, str)))
    if findings:
        return judged(findings, passed)
    worst = np.nanmax(run.r_hats)
    least = np.nanmin(run.table[["ess_bulk", "ess_tail"]])
    best = f"{run.r_hat} is {format_rhat(worst)} or less, and there are {least:,.0f} effective draws or more"
    return judged((), passed, good=best)


def judged(findings: Sequence[Finding], passed: Sequence[str], *, good: str = "every check was passed") -> Verdict:
    """Return the verdict with these findings; without any, the run is good.

    Example:
        >>> from phalanx.diagnostics import judged
        >>> print(judged([], ["No draw diverged."]))
        Good to use: every check was passed.
    """
    if not findings:
        return Verdict(True, f"Good to use: {good}.", (), tuple(passed))
    verdict = Verdict(False, "", tuple(sorted(findings, key=lambda finding: finding.grade == "usable")), tuple(passed))
    topics = ", ".join(finding.topic for finding in verdict.findings)
    opening = "Usable, with this in mind" if verdict.grade == "usable" else "Not good to use yet"
    return replace(verdict, headline=f"{opening}: {topics}.")
