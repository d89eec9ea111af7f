"""Verdicts on short chains in superchains: nested R-hat grades them, in both directions."""

from dataclasses import replace

import numpy as np
import pytest
from tests.unit.report.posteriors import make_posterior

from phalanx.diagnostics import judge, summary_table
from phalanx.diagnostics.judging.stationarity import shifts

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


@pytest.mark.parametrize("slow", [0.2, 0.4])
def test_chains_that_have_forgotten_their_starts_are_good(slow):
    random = np.random.default_rng(1)
    runs = [autoregressive(random, slow, random.normal(size=CHAINS)) for _ in range(40)]
    good = [verdict(draws).good for draws in runs]
    assert np.mean(good) >= 0.9  # a hundredth of converged runs fails; of 40 more than four do once in 100,000 trials
    assert "nested R-hat" in str(verdict(runs[0]))


@pytest.mark.parametrize("slow", [0.95, 0.999])
def test_agreement_does_not_excuse_chains_that_hardly_move(slow):
    random = np.random.default_rng(1)
    runs = [verdict(autoregressive(random, slow, random.normal(size=CHAINS))) for _ in range(10)]
    for found in runs:
        assert found.good == (not found.findings)
        assert found.good or found.findings[0].topic == "high R-hat"
    assert sum(found.good for found in runs) <= 6  # the groups' means differ by less than chance explains in a fifth


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


def test_means_that_move_between_two_parts_of_a_run_are_not_stationary():
    random = np.random.default_rng(9)

    def draws(begin):
        return {"x": autoregressive(random, 0.9, begin), "w": random.normal(size=(CHAINS, DRAWS, 2))}

    far = shifts(draws(random.normal(3.0, 1.0, CHAINS)), draws(random.normal(size=CHAINS))).finding
    assert far is not None and far.topic == "not stationary" and far.grade == "not good"
    assert "1 of 3 quantities moved by more than chance explains" in far.problem and "then and now: x " in far.problem
    wide = shifts(draws(random.normal(0.0, 3.0, CHAINS)), draws(random.normal(size=CHAINS))).finding
    assert wide is not None  # the mean has stayed, the spread has not


def test_stationary_chains_pass_however_slowly_they_move():
    random = np.random.default_rng(10)
    alarms = 0
    for _ in range(150):
        slow = random.choice([0.2, 0.9, 0.999])
        run = np.sinh(2 * autoregressive(random, slow, random.normal(size=CHAINS), 2 * DRAWS))  # of heavy tails
        alarms += shifts({"x": run[:, :4]}, {"x": run[:, DRAWS:]}).finding is not None
    assert alarms <= 4  # each with probability 0.002 or less


def test_processes_with_a_part_of_the_chains_add_up_to_all():
    random = np.random.default_rng(11)
    early, late = (autoregressive(random, 0.5, random.normal(at, 1.0, CHAINS)) for at in (1.0, 0.0))
    sums = []
    for part in (slice(0, 100), slice(100, None)):
        shifts({"x": early[part]}, {"x": late[part]}, total=lambda own: sums.append(own) or own)
    totals = iter([sums[0] + sums[2], sums[1] + sums[3]])
    both = shifts({"x": early}, {"x": late}, total=lambda own: next(totals))
    whole = shifts({"x": early}, {"x": late})
    assert both.num_chains == CHAINS
    np.testing.assert_allclose([both.early, both.late], [whole.early, whole.late])
    np.testing.assert_allclose(both.t, whole.t, rtol=0.1)  # scores are those of a process's own chains
