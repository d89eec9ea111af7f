"""Highest-density intervals of draws."""

from __future__ import annotations

import numpy as np

from phalanx.diagnostics.elements import as_draws, measure


def hdi(draws: np.ndarray, prob: float = 0.94) -> np.ndarray:
    """Return the highest-density interval: the narrowest one with the fraction `prob` of all chains' draws.

    Args:
        draws: `(chain, draw, ...)`.
        prob: the fraction inside, above 0 and below 1.

    Returns:
        Lower and upper end of each element's interval, of shape `draws.shape[2:] + (2,)`; NaN where an element is not
        finite.

    Raises:
        ValueError: when there are no draws, an axis is missing, or `prob` is out of range.

    Example:
        >>> import numpy as np
        >>> from phalanx.diagnostics import hdi
        >>> hdi(np.arange(100.0).reshape(2, 50), prob=0.9)
        array([ 0., 90.])

    Source: M.-H. Chen and Q.-M. Shao (1999), Monte Carlo estimation of Bayesian credible and HPD intervals.
    """
    draws = as_draws(draws)
    check_fraction("hdi: prob", prob)
    return measure(lambda elements: elements.hdi(prob), draws)


def check_fraction(name: str, prob: float) -> None:
    """Raise unless `prob` is a fraction of draws that an interval can contain."""
    if not 0 < prob < 1:
        raise ValueError(f"{name} must be above 0 and below 1; got {prob!r}.")
