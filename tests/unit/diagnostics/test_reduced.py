"""Verdicts on runs that store no draw."""

from __future__ import annotations

import numpy as np
import pytest

from phalanx.diagnostics import judge_reduced

RUN = {"num_chains": 4, "divergences": 0, "acceptance_rate": 0.8}
GOOD = {"r": {"x": np.array([1.001, 1.002])}, "e": {"x": np.array([900.0, 800.0])}}
STATISTICS = {"r": "r_hat", "e": "ess"}


def test_good_draws_are_good():
    verdict = judge_reduced(GOOD, STATISTICS, **RUN)
    assert verdict.good and "R-hat is 1.002 or less, and there are 800 effective draws" in verdict.headline


@pytest.mark.parametrize(
    "reduced, statistics, run, topic",
    [
        ({}, {}, RUN, "not measured"),
        (GOOD, {"r": "r_hat"}, RUN, "not measured"),
        ({**GOOD, "r": {"x": np.array(1.2)}}, STATISTICS, RUN, "high R-hat"),
        ({**GOOD, "e": {"x": np.array(20.0)}}, STATISTICS, RUN, "low ESS"),
        ({**GOOD, "r": {"x": np.array(np.nan)}}, STATISTICS, RUN, "not known"),
        ({**GOOD, "e": {"x": np.array([900.0, np.nan])}}, STATISTICS, RUN, "not known"),
        (GOOD, STATISTICS, {**RUN, "divergences": 3}, "divergences"),
        (GOOD, STATISTICS, {**RUN, "acceptance_rate": 0.01}, "low acceptance"),
        (GOOD, STATISTICS, {**RUN, "num_chains": 1}, "one chain"),
    ],
)
def test_problems_are_named(reduced, statistics, run, topic):
    verdict = judge_reduced(reduced, statistics, **run)
    assert not verdict.good and topic in [finding.topic for finding in verdict.findings]


def test_a_constant_element_is_left_out_and_all_constant_ones_are_not():
    nan, element = {"r": np.array([np.nan, 1.0]), "e": np.array([np.nan, 900.0])}, ["x[0]"]
    verdict = judge_reduced({name: {"x": value} for name, value in nan.items()}, STATISTICS, **RUN, constant=element)
    assert verdict.good and any("1 quantity constant, and left out: x[0]." in words for words in verdict.passed)
    nothing = {name: {"x": np.array([np.nan])} for name in nan}
    assert not judge_reduced(nothing, STATISTICS, **RUN, constant=element)
    assert not judge_reduced({name: {"x": value} for name, value in nan.items()}, STATISTICS, **RUN, constant=["y[0]"])
