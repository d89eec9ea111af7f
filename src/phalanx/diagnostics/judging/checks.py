"""Checks behind the verdict, one function each: a finding with its grade, or a sentence that reports a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from math import comb, factorial, floor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from phalanx.diagnostics.element_statistics import FEWEST_DRAWS
from phalanx.diagnostics.energy import LOW_EBFMI, ebfmi, has_energy
from phalanx.diagnostics.heavy_tails import INFINITE_VARIANCE, NO_MEAN
from phalanx.diagnostics.judging.checked_run import (
    FALSE_ALARMS,
    HIGH_RHAT,
    LARGE_RHAT,
    SHORT_CHAIN,
    CheckedRun,
    format_rhat,
    least_ess,
)
from phalanx.errors.message_text import count, first_few, which

if TYPE_CHECKING:
    from pandas import DataFrame

MANY_CHAINS = 64
"""Number of chains from which on each may be short."""

LOW_ACCEPTANCE = 0.1
"""Mean acceptance rate below which a chain hardly moves, whatever its target acceptance."""

APART = (
    "starting values or priors that keep chains in one place, if only one is meant; else another parametrisation, in "
    "which chains can cross: chains that cannot cross do not show how much of the posterior is in each place"
)
"""Advice for chains in different places."""

BRING_CHAINS_TOGETHER = (
    "another parametrisation, or any other change that brings the chains together: while they sit apart, more draws do "
    "not help"
)
"""Advice for chains in different places that have too few effective draws."""

ORDERED = (
    "an order of the components, so that only one of their numberings is left: "
    "dist.TransformedDistribution(prior.to_event(1), dist.transforms.OrderedTransform()) as the distribution of one of "
    "these variables; or different priors for the components"
)
"""Advice for chains that number components differently."""

REPARAMETRISED = (
    "another parametrisation: if a hierarchy is written centred, phx.nuts(centring='auto') chooses it; if it is "
    "written non-centred, write it centred"
)
"""Advice for a difficult geometry. The draws do not show which parametrisation the model has."""

SMALLER_STEPS = (
    f"a target_acceptance closer to 1, such as 0.95, or a smaller step_size; if draws still diverge, {REPARAMETRISED}"
)
"""Advice for divergences."""

FULL_TREES = 0.01
"""Least fraction of trajectories cut off at the largest tree depth that is a finding."""

CERTAIN = 1e-4
"""P-value of an R-hat, over all quantities, below which chains differ for certain: above it the finding may be mild."""

SLIGHT_RHAT = 1.02
"""R-hat below which chains differ by little beside the posterior's width, by chance or not."""

USABLE_FRACTION = 0.25
"""Fraction of the required effective draws with which estimates are rough, but usable."""

SLOW = 0.1
"""Effective draws, as a fraction of the draws, below which divergences and slow mixing count as one defect."""

UNSEEN = 10
"""Fewest effective draws beyond a quantile for which the quantile counts as known, if the variance is infinite."""

FEW_DIVERGENCES = 0.01
"""Fraction of divergences above which a run is not good, wherever they are."""

FALSE_GATHERINGS = 0.001
"""Probability of a report that divergences gather, over all quantities, if they do not."""

FEWEST_DIVERGENCES = 5
"""Fewest divergences that are tested."""

MOST_REFERENCES = 2000
"""The most draws with which divergent ones are compared."""

MOST_DIVERGENT = 200
"""The most divergent draws that are compared."""

MOST_QUANTITIES = 10_000
"""The most quantities that are tested, those of small variables first: scales are among them."""

FOLDED = 10.0
"""Factor on the p-values of distances from the median, so that divergences which gather at small values, which are far
from the median too, are reported as small."""

EXACT = 16
"""Number of uniform variables up to which the distribution of their mean is evaluated by its series."""


