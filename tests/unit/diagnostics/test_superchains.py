"""Verdicts on short chains in superchains: nested R-hat grades them, in both directions."""

from dataclasses import replace

import numpy as np
import pytest
from tests.unit.report.posteriors import make_posterior

from phalanx.diagnostics import judge, summary_table

CHAINS, GROUPS, DRAWS = 512, 16, 10


def autoregressive(random, slow, begin, draws=DRAWS):
    """Chains of a standard normal, from given values; `slow` is the correlation of neighbouring draws."""
    chains, now = np.empty((len(begin), draws)), begin
    for number in range(draws):
        now = slow * now + np.sqrt(1 - slow**2) * random.normal(size=len(begin))
        chains[:, number] = now
    return chains


def verdict(draws, superchains=GROUPS):
    stats = {"diverging": np.zeros(draws.shape[:2], bool)}
    return judge(summary_table({"x": draws}), stats, draws={"x": draws}, superchains=superchains)


@pytest.mark.parametrize("slow", [0.2, 0.95, 0.999])
def test_chains_that_have_forgotten_their_starts_are_good_however_slowly_they_move(slow):
    random = np.random.default_rng(1)
    runs = [autoregressive(random, slow, random.normal(size=CHAINS)) for _ in range(40)]
    good = [verdict(draws).good for draws in runs]
    assert np.mean(good) >= 0.9  # a hundredth of converged runs fails; of 40 more than four do once in 100,000 trials
    assert "nested R-hat" in str(verdict(runs[0]))
    if slow > 0.9:
        assert not any(verdict(draws, superchains=0).good for draws in runs[:5])  # R-hat grades no chains this short


@pytest.mark.parametrize("kept", [1.0, 0.5])
def test_groups_that_depend_on_their_starts_are_not_good(kept):
    random = np.random.default_rng(2)
    for _ in range(10):
        starts = np.repeat(random.normal(size=GROUPS), CHAINS // GROUPS)
        begin = kept * starts + np.sqrt(1 - kept**2) * random.normal(size=CHAINS)
        found = verdict(autoregressive(random, 0.95, begin))
        assert not found.good and "nested R-hat of 1.01 or more" in str(found)


def test_groups_in_different_modes_are_not_good():
    random = np.random.default_rng(3)
    modes = np.repeat(random.choice([-5.0, 5.0], GROUPS), CHAINS // GROUPS)
    found = verdict(autoregressive(random, 0.3, random.normal(size=CHAINS)) + modes[:, None])
    assert found.grade == "not good" and "different places" in str(found)


def test_groups_of_another_spread_are_not_good():
    random = np.random.default_rng(4)
    spread = np.repeat(np.geomspace(0.3, 3.0, GROUPS), CHAINS // GROUPS)
    assert verdict(autoregressive(random, 0.3, random.normal(size=CHAINS)) * spread[:, None]).grade == "not good"


def test_a_drift_that_all_groups_share_is_not_good():
    random = np.random.default_rng(5)
    drifting = autoregressive(random, 0.5, random.normal(size=CHAINS)) + np.linspace(1.0, 0.0, DRAWS)
    assert verdict(drifting).grade == "not good"


def test_chains_that_stand_still_are_not_good():
    starts = np.repeat(np.random.default_rng(6).normal(size=GROUPS), CHAINS // GROUPS)
    assert verdict(np.repeat(starts[:, None], DRAWS, 1)).grade == "not good"


def test_a_quantity_that_agrees_lies_beside_one_that_does_not():
    random = np.random.default_rng(8)
    draws = {name: autoregressive(random, 0.2, random.normal(size=CHAINS)) for name in "ab"}
    draws["b"] += np.repeat(np.arange(GROUPS), CHAINS // GROUPS)[:, None]
    stats = {"diverging": np.zeros((CHAINS, DRAWS), bool)}
    found = judge(summary_table(draws), stats, draws=draws, superchains=GROUPS)
    assert "1 of 2 quantities has a nested R-hat" in str(found)


def test_long_chains_and_groups_of_one_chain_are_graded_by_r_hat():
    random = np.random.default_rng(7)
    long = autoregressive(random, 0.2, random.normal(size=32), 400)
    short = autoregressive(random, 0.2, random.normal(size=GROUPS), 50)
    for draws in long, short:
        assert str(verdict(draws)) == str(verdict(draws, superchains=0))


def test_a_posterior_knows_its_superchains():
    posterior = make_posterior(chains=64, draws=20)
    nested = replace(posterior, record=replace(posterior.record, superchains=8))
    assert "nested" not in str(posterior.verdict()) and "nested R-hat" in "".join(map(str, nested.verdict().passed))
