"""The ensemble demo, small: what it prints and writes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from phalanx.demos.options import as_bytes


@pytest.mark.slow
def test_a_small_ensemble_of_the_digits(phalanx, tmp_path, monkeypatch):
    monkeypatch.delenv("PHALANX_DATA", raising=False)
    status, out, err = phalanx("demo", "ensemble", "--members", "3", "--epochs", "2", "--out", "made")
    assert status == 0, err
    assert "epoch 2/2" in out and "test accuracy: ensemble" in out and "mean member" in out
    made = tmp_path / "made"
    assert {"training.png", "reliability.png", "disagreed_upon.png", "result.json"} == {p.name for p in made.iterdir()}
    result = json.loads((made / "result.json").read_text())
    assert set(result["ensemble"]) == set(result["mean_member"]) == {"accuracy", "nll", "brier", "ece"}
    assert len(result["epochs"]) == 2 and len(result["epochs"][0]["test_accuracy"]) == 3
    assert result["ensemble"]["accuracy"] > 0.5
    # by Jensen's inequality, whatever the members
    assert result["ensemble"]["nll"] <= result["mean_member"]["nll"]
    assert result["ensemble"]["brier"] <= result["mean_member"]["brier"]


def test_pixels_become_bytes():
    bytes_ = np.array([[0, 7, 255]], np.uint8)
    assert as_bytes(bytes_) is bytes_
    np.testing.assert_array_equal(as_bytes(np.array([[0.0, 0.5, 1.0]])), [[0, 128, 255]])
