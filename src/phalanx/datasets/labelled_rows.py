"""Record that loaders of rows with a binary label return."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class LabelledRows(NamedTuple):
    """Rows of columns with a label of 0 or 1, split into train and test, with their source and licence.

    Attributes:
        train_x: shape `(train, columns)`, float32.
        train_y: labels 0 and 1, int32, shape `(train,)`.
        test_x: shape `(test, columns)`, float32.
        test_y: labels 0 and 1, int32, shape `(test,)`.
        columns: the names of the columns.
        name: name of the data in a report.
        source: who made the data and where this copy came from.
        licence: the licence of the data.
        true_weights: shape `(columns,)`, the weights that generated labels were drawn with; None for real data.

    Example:
        >>> import phalanx as phx
        >>> data = phx.datasets.generate_covertype(1000)
        >>> data.train_x.shape, data.test_y.shape
        ((900, 55), (100,))
    """

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    columns: tuple[str, ...]
    name: str
    source: str
    licence: str
    true_weights: np.ndarray | None = None


def check_split(who: str, test_fraction: float, seed: int) -> None:
    """Raise unless the fraction of test rows and the seed are in range; messages name the function `who`."""
    if not 0 <= test_fraction < 1:
        raise ValueError(f"{who}: test_fraction must be at least 0 and below 1; got {test_fraction!r}.")
    if not (isinstance(seed, int) and 0 <= seed < 2**32):
        raise ValueError(f"{who}: seed must be a whole number from 0 to 2**32 - 1; got {seed!r}.")
