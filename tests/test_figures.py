"""Figures of the README and tables of benchmarks/README.md: each is that of a committed result.

A figure is a link to its result, titled by what was measured and against what:
`[0.41](benchmarks/results/movielens.json "a leapfrog of 2 chains: NumPyro, parallel")`.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FIGURE = re.compile(r'\[([\d.]+)\]\((benchmarks/results/\w+\.json)\s+"([^"]+)"\)')


def section(page: str, title: str) -> str:
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def unsupported(text: str) -> list[str]:
    """The decimal numbers of a text that no result has."""
    wrong = []
    for figure, file, what in FIGURE.findall(text):
        rows = json.loads((ROOT / file).read_text())["rows"]
        rows = [row for row in rows if f"{row['what']}: {row['theirs']}" == " ".join(what.split())]
        digits = len(figure.partition(".")[2])
        if figure not in {f"{row['ratio']:.{digits}f}" for row in rows}:
            wrong.append(f"{figure}: {what}")
    return wrong + re.findall(r"\d*\.\d+", FIGURE.sub("", text))


def test_every_figure_of_the_readme_is_that_of_a_result() -> None:
    measured = section((ROOT / "README.md").read_text(), "Measured")
    assert len(FIGURE.findall(measured)) >= 3
    assert not unsupported(measured)


@pytest.mark.parametrize("beside", [0.0, 0.01, -0.01, 0.1])
def test_a_figure_that_no_result_has_is_found(beside: float) -> None:
    rows = json.loads((ROOT / "benchmarks/results/movielens.json").read_text())["rows"]
    row = next(row for row in rows if row["theirs"] == "NumPyro, parallel" and row["what"] != "peak memory")
    name = f"{row['what']}: {row['theirs']}"
    linked = f'[{row["ratio"] + beside:.2f}](benchmarks/results/movielens.json "{name}")'
    assert bool(unsupported(linked)) == (beside != 0.0)
    assert unsupported("takes 0.41 times as long") == ["0.41"]


def test_all_benchmarks_are_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if '"__main__":' in path.read_text()}
    assert scripts - {"accelerator", "commits", "jax_releases", "rerun_all", "table"} == set(
        import_module("rerun_all").RUNS
    )


def test_the_tables_of_the_benchmarks_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    table = import_module("table")

    page = (ROOT / "benchmarks/README.md").read_text()
    assert page.partition(table.BEGIN)[2].partition(table.END)[0] == "\n".join(
        ["", "", *table.lines(), *table.tables(), "", ""]
    )
    sys.modules.pop("table")
