"""Guides against reference posteriors: the verdict trusts no fit that is off, and trusts those known to be right.

`benchmarks/guides.py` writes the whole table. Seeds are fixed, so that the tests are the same on every run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.statistical.posteriordb.entries import ENTRIES
from tests.statistical.posteriordb.reference import stored

import phalanx as phx

GUIDES = {
    "mean_field": phx.guides.mean_field(),
    "full_rank": phx.guides.full_rank(),
    "low_rank": phx.guides.low_rank(rank=5),
    "laplace": phx.guides.laplace(),
    "pathfinder": phx.guides.pathfinder(),
    "structured": phx.guides.structured(),
    "flow": phx.guides.flow(),
    "batch_and_match": phx.guides.full_rank(),
}
OPTIONS: dict[str, dict[str, Any]] = {"batch_and_match": {"optimizer": "batch-and-match"}}
"""How they are fitted, where it is not as usual."""

NAMES = ("eight_schools_noncentered", "eight_schools_centered", "kidiq", "garch11", "ark", "earnings", "mesquite")
TRUSTED = {("kidiq", "full_rank"), ("garch11", "full_rank"), ("eight_schools_noncentered", "flow")}
"""Of which the verdict is known to be good, so that it is no use to say that of none."""


def worst_mean(entry, draws):
    """The mean that is furthest from the reference's, in its standard deviations."""
    reference, worst = stored(entry.reference)["reference"], 0.0
    for name in entry.names:
        values = np.asarray(draws[name], float)
        for i, column in enumerate(values.reshape(len(values), -1).T):
            known = reference[name if values.ndim == 1 else f"{name}[{i + 1}]"]
            worst = max(worst, abs(column.mean() - known["mean"]) / known["sd"])
    return worst


def check(name, guide, good, worst):
    """Raise unless a verdict is right: neither blind to a mean that is off, nor shy of what is known to be right."""
    assert not good or worst < 0.1, f"{guide} on {name} is called good, and a mean is {worst:.2f} sd off"
    assert good or (name, guide) not in TRUSTED, f"{guide} on {name} is right, and not called good"


def test_a_verdict_that_always_refuses_fails_and_so_does_one_that_never_does():
    for name, guide in TRUSTED:
        check(name, guide, True, 0.05)
        with pytest.raises(AssertionError, match="not called good"):
            check(name, guide, False, 0.05)
        with pytest.raises(AssertionError, match="is called good"):
            check(name, guide, True, 0.2)
    check("ark", "mean_field", False, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("name", NAMES)
def test_no_failure_is_silent(name, guide):
    entry = ENTRIES[name]
    try:
        fit = phx.fit(entry.program, GUIDES[guide], entry.data(), **OPTIONS.get(guide, {}), progress=False)
    except ValueError as refused:
        assert "guide:" in str(refused) or "fit:" in str(refused)
        assert (name, guide) not in TRUSTED
        return
    check(name, guide, fit.verdict().good, worst_mean(entry, fit.sample(1, 20_000)))
