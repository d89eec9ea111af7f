"""Verdict on a run that stored no draws, from the results of its reducers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from phalanx.diagnostics.elements import Names, element_names
from phalanx.diagnostics.judging.checked_run import HIGH_RHAT, format_rhat, least_ess
from phalanx.diagnostics.judging.checks import LOW_ACCEPTANCE, SMALLER_STEPS, Finding
from phalanx.diagnostics.judging.verdict import Verdict, judged
from phalanx.errors.message_text import count

NAMED = 3
"""The most elements that a sentence names."""

Figures = dict[str, float]
"""Number of each element, by its name."""


def judge_reduced(
    reduced: Mapping[str, Any],
    statistics: Mapping[str, str],
    *,
    num_chains: int,
    divergences: int,
    acceptance_rate: float | None,
    constant: Sequence[str] = (),
    findings: Sequence[Finding] = (),
    passed: Sequence[str] = (),
    labels: Names | None = None,
) -> Verdict:
    """Grade a run by the results of its reducers: good with the thresholds of `judge`, and otherwise not good.

    R-hat and ESS are those of `rhat()` and `ess()`, of the draws themselves and not of ranks. A run without these
    reducers is not good to use, since its convergence is unknown.

    Args:
        reduced: results by reducer name, and by variable where there are several.
        statistics: the statistic, "r_hat" or "ess", of each reducer that has one, by name.
        num_chains: chains.
        divergences: draws that diverged.
        acceptance_rate: mean over the draws; None where it is unknown.
        constant: names of constant elements, such as `R[0, 0]`: single ones pass.
        findings: further findings, such as those of the run's record.
        passed: further sentences that report a pass.
        labels: labels of the entries of variables, by variable and axis.

    Returns:
        The verdict.

    Example:
        >>> import numpy as np
        >>> from phalanx.diagnostics import judge_reduced
        >>> reduced = {"r": {"x": np.array(1.2)}}
        >>> judge_reduced(reduced, {"r": "r_hat"}, num_chains=4, divergences=0, acceptance_rate=0.8).good
        False
    """
    r_hats, sizes = (_figures(reduced, statistics, statistic, labels) for statistic in ("r_hat", "ess"))
    results = [
        _find_lacking(r_hats, sizes),
        _judge_undefined(r_hats, sizes, num_chains, constant),
        _rhats(r_hats),
        _divergences(divergences),
        _sizes(sizes, least_ess(num_chains)),
        _judge_acceptance(acceptance_rate),
    ]
    wrong = (*findings, *(result for result in results if isinstance(result, Finding)))
    right = (*passed, *(result for result in results if isinstance(result, str)))
    if wrong:
        return judged(wrong, right)
    worst = max(_known_figures(r_hats).values())
    least = min(_known_figures(sizes).values())
    text = f"R-hat is {format_rhat(worst)} or less, and there are {least:,.0f} effective draws or more"
    return judged((), right, good=text)


def _figures(
    results: Mapping[str, Any], statistics: Mapping[str, str], searched_statistic: str, labels: Names | None
) -> Figures | None:
    """Return the figures of all reducers of a statistic; None where there is no reducer of it."""
    names = [name for name, statistic in statistics.items() if statistic == searched_statistic and name in results]
    all_figures = (named_elements(reducer, results[reducer], labels) for reducer in names)
    return {name: value for figures in all_figures for name, value in figures} if names else None


def named_elements(reducer: str, result: Any, labels: Names | None = None) -> Iterator[tuple[str, float]]:
    """Yield each element of a reducer's result, named by the variable, or the reducer, and its index."""
    if not isinstance(result, Mapping | np.ndarray | np.generic | float):
        return  # the reducer failed, which a finding reports
    for name, values in (result if isinstance(result, Mapping) else {reducer: result}).items():
        values = np.asarray(values, np.float64)
        yield from zip(element_names(name, values.shape, labels), map(float, values.flat), strict=True)


def _known_figures(figures: Figures | None) -> Figures:
    return {name: value for name, value in (figures or {}).items() if not np.isnan(value)}