class Finding(NamedTuple):
    """Problem of a run, with its grade and an advice.

    Attributes:
        topic: a word or two, e.g. `high R-hat`.
        problem: a sentence.
        advice: a remedy, as the object of "Try".
        grade: "not good" if it forbids using the draws, "usable" if they can be used with it in mind.

    Example:
        >>> from phalanx.diagnostics import Finding
        >>> print(Finding("few draws", "There are 10 draws.", "a larger num_samples"))
        There are 10 draws.
          Try a larger num_samples.
    """

    topic: str
    problem: str
    advice: str
    grade: str = "not good"

    def __str__(self) -> str:
        return f"{self.problem}\n  Try {self.advice}."


def check_sizes(run: CheckedRun) -> Finding | None:
    """Check that there are draws and chains to compare."""
    if run.num_draws < FEWEST_DRAWS:
        problem = f"There are {count(run.num_draws, 'draw')} of each chain, and R-hat and ESS need {FEWEST_DRAWS}."
        return Finding("few draws", problem, "a larger num_samples: 1,000 is a good start")
    if run.num_chains == 1:
        problem = "There is one chain, and R-hat compares chains."
        return Finding("one chain", problem, "num_chains=4 or more, which start apart")
    return None


def check_values(run: CheckedRun) -> Finding | None:
    """Check that every draw is finite."""
    wrong = ~np.isfinite(run.table["hdi_low"].to_numpy())
    if not wrong.any():
        return None
    problem = f"{_of_quantities(wrong)} not finite in some draws: {first_few(run.table.index[wrong])}."
    return Finding("not finite", problem, "to find the overflow in the model; a larger dtype or a log scale may help")


def check_movement(run: CheckedRun) -> Finding | str | None:
    """Check that draws vary. Single constants pass: a correlation matrix has ones on its diagonal."""
    constant = np.isfinite(run.table["hdi_low"].to_numpy()) & np.isnan(run.table["ess_bulk"].to_numpy())
    if not constant.any() or run.num_draws < FEWEST_DRAWS:
        return None
    if constant.all():
        return Finding("no movement", "No quantity varies: the chains stand still.", "a smaller step_size")
    return f"{_of_quantities(constant)} constant, and left out: {first_few(run.table.index[constant])}."


def check_switching(run: CheckedRun) -> Finding | None:
    """Check that chains number the components of a mixture in one order, if they differ in nothing else."""
    switching = run.switching
    if switching is None:
        return None
    others = np.isin(np.arange(run.num_chains), switching.chains)
    problem = (
        f"Chains number {switching.size} components differently: in {which(others, 'chain')} the entries of "
        f"{first_few(switching.variables)} have another order than in chain 0, at the same place and with the same log "
        f"density."
    )
    return Finding("label switching", problem, ORDERED)


def check_rhat(run: CheckedRun) -> Finding | str | None:
    """Check that the chains agree."""
    values = run.r_hats
    if np.isnan(values).all():
        return None
    high = run.disagreeing
    if not high.any():
        largest = np.nanmax(values)
        if largest < HIGH_RHAT:
            return f"The chains agree: every {run.r_hat} is below {HIGH_RHAT}, the largest is {format_rhat(largest)}."
        if not run.is_nested and (run.least_ess[values >= HIGH_RHAT] < least_ess(run.num_chains)).any():
            return None  # the finding on effective draws reports that there are too few
        return (
            f"The chains agree: the largest {run.r_hat} is {format_rhat(largest)}, no more than chance explains with "
            f"{count(run.num_draws, 'draw')} of each."
        )
    rows = np.flatnonzero(high)[np.argsort(-values[high])]
    bound = HIGH_RHAT if np.isfinite(run.chances[rows]).all() else run.high_rhat
    problem = (
        f"{_of_quantities(high, 'has', 'have')} {'a' if run.is_nested else 'an'} {run.r_hat} of {bound} or more: "
        f"{_figures(run.table, rows, values, lambda value: format_rhat(value, bound))}."
    )
    if separation := run.separation:
        return Finding("high R-hat", f"{separation} {problem}", APART if run.switching is None else ORDERED)
    advice = "a longer warm-up and more draws; if that does not help, another parametrisation"
    if run.num_chains >= MANY_CHAINS and run.num_draws < SHORT_CHAIN and not run.is_nested:
        advice = (
            "more draws of each chain: chains this short hardly ever pass, converged or not; or start them in groups, "
            "which are compared instead, by init=phx.superchains(16)"
        )
    if _is_slight(run, rows):
        return Finding("high R-hat", f"The chains differ slightly: {problem}", advice, "usable")
    return Finding("high R-hat", f"The chains do not agree: {problem}", advice)


