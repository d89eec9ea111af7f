import re
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.report.posteriors import make_posterior, with_stats

from phalanx.diagnostics import Finding, judge, judged, rhat
from phalanx.diagnostics.judging.checked_run import high_rhat
from phalanx.diagnostics.judging.checks import gathers, mean_of_uniforms


@pytest.fixture(scope="module")
def converged():
    return make_posterior(draws=1000)


def topics(posterior):
    return [finding.topic for finding in posterior.verdict().findings]


def only_finding(posterior):
    (finding,) = posterior.verdict().findings
    return finding


def with_draws(posterior, **variables):
    return replace(posterior, draws={**posterior.draws, **variables})


def test_a_converged_run_is_good_to_use(converged):
    verdict = converged.verdict()
    assert verdict and verdict.good
    assert verdict.findings == ()
    assert re.fullmatch(
        r"Good to use: R-hat is 1\.00\d or less, and there are 3,\d\d\d effective draws or more\.", str(verdict)
    )
    assert [words.split(":")[0] for words in verdict.passed] == [
        "The chains agree",
        "No draw diverged.",
        "The chains move freely through their energies",
        "There are enough draws",
    ]


def test_chains_that_disagree_are_named_worst_first(converged):
    w = converged.draws["w"].copy()
    w[..., 1, 2] += np.arange(4)[:, None]
    verdict = with_draws(converged, w=w, b=converged.draws["b"] + 9 * np.arange(4)[:, None]).verdict()
    assert not verdict
    assert verdict.headline == "Not good to use yet: high R-hat, low ESS."
    rhat, ess = verdict.findings
    assert re.search(
        r"2 of 9 quantities have an R-hat of 1\.01 or more: b \d\.\d{3}, w\[1,2\] \d\.\d{3}\.$", rhat.problem
    )
    assert re.search(r"^2 of 9 quantities have fewer than 400 effective draws: b \d, w\[1,2\] \d+\.$", ess.problem)
    assert "parametrisation" in rhat.advice and "parametrisation" in ess.advice
    assert str(verdict).splitlines() == [
        verdict.headline,
        f"- {rhat.problem}",
        f"  Try {rhat.advice}.",
        f"- {ess.problem}",
        f"  Try {ess.advice}.",
    ]


def test_three_of_many_bad_quantities_are_named(converged):
    w = converged.draws["w"] + 3 * np.arange(4)[:, None, None, None]
    problem = with_draws(converged, w=w).verdict().findings[0].problem
    assert "6 of 9 quantities have" in problem
    assert problem.count("w[") == 3 and problem.endswith(" and 3 more.")


@pytest.mark.parametrize("chains, needed", [(2, 200), (3, 300), (4, 400), (64, 400)])
def test_a_hundred_effective_draws_a_chain_are_enough_and_four_hundred_in_all(chains, needed):
    posterior = make_posterior(chains, 4, variables={})
    table = posterior.summary().assign(r_hat=1.0, ess_bulk=1000.0, ess_tail=float(needed))
    assert judge(table, posterior.stats).good
    (finding,) = judge(table.assign(ess_tail=needed - 1.0), posterior.stats).findings
    assert finding.topic == "low ESS"


@pytest.mark.parametrize(
    "effective, advice",
    [
        (399, "2 times as many draws (num_samples)"),
        (90, "5 times as many draws (num_samples)"),
        (8, "another parametrisation; with this one, 50 times as many draws"),
    ],
)
def test_few_effective_draws_are_told_how_many_more_it_takes(effective, advice):
    posterior = make_posterior(4, 4, variables={})
    table = posterior.summary().assign(r_hat=1.0, ess_bulk=float(effective), ess_tail=1000.0)
    assert judge(table, posterior.stats).findings[0].advice == advice


def modes(places, draws=1000, size=1, spread=1.0):
    """Chains that each keep to a place of their own."""
    noise = spread * np.random.default_rng(0).normal(size=(len(places), draws, size))
    return make_posterior(len(places), draws, variables={"x": noise + np.array(places)[:, None, None]})


