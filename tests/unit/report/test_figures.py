import subprocess
import sys

import numpy as np
import pytest
from matplotlib.colors import to_hex
from tests.unit.report.posteriors import make_posterior, with_divergences, with_stats

from phalanx.report import save_figures
from phalanx.report.plots.chains import rank_counts, rank_figure, trace_figure
from phalanx.report.plots.chosen import Quantity, choose_quantities
from phalanx.report.plots.sampler import energy_figure
from phalanx.report.plots.style import ALARM, explain, new_figure, printable


def words(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


@pytest.mark.parametrize(
    "chains, draws", [(1, 10), (1, 1), (2, 3), (4, 100), pytest.param(8, 3000, marks=pytest.mark.slow), (256, 20)]
)
def test_four_pictures_whatever_the_sizes(tmp_path, chains, draws):
    paths = save_figures(make_posterior(chains, draws, variables={}), tmp_path / "figures")
    assert [path.name for path in paths] == ["traces.png", "ranks.png", "pairs.png", "energy.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_constants_infinities_and_odd_names_can_be_drawn(tmp_path):
    values = {
        "$x_1": np.ones((4, 50)),
        "数\n": np.full((4, 50), np.inf),
        "nan": np.full((4, 50), np.nan),
        "huge": np.full((4, 50), 1e300),
        "n": np.arange(200).reshape(4, 50) * 10**12,
    }
    assert len(save_figures(make_posterior(draws=50, variables=values), tmp_path)) == 4


@pytest.mark.slow
def test_pyplot_is_left_alone():
    script = (
        "import sys; from tests.unit.report.posteriors import make_posterior;"
        "import phalanx.report.plots.figures as figures;"
        "import phalanx.report.plots.chains as traces, numpy as np; from phalanx.report.plots.chosen import Quantity;"
        "figures.png(traces.trace_figure([Quantity('x', np.zeros((2, 5)))], np.zeros((2, 5), bool)));"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_few_chains_are_lines_and_many_are_bands():
    few, many = (
        trace_figure([Quantity("x", np.random.default_rng(0).normal(size=(chains, 30)))], np.zeros((chains, 30), bool))
        for chains in (8, 9)
    )
    assert len(few.axes[0].lines) == 8
    assert len(many.axes[0].lines) == 2  # the median, and the chain furthest out
    assert len(many.axes[0].collections) == 2


def test_long_traces_are_thinned_for_the_eye():
    figure = trace_figure([Quantity("x", np.zeros((1, 9000)))], np.zeros((1, 9000), bool))
    shown = np.asarray(figure.axes[0].lines[0].get_xdata())
    assert len(shown) <= 2000
    assert shown[-1] > 8990


def test_divergent_draws_are_marked_in_the_traces():
    posterior = with_divergences(make_posterior(variables={}), 3)
    figure = trace_figure(choose_quantities(posterior), posterior.stats["diverging"])
    marks = [line for line in figure.axes[0].lines if to_hex(line.get_color()) == ALARM]
    assert np.asarray(marks[0].get_xdata()).tolist() == [0, 1, 2]


def test_the_chain_furthest_out_is_drawn():
    values = np.random.default_rng(0).normal(size=(20, 30))
    values[13] += 5
    figure = trace_figure([Quantity("x", values)], np.zeros((20, 30), bool))
    np.testing.assert_array_equal(figure.axes[0].lines[1].get_ydata(), values[13])


def test_ranks_count_every_draw_once():
    values = np.random.default_rng(0).normal(size=(4, 100))
    counts = rank_counts(values)
    assert counts.shape == (4, 10)
    np.testing.assert_array_equal(counts.sum(axis=1), 100)
    np.testing.assert_array_equal(counts.sum(axis=0), 40)


def test_a_chain_above_all_others_takes_the_highest_ranks():
    values = np.random.default_rng(0).normal(size=(4, 100))
    values[2] += 100
    counts = rank_counts(values)
    assert counts[2, :7].sum() == 0
    assert counts[:, 8:].sum() == counts[2, 8:].sum() == 80


def test_ranks_of_one_chain_say_why_there_are_none():
    assert words(rank_figure([Quantity("x", np.zeros((1, 10)))])) == ["ranks compare chains, and this run has one"]


def test_ranks_of_many_chains_are_a_picture_with_a_row_per_chain():
    figure = rank_figure([Quantity("x", np.random.default_rng(0).normal(size=(64, 100)))])
    counts = figure.axes[0].get_images()[0].get_array()
    assert counts is not None and counts.shape == (64, 10)


def test_statistics_that_a_kernel_lacks_are_named():
    posterior = make_posterior(variables={})
    nothing = np.full((4, 100), np.nan)
    figure = energy_figure(with_stats(posterior, energy=nothing, acceptance_rate=nothing))
    assert words(figure) == [
        "this kernel has no kinetic energy",
        "this kernel has no kinetic energy",
        "this kernel reports no acceptance rate",
        "no draw diverged",
    ]


def test_names_fit_on_one_line_of_known_characters():
    assert printable("w[0]\n数") == "w[0]□□"
    assert printable("x" * 100) == "x" * 43 + "…"
    assert printable("μ σ²") == "μ σ²"


def test_a_legend_of_long_names_stays_inside_of_its_figure():
    figure = new_figure(7.5, 3)
    axes = figure.subplots()
    for number in range(7):
        axes.plot([0, 1], [0, number], label=f"the sampler with number {number} of them")
    explain(figure)
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width