def _is_slight(run: CheckedRun, rows: np.ndarray) -> bool:
    """Return whether chains differ by so little, or so uncertainly, that their draws are usable."""
    values = run.r_hats[rows]
    p_values = run.chances[rows]
    mild = (values < SLIGHT_RHAT) | ((values < LARGE_RHAT) & (p_values > CERTAIN / len(run.table)))
    enough = run.least_ess[rows] >= USABLE_FRACTION * least_ess(run.num_chains)
    return bool((mild & enough & np.isfinite(p_values)).all())


def check_ess(run: CheckedRun) -> Finding | str | None:
    """Check that there are enough effective draws, in the bulk and in the tails."""
    values = run.least_ess
    if np.isnan(values).all():
        return None
    min_draws = least_ess(run.num_chains)
    least = np.nanmin(values)
    low = values < min_draws
    if not low.any():
        return f"There are enough draws: every quantity has {least:,.0f} effective ones or more, in bulk and tails."
    rows = np.flatnonzero(low)[np.argsort(values[low])]
    problem = (
        f"{_of_quantities(low, 'has', 'have')} fewer than {min_draws} effective draws: "
        f"{_figures(run.table, rows, values, '{:,.0f}'.format)}."
    )
    if run.separation:
        return Finding("low ESS", problem, BRING_CHAINS_TOGETHER if run.switching is None else ORDERED)
    times = f"{np.ceil(min_draws / max(least, 1)):,.0f} times as many draws"
    advice = (
        f"{times} (num_samples)" if least >= 0.1 * min_draws else f"another parametrisation; with this one, {times}"
    )
    if least < USABLE_FRACTION * min_draws:
        return Finding("low ESS", problem, advice)
    problem = f"{problem} Estimates are rough: a mean is off by a standard error of {1 / np.sqrt(least):.0%} of the sd."
    return Finding("low ESS", problem, advice, "usable")


def check_divergences(run: CheckedRun) -> Finding | str | None:
    """Check that trajectories did not diverge, or few did and they do not gather."""
    diverging = run.stats.get("diverging")
    if diverging is None:
        return None
    if not diverging.any():
        return "No draw diverged."
    problem = f"{count(int(diverging.sum()), 'draw')} diverged ({_fraction_of(diverging)})"
    if place := gathers(diverging, run.columns()):
        problem = f"{problem}, most of them where {place}: the sampler could not follow the density there, and a part "
        return Finding("divergences", f"{problem}of it may be missing.", SMALLER_STEPS)
    if diverging.mean() > FEW_DIVERGENCES or not run.draws:
        problem = f"{problem}: the sampler could not follow the density there, and a part of it may be missing."
        return Finding("divergences", problem, SMALLER_STEPS)
    problem = f"{problem}. They are few, and they gather at no value of any quantity; but so few are weak evidence."
    return Finding("divergences", problem, SMALLER_STEPS, "usable")


def check_tree_depth(run: CheckedRun) -> Finding | str | None:
    """Check that trajectories ended by themselves."""
    at_max_depth = run.stats.get("reached_max_depth")
    if at_max_depth is None:
        return None
    if at_max_depth.mean() < FULL_TREES:
        return "Trajectories ended by themselves, below the largest tree depth."
    problem = (
        f"Trajectories were cut off at the largest tree depth in {_fraction_of(at_max_depth)}: the chains move slowly."
    )
    advice = (
        "a larger max_depth, variables of one scale, or a metric with their correlations; if the scales are equal and "
        "there are no correlations, a step_size a few percent smaller"
    )
    return Finding("full trees", problem, advice, "usable")


