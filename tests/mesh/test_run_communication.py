"""Bytes that compiled programs send are those of the model in docs/scaling.md."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    folder = str(ROOT / "benchmarks")
    sys.path.insert(0, folder)
    try:
        yield importlib.import_module("run_communication")
    finally:
        sys.path.remove(folder)


QUICK = {("NUTS, a variable per row", (2, 4))}
"""Those that are not slow; `test_collectives` has others."""
CASES = [
    ("NUTS", (1, 8)), ("NUTS, 300 coordinates", (2, 4)), ("HMC, 100 coordinates", (8, 1)),
    ("HMC, 100 coordinates", (2, 4)), ("NUTS, a variable per row", (2, 4)), ("NUTS, a variable per row", (8, 1)),
    ("HMC, a variable per row", (1, 2)),
    ("NUTS, dense metric", (2, 4)), ("NUTS, moments only", (2, 4)), ("ChEES-HMC", (2, 4)),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, mesh", [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow) for case in CASES]
)
def test_compiled_programs_send_what_the_model_says(script, name, mesh):
    case = script.CASES[name]
    assert script.found_in(script.compiled(case, *mesh)) == script.predicted_of(case, *mesh)


@pytest.mark.slow
def test_two_processes_exchange_what_the_model_says(script):
    two = script.of_two_processes()
    assert two["found"] == two["model"]


def test_the_page_has_the_predictions_of_the_model(script):
    page = (ROOT / "docs" / "scaling.md").read_text()
    assert all(line in page for line in script.lines_of(script.predictions()))
