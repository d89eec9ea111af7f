"""The covertype demo on a few rows: its three sources of data, its scores, its picture, and what it writes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from phalanx import datasets
from phalanx.datasets import LabelledRows, generate_covertype
from phalanx.demos import covertype as demo
from phalanx.demos.options import DemoOptions

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
    monkeypatch.setattr(datasets, "generate_covertype", lambda: generate_covertype(100))
    data = demo.load(DemoOptions())
    said = capsys.readouterr().out
    assert said.startswith("The rows are generated, because real ones are missing. covertype: no folder was given")
    assert data.name == "covertype-generated" and data.source.startswith("NOT REAL DATA: 100 rows")


def test_true_coefficients_in_their_intervals_are_counted():
    data = generate_covertype(100)
    assert data.true_weights is not None
    draws = data.true_weights + np.linspace(-1, 1, 2000).reshape(2, 1000, 1)
    draws[:, :, :5] += 0.95  # true values are where 2.5% of the draws lie below
    probability = demo.predict(draws.astype(np.float32), data.test_x)
    numbers, words = demo.headline(data, probability, draws)
    assert numbers["true_coefficients_within_94_percent_intervals"] == 50
    assert words.endswith("; 50 of 55 true coefficients within their 94% intervals")
    _, words = demo.headline(data._replace(true_weights=None), probability, draws)
    assert "true coefficients" not in words


def test_a_folder_without_the_file_is_a_mistake(tmp_path):
    with pytest.raises(FileNotFoundError, match="^covertype: no data in "):
        demo.load(DemoOptions(data=tmp_path))


def test_the_mean_over_draws_is_scored():
    random = np.random.default_rng(0)
    weights = random.normal(size=(2, demo.BATCH, 3)).astype(np.float32)  # two batches
    weights = weights[:, :-1]  # the last one not full
    x, y = random.normal(size=(50, 3)).astype(np.float32), random.integers(0, 2, 50)
    mean = (1 / (1 + np.exp(-np.einsum("nk,cdk->cdn", x, weights)))).mean((0, 1))
    probability = demo.predict(weights, x)
    np.testing.assert_allclose(probability, mean, rtol=1e-5)
    data = LabelledRows(x[:4], np.array([1, 0, 0, 0]), x, y, ("a", "b", "c"), "rows", "nowhere", "none")
    numbers, _ = demo.headline(data, probability, weights)
    assert numbers["test_accuracy"] == np.mean((mean > 0.5) == y)
    assert numbers["test_log_loss"] == pytest.approx(-np.mean(np.log(np.where(y, mean, 1 - mean))), rel=1e-5)
    assert numbers["test_accuracy_of_the_class_rate"] == np.mean(y == 0)
    base = -np.mean(np.log(np.where(y, 0.25, 0.75)))
    assert numbers["test_log_loss_of_the_class_rate"] == pytest.approx(base)


def draw(truth=None):
    draws = np.random.default_rng(0).normal(size=(2, 200, 4)) + np.arange(4)
    panels = ({"first": np.array([0, 3]), "second": np.array([1])}, {"third": np.array([2])})
    x, y = np.array([[0.0, 2.0, 1.0, 1.0], [1.0, 2.0, 0.0, 1.0]]), np.array([0, 1])
    data = LabelledRows(x, y, x, y, ("A", "B", "C", "Intercept"), "rows", "nowhere", "none", truth)
    return draws, demo.intervals(draws, data, panels)


def test_each_coefficient_is_drawn_under_its_name():
    draws, figure = draw()
    labels = [[label.get_text() for label in axes.get_yticklabels()] for axes in figure.axes]
    assert labels == [["a", "intercept"], ["b (no rows)"], ["c"]]
    medians = np.concatenate([np.asarray(axes.collections[-1].get_offsets())[:, 0] for axes in figure.axes])
    np.testing.assert_allclose(medians, np.median(draws.reshape(-1, 4), 0)[[0, 3, 1, 2]])
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    assert not figure.legends


def test_true_coefficients_are_marked_and_explained():
    truth = np.array([0.5, 1.5, 2.5, 3.5])
    _, figure = draw(truth)
    marked = [line.get_xdata() for axes in figure.axes for line in axes.lines if line.get_marker() == "|"]
    np.testing.assert_array_equal(np.concatenate(marked), truth[[0, 3, 1, 2]])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["true coefficient"]