def _find_lacking(r_hats: Figures | None, sizes: Figures | None) -> Finding | None:
    lacking = [call for call, figures in (("rhat()", r_hats), ("ess()", sizes)) if figures is None]
    if not lacking:
        return None
    calls = " and ".join(f"phx.reducers.{call}" for call in lacking)
    run = "neither rhat() nor ess() is" if len(lacking) == 2 else f"{lacking[0]} is not"
    problem = f"No draw was stored, and {run} among the reducers: the convergence of the chains is unknown."
    return Finding("not measured", problem, f"reducers= with {calls}, or keep a variable")


def _judge_undefined(
    r_hats: Figures | None, sizes: Figures | None, num_chains: int, constant: Sequence[str]
) -> Finding | str | None:
    """Return a finding about undefined statistics, or a sentence about constant elements."""
    if r_hats is not None and num_chains == 1:
        return Finding("one chain", "There is one chain, and R-hat compares chains.", "num_chains=4 or more")
    given_figures = [figures for figures in (r_hats, sizes) if figures is not None]
    for figures in given_figures:
        if not _known_figures(figures):
            problem = "R-hat or ESS is NaN for every quantity: draws are constant, not finite, or too few."
            return Finding("not known", problem, "more draws (num_samples), or to find an overflow in the model")
    unknown = sorted({name for figures in given_figures for name, value in figures.items() if np.isnan(value)})
    constants = [name for name in unknown if name in constant]
    unknown = [name for name in unknown if name not in constant]
    if not unknown:
        return (
            f"{count(len(constants), 'quantity')} constant, and left out: {_list_items(constants)}."
            if constants
            else None
        )
    problem = f"R-hat or ESS is NaN for {_list_items(unknown)}: constant, not finite, or of too few draws."
    return Finding("not known", problem, "to keep these, or to reduce only their varying elements with phx.reduce")


def _rhats(r_hats: Figures | None) -> Finding | str | None:
    figures = _known_figures(r_hats)
    high = {name: value for name, value in figures.items() if not value < HIGH_RHAT}
    if not figures:
        return None
    if not high:
        return (
            f"The chains agree: every R-hat is below {HIGH_RHAT}, the largest is {format_rhat(max(figures.values()))}."
        )
    worst = sorted(high, key=high.__getitem__, reverse=True)
    problem = (
        f"The chains do not agree: {len(high):,} of {count(len(figures), 'quantity')} with an R-hat of {HIGH_RHAT} or "
        f"more: {_list_items([f'{name} {format_rhat(high[name])}' for name in worst])}."
    )
    return Finding("high R-hat", problem, "a longer warm-up and more draws; or another parametrisation")


def _sizes(ess: Figures | None, min_draws: int) -> Finding | str | None:
    figures = _known_figures(ess)
    low = {name: value for name, value in figures.items() if value < min_draws}
    if not figures:
        return None
    least = min(figures.values())
    if not low:
        return f"There are enough draws: every quantity has {least:,.0f} effective ones or more."
    worst = sorted(low, key=low.__getitem__)
    problem = (
        f"{len(low):,} of {count(len(figures), 'quantity')} with fewer than {min_draws} effective draws: "
        f"{_list_items([f'{name} {low[name]:,.0f}' for name in worst])}."
    )
    return Finding("low ESS", problem, f"{np.ceil(min_draws / max(least, 1)):,.0f} times as many draws (num_samples)")


def _divergences(number: int) -> Finding | str:
    if not number:
        return "No draw diverged."
    problem = (
        f"{count(number, 'draw')} diverged: the sampler could not follow the density there, and a part of it may be "
        "missing."
    )
    return Finding("divergences", problem, SMALLER_STEPS)


def _judge_acceptance(rate: float | None) -> Finding | None:
    if rate is None or not rate < LOW_ACCEPTANCE:  # NaN for kernels without a Metropolis decision
        return None
    problem = f"Hardly a proposal is accepted ({rate:.1%})."
    return Finding("low acceptance", problem, "a smaller step_size, or a longer warm-up to tune it in")


def _list_items(items: Sequence[str]) -> str:
    num_left = len(items) - NAMED
    return ", ".join(items[:NAMED]) + (f" and {num_left:,} more" if num_left > 0 else "")
