"""The digits that scikit-learn ships: 1,797 handwritten digits of 8x8 pixels, available without a download.

They are the test half of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998), in the UCI
Machine Learning Repository, doi:10.24432/C50P49, under CC BY 4.0.
"""

from __future__ import annotations

import numpy as np

from phalanx.datasets.classification import Classification
from phalanx.extras import require

_BRIGHTEST = 16  # a pixel counts the set bits of a 4x4 block


def digits(*, test_fraction: float = 0.2, seed: int = 0) -> Classification:
    """Load scikit-learn's digits, shuffled by `seed` and split into train and test.

    The same `seed` and `test_fraction` give the same split on every machine.

    Args:
        test_fraction: the fraction of the 1,797 images kept for testing, rounded down; above 0 and below 1.
        seed: seed of the shuffle; 0 to 2**32 - 1.

    Returns:
        Images of shape `(n, 8, 8)`, float32 from 0 to 1, and labels of shape `(n,)`, int32 from 0 to 9: by default
        1,438 for training and 359 for testing.

    Raises:
        ValueError: when `test_fraction` leaves no image on one side, or `seed` is out of range.
        ImportError: when scikit-learn is not installed.

    Example:
        >>> import phalanx as phx
        >>> data = phx.datasets.digits()
        >>> data.train_images.shape, data.test_images.shape
        ((1438, 8, 8), (359, 8, 8))

    Source: E. Alpaydin and C. Kaynak (1998), Optical Recognition of Handwritten Digits, UCI Machine Learning
    Repository.
    """
    bunch = require("sklearn.datasets").load_digits()
    images = (bunch.images / _BRIGHTEST).astype(np.float32)
    labels = bunch.target.astype(np.int32)
    num_test = int(test_fraction * len(images)) if 0 < test_fraction < 1 else 0
    if num_test == 0:
        raise ValueError(
            f"digits: test_fraction must be between 1/{len(images)} and 1, so that both sides get images; "
            f"got {test_fraction!r}. Try test_fraction=0.2."
        )
    if not (isinstance(seed, int) and 0 <= seed < 2**32):
        raise ValueError(f"digits: seed must be a whole number from 0 to 2**32 - 1; got {seed!r}.")
    # RandomState, because NumPy has frozen its streams: a Generator may shuffle differently in another release.
    order = np.random.RandomState(seed).permutation(len(images))
    test = order[:num_test]
    train = order[num_test:]
    return Classification(
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
        name="digits",
        source="Optical Recognition of Handwritten Digits, test half (Alpaydin and Kaynak, 1998), from scikit-learn",
        licence="CC BY 4.0",
    )
