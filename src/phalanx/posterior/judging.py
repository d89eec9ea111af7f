"""Verdict on a run, from its record, its stored draws or its reducers, whichever it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from phalanx.diagnostics import Check, Verdict, judge, judge_reduced, judged
from phalanx.posterior.record import RunRecord

if TYPE_CHECKING:
    from phalanx.diagnostics.table import SummaryTable


def judge_run(
    record: RunRecord,
    draws: Mapping[str, np.ndarray],
    stats: Mapping[str, np.ndarray],
    reduced: Mapping[str, Any],
    sizes: tuple[int, int],
    table: Callable[[], SummaryTable],
    checks: Sequence[Check],
) -> Verdict:
    """Judge a run; see `Posterior.verdict`.

    Args:
        record: the record, with the findings of the run itself.
        draws: arrays of shape `(chain, draw, ...)` by variable.
        stats: arrays of shape `(chain, draw)` by statistic.
        reduced: results by reducer.
        sizes: chains, and stored draws of each.
        table: returns the summary of all draws, which takes seconds for thousands of elements.
        checks: the user's checks on stored draws.

    Returns:
        The verdict.
    """
    num_chains, num_draws = sizes
    passed = (*record.passed, *record.notes)
    if checks and (record.independent or not num_draws):
        raise ValueError("verdict: checks= evaluates stored draws of chains; this run stored none.")
    if record.independent:
        return judged(record.findings, passed)
    if not stats and record.reduced_draws:
        return judge_reduced(
            reduced, record.diagnostics, num_chains=num_chains, divergences=record.divergences,
            acceptance_rate=record.acceptance_rate, constant=record.constant, findings=record.findings,
            passed=passed, labels=record.labels,
        )  # fmt: skip
    if not stats:
        raise ValueError("verdict: there are no draws to judge, stored or reduced.")
    return judge(
        table() if num_draws else None, stats, findings=record.findings, passed=passed, draws=draws,
        labels=record.labels, checks=checks, superchains=record.superchains,
    )  # fmt: skip
