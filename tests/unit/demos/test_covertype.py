"""The covertype demo on a few rows: which of its three sources it takes, and what it writes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from phalanx.datasets import generate_covertype
from phalanx.demos import covertype as demo
from phalanx.demos.options import DemoOptions
from phalanx.demos.scoring.binary_scores import score_binary

SIZES = ("--chains", "4", "--warmup", "30", "--draws", "20", "--data-shards", "2", "--out", "made")


@pytest.fixture
def rows(tmp_path):
    """A folder with 403 rows in the format of the subset: pine grows where it is not high."""
    random = np.random.default_rng(0)
    numeric = random.normal(size=(403, 10)) * 300 + 2000
    pine = random.uniform(size=403) < 1 / (1 + np.exp((numeric[:, 0] - 2000) / 100))
    arrays = {"numeric": numeric, "wilderness": random.integers(0, 4, 403), "soil": random.integers(0, 40, 403)}
    (tmp_path / "covertype").mkdir()
    np.savez(tmp_path / "covertype" / "covtype_subset403.npz", **arrays, cover_type=np.where(pine, 2, 1))
    return tmp_path


@pytest.mark.slow
def test_real_rows(phalanx, tmp_path, rows):
    status, out, err = phalanx("demo", "covertype", "--data", str(rows), *SIZES)
    assert status == 0, err
    assert "for each of 363 rows x" in out and "a subset of 403 of the 581,012 rows" in " ".join(out.split())
    made = tmp_path / "made"
    assert {"coefficients.png", "reliability.png", "report.html"} <= {path.name for path in made.iterdir()}
    result = json.loads((made / "result.json").read_text())
    headline = result["headline"]
    assert headline["data"] == "covertype-subset" and result["run"]["mesh"]["data"] == 2
    assert "rows over 'data'" in result["run"]["data"]["x"] and result["run"]["kernel"].startswith("nuts")
    assert headline["test_accuracy"] > headline["test_accuracy_of_the_class_rate"] + 0.1
    assert headline["test_log_loss"] < headline["test_log_loss_of_the_class_rate"]


def test_generated_rows_are_said_to_be_so(monkeypatch, capsys):
    monkeypatch.delenv("PHALANX_DATA", raising=False)
    monkeypatch.setattr(demo, "generate_covertype", lambda: generate_covertype(100))
    data = demo.load(DemoOptions())
    said = capsys.readouterr().out
    assert said.startswith("The rows are generated, because real ones are missing. covertype: no folder was given")
    assert data.name == "covertype-generated" and data.source.startswith("NOT REAL DATA: 100 rows")


def test_true_coefficients_in_their_intervals_are_counted():
    data = generate_covertype(100)
    assert data.true_weights is not None
    draws = data.true_weights + np.linspace(-1, 1, 2000).reshape(2, 1000, 1)
    draws[:, :, :5] += 0.95  # true values are where 2.5% of the draws lie below
    scores = score_binary(draws.astype(np.float32), data.test_x, data.test_y, 0.5)
    numbers, words = demo.headline(data, scores, draws)
    assert numbers["true_coefficients_within_94_percent_intervals"] == 50
    assert words.endswith("; 50 of 55 true coefficients within their 94% intervals")
    _, words = demo.headline(data._replace(true_weights=None), scores, draws)
    assert "true coefficients" not in words


def test_a_folder_without_the_file_is_a_mistake(tmp_path):
    with pytest.raises(FileNotFoundError, match="^covertype: no data in "):
        demo.load(DemoOptions(data=tmp_path))
