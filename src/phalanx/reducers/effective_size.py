"""Effective sample size from autocovariances of all elements at once, summed over Geyer's initial sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.fft import next_fast_len

if TYPE_CHECKING:
    from jaxtyping import Float64


def effective_size(series: Float64[np.ndarray, "element chain draw"]) -> Float64[np.ndarray, "element"]:
    r"""Return the effective sample size of the mean of each element.

    With `W` the mean variance within the `M` chains of length `N`, $\hat\gamma_t$ their mean autocovariance at lag `t`,
    and $\hat\sigma^2 = W (N - 1) / N + B / N$ the variance of all chains together,

    $$\hat\rho_t = 1 - \frac{W - \hat\gamma_t}{\hat\sigma^2}, \qquad \mathrm{ESS} = \frac{M N}{\hat\tau}, \qquad
    \hat\tau = -1 + 2 \sum_{j < J} \min_{i \le j} (\hat\rho_{2i} + \hat\rho_{2i+1}) + \hat\rho_{2J},$$

    where `J` is the first pair whose sum is not positive (Geyer's initial monotone sequence). Antithetic chains may
    have more effective draws than draws, up to a factor of $\log_{10} M N$.

    Args:
        series: `(element, chain, draw)`, float64, two draws at least.

    Returns:
        The effective sample size, `(element,)`; all draws where an element is constant, NaN where it is not finite.

    Source: A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Bürkner (2021), Rank-normalization, folding, and
    localization; C. J. Geyer (1992), Practical Markov chain Monte Carlo.
    """
    _, chains, length = series.shape
    total = chains * length
    means = series.mean(axis=2, keepdims=True)
    covariance = mean_autocovariance(series - means)
    within = covariance[:, :1] * length / (length - 1)
    variance = covariance[:, 0] + (means[:, :, 0].var(axis=1, ddof=1) if chains > 1 else 0)
    correlation = 1 - (within - covariance) / variance[:, None]
    correlation[:, 0] = 1
    time = np.maximum(correlation_time(correlation), 1 / np.log10(total))
    time[np.isnan(correlation[:, 1])] = np.nan
    # a variance of the size of rounding errors counts as zero
    constant = variance <= (np.finfo(float).resolution * means.mean(axis=(1, 2))) ** 2
    return np.where(constant, total, total / time)


def mean_autocovariance(
    deviations: Float64[np.ndarray, "element chain draw"],
) -> Float64[np.ndarray, "element draw"]:
    """Return the autocovariance at every lag, averaged over the chains, `(element, draw)`.

    It averages the spectra, so that there is one inverse transform for all chains.
    """
    length = deviations.shape[2]
    size = next_fast_len(2 * length, real=True)  # zero padding, so that the end does not wrap around
    spectrum = np.fft.rfft(deviations, size)
    power = (spectrum.real**2 + spectrum.imag**2).mean(axis=1)
    return np.fft.irfft(power, size)[:, :length] / length


def correlation_time(correlation: Float64[np.ndarray, "element lag"]) -> Float64[np.ndarray, "element"]:
    """Return `-1 + 2 * sum` of the correlations `(element, lag)` over Geyer's initial monotone sequence."""
    elements, length = correlation.shape
    pairs = correlation[:, : length // 2 * 2].reshape(elements, length // 2, 2).sum(axis=2)
    number = np.arange(length // 2)
    # the last lags have too few terms
    ends = ~(pairs > 0) | (2 * number >= length - 4)
    last = ends.argmax(axis=1)[:, None]
    falling = np.minimum.accumulate(pairs, axis=1)
    total = np.where(number < last, falling, 0).sum(axis=1)
    # the even lag of the pair that ends the sum is added, if it or its pair is positive
    even, pair = (np.take_along_axis(values, last, axis=1)[:, 0] for values in (correlation[:, ::2], pairs))
    return 2 * total - 1 + np.where((even > 0) | (pair >= 0), even, 0)
