"""A run as a folder: the files that are named, and a record that other programs can read."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.unit.report.posteriors import make_posterior

from phalanx.report import write_folder
from phalanx.report.plots.style import new_figure


@pytest.mark.slow
def test_the_files_and_the_record(tmp_path):
    figures = {"mine": new_figure(2, 2)}
    files = write_folder(make_posterior(), tmp_path / "made", headline={"accuracy": 0.5}, figures=figures)
    assert {path.name for path in files} == {path.name for path in (tmp_path / "made").iterdir()}
    assert {"report.html", "traces.png", "mine.png", "result.json"} <= {path.name for path in files}
    assert (tmp_path / "made" / "mine.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((tmp_path / "made" / "result.json").read_text())
    assert result["headline"] == {"accuracy": 0.5} and 1 <= result["r_hat"]["worst"] < 1.1
    assert result["verdict"]["good"] is False and result["verdict"]["grade"] == "usable"
    assert result["verdict"]["headline"].startswith("Usable, with this in mind: low ESS")
    assert result["timing"]["gradient_evaluations"] == 44_000
    assert result["run"]["seed"] == 7 and "source" not in result["run"]


def test_an_r_hat_that_is_none(tmp_path):
    write_folder(make_posterior(variables={"c": np.ones((4, 100))}), tmp_path)

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    result = json.loads((tmp_path / "result.json").read_text(), parse_constant=refuse)
    assert result["r_hat"]["log_density"] > 0.9


def test_without_matplotlib_there_is_the_record_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("phalanx.report.write.is_installed", lambda package: package != "matplotlib")
    assert write_folder(make_posterior(), tmp_path) == [tmp_path / "result.json"]
    assert "verdict" in json.loads((tmp_path / "result.json").read_text())
