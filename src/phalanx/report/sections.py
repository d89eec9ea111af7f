"""Sections of a run's page: headline, variables, summary, another run, checks of the model, and the record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from phalanx.diagnostics import Verdict, ebfmi
from phalanx.diagnostics.elements import element_names
from phalanx.diagnostics.energy import has_energy
from phalanx.diagnostics.judging.checked_run import format_rhat
from phalanx.errors.message_text import count
from phalanx.report.model_draws import ModelDraws
from phalanx.report.page import Card, Level, Lines, PhaseTime, Row, Section, Table, listed, section, words
from phalanx.report.plots.chosen import elements
from phalanx.report.plots.predictive_check import pareto_figure, predictive_figure, statistics_figure
from phalanx.report.plots.variables import MOST_ROWS, VariableDraws, forest_figure, marginal_figure
from phalanx.report.posterior_protocol import Reported

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_VARIABLES = 40
"""Variables with a picture."""

_MOST_DRAWS = 4000
_MOST_TERMS = 2**27

_SUMMARY_TITLES = {
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

MOST_ELEMENTS = 50_000
"""Rows of elements in a table."""

_BINS = 20
_MOST_IN_HISTOGRAM = 2000
_AT_ONCE = 1000

_FAR = 4
"""Distance of two means, in Monte-Carlo errors, that is highlighted: chance alone exceeds it once in 16,000."""

_COMPARISON_TITLES = ("mean", "other mean", "distance / mcse", "distance / sd", "other sd / sd")
_DISTANCE = 2


def headline_cards(posterior: Reported, verdict: Verdict) -> list[Card]:
    """Return the headline numbers of a run.

    Args:
        posterior: the run.
        verdict: its verdict, which decides the level of each number.

    Returns:
        One card for each number: draws, time, and the worst value of each diagnostic.
    """
    wrong = {finding.topic for finding in verdict.findings}
    table = posterior.summary()
    return [
        _draws(posterior),
        _seconds(posterior),
        _rhat(table, "warn" if "high R-hat" in wrong else "good"),
        _ess(table, "warn" if "low ESS" in wrong else "good"),
        _divergences(posterior, "warn" if "divergences" in wrong else "good"),
        *_energy(posterior, "warn" if "low E-BFMI" in wrong else "good"),
    ]


def _draws(posterior: Reported) -> Card:
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


def variables_section(posterior: Reported, model: ModelDraws, beside: Reported | None = None) -> Section:
    """Return the marginals of scalar variables and the intervals of the elements of all others.

    Args:
        posterior: the run, with the variables to show.
        model: draws of its model.
        beside: another run, shown in place of the prior.

    Returns:
        The section.
    """
    figures = {}
    priors = 0
    for name in list(posterior.draws)[:MOST_VARIABLES]:
        variable = _variable(name, posterior, model, beside)
        if not variable.labels:
            continue
        priors += variable.prior is not None
        draw = marginal_figure if len(variable.labels) == 1 else forest_figure
        figures[f"Draws of {name}"] = draw(variable)
    note = (
        "The histogram of the draws of each variable, their mean, and the narrowest interval with 94% of them. The "
        f"elements of a vector are rows, with a thick line for 50%; more than {MOST_ROWS} are vertical lines in the "
        "order of the elements. Axes leave out the outermost draws."
    )
    if priors:
        note += " The prior is grey: a dashed histogram, or a band with 94% of its draws."
    if beside is not None:
        note += " Orange: the other run."
    missing = []
    if beside is None and model.no_prior:
        missing.append(f"No prior is shown: {model.no_prior}.")
    if len(posterior.draws) > MOST_VARIABLES:
        total = count(len(posterior.draws), "variable")
        missing.append(f"Pictures are of the first {MOST_VARIABLES} of {total}; names= chooses others.")
    return section("Variables", note, figures, missing=missing, layout="columns")


def _variable(name: str, posterior: Reported, model: ModelDraws, beside: Reported | None) -> VariableDraws:
    """Return the draws of a variable, fewer of very many, with those of another run or of the prior."""
    values = posterior.draws[name]
    shape = tuple(values.shape[2:])
    labels = element_names(name, shape, posterior.record.labels)
    ours = _flat(values)
    if beside is not None:
        fits = name in beside.draws and tuple(beside.draws[name].shape[2:]) == shape
        return VariableDraws(name, labels, ours, beside=_flat(beside.draws[name]) if fits else None)
    prior = model.prior.get(name)
    fits = prior is not None and prior.shape[1:] == shape
    return VariableDraws(name, labels, ours, prior.reshape(len(prior), -1) if prior is not None and fits else None)


def _flat(values: np.ndarray) -> np.ndarray:
    """Return draws as `(draw, element)`, at most 4,000 of them."""
    of_chains = elements(np.asarray(values))
    flat = of_chains.reshape(-1, of_chains.shape[2])
    return flat[:: -(-len(flat) // _MOST_DRAWS)]


def check_section(model: ModelDraws) -> Section:
    """Return the posterior predictive check of every observed variable."""
    figures = {}
    for name, again in model.replicated.items():
        figures[f"Predictive check of {name}"] = predictive_figure(name, model.observed[name], again)
        figures[f"Statistics of {name}"] = statistics_figure(name, model.observed[name], again)
    title = "Posterior predictive check"
    if not figures:
        return Section(title, missing=[f"No check: {model.no_replicates or 'the model draws no observed variable'}."])
    number = count(len(next(iter(model.replicated.values()))), "draw")
    note = (
        f"Observed data, and data that the model draws anew at {number} of the posterior. If the model fits, the "
        "observed histogram stays within the bands, and about half of the replicates are above each observed "
        "statistic (the vertical line)."
    )
    return section(title, note, figures)


def loo_section(posterior: Any, model: ModelDraws) -> Section:
    """Return leave-one-out cross-validation: the expected log predictive density, and Pareto k."""
    title = "Leave-one-out cross-validation"
    terms = sum(values.size for values in model.observed.values()) * posterior.num_chains * posterior.num_draws
    if not model.observed:
        return Section(title, missing=[f"Not computed: {model.no_replicates}."])
    if terms > _MOST_TERMS:
        text = f"it takes {terms:,} terms, one of each observation at each draw; call posterior.loo()"
        return Section(title, missing=[f"Not computed: {text}."])
    try:
        loo = posterior.loo()
    except Exception as error:  # of the user's model, of any class
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return Section(title, missing=[f"Not computed: {reason}"])
    shapes = {name: np.asarray(values, np.float64).ravel() for name, values in loo.pareto_k.items()}
    shapes = {name: values[np.isfinite(values)] for name, values in shapes.items()}  # masked entries have none
    high = sum(int(np.sum(values > loo.good_k)) for values in shapes.values())
    note = (
        f"Expected log predictive density (elpd) {float(loo.elpd):,.2f} ± {float(loo.se):,.2f} (standard error); "
        f"effective number of parameters (p_loo) {float(loo.p_loo):,.2f}. "
    )
    if high:
        note += f"Pareto k of {count(high, 'observation')} is above {loo.good_k:.2g}: their terms are unreliable."
    else:
        total = sum(values.size for values in shapes.values())
        note += f"Pareto k of all {total:,} observations is at most {loo.good_k:.2g}."
    figures = {f"Pareto k of {name}": pareto_figure(name, values, loo.good_k) for name, values in shapes.items()}
    return section(title, note, figures)


def summary_section(
    table: DataFrame, draws: Mapping[str, np.ndarray], *, has_log_density: bool, least_ess: int, high: float
) -> Section:
    """Return the summary as a section: the log density, then all rows; of many, those with the worst R-hat first.

    Args:
        table: the summary, one row per scalar element.
        draws: `(chain, draw, ...)` by variable, in the order of the rows.
        has_log_density: True if its first row is the log density.
        least_ess: effective draws that every row should have; fewer are highlighted.
        high: lowest R-hat that is highlighted.

    Returns:
        The section, with a note on its rows and columns.
    """
    from phalanx.diagnostics.table import MOST_QUANTITIES, worst_first  # imports pandas

    heads = int(has_log_density)
    table = table.assign(marginal=[""] * heads + [line for part in draws.values() for line in histograms(part)])
    rest = table.iloc[heads:]
    is_long = len(rest) > MOST_QUANTITIES
    rest = worst_first(rest) if is_long else rest
    note = "The log density, and every scalar element of the variables."
    if len(rest) > MOST_ELEMENTS:
        note = f"The {MOST_ELEMENTS:,} of {len(rest):,} scalar elements with the worst R-hat. names= chooses others."
    note += (
        " 94% low and high bound the narrowest interval with 94% of the draws; mcse is the Monte Carlo standard error, "
        f"ESS the effective sample size. Highlighted: R-hat of {high:g} or more, ESS below {least_ess:,}."
    )
    rows: list[Row] = [
        (kind, str(name), line, [_cell(c, v, least_ess, high) for c, v in zip(_SUMMARY_TITLES, values, strict=True)])
        for kind, part in (("first", table.iloc[:heads]), ("", rest.head(MOST_ELEMENTS)))
        for name, line, values in zip(part.index, part["marginal"], part[[*_SUMMARY_TITLES]].to_numpy(), strict=True)
    ]
    columns = list(_SUMMARY_TITLES.values())
    return Section("Summary", note, table=Table(columns, rows, columns.index("R-hat") if is_long else None))


def histograms(draws: np.ndarray) -> list[str]:
    """Return a histogram of each element as one digit per bin, of nearly all its draws; empty if not drawable.

    Args:
        draws: `(chain, draw, ...)`.

    Returns:
        Words of digits from 0 to 9, the highest bin.
    """
    flat = np.asarray(draws).reshape(draws.shape[0] * draws.shape[1], -1)
    lines = []
    for first in range(0, flat.shape[1], _AT_ONCE):
        part = flat[:: -(-len(flat) // _MOST_IN_HISTOGRAM), first : first + _AT_ONCE].astype(np.float64)
        with np.errstate(all="ignore"):  # elements that are constant or not finite have no histogram
            low, high = np.quantile(part, [0.005, 0.995], axis=0)
            bins = np.floor((part - low) / (high - low) * _BINS)
        drawable = np.isfinite(bins).all(axis=0)
        numbers = np.where((bins >= 0) & (bins < _BINS) & drawable, bins, _BINS).astype(np.intp)
        size = numbers.shape[1]
        counts = np.bincount((numbers + np.arange(size) * (_BINS + 1)).ravel(), minlength=size * (_BINS + 1))
        counts = counts.reshape(size, _BINS + 1)[:, :_BINS]
        heights = np.rint(9 * counts / np.maximum(counts.max(axis=1, keepdims=True), 1)).astype(int)
        lines += ["".join(map(str, row)) if good else "" for row, good in zip(heights.tolist(), drawable, strict=True)]
    return lines


def _cell(column: str, value: float, least_ess: int, high: float) -> tuple[str, str]:
    """Return a mark if a number is out of bounds, and the number with its significant digits."""
    if np.isnan(value):
        return "none", "–"
    if column == "r_hat":
        return "warn" if value >= high else "", format_rhat(value, high)
    if column.startswith("ess"):
        return "warn" if value < least_ess else "", f"{value:,.0f}"
    return "", format_number(value, 2 if column.startswith("mcse") else 4)


def format_number(value: float, digits: int) -> str:
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
    record = posterior.record
    timing = posterior.timing
    axes = " × ".join(f"{name} {size}" for name, size in record.mesh.items())
    warmup = f"{record.num_warmup:,} warm-up iterations"
    draws = count(record.num_samples, "draw")
    return {
        "model": words(record.model),
        "kernel": [(record.kernel, "")],
        "requested": words(f"{count(record.num_chains, 'chain')}, {warmup}, {draws}"),
        "seed": words(str(record.seed)),
        "mesh": words(axes),
        "devices": listed(record.devices),
        "data": [*record.data.items()],
        "latent variables": [*record.latents.items()],
        "gradients": words(f"{timing.gradient_evaluations:,} evaluations over all chains, warm-up included"),
        "compiled": words(f"{count(timing.compilations, 'program')} for this run"),
        "matrix products": words(record.matmul_precision),
        "versions": words(", ".join(f"{name} {version}" for name, version in record.versions.items())),
        "started": words(record.started),
    }


def comparison_section(posterior: Reported, beside: Reported) -> Section:
    r"""Return a table of the elements that both runs have, those whose means differ most first.

    The distance of two means is in units of its Monte-Carlo error, $\sqrt{e_1^2 + e_2^2}$ with the errors of both, and
    of the standard deviation of this run.

    Args:
        posterior: the run, with the variables to compare.
        beside: the other run.

    Returns:
        The section.
    """
    ours, theirs = (_unique(run.summary()) for run in (posterior, beside))
    both = [name for name in ours.index if name in theirs.index]
    title = "Beside another run"
    other = " · ".join(filter(None, [beside.record.model, beside.record.kernel, f"seed {beside.record.seed}"]))
    if not both:
        return Section(title, missing=[f"No element of this run is in the other one ({other})."])
    ours = ours.loc[both]
    theirs = theirs.loc[both]
    distance = (theirs["mean"] - ours["mean"]).to_numpy()
    error = np.hypot(ours["mcse_mean"], theirs["mcse_mean"]).to_numpy()
    with np.errstate(all="ignore"):  # constants have neither error nor spread
        numbers = np.column_stack(
            [ours["mean"], theirs["mean"], distance / error, distance / ours["sd"], theirs["sd"] / ours["sd"]]
        )
    far = np.abs(numbers[:, _DISTANCE])
    order = np.argsort(-np.nan_to_num(far, nan=-1.0), kind="stable")[:MOST_ELEMENTS]
    rows: list[Row] = [("", str(both[row]), "", _cells(numbers[row])) for row in order]
    apart = int(np.sum(far >= _FAR))
    different = f"{count(apart, 'mean')} of {len(both):,} differ" if apart else f"none of {len(both):,} means differs"
    counts = f"{count(beside.num_chains, 'chain')} of {count(beside.num_draws, 'draw')}"
    note = (
        f"The other run: {other}; {counts}; verdict: {beside.verdict().headline} Of the elements that both have, "
        f"{different} by {_FAR} or more Monte Carlo standard errors (highlighted): chance explains smaller distances. "
        f"Such a distance is unimportant if it is a small part of the standard deviation."
    )
    return Section(title, note, table=Table(_COMPARISON_TITLES, rows))


def _unique(table: DataFrame) -> DataFrame:
    """Return the rows of elements whose names are unique; the log density is of one model only."""
    return table.loc[~table.index.duplicated(keep=False) & (table.index != "log_density")]


def _cells(values: np.ndarray) -> list[tuple[str, str]]:
    """Return the cells of a row, and highlight a distance in Monte-Carlo errors that is large."""
    marks = ["warn" if column == _DISTANCE and abs(value) >= _FAR else "" for column, value in enumerate(values)]
    return [
        (mark, format_number(float(value), 3)) if np.isfinite(value) else ("none", "–")
        for mark, value in zip(marks, values, strict=True)
    ]
