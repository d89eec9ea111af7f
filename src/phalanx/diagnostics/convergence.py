"""R-hat, nested R-hat, effective sample size and Monte-Carlo standard error of every element of a variable."""

from __future__ import annotations

from numbers import Integral
from typing import Literal

import numpy as np

from phalanx.diagnostics.element_statistics import ElementStatistics
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


def nested_rhat(draws: np.ndarray, superchains: int) -> np.ndarray:
    r"""Return nested R-hat: the spread of all superchains together over that of each superchain.

    A superchain is a group of `M` chains that started at one point, with random numbers of their own. With
    $\bar x_{mk}$ the mean of chain `m` of superchain `k`, $s^2_{mk}$ the variance within it, and $\bar x_k$ the mean of
    the superchain,

    $$\hat R_\nu = \sqrt{1 + \frac{\hat B}{\hat W}}, \qquad \hat B = \operatorname{var}_k(\bar x_k), \qquad
    \hat W = \operatorname{mean}_k \left( \operatorname{var}_m(\bar x_{mk}) + \operatorname{mean}_m(s^2_{mk}) \right),$$

    where $\operatorname{var}_m$ is 0 for one chain per superchain, and $s^2$ is 0 for one draw per chain. Superchains
    that still differ have not forgotten their starts. Once they have, $\hat R_\nu$ is about $\sqrt{1 + 1 / (M n)}$,
    with `n` the effective draws of a chain: it is below 1.01 when a superchain has more than about 50 effective draws,
    however short its chains, where R-hat needs that many of every half chain.

    Do not group chains that started at points of their own, as those of `phx.mcmc` do: the means of their groups agree
    whether or not the chains have converged.

    Args:
        draws: `(chain, draw, ...)`; one draw is enough if a superchain has several chains. The first
            `chain // superchains` chains are the first superchain, and so on.
        superchains: the number of superchains: at least two, and all of one size.

    Returns:
        Nested R-hat of each element, of shape `draws.shape[2:]`; NaN where an element is constant or not finite.

    Raises:
        TypeError: when `superchains` is not a whole number.
        ValueError: when there are no draws, an axis is missing, there are fewer than two superchains, the chains cannot
            be divided evenly among them, or each has a single draw.

    Example:
        >>> import numpy as np
        >>> from phalanx.diagnostics import nested_rhat
        >>> draws = np.random.default_rng(0).normal(size=(512, 1))
        >>> bool(nested_rhat(draws, superchains=4) < 1.02)
        True

    Source: C. C. Margossian, M. D. Hoffman, P. Sountsov, L. Riou-Durand, A. Vehtari, A. Gelman (2024), Nested R-hat:
    assessing the convergence of Markov chain Monte Carlo when running many short chains.
    """
    draws = as_draws(draws)
    chains, length = draws.shape[:2]
    if not isinstance(superchains, Integral):
        raise TypeError(f"nested_rhat: superchains must be a whole number; got {superchains!r}.")
    if superchains < 2:
        raise ValueError(f"nested_rhat: superchains must be at least 2; got {superchains}.")
    if chains % superchains:
        raise ValueError(
            f"nested_rhat: {chains} chains cannot be divided evenly among {superchains} superchains; give a divisor of "
            "the number of chains."
        )
    members = chains // superchains
    if members == length == 1:
        raise ValueError(
            "nested_rhat: one chain of one draw has no spread to compare with; give more draws or fewer superchains."
        )

    def of_elements(elements: ElementStatistics) -> np.ndarray:
        grouped = elements.values.reshape(len(elements.values), superchains, members, length)
        return np.where(elements.varies, _nested_rhat(grouped), np.nan)

    return measure(of_elements, draws)


def _nested_rhat(values: np.ndarray) -> np.ndarray:
    """Return nested R-hat of values `(element, superchain, chain, draw)`."""
    _, _, members, length = values.shape
    chains = values.mean(axis=3)
    within = chains.var(axis=2, ddof=1) if members > 1 else np.zeros(chains.shape[:2])
    if length > 1:
        within = within + values.var(axis=3, ddof=1).mean(axis=2)
    return np.sqrt(1 + chains.mean(axis=2).var(axis=1, ddof=1) / within.mean(axis=1))
