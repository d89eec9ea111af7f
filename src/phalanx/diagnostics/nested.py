"""Nested R-hat for many short chains, in groups that start at one point."""

from __future__ import annotations

from numbers import Integral

import numpy as np

from phalanx.diagnostics.element_statistics import ElementStatistics
from phalanx.diagnostics.elements import as_draws, measure


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
