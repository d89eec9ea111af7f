"""Verdict on a run, from its record, its stored draws or its reducers, whichever it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from phalanx.diagnostics import Check, Verdict, judge, judge_reduced, judged
from phalanx.diagnostics.elements import element_names
from phalanx.posterior.record import RunRecord

if TYPE_CHECKING:
    from phalanx.diagnostics.table import SummaryTable

MOST_COMPARED = 100
"""Most draws at each end of a chain in which a variable is compared with an angle."""

WHOLE = 1e-5
"""Distance of a number of turns from a whole number, per unit of the angle, that is rounding."""


def judge_run(
    record: RunRecord,
    draws: Mapping[str, np.ndarray],
    stats: Mapping[str, np.ndarray],
    results: Mapping[str, Any],
    sizes: tuple[int, int],
    table: Callable[[], SummaryTable],
    checks: Sequence[Check],
) -> Verdict:
    """Judge a run; see `Posterior.verdict`.

    Args:
        record: the record, with the findings of the run itself.
        draws: arrays of shape `(chain, draw, ...)` by variable.
        stats: arrays of shape `(chain, draw)` by statistic.
        results: results by reducer.
        sizes: chains, and stored draws of each.
        table: returns the summary of all draws, which takes seconds for thousands of elements.
        checks: the user's checks on stored draws.

    Returns:
        The verdict.
    """
    num_chains, num_draws = sizes
    passed_checks = (*record.passed, *record.notes)
    findings = record.problems
    if checks and (record.independent or not num_draws):
        raise ValueError("verdict: checks= evaluates stored draws of chains; this run stored none.")
    if record.independent:
        return judged(findings, passed_checks)
    if not stats and record.reduced_draws:
        return judge_reduced(
            results,
            record.diagnostics,
            num_chains=num_chains,
            divergences=record.divergences,
            acceptance_rate=record.acceptance_rate,
            constant=record.constant,
            findings=findings,
            passed=passed_checks,
            labels=record.labels,
        )
    if not stats:
        raise ValueError("verdict: there are no draws to judge, stored or reduced.")
    summary = table() if num_draws else None
    for winding, angle in windings(draws, set(record.latents)).items():
        passed_checks = (
            *passed_checks,
            f"{winding} is not judged: it is {angle} with whole turns added, which have no meaning.",
        )
        draws = {name: values for name, values in draws.items() if name != winding}
        if summary is not None:
            summary = summary.drop(index=element_names(winding, np.shape(draws[angle])[2:], record.labels))
    return judge(
        summary,
        stats,
        findings=findings,
        passed=passed_checks,
        draws=draws,
        labels=record.labels,
        checks=checks,
        superchains=record.superchains,
    )


def windings(draws: Mapping[str, np.ndarray], latents: set[str]) -> dict[str, str]:
    """Return the latent variables that are computed angles with whole turns added, with the name of the angle.

    `numpyro.infer.reparam.CircularReparam` has chains move on the line, where positions that differ by a turn are the
    same: chains on different turns agree.

    Args:
        draws: draws `(chain, draw, ...)` by variable.
        latents: names of the latent variables; others are computed.
    """
    by_variable: dict[str, str] = {}
    angles = {name: values for name, values in draws.items() if name not in latents}
    for name in latents & set(draws) if angles else ():
        values = draws[name]
        for angle, wrapped in angles.items():
            if np.shape(wrapped) != np.shape(values) or not np.issubdtype(wrapped.dtype, np.floating):
                continue
            line, circle = (
                np.concatenate([one[:, :MOST_COMPARED], one[:, -MOST_COMPARED:]], axis=1, dtype=np.float64)
                for one in (values, wrapped)
            )
            turns = (line - circle) / (2 * np.pi)
            with np.errstate(invalid="ignore"):
                whole = (np.abs(turns - np.round(turns)) < WHOLE * (1 + np.abs(line))).all()
            if whole and np.ptp(circle) <= 2 * np.pi * (1 + WHOLE) and np.round(turns).any():
                by_variable[name] = angle
    return by_variable
