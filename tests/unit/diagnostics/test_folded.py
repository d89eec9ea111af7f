"""Verdicts on runs that store no draw."""

from __future__ import annotations

import numpy as np
import pytest

from phalanx.diagnostics import judge_folded

RUN = {"num_chains": 4, "divergences": 0, "acceptance_rate": 0.8}
GOOD = {"r": {"x": np.array([1.001, 1.002])}, "e": {"x": np.array([900.0, 800.0])}}
TELL = {"r": "r_hat", "e": "ess"}


def test_good_draws_are_good():
    verdict = judge_folded(GOOD, TELL, **RUN)
    assert verdict.good and "R-hat is 1.002 or less, and there are 800 effective draws" in verdict.headline


@pytest.mark.parametrize(
    "reduced, tell, run, topic",
    [
        ({}, {}, RUN, "not told"),
        (GOOD, {"r": "r_hat"}, RUN, "not told"),
        ({**GOOD, "r": {"x": np.array(1.2)}}, TELL, RUN, "high R-hat"),
        ({**GOOD, "e": {"x": np.array(20.0)}}, TELL, RUN, "low ESS"),
        ({**GOOD, "r": {"x": np.array(np.nan)}}, TELL, RUN, "not known"),
        ({**GOOD, "e": {"x": np.array([900.0, np.nan])}}, TELL, RUN, "not known"),
        (GOOD, TELL, {**RUN, "divergences": 3}, "divergences"),
        (GOOD, TELL, {**RUN, "acceptance_rate": 0.01}, "low acceptance"),
        (GOOD, TELL, {**RUN, "num_chains": 1}, "one chain"),
    ],
)
def test_what_is_wrong_is_named(reduced, tell, run, topic):
    verdict = judge_folded(reduced, tell, **run)
    assert not verdict.good and topic in [finding.topic for finding in verdict.findings]


def test_a_constant_element_is_left_out_and_all_constant_ones_are_not():
    nan, element = {"r": np.array([np.nan, 1.0]), "e": np.array([np.nan, 900.0])}, ["x[0]"]
    verdict = judge_folded({name: {"x": value} for name, value in nan.items()}, TELL, **RUN, constant=element)
    assert verdict.good and any("1 quantity constant, and left out: x[0]." in words for words in verdict.passed)
    nothing = {name: {"x": np.array([np.nan])} for name in nan}
    assert not judge_folded(nothing, TELL, **RUN, constant=element)
    assert not judge_folded({name: {"x": value} for name, value in nan.items()}, TELL, **RUN, constant=["y[0]"])
