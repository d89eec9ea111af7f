"""Judgement of a fit: weights, moments, tails and modes that it misses, and whether learning has ended.

For example, the posterior of `x` is Normal(0, 1), and the guide is Normal(0.3, 0.7). Of 4,000 draws::

    weights           p(x) / q(x), of which the largest are fitted: k-hat 0.60, small enough to average by them
    mean              0.31 standard deviations above the weighted mean, with a standard error of 0.04
    deviation         0.72 of the weighted one, with a standard error of 0.03
    tolerated         0.1 and 15%, and more where that many errors by chance would be no surprise
    verdict           "Not good to use yet: means off, scales off."

Weights that cannot be averaged say nothing about moments. The draws are then moved by Markov moves that keep the
posterior, and the moments before and after are compared in place of the weighted ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.diagnostics import Finding, Verdict, judged
from phalanx.diagnostics.elements import Names, element_names
from phalanx.diagnostics.psis import beyond_largest, threshold
from phalanx.errors.message_text import count, first_few
from phalanx.variational.judging.evidence import Weights
from phalanx.variational.judging.modes import ModeSearch
from phalanx.variational.judging.moving import Moved

if TYPE_CHECKING:
    from jaxtyping import Float64

MEAN_OFF = 0.1
"""Largest error of a mean that is tolerated, in standard deviations."""

SD_OFF = 0.15
"""Largest error of a standard deviation that is tolerated, in parts of itself."""

FALSE_ALARMS = 0.01
"""Probability that any quantity of an exact fit is reported, for any number of quantities."""

LARGEST_CORRELATION = 0.8
"""Largest correlation of draws before and after the moves at which a guide's error is extrapolated from the moves."""

MOST_NUMBERS = 2**22
"""Most numbers, draws times elements, whose moments are computed at once."""

FAILED = 0.01
"""Largest fraction of steps that may be left out because their loss or its gradient is not finite."""

ADVICE = (
    "a guide that can do more, such as phx.guides.full_rank() or phx.guides.flow(), another parameterisation of the "
    "model, or phx.mcmc with init= this fit"
)


class Moment(NamedTuple):
    """Comparison of the guide's mean and standard deviation of a scalar element with estimates of the posterior's.

    Attributes:
        name: name of the element.
        shift: the guide's mean minus the posterior's, in the posterior's standard deviations.
        error: standard error of the shift.
        ratio: the guide's standard deviation in parts of the posterior's.
        ratio_error: standard error of the ratio.
        beyond: how much of the ratio the tail beyond the largest draws may take away.
    """

    name: str
    shift: float
    error: float
    ratio: float
    ratio_error: float
    beyond: float = 0.0

    @property
    def knows_sd(self) -> bool:
        """True if the standard deviation is known well enough, the tail beyond the draws included."""
        return math.hypot(self.ratio_error, self.beyond) <= SD_OFF / 2


def moments(
    values: Mapping[str, np.ndarray],
    weights: Float64[np.ndarray, "draw"],
    is_resampled: bool = False,
    labels: Names | None = None,
) -> Iterator[Moment]:
    """Yield the moments of every element of draws `(draw, ...)`, under the guide and by self-normalised weights.

    If draws are resampled by the weights, the guide's moments are the weighted ones, with their errors. `labels` name
    the entries of variables along each axis.
    """
    for names, columns in _blocks(values, labels):
        flat = columns(values).astype(np.float64)
        mean = flat.mean(0)
        weighted_mean = weights @ flat
        away = flat - weighted_mean
        plain_away = flat - mean
        variance = weights @ away**2
        plain = (plain_away**2).mean(0)
        with np.errstate(all="ignore"):  # a constant has variance zero
            influence = weights[:, None] * away
            spread = weights[:, None] * (away**2 / variance - 1.0)
            if is_resampled:
                mean, plain = weighted_mean, variance
            else:
                influence = influence - plain_away / len(flat)
                spread = spread - (plain_away**2 / plain - 1.0) / len(flat)
            ratio = np.sqrt(plain / variance)
            sd = np.sqrt(variance)
            error = _norm(influence)
            ratio_error = 0.5 * ratio * _norm(spread)
        moment = mean, np.sqrt(plain), mean - weighted_mean, error, sd, ratio, ratio_error
        yield from _moments(names, *moment)


