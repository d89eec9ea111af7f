"""Are the draws fit to be used? What the diagnostics say together, in words, and what to try when they say no."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from phalanx.diagnostics.checks import CHECKS, Check, Evidence
from phalanx.diagnostics.elements import Names
from phalanx.diagnostics.finding import Finding
from phalanx.diagnostics.words import format_rhat

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Verdict:
    """Whether a run is good to use; true or false like `good`, and printed as the headline with the findings under it.

    Attributes:
        good: whether every check was passed.
        headline: the verdict in one line.
        findings: what is wrong and what to try, the worst first; none for a good run.
        passed: what was found in order, in sentences.
    """

    good: bool
    headline: str
    findings: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()

    @property
    def grade(self) -> str:
        """Return "good", "usable" where every finding only has to be kept in mind, or "not good"."""
        if self.good:
            return "good"
        return "usable" if self.findings and all(f.grade == "usable" for f in self.findings) else "not good"

    def __bool__(self) -> bool:
        return self.good

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"- {finding}" for finding in self.findings)])


def judge(
    table: DataFrame | None,
    stats: Mapping[str, np.ndarray],
    findings: Sequence[Finding] = (),
    passed: Sequence[str] = (),
    draws: Mapping[str, np.ndarray] | None = None,
    labels: Names | None = None,
    checks: Sequence[Check] = (),
) -> Verdict:
    r"""Say whether draws are good to use, or what is wrong with them and what to try.

    They are good to use when every $\hat R$ is below 1.01, or below what independent draws reach by accident in a
    hundredth of runs as short and of as many quantities; when bulk and tail ESS of every quantity are 100 per chain
    or more, of at most four chains; when no draw diverged, E-BFMI is not below 0.3, fewer than 1% of the trajectories
    were cut off at the largest tree depth, and proposals are accepted; and when all draws are finite. A check is left
    out where there is nothing to check, such as the energy of a random walk.

    Args:
        table: the summary of the draws, one row per scalar element, see `summary_table`; None when there are no draws.
        stats: arrays of shape `(chain, draw)` by name: diverging, energy, reached_max_depth, acceptance_rate,
            log_density, as far as the kernel has them; one of them at least.
        findings: what is known to be wrong from elsewhere, such as the record of the run; named first.
        passed: what is known to be in order from elsewhere.
        draws: arrays of shape `(chain, draw, ...)` by variable name, to tell which chains sit where when they disagree.
        labels: what its entries are called in the table, by variable and axis.
        checks: checks of yours, after ours: each is given the `Evidence` and returns a `Finding`, a sentence that says
            what is in order, or None where there is nothing to check.

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
    cotangent disintegrations in Hamiltonian Monte Carlo.
    """
    if not stats:
        raise ValueError("judge: there are no statistics; give one array of shape (chain, draw) at least, by name.")
    if table is None or table.empty:
        nothing = Finding("no draws", "There are no draws to judge.", "a larger num_samples, and keep=None")
        return _not_good((*findings, nothing), passed)
    num_chains, num_draws = next(iter(stats.values())).shape[:2]
    run = Evidence(table, stats, num_chains, num_draws, draws or {}, labels or {})
    results = [result for check in (*CHECKS, *checks) if (result := check(run)) is not None]
    findings = (*findings, *(result for result in results if isinstance(result, Finding)))
    passed = (*passed, *(result for result in results if isinstance(result, str)))
    if findings:
        return _not_good(findings, passed)
    return Verdict(True, f"Good to use: {_best(run)}.", (), passed)


def judged(findings: Sequence[Finding], passed: Sequence[str], good: str = "every check was passed") -> Verdict:
    """The verdict on what has been looked at already: good unless something was found, and then why."""
    if findings:
        return _not_good(findings, passed)
    return Verdict(True, f"Good to use: {good}.", (), tuple(passed))


def _not_good(findings: Sequence[Finding], passed: Sequence[str]) -> Verdict:
    findings = sorted(findings, key=lambda finding: finding.grade == "usable")  # the worst first
    topics = ", ".join(finding.topic for finding in findings)
    verdict = Verdict(False, f"Not good to use yet: {topics}.", tuple(findings), tuple(passed))
    if verdict.grade == "usable":
        return Verdict(False, f"Usable, with this in mind: {topics}.", verdict.findings, verdict.passed)
    return verdict


def _best(run: Evidence) -> str:
    """Say how far R-hat and ESS are on the right side."""
    worst, least = np.nanmax(run.table["r_hat"]), np.nanmin(run.table[["ess_bulk", "ess_tail"]])
    return f"R-hat is {format_rhat(worst, run.high_rhat)} or less, and there are {least:,.0f} effective draws or more"