@pytest.mark.parametrize("draws", [50, 1000])
def test_chains_in_different_places_are_told_so_and_not_to_draw_more(draws):
    verdict = modes([-20, 20, -20, 20], draws).verdict()
    text = str(verdict)
    assert "The chains sit in different places: x[0] is near -" in text and " in chains 0, 2; near " in text
    assert " in chains 1, 3. " in text and "times as many" not in text and "longer warm-up" not in text
    assert verdict.headline == "Not good to use yet: high R-hat, low ESS."


def test_the_quantity_that_tells_places_apart_best_is_named():
    noise = np.random.default_rng(0).normal(size=(6, 400, 3))
    noise[:, :, 1] += np.array([0, 0, 9, 0, 0, 0])[:, None]
    noise[:, :, 2] += np.array([0, 0, 90, 0, -90, 0])[:, None]
    problem = make_posterior(6, 400, variables={"x": noise}).verdict().findings[0].problem
    assert problem.startswith("The chains sit in different places: x[2] is near ")
    assert " in chains 0, 1, 3 and 1 more; near " in problem and " in chain 2" in problem


def test_chains_that_mingle_are_not_said_to_sit_apart():
    walks = np.random.default_rng(0).normal(size=(4, 1000, 1))
    walks[1] += 0.5
    text = str(make_posterior(4, 1000, variables={"x": walks}).verdict())
    assert "do not agree" in text and "places" not in text


@pytest.mark.parametrize("chains, draws, quantities", [(4, 250, 500), (2, 100, 200), (16, 30, 200), (64, 20, 100)])
def test_independent_draws_are_hardly_ever_said_to_disagree(chains, draws, quantities):
    # declared: one false alarm in a hundred runs at most; more than one in ten by chance, once in two hundred trials
    flagged, random = 0, np.random.default_rng(chains)
    for _ in range(10):
        values = rhat(random.normal(size=(chains, draws, quantities)))
        flagged += values.max() >= high_rhat(chains, draws, quantities)
    assert flagged <= 1


