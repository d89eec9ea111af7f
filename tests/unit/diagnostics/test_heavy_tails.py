"""Tails without a variance are found in draws of chains, and ordinary tails hardly ever."""

import numpy as np
import pytest
from scipy import stats

from phalanx.diagnostics import judge, summary_table

CHAINS, DRAWS, SETS = 4, 1000, 120


def of_chains(distribution, slow=0.0, sets=SETS, seed=0):
    """Return sets of draws `(chain, draw, set)` whose normal scores are autoregressive."""
    random = np.random.default_rng(seed)
    scores = random.normal(size=(CHAINS, DRAWS, sets))
    for number in range(1, DRAWS if slow else 0):
        scores[:, number] = slow * scores[:, number - 1] + np.sqrt(1 - slow**2) * scores[:, number]
    return distribution.ppf(stats.norm.cdf(scores))


def has_no_sd(draws):
    return np.isnan(summary_table({"x": draws})["sd"].to_numpy())


def verdict(draws):
    stats_of_run = {"diverging": np.zeros(draws.shape[:2], bool)}
    return judge(summary_table({"x": draws}), stats_of_run, draws={"x": draws})


@pytest.mark.parametrize(
    "distribution",
    [
        stats.norm, stats.t(3), stats.t(5), stats.lognorm(0.5), stats.lognorm(1.0), stats.expon, stats.gamma(0.5),
        stats.gamma(3.0), stats.invgamma(3.0), stats.laplace, stats.beta(0.5, 0.5), stats.uniform,
    ],
    ids=lambda distribution: str(getattr(distribution, "dist", distribution).name),
)  # fmt: skip
def test_tails_with_a_variance_are_hardly_ever_heavy(distribution):
    for slow in (0.0, 0.8):
        # at the allowed rate of .02 more than six of 120 once in 100 trials; the rates are below .005
        assert has_no_sd(of_chains(distribution, slow)).sum() <= 6


@pytest.mark.parametrize("freedom", [1.0, 1.2])
def test_tails_without_a_variance_are_heavy(freedom):
    assert has_no_sd(of_chains(stats.t(freedom))).mean() > 0.9
    assert has_no_sd(of_chains(stats.t(freedom), 0.8)).mean() > 0.8


def test_the_wide_component_of_a_mixture_is_no_heavy_tail():
    random = np.random.default_rng(1)
    for share in (0.5, 0.2, 0.1):
        width = np.where(random.random((CHAINS, DRAWS, 50)) < share, 20.0, 1.0)
        assert has_no_sd(width * random.normal(size=width.shape)).sum() <= 3


def test_the_verdict_names_quantities_and_the_quantiles_beyond_which_too_few_draws_lie():
    cauchy = of_chains(stats.cauchy, sets=1)
    both = np.concatenate([of_chains(stats.norm, sets=1, seed=1), cauchy], axis=2)
    table = summary_table({"x": both})
    unknown = np.isnan(table.to_numpy())
    assert list(table.columns[unknown[1]]) == ["mean", "sd", "mcse_mean", "mcse_sd"] and not unknown[0].any()
    found = verdict(both)
    assert found.grade == "usable" and [finding.topic for finding in found.findings] == ["heavy tails"]
    problem = found.findings[0].problem
    beyond = 10 / table.loc["x[1]", "ess_tail"]
    assert problem.startswith(
        "1 of 2 quantities has so heavy a tail that the variance is infinite, as far as draws show"
    )
    assert f"Beyond the {beyond:.1%} and {1 - beyond:.1%} quantiles" in problem and "x[1] may have no mean" in problem


def test_short_runs_and_constants_have_no_shape():
    random = np.random.default_rng(2)
    few = summary_table({"x": random.standard_cauchy((4, 20, 5)), "c": np.ones((4, 20))})
    assert np.isfinite(few["sd"].to_numpy()).all()
