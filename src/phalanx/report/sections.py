"""Sections of the page on the variables and the model: marginals, predictive check and leave-one-out validation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from phalanx.diagnostics.elements import element_names
from phalanx.errors.words import count
from phalanx.report.model_draws import ModelDraws
from phalanx.report.page import Section, section
from phalanx.report.plots.chosen import elements
from phalanx.report.plots.forest import MOST_ROWS, forest_figure
from phalanx.report.plots.marginals import VariableDraws, marginal_figure
from phalanx.report.plots.predictive_check import pareto_figure, predictive_figure, statistics_figure
from phalanx.report.reported import Reported

if TYPE_CHECKING:
    pass

MOST_VARIABLES = 40
"""Variables with a picture."""

_MOST_DRAWS = 4000
_MOST_TERMS = 2**27


def variables_section(posterior: Reported, model: ModelDraws, beside: Reported | None = None) -> Section:
    """Return the marginals of scalar variables and the intervals of the elements of all others.

    Args:
        posterior: the run, with the variables to show.
        model: draws of its model.
        beside: another run, shown in place of the prior.

    Returns:
        The section.
    """
    figures, priors = {}, 0
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
    labels, ours = element_names(name, shape, posterior.record.labels), _flat(values)
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
        words = f"it takes {terms:,} terms, one of each observation at each draw; call posterior.loo()"
        return Section(title, missing=[f"Not computed: {words}."])
    try:
        found = posterior.loo()
    except Exception as error:  # of the user's model, of any class
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return Section(title, missing=[f"Not computed: {reason}"])
    shapes = {name: np.asarray(values, np.float64).ravel() for name, values in found.pareto_k.items()}
    shapes = {name: values[np.isfinite(values)] for name, values in shapes.items()}  # masked entries have none
    high = sum(int(np.sum(values > found.good_k)) for values in shapes.values())
    note = (
        f"Expected log predictive density (elpd) {float(found.elpd):,.2f} ± {float(found.se):,.2f} (standard error); "
        f"effective number of parameters (p_loo) {float(found.p_loo):,.2f}. "
    )
    if high:
        note += f"Pareto k of {count(high, 'observation')} is above {found.good_k:.2g}: their terms are unreliable."
    else:
        total = sum(values.size for values in shapes.values())
        note += f"Pareto k of all {total:,} observations is at most {found.good_k:.2g}."
    figures = {f"Pareto k of {name}": pareto_figure(name, values, found.good_k) for name, values in shapes.items()}
    return section(title, note, figures)
