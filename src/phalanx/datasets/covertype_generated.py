"""Generated rows with the shape and sparsity of Covertype, and with known coefficients.

They have the properties that a sampler's speed depends on: the numbers of rows and columns, ten correlated columns of
numbers, and 44 indicators, some of a handful of rows. Means, standard deviations, correlations and frequencies are
those of the data (rounded; those of the soils estimated from a sixth of the rows). Soils do not depend on the
wilderness area, as they do in the data.
"""

from __future__ import annotations

import numpy as np

from phalanx.datasets.covertype import COLUMNS, ROWS, LabelledRows, Land, check_split, design_matrix

_MEANS = (2958, 156, 14, 269, 46, 2352, 212, 223, 142, 1987)
_SDS = (280, 112, 7, 212, 58, 1558, 27, 20, 38, 1332)
_CORRELATIONS = (
    (),
    (0.02,),
    (-0.24, 0.08),
    (0.31, 0.02, -0.01),
    (0.09, 0.07, 0.28, 0.61),
    (0.37, 0.03, -0.22, 0.07, -0.05),
    (0.11, -0.58, -0.32, -0.03, -0.16, 0.03),
    (0.20, 0.34, -0.53, 0.05, -0.11, 0.19, 0.01),
    (0.06, 0.65, -0.18, 0.05, 0.03, 0.10, -0.78, 0.59),
    (0.15, -0.11, -0.18, 0.05, -0.07, 0.34, 0.13, 0.06, -0.05),
)
"""Below the diagonal."""

_PER_WILDERNESS = (0.450, 0.051, 0.435, 0.064)
_PER_SOIL = (
    *(3237, 7725, 4731, 12169, 1506, 6656, 106, 194, 1212, 32456, 12756, 30425, 17381, 606, 3, 2812, 3319, 1931, 3737),
    *(9662, 900, 33219, 58900, 21331, 394, 2575, 1019, 981, 114987, 30231, 24962, 52175, 45156, 1525, 1806, 119, 294),
    *(15469, 13269, 9075),
)
"""Rows in the whole file."""

_WEIGHT_SD = 0.3


def generate_covertype(rows: int = ROWS, *, test_fraction: float = 0.1, seed: int = 0) -> LabelledRows:
    r"""Generate data with the shape and sparsity of Covertype from known coefficients.

    These are not real data: weights $w_j \sim N(0, 0.3^2)$ and columns $x$ are drawn, then labels
    $y \sim \text{Bernoulli}(\sigma(x w))$.

    Args:
        rows: number of rows; that of the original by default.
        test_fraction: the fraction of rows kept for testing, rounded down; from 0, which keeps none, to below 1.
        seed: 0 to 2**32 - 1.

    Returns:
        Columns of shape `(n, 55)`, float32, standardised, with an intercept; labels of shape `(n,)`, int32; and
        `true_weights`, shape `(55,)`. `name` is "covertype-generated".

    Raises:
        ValueError: when there are fewer than two rows, or `test_fraction` or `seed` is out of range.

    Example:
        >>> import phalanx as phx
        >>> data = phx.datasets.generate_covertype(1000)
        >>> data.train_x.shape, data.name
        ((900, 55), 'covertype-generated')
    """
    if not (isinstance(rows, int) and rows >= 2):
        raise ValueError(f"generate_covertype: rows must be a whole number, at least 2; got {rows!r}.")
    check_split("generate_covertype", test_fraction, seed)
    random = np.random.RandomState(seed)  # not a Generator: NumPy has frozen the streams of this one
    weights = random.normal(0.0, _WEIGHT_SD, len(COLUMNS))
    train = rows - int(test_fraction * rows)
    x = design_matrix(_draw_land(random, rows), np.arange(rows), train)
    y = (random.uniform(size=rows) < 1 / (1 + np.exp(-(x @ weights)))).astype(np.int32)
    return LabelledRows(
        x[:train],
        y[:train],
        x[train:],
        y[train:],
        COLUMNS,
        name="covertype-generated",
        source=f"NOT REAL DATA: {rows:,} rows generated like Covertype, as sparse and with known coefficients",
        licence="no licence needed",
        true_weights=weights,
    )


def _draw_land(random: np.random.RandomState, rows: int) -> Land:
    below = np.zeros((len(_MEANS),) * 2)
    for number, row in enumerate(_CORRELATIONS):
        below[number, :number] = row
    factor = np.linalg.cholesky(below + below.T + np.eye(len(_MEANS)))
    numbers = np.array(_MEANS) + np.array(_SDS) * (random.normal(size=(rows, len(_MEANS))) @ factor.T)
    soils = np.array(_PER_SOIL) / sum(_PER_SOIL)
    return Land(
        np.round(numbers),
        random.choice(len(_PER_WILDERNESS), rows, p=_PER_WILDERNESS),
        random.choice(len(soils), rows, p=soils),
    )
