"""The covertype demo on few generated rows: what it writes, and that it finds the coefficients."""

from __future__ import annotations

import json

import pytest

from phalanx.datasets import generate_covertype
from phalanx.demos import covertype
from phalanx.demos.options import Options


def test_it_writes_figures_and_recovers_the_coefficients(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(covertype, "load", lambda options: generate_covertype(rows=3000, seed=1))
    posterior = covertype.main(Options(chains=4, warmup=150, draws=100, data_shards=2, out=tmp_path))
    assert posterior.draws["w"].shape == (4, 100, 55)
    headline = json.loads((tmp_path / "result.json").read_text())["headline"]
    assert headline["test_accuracy"] >= headline["test_accuracy_of_the_class_rate"]
    assert headline["true_coefficients_within_94_percent_intervals"] >= 45
    assert {"coefficients.png", "reliability.png", "report.html"} <= {file.name for file in tmp_path.iterdir()}
    assert "generated" in capsys.readouterr().out


def test_a_folder_that_was_named_is_not_replaced_by_generated_rows(tmp_path):
    with pytest.raises(FileNotFoundError, match="covertype"):
        covertype.main(Options(data=tmp_path / "nothing"))
