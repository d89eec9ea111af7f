"""The MovieLens demo on small matrices: what it writes, and that hidden entries are hidden from the chains."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

import phalanx as phx
from phalanx.datasets import generate_movielens
from phalanx.demos import movielens as demo
from phalanx.demos.movielens import hide, model, score_held_out
from phalanx.demos.options import DemoOptions

SIZES = ("--warmup", "20", "--draws", "20", "--data-shards", "4", "--chains", "2", "--out", "made")


@pytest.fixture
def small(tmp_path):
    """A folder in the original's form: 30 users, 22 films with titles and genres."""
    matrix = generate_movielens(30, films=22, dimensions=2).matrix
    folder = tmp_path / "ml-1m"
    folder.mkdir()
    rows = [f"{user + 1}::{film + 5}::4::0" for user, film in zip(*np.nonzero(matrix), strict=True)]
    (folder / "ratings.dat").write_text("\n".join(rows))
    films = [
        f"{film + 5}::Film {film} ({1970 + film})::{'Drama|Crime' if film % 2 else 'Comedy'}" for film in range(22)
    ]
    (folder / "movies.dat").write_text("\n".join(films))
    return tmp_path


@pytest.mark.slow
def test_real_ratings(phalanx, tmp_path, small):
    status, out, err = phalanx("demo", "movielens", "--data", str(small), *SIZES)
    assert status == 0, err
    made = {path.name for path in (tmp_path / "made").iterdir()}
    pictures = {f"{name}.png" for name in ("recommendations", "genres", "log_density_and_acceptance", "reliability")}
    assert pictures | {"report.html"} <= made
    result = json.loads((tmp_path / "made" / "result.json").read_text())
    headline = result["headline"]
    assert headline["data"] == "movielens-format" and result["run"]["mesh"]["data"] == 4
    assert "rows over 'data'" in result["run"]["data"]["watched"]
    for name in ("posterior", "map", "popularity"):
        assert 0 <= headline[f"auc_{name}"] <= 1 and headline[f"log_loss_{name}"] > 0
    assert 1 <= headline["films_recommended_fewest"] <= 22
    assert "different films rank first" in " ".join(out.split())


def test_without_data_the_matrix_is_said_to_be_generated(monkeypatch, capsys):
    monkeypatch.delenv("PHALANX_DATA", raising=False)
    data = demo.load(DemoOptions())
    assert "The matrix is generated, because the real one is missing." in capsys.readouterr().out
    assert data.name == "movielens-generated"


def test_as_many_entries_are_hidden_in_every_row():
    watched = generate_movielens(40, films=60).matrix
    entries = hide(watched, 0.05, seed=0)
    assert entries.columns.shape == (40, 3) and (~entries.is_shown).sum(1).tolist() == [3] * 40
    assert not np.take_along_axis(entries.is_shown, entries.columns, axis=1).any()


@pytest.mark.slow
def test_hidden_ratings_change_nothing():
    entries = hide(generate_movielens(16, films=12).matrix, 0.2, seed=0)
    other = np.where(entries.is_shown, entries.watched, 1 - entries.watched).astype(np.int8)
    targets = [
        phx.Target(model, {**entries._asdict(), "watched": watched, "dimensions": 2})
        for watched in (entries.watched, other)
    ]
    position = targets[0].initial_position(jax.random.key(0))
    values = [float(target.log_density(position)) for target in targets]
    assert values[0] == values[1]


@pytest.mark.slow
def test_the_most_probable_position_is_one_where_the_gradient_vanishes(mesh_of):
    entries, mesh = hide(generate_movielens(18, films=12).matrix, 0.1, seed=0), mesh_of(1, 4)
    arguments = {**phx.shard(entries._asdict(), mesh), "dimensions": 2}
    found, target = phx.maximize(model, arguments, mesh=mesh).values, phx.Target(model, arguments, mesh=mesh)
    assert found["user_embeddings"].shape == (18, 2) and found["held_out"].shape == entries.columns.shape
    names = [latent.name for latent in target.sites.latents]
    _, gradient = target.value_and_grad({name: found[name] for name in names})
    assert max(float(np.abs(leaf).max()) for leaf in gradient.values()) < 0.05


def test_scores_of_known_predictions():
    truth = np.array([[1, 0], [1, 0]])
    assert score_held_out(truth, np.array([[0.9, 0.1], [0.8, 0.2]]))[0] == 1.0
    assert score_held_out(truth, np.full((2, 2), 0.5)) == (0.5, pytest.approx(np.log(2)))


def test_as_different_as_equally_frequent_films():
    assert demo.effective(np.array([0.25, 0.25, 0.25, 0.25, 0.0])) == pytest.approx(4)
    assert demo.effective(np.array([1.0, 0.0])) == pytest.approx(1)


def test_the_ends_are_the_users_with_most_and_fewest():
    assert demo.ends_of(np.array([[1, 0, 1], [0, 0, 1], [1, 1, 1]])) == {"most": 2, "fewest": 1}