def check_energy(run: CheckedRun) -> Finding | str | None:
    """Check that every chain reaches every energy."""
    if not has_energy(run.stats):
        return None
    fractions = ebfmi(run.stats["energy"])
    fractions = fractions[np.isfinite(fractions)]
    if not fractions.size:
        return None
    low = _low(fractions, LOW_EBFMI, run.num_draws)
    if not low:
        return f"The chains move freely through their energies: the median E-BFMI is {np.median(fractions):.2f}."
    problem = (
        f"E-BFMI is below {LOW_EBFMI} in {count(low, 'chain')} (least: {fractions.min():.2f}): a fresh momentum moves "
        "the energy too little, and estimates of the tails are unreliable."
    )
    # the lag-1 correlation r of energies, 1 - E-BFMI / 2, has a standard error of sqrt((1 - r^2) / draws)
    error = 2 * np.sqrt((1 - (1 - LOW_EBFMI / 2) ** 2) / run.num_draws)
    of_one = fractions.min() < LOW_EBFMI + ndtri(FALSE_ALARMS / len(fractions)) * error
    of_all = fractions.mean() < LOW_EBFMI + ndtri(FALSE_ALARMS) * error / np.sqrt(len(fractions))
    advice = f"a longer warm-up; if that does not help, {REPARAMETRISED}"
    return Finding("low E-BFMI", problem, advice, "not good" if of_one or of_all else "usable")


def check_acceptance(run: CheckedRun) -> Finding | None:
    """Check that proposals are accepted."""
    rates = run.stats.get("acceptance_rate")
    if rates is None or not np.isfinite(rates).any():
        return None
    is_rate = np.isfinite(rates)
    rates = np.where(is_rate, rates, 0.0).sum(axis=1) / np.where(is_rate.any(axis=1), is_rate.sum(axis=1), np.nan)
    low = _low(rates, LOW_ACCEPTANCE, run.num_draws)
    if not low:
        return None
    problem = (
        f"Hardly a proposal is accepted in {which(rates < LOW_ACCEPTANCE, 'chain')} (least: {np.nanmin(rates):.1%})."
    )
    return Finding("low acceptance", problem, "a smaller step_size, or a longer warm-up to tune it in")


def check_tails(run: CheckedRun) -> Finding | None:
    """Check that quantities have a variance, as far as their draws show."""
    shapes = run.heavy_shapes
    heavy = np.isfinite(shapes)
    if not heavy.any():
        return None
    rows = np.flatnonzero(heavy)[np.argsort(-shapes[heavy])]
    beyond = min(UNSEEN / float(np.nanmin(run.table["ess_tail"].to_numpy()[rows])), 0.25)
    problem = (
        f"{_of_quantities(heavy, 'has', 'have')} so heavy a tail that the variance is infinite, as far as draws show "
        f"(Pareto k, {INFINITE_VARIANCE} or more: {_figures(run.table, rows, shapes, '{:.2f}'.format)}): sd and "
        f"standard errors are left out. "
    )
    if (shapes[rows] > NO_MEAN).any():
        problem += f"{first_few(run.table.index[rows[shapes[rows] > NO_MEAN]])} may have no mean either. "
    problem += f"Beyond the {beyond:.1%} and {1 - beyond:.1%} quantiles too few draws lie to say anything."
    advice = (
        "medians and quantiles within these in place of means and standard deviations; or lighter tails in the model, "
        "if the subject allows them"
    )
    return Finding("heavy tails", problem, advice, "usable")


Check = Callable[[CheckedRun], Finding | str | None]
"""Check of a run: a finding, or a sentence that reports a pass; None where it does not apply."""

CHECKS: tuple[Check, ...] = (
    check_values,
    check_movement,
    check_sizes,
    check_switching,
    check_rhat,
    check_divergences,
    check_energy,
    check_ess,
    check_tails,
    check_tree_depth,
    check_acceptance,
)
"""All checks, in the order of their findings: invalid draws come before too few draws."""


