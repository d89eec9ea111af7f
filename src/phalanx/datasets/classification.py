"""Record that loaders of labelled images return."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Classification(NamedTuple):
    """Labelled images, split into train and test, with their source and licence.

    Attributes:
        train_images: shape `(train, rows, columns)`.
        train_labels: class numbers from 0, int32, shape `(train,)`.
        test_images: shape `(test, rows, columns)`, the dtype of `train_images`.
        test_labels: class numbers from 0, int32, shape `(test,)`.
        name: name of the data in a report.
        source: who made the data and where this copy came from.
        licence: the licence of the data.

    Example:
        >>> import phalanx as phx
        >>> phx.datasets.digits().name
        'digits'
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    name: str
    source: str
    licence: str
