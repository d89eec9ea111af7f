"""Kills and damaged checkpoints: short versions of `benchmarks/kills.py`."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

SHORT = {"num_samples": 400, "every": 0.0}


@pytest.fixture(scope="module")
def kills():
    pytest.importorskip("zarr")  # every other run that is killed has a store
    folder = str(Path(__file__).parents[3] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        yield importlib.import_module("kills")
    finally:
        sys.path.remove(folder)


@pytest.fixture(scope="module")
def expected(kills):
    """Arrays of a run that is not interrupted."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # in the processes to come
    return kills.arrays_of(kills.run(None, **SHORT))


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, pytest.param(40, marks=pytest.mark.slow)])
def test_killed_runs_end_with_the_draws_of_one_that_is_not(kills, expected, tmp_path, count):
    found = kills.kills(count, tmp_path, expected, **SHORT)
    assert found["kills"] == count and set(found["runs"]) == {"same"}


@pytest.mark.slow
@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_damaged_saves_are_found_and_the_one_before_is_used(kills, expected, tmp_path, count):
    found = kills.damages(count, tmp_path, expected, seed=count, **SHORT)
    assert sum(found.values()) == count and found["the save before used, aloud"]
    assert set(found) <= {"the save before used, aloud", "no good save left: refused by name", "harmless"}
