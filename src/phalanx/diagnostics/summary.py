"""Summary table of draws, one row for every scalar element of every variable, and highest-density intervals."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from phalanx.diagnostics.element_statistics import ElementStatistics
from phalanx.diagnostics.elements import Names, as_draws, element_names, measure
from phalanx.diagnostics.heavy_tails import NO_MEAN
from phalanx.errors.names import hint

if TYPE_CHECKING:
    from phalanx.diagnostics.table import SummaryTable

COLUMNS = ["mean", "sd", "hdi_low", "hdi_high", "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat"]

NEEDS_VARIANCE = np.isin(COLUMNS, ["sd", "mcse_mean", "mcse_sd"])
"""Mask of the columns that are NaN for a quantity whose variance is infinite, as far as its draws show."""


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


def summary_table(
    draws: Mapping[str, np.ndarray],
    names: Iterable[str] | None = None,
    *,
    prob: float = 0.94,
    labels: Names | None = None,
    not_kept: Iterable[str] = (),
    angles: Collection[str] = (),
) -> SummaryTable:
    r"""Summarise the draws: one row per scalar element, with its location, spread, interval, errors and convergence.

    Args:
        draws: arrays of shape `(chain, draw, ...)` by variable name.
        names: the variables wanted, in this order; None for all of them.
        prob: the fraction of the draws in the interval from `hdi_low` to `hdi_high`, the narrowest with so many.
        labels: labels of the entries along each axis, by variable; None for an axis that is numbered.
        not_kept: variables of the model without draws, for the message about an unknown name.
        angles: variables that are angles in radians, with directional statistics: with $R e^{i m}$ the mean of
            $e^{i x}$, the mean is $m$ and the sd $\sqrt{-2 \log R}$. The interval may contain $\pi$; its lower end is
            then above the upper one. R-hat and ESS are the worse of those of $\cos(x - m)$ and $\sin(x - m)$.

    Returns:
        A table with the columns mean, sd, hdi_low, hdi_high, mcse_mean, mcse_sd, ess_bulk, ess_tail and r_hat. Names of
        rows are `b` (a scalar), `b[0]`, `w[0,1]`, or `b[age]` where there are labels. Undefined values are NaN, such as
        R-hat of a constant, and sd, errors and possibly mean of draws whose tails are so heavy that these are infinite.

    Raises:
        ValueError: when a name is unknown, there are no draws, or `prob` is out of range.

    Example:
        >>> import numpy as np
        >>> from phalanx.diagnostics import summary_table
        >>> table = summary_table({"b": np.random.default_rng(0).normal(size=(4, 1000, 2))})
        >>> list(table.index)
        ['b[0]', 'b[1]']

    Source:
        Mardia, Jupp (2000), Directional statistics, for angles.
    """
    check_fraction("summary: prob", prob)
    variables = _choose(draws, names, not_kept)
    if not variables:
        raise ValueError("summary: there are no variables to summarise; keep at least one when running (keep=None).")
    rows = [row for name, value in variables for row in element_names(name, value.shape[2:], labels)]
    from phalanx.diagnostics.table import SummaryTable  # importing pandas takes as long as importing all of Phalanx

    statistics = [(row_of_angles if name in angles else row_of, value) for name, value in variables]
    parts = [measure(partial(statistic, prob=prob), value).reshape(-1, len(COLUMNS)) for statistic, value in statistics]
    table = SummaryTable(np.concatenate(parts), index=rows, columns=COLUMNS)
    table.num_heads = 0
    return table


def _choose(
    draws: Mapping[str, np.ndarray], names: Iterable[str] | None, not_kept: Iterable[str] = ()
) -> list[tuple[str, np.ndarray]]:
    """Return the requested variables, after checks."""
    variables = list(draws) if names is None else [names] if isinstance(names, str) else list(names)
    for name in variables:
        if name not in draws:
            available = ", ".join(map(repr, draws)) or "none"
            raise ValueError(
                f"summary: there is no variable {name!r} among the draws; they are: {available}."
                f"{hint(str(name), draws, not_kept)}"
            )
    return [(name, as_draws(draws[name], name)) for name in variables]


def row_of(elements: ElementStatistics, prob: float) -> np.ndarray:
    """Return the rows of a batch of elements, in the order of the columns."""
    errors = [elements.mcse_mean, elements.mcse_sd, elements.ess_bulk, elements.ess_tail, elements.rhat]
    rows = np.column_stack([elements.mean, elements.sd, elements.hdi(prob), *errors])
    shapes = elements.heavy_shapes(errors[3])
    rows[np.isfinite(shapes)[:, None] & NEEDS_VARIANCE] = np.nan
    rows[shapes > NO_MEAN, COLUMNS.index("mean")] = np.nan
    return rows


def row_of_angles(elements: ElementStatistics, prob: float) -> np.ndarray:
    """Return the rows of a batch of angles, in the order of the columns."""
    middle = np.angle(np.exp(1j * elements.values).mean(axis=(1, 2)))
    around = _to_circle(elements.values - middle[:, None, None])
    sine = ElementStatistics(np.sin(around))
    cosine = ElementStatistics(np.cos(around))
    length = np.minimum(cosine.mean, 1.0)
    sd = np.sqrt(-2.0 * np.log(length))
    interval = _to_circle(middle[:, None] + ElementStatistics(around).hdi(prob))
    errors = [sine.mcse_mean / length, cosine.mcse_mean / (length * sd)]
    sizes = [np.fmin(sine.ess_bulk, cosine.ess_bulk), np.fmin(sine.ess_tail, cosine.ess_tail)]
    return np.column_stack([middle, sd, interval, *errors, *sizes, np.fmax(sine.rhat, cosine.rhat)])


def _to_circle(angles: np.ndarray) -> np.ndarray:
    """Return angles between -pi and pi."""
    return (angles + np.pi) % (2 * np.pi) - np.pi
