"""Statistics of a batch of elements; intermediate results that several share, such as ranks, are computed once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import fdtrc, ndtri

from phalanx.diagnostics.heavy_tails import heavy_shapes
from phalanx.reducers.effective_size import correlation_time, effective_size, mean_autocovariance

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64, Int

FEWEST_DRAWS = 4
"""Fewest draws of a chain that can be split in halves and compared."""

TAILS = (0.05, 0.95)
"""Quantiles whose effective sample size is that of the tails."""

# Blom (1958): with this offset the scores are nearly the means of the normal order statistics
_OFFSET = 3 / 8

FEWEST_EFFECTIVE = 100
"""Effective draws of all chains together that the test assumes at least: chains that hardly move must not pass."""


def _measured(statistic: Callable[[ElementStatistics], np.ndarray]) -> property:
    """Return a property of a statistic that is NaN where an element is constant, not finite, or too short."""

    def value(elements: ElementStatistics) -> Float64[np.ndarray, "element"]:
        if elements.values.shape[2] < FEWEST_DRAWS:
            return np.full(len(elements.values), np.nan)
        return np.where(elements.varies, statistic(elements), np.nan)

    return property(value, doc=statistic.__doc__)


class ElementStatistics:
    """Draws of a few elements, `(element, chain, draw)` in float64, and their statistics, each of shape `(element,)`.

    R-hat, ESS and MCSE are NaN where an element is constant or not finite or has fewer than four draws, and R-hat of a
    single chain.

    Source: A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Bürkner (2021), Rank-normalization, folding, and
    localization: an improved R-hat for assessing convergence of MCMC.
    """

    def __init__(self, values: Float64[np.ndarray, "element chain draw"]) -> None:
        self.values = values

    @cached_property
    def mean(self) -> Float64[np.ndarray, "element"]:
        """The mean of all draws."""
        return self.values.mean(axis=(1, 2))

    @cached_property
    def sd(self) -> Float64[np.ndarray, "element"]:
        """The sample standard deviation of all draws; NaN for a single draw."""
        return np.sqrt(self._squares.sum(axis=(1, 2)) / (self._ordered.shape[1] - 1))

    @_measured
    def rhat(self) -> Float64[np.ndarray, "element"]:
        """Rank-normalised split R-hat, the larger of those of the draws and of their distances from the median."""
        if self.values.shape[1] == 1:
            return np.full(len(self.values), np.nan)
        # if all distances from the median are equal, their R-hat is NaN, which fmax ignores
        return np.fmax(_rhat(self._scores), _rhat(self._folded_scores))

    def nested_rhat(self, superchains: int) -> Float64[np.ndarray, "element"]:
        """Return the largest nested R-hat: of superchains or halves of the draws, of normal scores or folded ones."""
        return self._of_scores(lambda scores: np.fmax(*nested_rhats(scores, superchains)), np.fmax)

    def rhat_p_value(self, superchains: int = 0) -> Float64[np.ndarray, "element"]:
        """Return the p-value of R-hat: the probability that chains that agree, autocorrelated as these, reach it.

        With superchains, that of nested R-hat.
        """
        if not superchains:
            return np.minimum(2 * self._of_scores(p_value_of_one_mean, np.fmin), 1)
        nested = self._of_scores(lambda scores: np.fmin(*superchain_p_values(scores, superchains)), np.fmin)
        return np.minimum(4 * nested, 1)

    def shift(self, first: int) -> Float64[np.ndarray, "element 6"]:
        """Return sums over chains that compare the first draws with the others.

        Their means before and after, the differences between mean normal scores and between mean folded ones, and the
        squares of both differences.

        Args:
            first: number of the first draws.
        """
        flat = _flat(self.values)
        distances = np.abs(flat - np.median(flat, axis=1, keepdims=True))
        means = [self.values[:, :, part].mean(axis=2) for part in (slice(first), slice(first, None))]
        differences = []
        for values in flat, distances:
            order = values.argsort(axis=1)
            scores = normal_scores(order, np.take_along_axis(values, order, axis=1)).reshape(self.values.shape)
            differences.append(scores[:, :, first:].mean(axis=2) - scores[:, :, :first].mean(axis=2))
        sums = np.stack([*means, *differences, *np.square(differences)], axis=2).sum(axis=1)
        return np.where(self.varies[:, None], sums, np.nan)

    def _of_scores(
        self, statistic: Callable[[np.ndarray], np.ndarray], of_both: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ) -> Float64[np.ndarray, "element"]:
        """Return a statistic of the normal scores and of the folded ones; NaN where constant or too short."""
        if self.values.shape[2] < FEWEST_DRAWS:
            return np.full(len(self.values), np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):  # chains that stand still have no spread
            statistics = of_both(statistic(self._scores), statistic(self._folded_scores))
        return np.where(self.varies, statistics, np.nan)

    @_measured
    def ess_bulk(self) -> Float64[np.ndarray, "element"]:
        """Effective sample size of the normal scores."""
        return effective_size(self._scores)

    @_measured
    def ess_tail(self) -> Float64[np.ndarray, "element"]:
        """Effective sample size of the 5% or the 95% quantile, the lesser of the two."""
        below = [self._halves <= self._quantile(prob)[:, None, None] for prob in TAILS]
        return np.minimum(*(effective_size(inside.astype(np.float64)) for inside in below))

    @_measured
    def mcse_mean(self) -> Float64[np.ndarray, "element"]:
        """Monte-Carlo standard error of the mean."""
        return self.sd / np.sqrt(effective_size(self._halves))

    @_measured
    def mcse_sd(self) -> Float64[np.ndarray, "element"]:
        """Monte-Carlo standard error of the standard deviation, from that of the variance by the delta method."""
        variance = self._squares.mean(axis=(1, 2))
        spread = (self._squares**2).mean(axis=(1, 2)) - variance**2
        return np.sqrt(spread / effective_size(_halves(self._squares)) / variance / 4)

    def heavy_shapes(self, ess_tail: Float64[np.ndarray, "element"]) -> Float64[np.ndarray, "element"]:
        """Return the Pareto shape of elements without a variance, given effective draws of tails; else NaN.

        See `phalanx.diagnostics.heavy_tails`.
        """
        return heavy_shapes(self._ordered, ess_tail)

    def hdi(self, prob: float) -> Float64[np.ndarray, "element 2"]:
        """Return the narrowest interval with the fraction `prob` of all draws, `(element, 2)`; NaN if not finite."""
        inside = int(np.floor(prob * self._ordered.shape[1]))
        widths = self._ordered[:, inside:] - self._ordered[:, : self._ordered.shape[1] - inside]
        low = widths.argmin(axis=1)[:, None]
        ends = np.take_along_axis(self._ordered, np.concatenate([low, low + inside], axis=1), axis=1)
        return np.where(self.finite[:, None], ends, np.nan)

    @cached_property
    def finite(self) -> Bool[np.ndarray, "element"]:
        """True where all draws are finite."""
        # NumPy sorts NaN to the end
        return np.isfinite(self._ordered[:, 0]) & np.isfinite(self._ordered[:, -1])

    @cached_property
    def varies(self) -> Bool[np.ndarray, "element"]:
        """True where all draws are finite, and not all are the same."""
        return self.finite & (self._ordered[:, 0] < self._ordered[:, -1])

    @cached_property
    def _squares(self) -> Float64[np.ndarray, "element chain draw"]:
        return (self.values - self.mean[:, None, None]) ** 2

    @cached_property
    def _halves(self) -> Float64[np.ndarray, "element half draw"]:
        return _halves(self.values)

    @cached_property
    def _sorted_halves(self) -> tuple[Int[np.ndarray, "element value"], Float64[np.ndarray, "element value"]]:
        return _sort(self._halves)

    @cached_property
    def _ordered(self) -> Float64[np.ndarray, "element value"]:
        """All draws in ascending order: those of the halves, unless a middle draw was left out."""
        even = self.values.shape[2] % 2 == 0
        return self._sorted_halves[1] if even else np.sort(_flat(self.values), axis=1)

    @cached_property
    def _scores(self) -> Float64[np.ndarray, "element half draw"]:
        return normal_scores(*self._sorted_halves).reshape(self._halves.shape)

    @property
    def _folded_scores(self) -> Float64[np.ndarray, "element half draw"]:
        """The normal scores of the distances from the median, which are not kept: they are as large as the draws."""
        sorted_values = self._sorted_halves[1]
        middle = sorted_values.shape[1] // 2
        median = sorted_values[:, middle - 1 : middle + 1].mean(axis=1)
        return normal_scores(*_sort(np.abs(self._halves - median[:, None, None]))).reshape(self._halves.shape)

    def _quantile(self, prob: float) -> Float64[np.ndarray, "element"]:
        """Return a quantile of all draws, interpolated linearly.

        The formula is ArviZ's, to the last bit: draws are compared with it, and where they repeat it, rounding decides.
        """
        count = self._ordered.shape[1]
        rank = count * prob + (1 - prob)
        below = int(np.clip(rank, 1, count - 1))
        fraction = min(max(rank - below, 0), 1)
        return (1 - fraction) * self._ordered[:, below - 1] + fraction * self._ordered[:, below]


def _flat(values: Float64[np.ndarray, "element chain draw"]) -> Float64[np.ndarray, "element value"]:
    """View the draws of all chains as one row per element, also of zero elements."""
    return values.reshape(len(values), values.shape[1] * values.shape[2])


def _halves(values: Float64[np.ndarray, "element chain draw"]) -> Float64[np.ndarray, "element half part"]:
    """Split each chain in two, leaving out the middle draw of an odd number: `(element, 2 chain, draw // 2)`."""
    half = values.shape[2] // 2
    return np.concatenate([values[:, :, :half], values[:, :, values.shape[2] - half :]], axis=1)


def _sort(
    values: Float64[np.ndarray, "element chain draw"],
) -> tuple[Int[np.ndarray, "element value"], Float64[np.ndarray, "element value"]]:
    """Return the order of the draws of each element, all chains together, and the draws in that order."""
    order = _flat(values).argsort(axis=1)
    return order, np.take_along_axis(_flat(values), order, axis=1)


def _rhat(series: Float64[np.ndarray, "element chain draw"]) -> Float64[np.ndarray, "element"]:
    """Return R-hat: the square root of the variance of all chains together over that within chains."""
    length = series.shape[2]
    within = series.var(axis=2, ddof=1).mean(axis=1)
    between = length * series.mean(axis=2).var(axis=1, ddof=1)
    return np.sqrt((between / within + length - 1) / length)


def normal_scores(
    order: Int[np.ndarray, "element value"], sorted_values: Float64[np.ndarray, "element value"]
) -> Float64[np.ndarray, "element value"]:
    r"""Return the normal scores $\Phi^{-1}((r - 3/8) / (S + 1/4))$ of the ranks `r` of `S` values; ties share a rank.

    Args:
        order: the indices of the smallest, the second smallest, ... value, `(element, value)`.
        sorted_values: the values in that order, `(element, value)`.

    Returns:
        The score of each value at its own index, `(element, value)`.

    Source: A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Bürkner (2021), Rank-normalization, folding, and
    localization: an improved R-hat for assessing convergence of MCMC.
    """
    count = order.shape[1]
    # a mean rank may be a half, so the table has an entry for each half; `scipy.stats.rankdata` takes thrice the time
    table = ndtri((np.arange(2, 2 * count + 1) / 2 - _OFFSET) / (count - 2 * _OFFSET + 1))
    scores = np.tile(table[::2], (len(order), 1))
    members, twice_ranks = _ties(sorted_values)
    scores.ravel()[members] = table[twice_ranks - 2]
    ordered_scores = np.empty_like(scores)
    np.put_along_axis(ordered_scores, order, scores, axis=1)
    return ordered_scores


def _ties(
    sorted_values: Float64[np.ndarray, "element value"],
) -> tuple[Int[np.ndarray, "tied"], Int[np.ndarray, "tied"]]:
    """Return the flat indices of tied values, and twice the mean rank, counted from one, of each."""
    count = sorted_values.shape[1]
    equal = np.zeros((len(sorted_values), count + 1), dtype=bool)  # to the value before; the last column stays False
    equal[:, 1:-1] = sorted_values[:, 1:] == sorted_values[:, :-1]
    before = equal[:, :-1]
    after = equal[:, 1:]
    first = np.flatnonzero(after & ~before)
    last = np.flatnonzero(before & ~after)
    return np.flatnonzero(before | after), np.repeat(first % count + last % count + 2, last - first + 1)


def p_value_of_one_mean(series: Float64[np.ndarray, "element chain draw"]) -> Float64[np.ndarray, "element"]:
    r"""Return the p-value of the hypothesis that all chains have one mean.

    With $\hat\tau$ the autocorrelation time and $\hat\sigma^2$ the variance within chains of length $n$, the statistic
    $n \operatorname{var}(\bar x_s) / (\hat\sigma^2 \hat\tau)$ of `S` chains has nearly an F distribution with `S - 1`
    and $S (n / \hat\tau - 1)$ degrees of freedom. Autocovariances around a chain's own mean are too small by the
    variance of that mean, $\hat\sigma^2 \hat\tau / n$, which is added back.

    Args:
        series: `(element, chain, draw)`.

    Returns:
        The p-value of each element, `(element,)`; NaN where it is constant or not finite.

    Source: A. Gelman, D. B. Rubin (1992), Inference from iterative simulation using multiple sequences; C. J. Geyer
    (1992), Practical Markov chain Monte Carlo.
    """
    _, chains, length = series.shape
    means = series.mean(axis=2, keepdims=True)
    of_series = mean_autocovariance(series - means)
    fraction = np.zeros((len(series), 1))  # variance of a chain's mean, in variances of a draw
    variance = of_series[:, :1]
    for _ in range(3):
        variance = of_series[:, :1] / (1 - fraction)
        correlation = of_series / variance + fraction
        correlation[:, 0] = 1
        time = np.maximum(correlation_time(correlation)[:, None], 1 / np.log10(chains * length))
        fraction = np.minimum(time / length, min(chains / FEWEST_EFFECTIVE, 0.5))
    ratio = means[:, :, 0].var(axis=1, ddof=1) / (variance * fraction)[:, 0]
    return fdtrc(chains - 1, chains * (1 / fraction[:, 0] - 1), ratio)


def nested_rhats(
    halves: Float64[np.ndarray, "element half draw"], superchains: int
) -> tuple[Float64[np.ndarray, "element"], Float64[np.ndarray, "element"]]:
    """Return nested R-hat of superchains, and that of the first halves of all chains beside the second ones.

    Args:
        halves: draws by half chain: the first halves of all chains, then the second ones.
        superchains: number of groups of consecutive chains.

    Source: C. C. Margossian, M. D. Hoffman, P. Sountsov, L. Riou-Durand, A. Vehtari, A. Gelman (2024), Nested R-hat:
    assessing the convergence of Markov chain Monte Carlo when running many short chains.
    """
    groups, drifts = _means(halves, superchains)
    inside = groups.var(axis=2, ddof=1).mean(axis=1) + halves.var(axis=2, ddof=1).mean(axis=1)
    between = groups.mean(axis=2).var(axis=1, ddof=1), drifts.mean(axis=1) ** 2 / 2
    return np.sqrt(1 + between[0] / inside), np.sqrt(1 + between[1] / inside)


def superchain_p_values(
    halves: Float64[np.ndarray, "element half draw"], superchains: int
) -> tuple[Float64[np.ndarray, "element"], Float64[np.ndarray, "element"]]:
    """Return the p-values of the hypotheses that superchains have one mean, and that both halves have one.

    The means of chains are independent once they have forgotten their start, however the draws of a chain depend on
    each other: an analysis of variance compares superchains, and a paired t test the halves.

    Args:
        halves: draws by half chain: the first halves of all chains, then the second ones.
        superchains: number of groups of consecutive chains.
    """
    groups, drifts = _means(halves, superchains)
    _, count, members = groups.shape
    ratio = members * groups.mean(axis=2).var(axis=1, ddof=1) / groups.var(axis=2, ddof=1).mean(axis=1)
    chains = count * members
    square = chains * drifts.mean(axis=1) ** 2 / drifts.var(axis=1, ddof=1)
    return fdtrc(count - 1, count * (members - 1), ratio), fdtrc(1, chains - 1, square)


def _means(
    halves: Float64[np.ndarray, "element half draw"], superchains: int
) -> tuple[Float64[np.ndarray, "element superchain member"], Float64[np.ndarray, "element chain"]]:
    """Return the means of chains by superchain, and the differences between their halves."""
    first, second = np.split(halves.mean(axis=2), 2, axis=1)
    members = first.shape[1] // superchains
    return ((first + second) / 2).reshape(len(halves), superchains, members), second - first