@pytest.mark.parametrize("chains, draws, quantities", [(4, 250, 500), (4, 125, 10), (64, 20, 100), (4, 1000, 1000)])
def test_chains_that_differ_are_still_said_to(chains, draws, quantities):
    values = np.random.default_rng(1).normal(size=(chains, draws, 1))
    values[: chains // 4] += 1.0
    assert rhat(values).max() > high_rhat(chains, draws, quantities)
    assert high_rhat(4, 1000, 10) == high_rhat(64, 1000, 10_000) == 1.01


def test_no_more_is_promised_of_short_chains_than_they_tell():
    random = np.random.default_rng(0)
    short = make_posterior(16, 60, variables={"x": random.normal(size=(16, 60, 20))})
    (agree,) = (words for words in short.verdict().passed if words.startswith("The chains agree"))
    assert agree.endswith("no more than chance explains with 60 draws of each.")


def diverging(posterior, where):
    return with_stats(posterior, diverging=where)


def test_a_few_scattered_divergences_leave_a_run_usable(converged):
    where = np.random.default_rng(0).random((4, 1000)) < 0.003
    verdict = diverging(converged, where).verdict()
    (finding,) = verdict.findings
    assert (finding.topic, finding.grade, verdict.grade) == ("divergences", "usable", "usable")
    assert finding.problem.startswith(f"{where.sum()} draws diverged (0.")
    assert "target_acceptance" in finding.advice and "non-centred" in finding.advice
    assert not verdict and verdict.headline == "Usable, with this in mind: divergences."
    assert repr(verdict) == str(verdict)  # a notebook shows the former
    assert diverging(converged, np.arange(4000).reshape(4, 1000) == 5).verdict().grade == "usable"


def test_many_divergences_are_not_good_wherever_they_are(converged):
    verdict = diverging(converged, np.random.default_rng(0).random((4, 1000)) < 0.02).verdict()
    assert verdict.grade == "not good"


@pytest.mark.parametrize(
    "words, where",
    [
        ("b is small", lambda b: b),
        ("b is large", lambda b: -b),
        ("b is far from its median", lambda b: -np.abs(b - np.median(b))),
        ("b is near its median", lambda b: np.abs(b - np.median(b))),
    ],
)
def test_divergences_that_gather_are_not_good_and_the_place_is_named(converged, words, where):
    values = where(converged.draws["b"])
    verdict = diverging(converged, values < np.sort(values.ravel())[30]).verdict()
    assert verdict.grade == "not good" and words in verdict.findings[0].problem


def test_divergences_that_gather_nowhere_are_hardly_ever_said_to():
    # declared: one false alarm in a hundred; more than six of 200 by chance, once in 200 trials
    random, flagged = np.random.default_rng(4), 0
    for _ in range(200):
        columns = [(str(number), random.normal(size=(4, 250))) for number in range(10)]
        flagged += gathers(random.random((4, 250)) < 0.01, columns) is not None
    assert flagged <= 6


def test_divergences_of_chains_that_hardly_move_are_not_good(converged):
    slow = 0.99 * np.random.default_rng(1).normal(size=(4, 1000))
    for draw in range(1, 1000):
        slow[:, draw] = 0.93 * slow[:, draw - 1] + np.sqrt(1 - 0.93**2) * slow[:, draw]
    posterior = with_draws(converged, b=slow)
    assert posterior.verdict().grade == "usable"  # some 150 effective draws
    assert diverging(posterior, np.random.default_rng(0).random((4, 1000)) < 0.002).verdict().grade == "not good"


def test_the_mean_of_uniform_variables_has_its_distribution():
    random = np.random.default_rng(0)
    for count in (1, 2, 5, 16, 17, 50):
        means = random.random((20_000, count)).mean(axis=1)
        found = [mean_of_uniforms(float(mean), count) for mean in np.sort(means)[::200]]
        np.testing.assert_allclose(found, np.arange(0, 1, 0.01), atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("thinned", [1, 3])
def test_chains_that_agree_are_hardly_ever_said_to_differ(thinned):
    """Whatever their autocorrelation: of antithetic chains, distances from the median are not antithetic."""
    # declared: one false alarm in a hundred runs of 300 quantities; more than two of 20 by chance, once in 1,000 trials
    random, flagged = np.random.default_rng(thinned), 0
    for _ in range(20):
        values = random.normal(size=(4, 300, 300))
        for draw in range(1, 300):
            values[:, draw] = -0.6 * values[:, draw - 1] + 0.8 * values[:, draw] if thinned == 1 else (
                0.4 * values[:, draw - 1] + np.sqrt(0.84) * values[:, draw]
            )  # fmt: skip
        flagged += "high R-hat" in topics(make_posterior(4, 300, variables={"x": values}))
    assert flagged <= 2


@pytest.mark.parametrize("length", [300, 1000])
def test_a_chain_that_is_elsewhere_is_found_among_many_quantities(length):
    values = np.random.default_rng(0).normal(size=(4, length, 300))
    values[2, :, 7] += 0.6
    verdict = make_posterior(4, length, variables={"x": values}).verdict()
    assert verdict.grade == "not good" or "x[7]" in str(verdict)
    assert not verdict.good


def test_the_grade_is_that_of_the_worst_finding():
    mild, bad = Finding("a", "b.", "c", "usable"), Finding("d", "e.", "f")
    assert judged([], []).grade == "good" and judged([mild], []).grade == "usable"
    verdict = judged([mild, bad], [])
    assert verdict.grade == "not good" and not verdict.good and verdict.findings == (bad, mild)
    assert verdict.headline == "Not good to use yet: d, a."
    assert bad.grade == "not good"  # the default


def test_trees_that_are_cut_off_are_a_finding_once_they_are_no_accident(converged):
    reached = np.zeros((4, 1000), dtype=bool)
    reached[2, :39] = True
    assert "Trajectories ended by themselves, below the largest tree depth." in (
        with_stats(converged, reached_max_depth=reached).verdict().passed
    )
    reached[2, :200] = True
    finding = only_finding(with_stats(converged, reached_max_depth=reached))
    assert finding.topic == "full trees"
    assert "in 5.0% of the draws, in chain 2" in finding.problem
    assert "max_depth" in finding.advice


def test_energies_that_barely_move_are_a_finding(converged):
    energy = converged.stats["energy"].astype(np.float64)
    energy[1] = np.random.default_rng(0).normal(size=1000).cumsum()
    finding = only_finding(with_stats(converged, energy=energy))
    assert finding.problem.startswith("E-BFMI is below 0.3 in 1 chain (least: 0.0")


def test_one_of_several_short_chains_does_not_decide():
    random = np.random.default_rng(0)
    posterior = make_posterior(100, 20, variables={})
    slow = random.normal(size=(100, 20)).cumsum(axis=1)
    energy = np.where(np.arange(100)[:, None] < 40, slow, posterior.stats["energy"])
    rates = np.where(np.arange(100)[:, None] < 40, 0.01, posterior.stats["acceptance_rate"])
    assert topics(with_stats(posterior, energy=energy, acceptance_rate=rates)) == []
    steady = np.linspace(0, 1, 20) + np.zeros((100, 1))
    most = with_stats(posterior, energy=steady, acceptance_rate=np.full((100, 20), 0.01))
    assert topics(most) == ["low E-BFMI", "low acceptance"]


@pytest.mark.parametrize("energy", ["nan", "potential"])
def test_a_kernel_without_kinetic_energy_is_not_asked_for_it(converged, energy):
    log_density = converged.stats["log_density"]
    walk = with_stats(converged, energy=np.full_like(log_density, np.nan) if energy == "nan" else -log_density)
    assert walk.verdict().good
    assert not any("energies" in words for words in walk.verdict().passed)


def test_chains_that_reject_nearly_everything_are_a_finding(converged):
    rates = converged.stats["acceptance_rate"].copy()
    rates[3] = 0.004
    finding = only_finding(with_stats(converged, acceptance_rate=rates))
    assert finding.problem == "Hardly a proposal is accepted in chain 3 (least: 0.4%)."
    assert with_stats(converged, acceptance_rate=np.full((4, 1000), np.nan)).verdict().good


def test_one_chain_is_not_enough():
    assert topics(make_posterior(chains=1, draws=1000)) == ["one chain"]


@pytest.mark.parametrize("chains, draws, topic", [(4, 3, "few draws"), (1, 1, "few draws"), (4, 0, "no draws")])
def test_too_few_draws_to_tell(chains, draws, topic):
    verdict = make_posterior(chains, draws).verdict()
    assert verdict.headline == f"Not good to use yet: {topic}."
    assert [finding.topic for finding in verdict.findings] == [topic]


def test_draws_that_are_not_finite_are_named(converged):
    b = converged.draws["b"].copy()
    b[0, 7] = np.inf
    finding = only_finding(with_draws(converged, b=b))
    assert finding.problem == "1 of 9 quantities is not finite in some draws: b."


def test_a_constant_element_is_in_order_and_constants_alone_are_not(converged):
    w = converged.draws["w"].copy()
    w[..., 0, 1] = 0
    verdict = with_draws(converged, w=w).verdict()
    assert verdict.good
    assert "1 of 9 quantities is constant, and left out: w[0,1]." in verdict.passed
    still = np.ones((4, 1000))
    posterior = with_stats(make_posterior(draws=1000, variables={"x": still}), log_density=still, energy=still * np.nan)
    assert topics(posterior) == ["no movement"]


def test_chains_stuck_at_different_places_disagree_beyond_bounds(converged):
    stuck = np.repeat(np.arange(4.0)[:, None], 1000, axis=1)
    assert "b over 100" in with_draws(converged, b=stuck).verdict().findings[0].problem


def test_many_short_chains_are_told_that_they_are_short():
    values = np.random.default_rng(0).normal(size=(64, 20, 1)).cumsum(axis=1)
    advice = make_posterior(64, 20, variables={"x": values}).verdict().findings[0].advice
    assert advice.startswith("more draws of each chain: chains this short")


def test_without_statistics_there_is_nothing_to_judge_by():
    with pytest.raises(ValueError, match=r"^judge: there are no statistics; give one array of shape"):
        judge(make_posterior().summary(), {})


def test_chains_that_stand_still_far_apart_have_places(converged):
    stuck = np.repeat(1e6 * np.arange(4.0)[:, None], 1000, axis=1)
    text = str(with_draws(converged, b=stuck).verdict())
    assert "different places: b is near 0 in chain 0; near 1e+06 in " in text
