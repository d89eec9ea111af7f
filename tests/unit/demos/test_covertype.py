"""The covertype demo on a few rows: which of its three sources it takes, and what it writes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from phalanx.datasets import generate_covertype
from phalanx.demos import covertype as demo
from phalanx.demos.options import Options

SIZES = ("--chains", "4", "--warmup", "40", "--draws", "40", "--data-shards", "2", "--out", "made")


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


def test_generated_rows_are_said_to_be_so(phalanx, monkeypatch, tmp_path):
    monkeypatch.delenv("PHALANX_DATA", raising=False)
    monkeypatch.setattr(demo, "generate_covertype", lambda: generate_covertype(500))
    status, out, err = phalanx("demo", "covertype", *SIZES)
    assert status == 0, err
    out = " ".join(out.split())
    assert "The rows are generated, because there are no real ones. covertype: no folder was given" in out
    assert "NOT REAL DATA: 500 rows" in out and "true coefficients within their 94% intervals" in out
    headline = json.loads((tmp_path / "made" / "result.json").read_text())["headline"]
    assert headline["data"] == "covertype-generated"
    # Each interval holds its coefficient with a probability of about 0.94: fewer than 40 of 55 once in a million runs.
    assert 40 <= headline["true_coefficients_within_94_percent_intervals"] <= 55


def test_a_folder_without_the_file_is_a_mistake(tmp_path):
    with pytest.raises(FileNotFoundError, match="^covertype: no data in "):
        demo.load(Options(data=tmp_path))
