"""The picture of coefficients: every one in its place, on one scale."""

from __future__ import annotations

import numpy as np

from phalanx.demos.pictures.coefficients import intervals

NAMES = ["a", "b", "c", "d"]


def draw(truth=None):
    draws = np.random.default_rng(0).normal(size=(2, 200, 4)) + np.arange(4)
    panels = ({"first": np.array([0, 3]), "second": np.array([1])}, {"third": np.array([2])})
    return draws, intervals(draws, NAMES, panels, np.array([False, True, False, False]), truth)


def test_each_coefficient_is_drawn_under_its_name():
    draws, figure = draw()
    labels = [[label.get_text() for label in axes.get_yticklabels()] for axes in figure.axes]
    assert labels == [["a", "d"], ["b (no rows)"], ["c"]]
    medians = np.concatenate([np.asarray(axes.collections[-1].get_offsets())[:, 0] for axes in figure.axes])
    np.testing.assert_allclose(medians, np.median(draws.reshape(-1, 4), 0)[[0, 3, 1, 2]])
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    assert not figure.legends


def test_true_coefficients_are_marked_and_explained():
    truth = np.array([0.5, 1.5, 2.5, 3.5])
    _, figure = draw(truth)
    marked = [line.get_xdata() for axes in figure.axes for line in axes.lines if line.get_marker() == "|"]
    np.testing.assert_array_equal(np.concatenate(marked), truth[[0, 3, 1, 2]])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["true coefficient"]
