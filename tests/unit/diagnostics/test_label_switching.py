"""Chains that number components differently are distinguished from chains at different places."""

import numpy as np
import pytest

from phalanx.diagnostics import judge, summary_table

DRAWS = 300


def verdict(draws, log_density=None):
    stats = {"diverging": np.zeros((len(next(iter(draws.values()))), DRAWS), bool)}
    if log_density is not None:
        stats["log_density"] = log_density
    return judge(summary_table(draws), stats, draws=draws)


def topics(draws, log_density=None):
    return [finding.topic for finding in verdict(draws, log_density).findings]


def chains(places, orders, random, axes=(0,)):
    """Draws around places, in chains with other orders of the entries along some axes."""
    rows = []
    for order in orders:
        place = np.asarray(places, float)
        for axis in axes:
            place = np.take(place, order, axis=axis)
        rows.append(place + random.normal(0.0, 0.2, (DRAWS, *place.shape)))
    return np.stack(rows)


ORDERS = [[0, 1, 2], [2, 0, 1], [0, 1, 2], [1, 0, 2]]


def test_one_order_in_all_variables_with_the_dimension_is_label_switching():
    random = np.random.default_rng(0)
    draws = {
        "means": chains([-4.0, 0.0, 5.0], ORDERS, random),
        "weights": chains([[1.0, 2.0], [3.0, 5.0], [6.0, 9.0]], ORDERS, random),
        "other": random.normal(size=(4, DRAWS, 3)),
        "scale": random.normal(size=(4, DRAWS)),
    }
    found = verdict(draws, random.normal(size=(4, DRAWS)))
    assert found.findings[0].topic == "label switching" and found.grade == "not good"
    assert found.findings[0].problem == (
        "Chains number 3 components differently: in chains 1, 3 the entries of means, weights have another order than "
        "in chain 0, at the same place and with the same log density."
    )
    assert "OrderedTransform()" in found.findings[0].advice
    assert all("another parametrisation" not in finding.advice for finding in found.findings)


def test_rows_and_columns_of_a_matrix_have_one_order():
    random = np.random.default_rng(1)
    matrix = np.array([[9.0, 1.0, 2.0], [3.0, 8.0, 4.0], [5.0, 6.0, 20.0]])
    draws = {"levels": chains([-4.0, 0.0, 5.0], ORDERS, random), "rates": chains(matrix, ORDERS, random, (0, 1))}
    assert topics(draws)[0] == "label switching"


@pytest.mark.parametrize("kind", ["another place", "two orders", "another density", "a scalar, too"])
def test_other_differences_between_chains_are_no_label_switching(kind):
    random = np.random.default_rng(2)
    draws, log_density = {"means": chains([-4.0, 0.0, 5.0], ORDERS, random)}, random.normal(size=(4, DRAWS))
    if kind == "another place":
        draws["means"][1, :, 0] += 3.0
    elif kind == "two orders":
        draws["scales"] = chains([1.0, 4.0, 8.0], [[0, 1, 2], [0, 1, 2], [2, 1, 0], [0, 1, 2]], random)
    elif kind == "another density":
        log_density[1] -= 20.0
    else:
        draws["scale"] = random.normal(size=(4, DRAWS)) + np.array([0.0, 5.0, 0.0, 5.0])[:, None]
    found = topics(draws, log_density)
    assert "high R-hat" in found and "label switching" not in found


def test_chains_that_agree_have_no_other_order():
    random = np.random.default_rng(3)
    assert topics({"means": chains([-4.0, 0.0, 5.0], [[0, 1, 2]] * 4, random)}) == []
