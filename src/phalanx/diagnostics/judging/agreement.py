"""Test of agreement: the probability that chains which agree differ by chance as much as these."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import fdtrc

from phalanx.reducers.effective_size import correlation_time, mean_autocovariance

if TYPE_CHECKING:
    from jaxtyping import Float64

FEWEST_EFFECTIVE = 100
"""Effective draws of all chains together that the test assumes at least: chains that hardly move must not pass."""


def chance_of_agreement(series: Float64[np.ndarray, "element chain draw"]) -> Float64[np.ndarray, "element"]:
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
    own = mean_autocovariance(series - means)
    fraction = np.zeros((len(series), 1))  # variance of a chain's mean, in variances of a draw
    variance = own[:, :1]
    for _ in range(3):
        variance = own[:, :1] / (1 - fraction)
        correlation = own / variance + fraction
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


def chances_of_superchains(
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
) -> tuple[Float64[np.ndarray, "element superchain chain"], Float64[np.ndarray, "element chain"]]:
    """Return the means of chains by superchain, and the differences between their halves."""
    first, second = np.split(halves.mean(axis=2), 2, axis=1)
    members = first.shape[1] // superchains
    return ((first + second) / 2).reshape(len(halves), superchains, members), second - first
