"""R-hat, effective sample size and Monte-Carlo standard error of every element of a variable."""

from __future__ import annotations

from typing import Literal

import numpy as np

from phalanx.diagnostics.elements import as_draws, measure


def rhat(draws: np.ndarray) -> np.ndarray:
    r"""Return rank-normalised split R-hat: the spread of all chains together over that of each half chain.

    With `W` the mean variance within the half chains and `B` the variance between their means times their length `n`,
    both of normal scores of the ranks,

    $$\hat R = \sqrt{\frac{n - 1}{n} + \frac{B}{n W}};$$

    the result is the larger of the values for the draws and for their distances from the median. It approaches 1 as the
    chains forget their starts; above 1.01 they have not yet.

    Args:
        draws: `(chain, draw, ...)`; two chains at least, four draws at least.

    Returns:
        R-hat of each element, of shape `draws.shape[2:]`; NaN where an element is constant or not finite, and for a
        single chain.

    Raises:
        ValueError: when there are no draws or an axis is missing.

    Example:
        >>> import numpy as np
        >>> from phalanx.diagnostics import rhat
        >>> draws = np.random.default_rng(0).normal(size=(4, 1000))
        >>> bool(rhat(draws) < 1.01)
        True

    Source: A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Bürkner (2021), Rank-normalization, folding, and
    localization: an improved R-hat for assessing convergence of MCMC.
    """
    return measure(lambda elements: elements.rhat, as_draws(draws))


def ess(draws: np.ndarray, kind: Literal["bulk", "tail"] = "bulk") -> np.ndarray:
    r"""Return the effective sample size: the number of independent draws with the same Monte-Carlo error.

    With `M` chains of `N` draws and autocorrelations $\hat\rho_t$ pooled over the chains,

    $$\mathrm{ESS} = \frac{M N}{1 + 2 \sum_t \hat\rho_t},$$

    where the sum ends when pairs of neighbours are no longer positive. `"bulk"` is that of normal scores of the ranks,
    for means and medians; `"tail"` is the lesser of those of the 5% and the 95% quantile, for intervals.

    Args:
        draws: `(chain, draw, ...)`; four draws at least.
        kind: `"bulk"` or `"tail"`.

    Returns:
        The effective sample size of each element, of shape `draws.shape[2:]`; NaN where an element is constant or not
        finite.

    Raises:
        ValueError: when there are no draws, an axis is missing, or `kind` is neither.

    Example:
        >>> import numpy as np
        >>> from phalanx.diagnostics import ess
        >>> draws = np.random.default_rng(0).normal(size=(4, 1000, 2))
        >>> ess(draws).shape
        (2,)

    Source: A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Bürkner (2021), Rank-normalization, folding, and
    localization: an improved R-hat for assessing convergence of MCMC.
    """
    draws = as_draws(draws)
    if kind not in ("bulk", "tail"):
        raise ValueError(f"ess: kind must be 'bulk' or 'tail'; got {kind!r}.")
    return measure(lambda elements: elements.ess_bulk if kind == "bulk" else elements.ess_tail, draws)


def mcse(draws: np.ndarray, kind: Literal["mean", "sd"] = "mean") -> np.ndarray:
    r"""Return the Monte-Carlo standard error of the draws' mean or standard deviation, as estimates of the posterior's.

    For the mean it is $s / \sqrt{\mathrm{ESS}}$, with `s` the standard deviation of the draws.

    Args:
        draws: `(chain, draw, ...)`; four draws at least.
        kind: `"mean"` or `"sd"`.

    Returns:
        The standard error of each element, of shape `draws.shape[2:]`; NaN where an element is constant or not finite.

    Raises:
        ValueError: when there are no draws, an axis is missing, or `kind` is neither.

    Example:
        >>> import numpy as np
        >>> from phalanx.diagnostics import mcse
        >>> draws = np.random.default_rng(0).normal(size=(4, 1000))
        >>> bool(mcse(draws) < 0.02)
        True

    Source: A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Bürkner (2021), Rank-normalization, folding, and
    localization: an improved R-hat for assessing convergence of MCMC.
    """
    draws = as_draws(draws)
    if kind not in ("mean", "sd"):
        raise ValueError(f"mcse: kind must be 'mean' or 'sd'; got {kind!r}.")
    return measure(lambda elements: elements.mcse_mean if kind == "mean" else elements.mcse_sd, draws)
