import numpy as np
import pytest
from matplotlib.colors import to_hex

from phalanx.report.plots.chosen import Quantity
from phalanx.report.plots.pairs import pair_figure
from phalanx.report.plots.style import ACCENT, ALARM


@pytest.fixture
def values():
    return np.random.default_rng(0).normal(size=(3, 4, 500))


def quantities(values):
    return [Quantity(f"x[{i}]", value) for i, value in enumerate(values)]


def seen(figure):
    return np.array([axes for axes in figure.axes if axes.get_visible()])


def limits(figure, name):
    (axes,) = [axes for axes in seen(figure) if axes.get_xlabel() == name]
    return axes.get_xlim()


def test_divergent_draws_lie_on_top_in_red(values):
    diverging = np.zeros((4, 500), dtype=bool)
    diverging[2, [5, 77]] = True
    figure = pair_figure(quantities(values), diverging)
    assert len(seen(figure)) == 6  # the lower triangle of three by three
    below = figure.axes[3]  # the second row's first panel: x[1] over x[0]
    draws, divergent = below.lines
    assert (to_hex(draws.get_color()), to_hex(divergent.get_color())) == (ACCENT, ALARM)
    np.testing.assert_array_equal(divergent.get_xdata(), values[0, 2, [5, 77]])
    np.testing.assert_array_equal(divergent.get_ydata(), values[1, 2, [5, 77]])
    assert len(np.asarray(draws.get_xdata())) == 1998
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == ["1,998 draws", "2 divergent draws"]


def test_names_stand_along_the_edges_only(values):
    figure = pair_figure(quantities(values), np.zeros((4, 500), bool))
    assert sorted(axes.get_xlabel() for axes in seen(figure)) == ["", "", "", "x[0]", "x[1]", "x[2]"]
    assert sorted(axes.get_ylabel() for axes in seen(figure)) == ["", "", "", "", "x[1]", "x[2]"]


def test_far_out_draws_do_not_squeeze_the_others(values):
    heavy = np.random.default_rng(1).standard_cauchy((4, 500))
    low, high = limits(pair_figure(quantities([values[0], heavy]), np.zeros((4, 500), bool)), "x[1]")
    assert -12 < low < -4 and 4 < high < 12


def test_divergent_draws_far_out_are_in_the_picture(values):
    diverging = np.zeros((4, 500), dtype=bool)
    diverging[0, :40] = True
    values[1][diverging] += 50
    low, high = limits(pair_figure(quantities(values), diverging), "x[1]")
    assert low < -2 and high > 51


def test_positive_skewed_values_are_shown_by_magnitude(values):
    scales = [values[0], np.exp(values[1]), np.exp(values[2]) - 1, 100 + values[2]]
    figure = pair_figure(quantities(scales), np.zeros((4, 500), bool))
    assert [axes.get_xscale() for axes in figure.axes[12:]] == ["linear", "log", "linear", "linear"]
    assert figure.axes[4].get_yscale() == "log"


def test_whole_numbers_have_whole_ticks(values):
    figure = pair_figure(quantities([values[0], (values[1] > 0).astype(float)]), np.zeros((4, 500), bool))
    assert set(figure.axes[3].get_xticks()) <= set(range(-2, 4))


@pytest.mark.parametrize("bad", [1.0, np.nan])
def test_fewer_than_two_that_vary_are_said_in_words(values, bad):
    values[1:] = bad
    (axes,) = pair_figure(quantities(values), np.zeros((4, 500), bool)).axes
    assert [text.get_text() for text in axes.texts] == ["pairs need two quantities that vary"]


def test_long_runs_are_thinned_for_the_eye():
    values = np.random.default_rng(0).normal(size=(2, 4, 5000))
    figure = pair_figure(quantities(values), np.random.default_rng(1).random((4, 5000)) < 0.4)
    for line in figure.axes[2].lines:
        assert 1500 < len(np.asarray(line.get_xdata())) <= 3000
