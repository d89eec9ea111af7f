"""What a loader of labelled images returns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Classification(NamedTuple):
    """Labelled images, split into train and test, and where they come from.

    Attributes:
        train_images: shape `(train, rows, columns)`.
        train_labels: class numbers from 0, int32, shape `(train,)`.
        test_images: shape `(test, rows, columns)`, the dtype of `train_images`.
        test_labels: class numbers from 0, int32, shape `(test,)`.
        name: what to call the data in a report.
        source: who made the data and where this copy came from.
        licence: the licence of the data.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    name: str
    source: str
    licence: str
