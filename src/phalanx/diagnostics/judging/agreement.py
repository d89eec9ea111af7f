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
    share = np.zeros((len(series), 1))  # variance of a chain's mean, in variances of a draw
    variance = own[:, :1]
    for _ in range(3):
        variance = own[:, :1] / (1 - share)
        correlation = own / variance + share
        correlation[:, 0] = 1
        time = np.maximum(correlation_time(correlation)[:, None], 1 / np.log10(chains * length))
        share = np.minimum(time / length, min(chains / FEWEST_EFFECTIVE, 0.5))
    ratio = means[:, :, 0].var(axis=1, ddof=1) / (variance * share)[:, 0]
    return fdtrc(chains - 1, chains * (1 / share[:, 0] - 1), ratio)
