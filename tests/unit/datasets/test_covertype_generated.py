"""Generated rows: shaped and as sparse as Covertype, with labels that follow the coefficients they are said to."""

from __future__ import annotations

import re

import numpy as np
import pytest

from phalanx.datasets import generate_covertype


def test_shape_sparsity_and_what_they_are_called() -> None:
    data = generate_covertype(20_000, seed=1)
    assert data.train_x.shape == (18_000, 55) and data.test_x.shape == (2_000, 55)
    assert data.train_x.dtype == np.float32 and set(data.train_y.tolist()) == {0, 1}
    assert data.name == "covertype-generated" and data.source.startswith("NOT REAL DATA: 20,000 rows")
    for indicators in (data.train_x[:, 10:14], data.train_x[:, 14:54]):
        set_in = (indicators > 0).sum(1)  # standardised: below zero where it is not set
        assert (set_in <= 1).all() and set_in.mean() > 0.99
    np.testing.assert_allclose(np.corrcoef(data.train_x[:, [1, 8]].T)[0, 1], 0.65, atol=0.03)


def test_labels_follow_the_coefficients() -> None:
    data = generate_covertype(200_000, test_fraction=0, seed=2)
    probability = 1 / (1 + np.exp(-data.train_x @ data.true_weights))
    # The score at the true coefficients has mean zero and this standard deviation, and is normal where many rows count:
    # 50 columns stay within 5 standard deviations but once in 30,000 runs.
    x = data.train_x[:, (data.train_x > 0).sum(0) >= 100].astype(np.float64)
    score = x.T @ (data.train_y - probability)
    sd = np.sqrt((x**2).T @ (probability * (1 - probability)))
    assert x.shape[1] >= 50 and (np.abs(score) < 5 * sd).all()


def test_a_seed_gives_the_same_data() -> None:
    first, again, other = generate_covertype(100), generate_covertype(100), generate_covertype(100, seed=1)
    np.testing.assert_array_equal(first.train_x, again.train_x)
    np.testing.assert_array_equal(first.true_weights, again.true_weights)
    assert not np.array_equal(first.train_x, other.train_x)


@pytest.mark.parametrize(
    ("choice", "complaint"),
    [
        ({"rows": 1}, "generate_covertype: rows must be a whole number, at least 2; got 1."),
        ({"rows": 9, "test_fraction": -0.1}, "generate_covertype: test_fraction must be at least 0 and below 1; got"),
        ({"rows": 9, "seed": 0.5}, "generate_covertype: seed must be a whole number from 0 to 2**32 - 1; got 0.5."),
    ],
)
def test_choices_out_of_range(choice: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}"):
        generate_covertype(**choice)
