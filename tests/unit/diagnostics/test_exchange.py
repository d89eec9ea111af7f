import arviz
import numpy as np

from phalanx.diagnostics import to_arviz


def test_draws_and_statistics_go_into_their_groups_under_arviz_names():
    random = np.random.default_rng(0)
    draws = {"w": random.normal(size=(4, 30, 2)), "a": random.normal(size=(4, 30))}
    stats = {"num_steps": np.full((4, 30), 7), "log_density": draws["a"], "diverging": np.zeros((4, 30), bool)}
    data = to_arviz(draws, stats)
    assert data.posterior["w"].dims == ("chain", "draw", "w_dim_0")
    np.testing.assert_array_equal(data.posterior["w"].values, draws["w"])
    assert set(data.sample_stats) == {"n_steps", "lp", "diverging"}
    np.testing.assert_array_equal(data.sample_stats["lp"].values, draws["a"])


def test_the_container_is_the_one_of_the_installed_arviz():
    data = to_arviz({"a": np.zeros((2, 5))}, {"energy": np.zeros((2, 5))})
    expected = "InferenceData" if arviz.__version__.startswith("0.") else "DataTree"
    assert type(data).__name__ == expected


def test_arviz_reads_it():
    draws = np.random.default_rng(0).normal(size=(4, 100, 2))
    data = to_arviz({"w": draws}, {"energy": draws[..., 0]})
    np.testing.assert_allclose(arviz.rhat(data)["w"].values[1], arviz.rhat(draws[..., 1]))  # pyright: ignore[reportIndexIssue]


def test_more_chains_than_draws_do_not_warn():
    data = to_arviz({"a": np.zeros((50, 3))}, {})
    assert data.posterior.sizes["chain"] == 50


def test_the_statistics_of_nuts_go_under_arviz_names():
    stats = {"tree_depth": np.full((2, 5), 3), "reached_max_depth": np.zeros((2, 5), bool)}
    assert set(to_arviz({"a": np.zeros((2, 5))}, stats).sample_stats) == {"tree_depth", "reached_max_treedepth"}


def test_labels_are_coordinates():
    data = to_arviz({"w": np.arange(24.0).reshape(2, 3, 2, 2)}, {}, {"w": (("a", "b"), None)})
    assert data.posterior["w"].sel(w_dim_0="b", w_dim_1=1).values.tolist() == [[3, 7, 11], [15, 19, 23]]
