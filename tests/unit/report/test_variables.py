"""Pictures of variables: marginals, forests and autocorrelation, whatever the draws are; and their SVG."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from phalanx.report.page import svg, take_legend
from phalanx.report.plots.chains import autocorrelation_figure, autocorrelations
from phalanx.report.plots.chosen import Quantity
from phalanx.report.plots.predictive_check import pareto_figure, predictive_figure, statistics_figure
from phalanx.report.plots.variables import VariableDraws, forest_figure, marginal_figure

RANDOM = np.random.default_rng(0)


def words(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def variable(values, **others):
    labels = [f"x[{element}]" for element in range(values.shape[1])] if values.shape[1] > 1 else ["x"]
    return VariableDraws("x", labels, values, **others)


def test_a_marginal_names_its_interval_and_a_log_axis():
    (axes,) = marginal_figure(variable(np.exp(2 * RANDOM.normal(size=(2000, 1))))).axes
    assert axes.get_xscale() == "log" and re.fullmatch(r"mean .*, 94% from .* to .* \(log axis\)", axes.get_xlabel())


def test_a_narrow_prior_beside_the_posterior_is_reached():
    values, prior = RANDOM.normal(5, 1, size=(2000, 1)), RANDOM.normal(2, 0.1, size=(2000, 1))
    (axes,) = marginal_figure(variable(values, prior=prior)).axes
    low, high = axes.get_xlim()
    assert low < 2 and 7 < high < 10


@pytest.mark.parametrize(
    "bad, said", [(3.0, "constant: 3"), (np.nan, "no draw is finite"), (np.inf, "no draw is finite")]
)
def test_draws_without_a_histogram_are_words(bad, said):
    assert words(marginal_figure(variable(np.full((50, 1), bad)))) == [said]
    assert words(forest_figure(variable(np.full((50, 3), bad)))) == [said]


def test_whole_numbers_have_bars_of_one():
    (axes,) = marginal_figure(variable(RANDOM.poisson(3.0, size=(500, 1)))).axes
    bars: Any = axes.patches[0]
    edges = bars.get_data().edges
    np.testing.assert_array_equal(np.diff(edges), 1.0)
    np.testing.assert_array_equal(edges % 1, 0.5)


def test_elements_are_rows_with_their_labels_and_many_are_lines():
    (rows,) = forest_figure(variable(RANDOM.normal(size=(200, 3)), prior=RANDOM.normal(size=(200, 3)))).axes
    assert [label.get_text() for label in rows.get_yticklabels()] == ["0", "1", "2"]
    assert rows.yaxis_inverted()
    (lines,) = forest_figure(variable(RANDOM.normal(size=(200, 30)), beside=RANDOM.normal(size=(200, 30)))).axes
    assert len(lines.collections) == 2 and lines.get_xlabel() == "element, from 0; mean, 94%"
    (every,) = forest_figure(variable(RANDOM.normal(size=(20, 6000)))).axes
    assert "every 3rd shown" in every.get_xlabel()


def test_long_forests_have_the_names_of_elements():
    values = RANDOM.normal(size=(20, 30))
    named = VariableDraws("x", [f"x[county {number}]" for number in range(30)], values)
    (axes,) = forest_figure(named).axes
    words = [label.get_text() for label in axes.get_xticklabels()]
    assert words[:2] == ["county 0", "county 3"] and len(words) == 10 and axes.get_xlabel() == "element; mean, 94%"
    matrix = VariableDraws("x", [f"x[{row},{column}]" for row in range(10) for column in range(3)], values)
    assert forest_figure(matrix).axes[0].get_xticklabels()[1].get_text() == "1,0"


def test_one_bad_element_leaves_the_others():
    values = RANDOM.normal(size=(200, 3))
    values[5, 1] = np.nan
    (axes,) = forest_figure(variable(values)).axes
    assert len(axes.lines) == 2 * 3


def test_autocorrelation_of_a_known_process():
    noise, series = RANDOM.normal(size=(4, 20_000)), np.zeros((4, 20_000))
    for draw in range(1, 20_000):
        series[:, draw] = 0.8 * series[:, draw - 1] + noise[:, draw]
    found = autocorrelations(series)
    np.testing.assert_allclose(found[:, :4], np.tile(0.8 ** np.arange(4), (4, 1)), atol=0.05)
    assert found.shape == (4, 101)
    assert words(autocorrelation_figure(Quantity("x", np.zeros((4, 100))))) == [
        "too few draws that are finite and vary"
    ]


def test_a_bad_fit_lies_outside_of_the_replicates():
    observed, again = RANDOM.normal(5, 1, size=50), RANDOM.normal(size=(100, 50))
    titles = [axes.get_title(loc="left") for axes in statistics_figure("y", observed, again).axes]
    assert titles[0] == "mean: 0% above"
    (axes,) = predictive_figure("y", observed, again).axes
    assert axes.get_ylabel() == "share of values"
    missing = np.where(np.arange(50) == 3, np.nan, observed)
    assert words(predictive_figure("y", missing, again)) == ["some observed values are not finite"]
    assert "unreliable above 0.7" in words(pareto_figure("y", np.array([0.1, np.nan, 2.0])))


def test_svg_has_colours_of_the_page_true_text_and_no_address():
    figure = forest_figure(variable(RANDOM.normal(size=(200, 3))))
    figure.axes[0].set_title("0.123456 <b>", loc="left")
    text = svg(figure)
    assert text.startswith("<svg viewBox=") and "http" not in text and "var(--accent)" in text and "#2f6db3" not in text
    assert "0.123456 &lt;b&gt;" in text
    assert set(re.findall(r' id="([^"]*)"', text)) == set(re.findall(r'#([^")]+)["\)]', text))
    assert take_legend(figure) == []
