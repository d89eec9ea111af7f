from dataclasses import replace

import numpy as np
from tests.unit.report.posteriors import make_posterior

from phalanx.report.plots.chosen import choose_quantities


def test_the_log_density_comes_first_then_the_worst_rhat():
    posterior = make_posterior()
    w = posterior.draws["w"].copy()
    w[..., 1, 0] += 3 * np.arange(4)[:, None]
    posterior.draws["b"][:] += 1 * np.arange(4)[:, None]
    chosen = choose_quantities(replace(posterior, draws={**posterior.draws, "w": w}))
    assert [quantity.name for quantity in chosen[:3]] == ["log_density", "w[1,0]", "b"]
    assert len(chosen) == 6
    np.testing.assert_array_equal(chosen[0].values, posterior.stats["log_density"])
    np.testing.assert_array_equal(chosen[1].values, w[..., 1, 0])
    np.testing.assert_array_equal(chosen[2].values, posterior.draws["b"])


def test_each_name_has_its_own_values():
    posterior = make_posterior()
    empty = np.zeros((4, 100, 0))
    draws = {"none": empty, "b": posterior.draws["b"], "nothing": empty, "w": posterior.draws["w"][..., :1, :]}
    for name, values in choose_quantities(replace(posterior, draws=draws))[1:]:
        expected = draws["b"] if name == "b" else draws["w"][..., 0, int(name[-2])]
        np.testing.assert_array_equal(values, expected)


def test_a_variable_may_be_called_log_density():
    random = np.random.default_rng(1)
    posterior = make_posterior(variables={"log_density": random.normal(size=(4, 100))})
    first, second = choose_quantities(posterior)
    np.testing.assert_array_equal(first.values, posterior.stats["log_density"])
    np.testing.assert_array_equal(second.values, posterior.draws["log_density"])


def test_a_run_that_kept_no_variables_shows_the_log_density():
    assert [name for name, _ in choose_quantities(make_posterior(variables={}))] == ["log_density"]


def test_values_that_are_not_finite_are_nan():
    values = np.zeros((4, 100))
    values[0, :2] = np.inf, -np.inf
    quantity = choose_quantities(make_posterior(variables={"x": values}))[1]
    assert np.isnan(quantity.values[0, :2]).all()
    assert np.isfinite(quantity.values[:, 2:]).all()
