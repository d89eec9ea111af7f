"""The narrowest interval that holds a given share of the draws."""

from __future__ import annotations

import numpy as np

from phalanx.diagnostics.elements import as_draws, elements
from phalanx.extras import require


def hdi(draws: np.ndarray, prob: float = 0.94) -> np.ndarray:
    """Highest-density interval: the narrowest interval that holds the share `prob` of all chains' draws.

    Args:
        draws: `(chain, draw, ...)`.
        prob: the share inside, above 0 and below 1.

    Returns:
        Lower and upper end of each element's interval, of shape `draws.shape[2:] + (2,)`; NaN where an element is not
        finite.

    Raises:
        ValueError: when there are no draws, an axis is missing, or `prob` is out of range.
        ImportError: when ArviZ is not installed.

    Example:
        >>> import numpy as np
        >>> from phalanx.diagnostics import hdi
        >>> hdi(np.arange(100.0).reshape(2, 50), prob=0.9)
        array([ 0., 90.])

    Source: M.-H. Chen and Q.-M. Shao (1999), Monte Carlo estimation of Bayesian credible and HPD intervals.
    """
    draws = as_draws(draws)
    if not 0 < prob < 1:
        raise ValueError(f"hdi: prob must be above 0 and below 1; got {prob!r}.")
    arviz = require("arviz", "report")
    unknown = (np.nan, np.nan)
    # `prob` goes by position: ArviZ 0.2x calls it hdi_prob.
    ends = [arviz.hdi(flat, prob) if np.isfinite(flat).all() else unknown for flat in map(np.ravel, elements(draws))]
    return np.array(ends, dtype=np.float64).reshape(*draws.shape[2:], 2)
