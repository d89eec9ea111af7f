from dataclasses import replace

import numpy as np
import pytest
from tests.unit.report.posteriors import make_posterior, with_divergences, with_stats

from phalanx.report.headline import format_rhat, format_seconds, headline


def say(posterior):
    cards, findings = headline(posterior, posterior.summary())
    return {card.label: card for card in cards}, [(level, words) for level, words in findings]


@pytest.fixture(scope="module")
def converged():
    return make_posterior(draws=1000)


def test_a_converged_run_raises_no_warning(converged):
    cards, findings = say(converged)
    assert {level for level, _ in findings} == {"good"}
    assert cards["draws"][1:3] == ("4,000", "4 chains, 1,000 draws each")
    assert cards["time"][1:3] == ("1 min 24 s", "333 draws per second of sampling")
    assert cards["divergences"][1] == "0"


def test_the_worst_rhat_and_least_ess_are_named(converged):
    converged = replace(converged, draws={**converged.draws, "b": converged.draws["b"] + 9 * np.arange(4)[:, None]})
    cards, findings = say(converged)
    assert cards["worst R-hat"].level == "warn"
    assert cards["worst R-hat"].remark == "b"
    assert cards["least ESS"].remark == "b"
    assert findings[0][1].startswith(
        "The chains do not agree yet: 1 of 9 quantities has an R-hat above 1.01, the worst is"
    )


def test_divergences_are_counted(converged):
    cards, findings = say(with_divergences(converged, 12))
    assert cards["divergences"][1:] == ("12", "0.3% of the draws, in 1 chain", "warn")
    assert any(
        level == "warn" and words.startswith("12 draws diverged (0.3% of the draws, in 1 chain)")
        for level, words in findings
    )


def test_energies_that_barely_move_are_a_warning(converged):
    slow = np.cumsum(np.random.default_rng(0).normal(size=(4, 1000)), axis=1)
    cards, findings = say(with_stats(converged, energy=slow))
    assert cards["least E-BFMI"].level == "warn"
    assert any(words.startswith("E-BFMI is below 0.3 in 4 chains") for _, words in findings)


@pytest.mark.parametrize("energy", ["nan", "potential"])
def test_a_kernel_without_kinetic_energy_has_no_ebfmi(converged, energy):
    log_density = converged.stats["log_density"]
    cards, _ = say(with_stats(converged, energy=np.full_like(log_density, np.nan) if energy == "nan" else -log_density))
    assert "least E-BFMI" not in cards


def test_one_chain_has_no_rhat_and_says_so():
    cards, findings = say(make_posterior(chains=1))
    assert cards["worst R-hat"][1:] == ("–", "unknown", "unknown")
    assert (
        "unknown",
        "R-hat is unknown: it compares chains, and takes two of them and four draws of each.",
    ) in findings


def test_an_interrupted_run_says_how_far_it_got():
    posterior = make_posterior(draws=60)
    interrupted = replace(posterior, record=replace(posterior.record, num_samples=500, interrupted=True))
    assert ("warn", "The run was interrupted after 60 of 500 draws.") in say(interrupted)[1]


@pytest.mark.parametrize(
    "seconds, words",
    [
        (0.0, "0.00 s"),
        (0.421, "0.42 s"),
        (12.34, "12.3 s"),
        (200.4, "3 min 20 s"),
        (3599.7, "1 h 0 min"),
        (7500, "2 h 5 min"),
    ],
)
def test_seconds_are_written_as_people_say_them(seconds, words):
    assert format_seconds(seconds) == words


def test_rhat_of_chains_that_stand_still_is_out_of_bounds():
    assert format_rhat(1.0) == "1.000"
    assert format_rhat(np.inf) == "over 100"
