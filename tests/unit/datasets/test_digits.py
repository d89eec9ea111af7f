"""scikit-learn's digits: what comes back, and that the split is a split."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from phalanx.datasets import Classification, digits


def rows(images: np.ndarray, labels: np.ndarray) -> Counter[bytes]:
    return Counter(image.tobytes() + label.tobytes() for image, label in zip(images, labels, strict=True))


def test_shapes_and_ranges() -> None:
    data = digits()
    assert isinstance(data, Classification)
    assert data.train_images.shape == (1438, 8, 8)
    assert data.test_images.shape == (359, 8, 8)
    for images in (data.train_images, data.test_images):
        assert images.dtype == np.float32
        assert images.min() == 0.0
        assert images.max() == 1.0
    for labels in (data.train_labels, data.test_labels):
        assert labels.dtype == np.int32
        assert set(labels.tolist()) == set(range(10))
    assert data.train_labels.shape == (1438,)
    assert data.test_labels.shape == (359,)
    assert data.name == "digits"
    assert data.licence == "CC BY 4.0"


def test_a_seed_gives_one_split() -> None:
    first, again, other = digits(seed=3), digits(seed=3), digits(seed=4)
    for a, b in zip(first[:4], again[:4], strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first.test_images, other.test_images)


def test_every_image_is_on_one_side_with_its_label() -> None:
    load_digits = pytest.importorskip("sklearn.datasets", reason="the digits ship with scikit-learn").load_digits
    bunch, data = load_digits(), digits(test_fraction=0.5, seed=1)
    split = rows(data.train_images, data.train_labels) + rows(data.test_images, data.test_labels)
    assert len(data.test_images) == 898
    assert split == rows((bunch.images / 16).astype(np.float32), bunch.target.astype(np.int32))


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 1.5, 1e-4, float("nan")])
def test_a_fraction_that_leaves_a_side_empty(fraction: float) -> None:
    message = (
        "digits: test_fraction must be between 1/1797 and 1, so that both sides get images; "
        f"got {fraction!r}. Try test_fraction=0.2."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        digits(test_fraction=fraction)


def test_a_seed_out_of_range() -> None:
    message = "digits: seed must be a whole number from 0 to 2**32 - 1; got -1."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        digits(seed=-1)
