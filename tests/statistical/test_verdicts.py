"""Verdicts on clean and on spoiled runs: a short version of `benchmarks/verdicts.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import jax
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def verdicts() -> Iterator[ModuleType]:
    import importlib
    import sys

    folder = str(Path(__file__).parents[2] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        with jax.numpy_rank_promotion("allow"):  # of NumPyro's mixtures
            yield importlib.import_module("verdicts")
    finally:
        sys.path.remove(folder)


@pytest.mark.parametrize("group, wrong", [("CLEAN", "not good"), ("SPOILED", "good")])
def test_twenty_runs_are_graded_rightly(verdicts, group, wrong):
    # at a rate of 2%, more than two of 20 err once in 140 trials
    cases = getattr(verdicts, group)
    found = [verdicts.grades(case, 3 if number < 4 else 2)[0][wrong] for number, case in enumerate(cases)]
    assert sum(found) <= 2, dict(zip([case.name for case in cases], found, strict=True))


def test_eight_schools_are_told_by_their_parametrisation(verdicts):
    # at a rate of 5%, more than two of eight err once in 180 trials
    free, centred = verdicts.SCHOOLS
    assert verdicts.grades(free, 8)[0]["not good"] <= 2
    assert verdicts.grades(centred, 8)[0]["not good"] == 8