def _blocks(
    values: Mapping[str, np.ndarray], labels: Names | None
) -> Iterator[tuple[Sequence[str], Callable[[Mapping[str, np.ndarray]], np.ndarray]]]:
    """Yield the names of some elements at a time, and the function from draws to theirs, `(draw, element)`."""
    for name, draws in values.items():
        names = element_names(name, draws.shape[1:], labels)
        width = max(MOST_NUMBERS // len(draws), 1)
        for first in range(0, len(names), width):
            columns = slice(first, first + width)
            yield (
                names[columns],
                lambda of, name=name, columns=columns: np.asarray(of[name]).reshape(len(of[name]), -1)[:, columns],
            )


def moments_after(moves: Moved, labels: Names | None = None) -> Iterator[Moment]:
    """Yield the moments of every element of draws before and after Markov moves.

    A few moves carry an average only a part of the way to the posterior's: one minus the correlation of draws before
    and after, at least 0.2. Changes of means, and of the logarithms of standard deviations, are divided by that part.
    """
    for names, columns in _blocks(moves.after, labels):
        before = columns(moves.draws)[moves.parents].astype(np.float64)
        after = columns(moves.after).astype(np.float64)
        mean = before.mean(0)
        away = before - mean
        away_after = after - mean
        change, error = moves.mean_and_error(away_after - away)
        _, grown_error = moves.mean_and_error(away_after**2 - away**2)
        plain = before.var(0)
        variance = after.var(0)
        with np.errstate(all="ignore"):
            correlation = (away * (after - after.mean(0))).mean(0) / np.sqrt(plain * variance)
            gone = 1.0 - np.clip(correlation, 0.0, LARGEST_CORRELATION)
            ratio = np.sqrt(plain / variance) ** (1.0 / gone)
            sd = np.sqrt(variance)
            ratio_error = 0.5 * ratio * grown_error / variance / gone
            beyond = 0.5 * ratio * _beyond(after, ratio_error)
            moment = mean, np.sqrt(plain), -change / gone, error / gone, sd, ratio, ratio_error, beyond
        yield from _moments(names, *moment)


def _beyond(
    draws: Float64[np.ndarray, "draw element"], ratio_error: Float64[np.ndarray, "element"]
) -> Float64[np.ndarray, "element"]:
    """Return the variance in the tail beyond the largest draws, in parts of that of the draws.

    The error of a standard deviation is itself an average, and too small if the draws that would make it large are
    missing. The tail is extrapolated only if the error is not small: otherwise no single draw matters.
    """
    beyond = np.zeros(draws.shape[1])
    uncertain = ~(ratio_error <= SD_OFF / 6)
    squares = (draws[:, uncertain] - draws[:, uncertain].mean(0)) ** 2
    beyond[uncertain] = beyond_largest(squares.T) / squares.sum(0)
    return beyond


def _moments(
    names: Sequence[str],
    mean: Float64[np.ndarray, "element"],
    plain: Float64[np.ndarray, "element"],
    *others: Float64[np.ndarray, "element"],
) -> Iterator[Moment]:
    """Yield the moments of named elements, given shift, its error, the unit, the ratio and the fields after."""
    shift, error, sd, *ratios = others
    for i, label in enumerate(names):
        if plain[i] > 1e-7 * abs(mean[i]) and sd[i] > 0.0:  # constants are left out
            yield Moment(label, *map(float, (shift[i] / sd[i], error[i] / sd[i], *(of[i] for of in ratios))))


def _norm(influence: np.ndarray) -> np.ndarray:
    return np.sqrt((influence**2).sum(0))


class Compared(NamedTuple):
    """Moments of a guide that differ from the posterior's.

    Attributes:
        means: elements whose mean is off by more than is tolerated, and by more than noise explains.
        sds: elements whose standard deviation is.
        vague: elements whose moments are too uncertain for a comparison.
        heavy: elements whose tail is too heavy to determine a standard deviation.
    """

    means: list[Moment]
    sds: list[Moment]
    vague: list[Moment]
    heavy: list[Moment]

    @classmethod
    def of(cls, all_moments: Sequence[Moment]) -> Compared:
        """Return the comparison, whose tolerance for noise grows with the number of quantities."""
        noise = NormalDist().inv_cdf(1.0 - FALSE_ALARMS / (4.0 * max(len(all_moments), 1)))

        def off(value: float, error: float, tolerated: float) -> bool:
            return not (abs(value) <= tolerated or abs(value) <= noise * error)

        means = [m for m in all_moments if off(m.shift, m.error, MEAN_OFF)]
        sds = [m for m in all_moments if off(m.ratio - 1.0, m.ratio_error, SD_OFF)]
        vague = [m for m in all_moments if not (m.error <= MEAN_OFF / 2 and m.ratio_error <= SD_OFF / 2)]
        return cls(
            sorted(means, key=lambda m: -abs(m.shift)),
            sorted(sds, key=lambda m: -abs(np.log(max(m.ratio, 1e-30)))),
            sorted(vague, key=lambda m: -max(m.error / MEAN_OFF, m.ratio_error / SD_OFF)),
            sorted((m for m in all_moments if not m.knows_sd), key=lambda m: -math.hypot(m.ratio_error, m.beyond)),
        )

    @property
    def are_off(self) -> bool:
        """True if a mean or a standard deviation is off."""
        return bool(self.means or self.sds)

    def mean_words(self) -> str:
        """Return the errors of means, in words."""
        return first_few(self.means, lambda m: f"{m.name} by {-m.shift:.2f}±{m.error:.2f}")

    def sd_words(self, from_moves: bool) -> str:
        """Return the errors of standard deviations, in words; moves carry draws only a part of the way."""

        def words(m: Moment) -> str:
            bound = ("at most " if m.ratio < 1.0 else "at least ") if from_moves else ""
            return f"{m.name} has {bound}{m.ratio:.2f} of it"

        return first_few(self.sds, words)


def judge_fit(
    weights: Weights,
    values: Mapping[str, np.ndarray],
    *,
    end_problem: str,
    steps: int,
    num_failed: int,
    findings: Sequence[Finding] = (),
    is_resampled: bool = False,
    moves: Callable[[], Moved] | None = None,
    search: Callable[[], ModeSearch] | None = None,
    labels: Names | None = None,
) -> Verdict:
    r"""Return the verdict on a fit.

    A fit is good if all of the following hold. The tail of its importance weights is light enough for the number of
    draws. Neither weighting the draws nor Markov moves that keep the posterior change a mean by more than a tenth of a
    standard deviation, or a standard deviation by more than 15%; changes that noise explains, given the number of
    quantities, do not count. No climb or exchange of elements leads to a mode that the guide never draws from. The log
    density of every draw is a number. At most one of a hundred steps was left out, and learning has ended. A fit is
    usable if its moments are right, but weights are too heavy, few draws have weight, or learning has not ended; or if
    a standard deviation is not determined, because a generalised Pareto distribution, fitted to the largest squared
    distances from the mean, has too much of the variance beyond them.

    Args:
        weights: weights of draws from the guide.
        values: those draws, `(draw, ...)` by variable.
        end_problem: why learning has not ended; empty if it has.
        steps: steps made.
        num_failed: steps left out because their loss or its gradient was not finite.
        findings: findings of other checks.
        is_resampled: whether draws for use are chosen by these weights; they then have the weighted moments, and only
            the Monte-Carlo error is checked.
        moves: function that moves the draws; None if they cannot be moved.
        search: function that searches for other modes.
        labels: labels of the entries of variables, by variable and axis.

    Returns:
        The verdict.

    Source:
        Yao, Vehtari, Simpson, Gelman (2018), Yes, but did it work? Evaluating variational inference; Vehtari, Simpson,
        Gelman, Yao, Gabry (2024), Pareto smoothed importance sampling.
    """
    results: list[Finding | str] = [
        *findings,
        _of_undefined(weights),
        _of_end(end_problem),
        _of_failures(steps, num_failed),
    ]
    results += _of_draws(weights, values, is_resampled, moves, labels)
    if search is not None and np.isfinite(weights.log.max()) and not any(_is_severe(result) for result in results):
        results += _of_modes(search())
    return _verdict_of(
        results, f"{_k_hat_words(weights)}, and neither weights nor moves change a mean or a standard deviation"
    )


def _verdict_of(results: Sequence[Finding | str], good: str = "") -> Verdict:
    findings = [result for result in results if isinstance(result, Finding)]
    return judged(findings, [result for result in results if isinstance(result, str) and result], good=good)


def _is_severe(result: Finding | str) -> bool:
    return isinstance(result, Finding) and result.grade != "usable"


def judge_unweighted(*, end_problem: str, steps: int, num_failed: int, findings: Sequence[Finding] = ()) -> Verdict:
    """Return the verdict on a fit to rows that came in batches: it has no weights to check, only whether it settled."""
    unknown = Finding(
        "not weighted",
        "The rows came in batches, and the importance weights of draws, which need all of them, were not computed.",
        "to fit to a part of the rows that fits in memory, and see whether that fit's verdict is good",
    )
    return _verdict_of((*findings, unknown, _of_end(end_problem), _of_failures(steps, num_failed)))


def judge_likelihood(*, end_problem: str, steps: int, num_failed: int) -> Verdict:
    """Return the verdict on a fit by maximum likelihood, which has no posterior: only whether it settled."""
    note = "The fit is of maximum likelihood: values without a posterior to compare them with."
    return _verdict_of((note, _of_end(end_problem), _of_failures(steps, num_failed)))


def _of_undefined(weights: Weights) -> Finding | str:
    if not weights.undefined:
        return ""
    return Finding(
        "no number",
        f"The log density of {weights.undefined:,} of {count(len(weights.log), 'draw')} is not a number: their "
        f"weights are unknown, and they were left out.",
        "a model that can be computed wherever the guide draws; jax.debug_nans names the operation",
    )


def _of_draws(
    weights: Weights,
    values: Mapping[str, np.ndarray],
    is_resampled: bool,
    moves: Callable[[], Moved] | None,
    labels: Names | None,
) -> list[Finding | str]:
    """Return the findings of weights and moves about the draws."""
    k_hat = weights.smoothed.k_hat
    bound = threshold(len(weights.log))
    total = len(weights.log)
    if not np.isfinite(weights.log.max()) or not k_hat <= bound:
        return _of_heavy(weights, moves if np.isfinite(weights.log.max()) else None, labels)
    weight_check = f"Of the importance weights, {_k_hat_words(weights)}; up to {bound:.2f} they can be averaged."
    results = [weight_check, *_of_moments(list(moments(values, weights.normalized, is_resampled, labels)), total)]
    if np.isfinite(k_hat) and moves is not None and not any(_is_severe(result) for result in results):
        results.append(_of_tails(moves(), labels))
    return results


def _of_heavy(weights: Weights, moves: Callable[[], Moved] | None, labels: Names | None) -> list[Finding | str]:
    """Return the findings on draws whose weights cannot be averaged, by the changes that moves make."""
    total = len(weights.log)
    problem = (
        f"The importance weights of {count(total, 'draw')} have a tail of shape k-hat {weights.smoothed.k_hat:.2f}, "
        f"above {threshold(total):.2f}: they cannot be averaged, and the evidence is unknown"
    )
    heavy = Finding("heavy weights", f"{problem}.", ADVICE)
    if moves is None:
        return [heavy]
    comparison = Compared.of(list(moments_after(moves(), labels)))
    if comparison.are_off:
        return [heavy, *_off(comparison, "Moved by Markov moves that keep the posterior", from_moves=True)]
    if comparison.vague:
        return [heavy]
    moved_problem = f"{problem}. Markov moves of the draws change no mean and no standard deviation."
    return [
        heavy._replace(problem=moved_problem, grade="usable"),
        *([_heavy_tails(comparison)] if comparison.heavy else []),
    ]


def _of_tails(moves: Moved, labels: Names | None) -> Finding | str:
    """Return a finding if moves carry draws into regions that the guide misses."""
    comparison = Compared.of(list(moments_after(moves, labels)))
    if not comparison.are_off:
        if comparison.heavy:
            return _heavy_tails(comparison)
        return f"{count(len(moves.parents), 'draw')} moved by Markov moves kept their means and standard deviations."
    parts = [f"means, {comparison.mean_words()}"] * bool(comparison.means)
    parts += [f"standard deviations, {comparison.sd_words(from_moves=True)}"] * bool(comparison.sds)
    return Finding(
        "missed tails",
        f"The guide misses a part of the posterior beside its draws: Markov moves that keep the posterior change "
        f"{'; '.join(parts)}.",
        ADVICE,
    )


def _heavy_tails(comparison: Compared) -> Finding:
    roughly = first_few(comparison.heavy, lambda m: f"{m.name} to ±{math.hypot(m.ratio_error, m.beyond):.0%}")
    problem = f"Tails are so heavy that standard deviations are known only roughly: {roughly}."
    return Finding("heavy tails", problem, "quantiles in place of standard deviations, or phx.mcmc", "usable")


def _of_modes(searched: ModeSearch) -> list[Finding | str]:
    """Return a finding on modes that the guide never draws from."""
    if not searched.modes:
        return [searched.said]
    most = searched.modes[0]
    others = first_few(searched.modes, lambda mode: f"{mode.where} ({mode.mass:.2g} of the mass that it draws from)")
    what = "Equal modes by symmetry" if most.by_symmetry else "Another mode"
    return [
        Finding(
            "missed modes",
            f"{what} which the guide never draws from: {others}. Importance weights cannot reveal them, and the "
            f"evidence lacks them.",
            "an order or a constraint that rules out equal modes, phx.guides.pathfinder(num_paths=16), which mixes "
            "normals of several modes, or phx.mcmc with chains from everywhere",
        )
    ]


def _k_hat_words(weights: Weights) -> str:
    k_hat = weights.smoothed.k_hat
    return f"k-hat is {k_hat:.2f}" if np.isfinite(k_hat) else "the largest weights are all equal"


def _off(comparison: Compared, how: str, from_moves: bool) -> list[Finding | str]:
    """Return a finding on means and standard deviations that are not the posterior's."""
    results: list[Finding | str] = []
    if comparison.means:
        shifts = comparison.mean_words()
        problem = (
            f"{how}, {count(len(comparison.means), 'mean')} change by over {MEAN_OFF} standard deviations: {shifts}."
        )
        advice = "a guide that can do more, or more draws to judge by, fit.verdict(num_draws=...)"
        results.append(Finding("means off", problem, advice))
    if comparison.sds:
        ratios = comparison.sd_words(from_moves)
        problem = f"The guide's standard deviations are not the posterior's: {ratios}."
        advice = "a guide that can do more; a mean-field guide ignores correlations, phx.guides.full_rank() does not"
        results.append(Finding("scales off", problem, advice))
    return results


def _of_moments(all_moments: list[Moment], total: int) -> list[Finding | str]:
    """Return the changes that weighting the draws makes."""
    comparison = Compared.of(all_moments)
    if results := _off(comparison, "Weighted by the model", from_moves=False):
        return results
    if not comparison.vague:
        return ["Weighted by the model, no mean and no standard deviation moves."]
    roughly = first_few(comparison.vague, lambda m: f"{m.name} to ±{m.error:.2f}, its sd to ±{m.ratio_error:.0%}")
    problem = f"Of {count(total, 'draw')} so few have weight that moments are known only roughly: {roughly}."
    advice = "more draws to judge by, fit.verdict(num_draws=...), or a guide that can do more"
    return [Finding("few effective draws", problem, advice, "usable")]


def _of_end(end_problem: str) -> Finding | str:
    if not end_problem:
        return "The guide no longer changes."
    return Finding("not settled", end_problem, "a larger num_steps=, or to continue with init= this fit", "usable")


def _of_failures(steps: int, num_failed: int) -> Finding | str:
    if num_failed <= FAILED * steps:
        return ""
    were = "was" if num_failed == 1 else "were"
    return Finding(
        "failed steps",
        f"{num_failed:,} of {count(steps, 'step')} {were} left out, because the loss or its gradient was not finite.",
        "priors that keep the guide where the likelihood can be computed, or a smaller step size",
    )
