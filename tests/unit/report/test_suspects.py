from dataclasses import replace

import numpy as np
import pytest
from tests.unit.report.posteriors import make_posterior, with_stats

from phalanx.report.plots import chosen
from phalanx.report.plots.chosen import choose_suspects


def names(posterior):
    return [quantity.name for quantity in choose_suspects(posterior)]


@pytest.fixture
def posterior():
    """Thirty independent elements, of which x[17] has the worst R-hat."""
    x = np.random.default_rng(0).normal(size=(4, 500, 30))
    x[..., 17] += np.arange(4)[:, None]
    return make_posterior(4, 500, variables={"x": x})


def test_causes_of_divergences_come_first_and_then_the_worst_rhat(posterior):
    diverging = posterior.draws["x"][..., 3] < -1.5
    diverging |= np.abs(posterior.draws["x"][..., 8]) < 0.05  # in the middle, which no correlation sees
    chosen = choose_suspects(with_stats(posterior, diverging=diverging))
    assert [quantity.name for quantity in chosen[:3]] == ["x[3]", "x[8]", "x[17]"]
    assert len(chosen) == 4
    np.testing.assert_array_equal(chosen[1].values, posterior.draws["x"][..., 8])


def test_without_divergences_it_is_energies(posterior):
    energy = np.exp(posterior.draws["x"][..., 20]) + 0.1 * posterior.draws["x"][..., 21]
    assert names(with_stats(posterior, energy=energy))[0] == "x[20]"


def test_without_energies_it_is_the_worst_rhat(posterior):
    walk = with_stats(posterior, energy=-posterior.stats["log_density"])
    assert names(walk)[0] == "x[17]"
    assert len(names(walk)) == 4


def test_many_elements_and_many_draws_are_sampled(posterior, monkeypatch):
    monkeypatch.setattr(chosen, "_AT_ONCE", 7)
    monkeypatch.setattr(chosen, "_MOST_DRAWS", 100)
    diverging = posterior.draws["x"][..., 16] < -1.5
    assert names(with_stats(posterior, diverging=diverging))[0] == "x[16]"


def test_constants_and_values_that_are_not_finite_are_left_out(posterior):
    x = posterior.draws["x"].copy()
    x[..., 0], x[1, 2, 1] = 0, np.nan
    diverging = np.zeros((4, 500), bool)
    diverging[1, 2] = True
    chosen = names(with_stats(replace(posterior, draws={"x": x[..., :3], "none": x[..., :0]}), diverging=diverging))
    assert chosen == ["x[2]", "log_density"]


def test_two_at_least_if_there_are_two():
    assert names(make_posterior(variables={})) == ["log_density"]
    one = {"a": np.random.default_rng(1).normal(size=(4, 100))}
    assert names(make_posterior(variables=one)) == ["a", "log_density"]
