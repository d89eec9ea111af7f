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
def test_killed_runs_end_with_the_draws_of_one_that_is_not(kills, expected, tmp_path):
    found = kills.kills(10, tmp_path, expected, **SHORT)
    assert found["kills"] == 10 and set(found["runs"]) == {"same"}


@pytest.mark.slow
def test_damaged_saves_are_found_and_the_one_before_is_used(kills, expected, tmp_path):
    found = kills.damages(30, tmp_path, expected, seed=30, **SHORT)
    assert sum(found.values()) == 30 and found["the save before used, aloud"]
    assert set(found) <= {"the save before used, aloud", "no good save left: refused by name", "harmless"}