def together(findings: Sequence[Finding], run: CheckedRun) -> list[Finding]:
    """Return the findings of all checks, with grades that take the other findings into account.

    Divergences and a low E-BFMI are mild only in a run that is in order otherwise: with chains that differ or move
    slowly, they show a geometry that the sampler could not follow.
    """
    topics = {finding.topic for finding in findings}
    slow = "low ESS" in topics and np.nanmin(run.least_ess) < SLOW * run.num_chains * run.num_draws
    signs = {"divergences", "low E-BFMI"}
    if len(topics & signs) + ("high R-hat" in topics) + slow < 2:
        return list(findings)
    return [finding._replace(grade="not good") if finding.topic in signs else finding for finding in findings]


def _low(figures: np.ndarray, bound: float, num_draws: int) -> int:
    """Count the chains whose figure is below the bound; short chains count only if they are the majority."""
    low = int((figures < bound).sum())
    return low if num_draws >= SHORT_CHAIN or 2 * low > len(figures) else 0


def _of_quantities(which: np.ndarray, one: str = "is", many: str = "are") -> str:
    return f"{int(which.sum()):,} of {count(len(which), 'quantity')} {one if which.sum() == 1 else many}"


def _fraction_of(draws: np.ndarray) -> str:
    return f"{draws.mean():.1%} of the draws, in {which(np.asarray(draws.any(axis=1)), 'chain')}"


def _figures(table: DataFrame, rows: np.ndarray, values: np.ndarray, as_text: Callable[[float], str]) -> str:
    return first_few(rows, lambda row: f"{table.index[row]} {as_text(float(values[row]))}")


def gathers(diverging: np.ndarray, columns: Iterable[tuple[str, np.ndarray]]) -> str | None:
    """Return the values at which divergent draws gather, in words; None if they gather at no quantity's values.

    If divergences do not gather, the ranks of the divergent draws among all draws are uniform, quantity by quantity,
    and so are the ranks of their distances from the median. Their means are compared with the means of independent
    uniform variables. Only the first of consecutive divergences counts.

    Args:
        diverging: mask of the draws that diverged, `(chain, draw)`.
        columns: names of scalar quantities and their draws, `(chain, draw)`.

    Returns:
        Words such as `spread is small`, for the quantity of the least p-value.
    """
    first = diverging.astype(bool).copy()
    first[:, 1:] &= ~first[:, :-1]
    divergent = np.flatnonzero(first)
    if len(divergent) < FEWEST_DIVERGENCES:
        return None
    divergent = divergent[:: -(-len(divergent) // MOST_DIVERGENT)]
    others = np.flatnonzero(~diverging.astype(bool).ravel())
    if not len(others):
        return None
    others = others[:: -(-len(others) // MOST_REFERENCES)]
    least = 1.0
    text = None
    tests = 0
    for name, values in islice(columns, MOST_QUANTITIES):
        flat = values.reshape(-1)
        reference = np.sort(flat[others])
        if not np.isfinite(reference).all() or reference[0] == reference[-1]:
            continue
        at = flat[divergent]
        ranks = np.searchsorted(reference, at, "left") + np.searchsorted(reference, at, "right") + 1
        quantiles = ranks / (2 * len(reference) + 2)
        tests += 2
        for shares, low, high, penalty in (
            (quantiles, "small", "large", 1.0),
            (np.abs(2 * quantiles - 1), "near its median", "far from its median", FOLDED),
        ):
            mean = float(shares.mean())
            p_value = penalty * 2 * mean_of_uniforms(min(mean, 1 - mean), len(shares))
            if p_value < least:
                least = p_value
                text = f"{name} is {low if mean < 0.5 else high}"
    return text if least * tests < FALSE_GATHERINGS else None


def mean_of_uniforms(mean: float, count: int) -> float:
    """Return the probability that the mean of independent uniform variables on (0, 1) is no more than `mean`.

    Source: P. Hall (1927), J. O. Irwin (1927), on the distribution of means of samples from a uniform population.
    """
    if count > EXACT:
        return float(ndtr((mean - 0.5) * np.sqrt(12 * count)))
    if mean > 0.5:  # the series cancels badly in the upper half
        return 1.0 - mean_of_uniforms(1.0 - mean, count)
    total = mean * count
    terms = ((-1) ** j * comb(count, j) * (total - j) ** count for j in range(floor(total) + 1))
    return min(max(sum(terms) / factorial(count), 0.0), 1.0)
