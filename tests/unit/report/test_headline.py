import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
from tests.unit.report.posteriors import make_posterior, with_divergences, with_stats

from phalanx.report import write_report
from phalanx.report.sections import format_seconds, headline_cards


def cards(posterior):
    return {card.label: card for card in headline_cards(posterior, posterior.verdict())}


@pytest.fixture(scope="module")
def converged():
    return make_posterior(draws=1000)


def test_a_converged_run_in_figures(converged):
    found = cards(converged)
    assert found["draws"][1:] == ("4,000", "4 chains, 1,000 draws each", "unknown")
    assert found["time"][1:] == ("1 min 24 s", "333 draws per second of sampling", "unknown")
    assert found["divergences"][1:] == ("0", "no draw diverged", "good")
    assert {found[label].level for label in ("worst R-hat", "lowest ESS", "lowest E-BFMI")} == {"good"}


def test_the_worst_rhat_and_least_ess_are_named(converged):
    found = cards(replace(converged, draws={**converged.draws, "b": converged.draws["b"] + 9 * np.arange(4)[:, None]}))
    assert (found["worst R-hat"].remark, found["worst R-hat"].level) == ("b", "warn")
    assert (found["lowest ESS"].remark, found["lowest ESS"].level) == ("b", "warn")


def test_divergences_and_energies_are_marked(converged):
    slow = np.cumsum(np.random.default_rng(0).normal(size=(4, 1000)), axis=1)
    found = cards(with_stats(with_divergences(converged, 12), energy=slow))
    assert found["divergences"][1:] == ("12", "0.3% of the draws, in 1 chain", "warn")
    assert found["lowest E-BFMI"].level == "warn"


def test_a_kernel_without_kinetic_energy_has_no_ebfmi(converged):
    assert "lowest E-BFMI" not in cards(with_stats(converged, energy=-converged.stats["log_density"]))


def test_rhat_of_one_chain_is_unknown():
    assert cards(make_posterior(chains=1))["worst R-hat"][1:] == ("–", "unknown", "unknown")


@pytest.fixture
def page_of(tmp_path, monkeypatch):
    monkeypatch.setattr("phalanx.report.write.draw_panels", lambda posterior: {})
    return lambda posterior: write_report(posterior, tmp_path / "report.html").read_text(encoding="utf-8")


def test_problems_come_first_with_advice(converged, page_of):
    verdict = with_divergences(converged, 12).verdict()
    page = page_of(with_divergences(converged, 12))
    assert '<p class="verdict warn">Usable, with this in mind: divergences.</p>' in page
    first, *rest = re.findall(r'<li class="(\w+)">(.*?)</li>', unescape(page))
    assert first == ("warn", f"{verdict.findings[0].problem} <em>Try {verdict.findings[0].advice}.</em>")
    assert [words for _, words in rest] == [*verdict.passed] and {level for level, _ in rest} == {"good"}


def test_an_interrupted_run_says_how_far_it_got(page_of):
    posterior = make_posterior(draws=60)
    interrupted = replace(posterior, record=replace(posterior.record, num_samples=500, interrupted=True))
    assert '<li class="warn">The run was interrupted after 60 of 500 draws.</li>' in page_of(interrupted)


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
