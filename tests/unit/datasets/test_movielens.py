"""MovieLens: its two forms, what is refused, and the matrix made up for who has neither."""

from __future__ import annotations

import numpy as np
import pytest

from phalanx.datasets import generate_movielens, movielens

RATINGS = "1::10::5::978\n1::30::3::979\n7::30::4::980\n"
FILMS = "10::Toy Story (1995)::Animation|Comedy\n20::Unseen (1990)::Drama\n30::Léon (1994)::Crime\n"


@pytest.fixture
def original(tmp_path):
    folder = tmp_path / "ml-1m"
    folder.mkdir()
    (folder / "ratings.dat").write_text(RATINGS, encoding="latin-1")
    (folder / "movies.dat").write_text(FILMS, encoding="latin-1")
    return tmp_path


def test_the_original_has_titles_and_genres(original):
    for folder in (original, original / "ml-1m"):
        data = movielens(folder)
        np.testing.assert_array_equal(data.matrix, [[1, 1], [0, 1]])
        assert data.matrix.dtype == np.int8 and data.name == "movielens-format"
        assert data.titles == ("Toy Story (1995)", "Léon (1994)")
        assert data.genres == (("Animation", "Comedy"), ("Crime",))


def test_without_the_list_of_films_there_are_no_titles(original):
    (original / "ml-1m" / "movies.dat").unlink()
    data = movielens(original)
    assert data.titles is None and data.genres is None


def test_an_archive(tmp_path):
    (tmp_path / "movielens").mkdir()
    user, film = np.array([0, 2, 2], np.uint16), np.array([1, 0, 1], np.uint16)
    np.savez(tmp_path / "movielens" / "ratings.npz", user=user, film=film, rating=user)
    np.testing.assert_array_equal(movielens(tmp_path).matrix, [[0, 1], [0, 0], [1, 1]])


def test_the_real_ratings(data_folder):
    if not (data_folder / "movielens" / "ratings.npz").exists():
        pytest.skip("movielens/ratings.npz is not in PHALANX_DATA")
    data = movielens(data_folder)
    counts = data.matrix.sum(1, dtype=int)
    assert data.name == "movielens-1m" and data.matrix.shape == (6040, 3706)
    assert (counts.sum(), counts.max(), counts.min()) == (1_000_209, 2314, 20)


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("ratings.dat", "1,10,5\n", "row format check failed"),
        ("ratings.dat", "", "row format check failed"),
        ("movies.dat", "10::Toy Story::Comedy\n", r"completeness check failed.*none for \[30\]"),
        ("movies.dat", "10;Toy Story\n", "row format check failed"),
    ],
)
def test_corrupt_files_are_named(original, name, text, words):
    (original / "ml-1m" / name).write_text(text)
    with pytest.raises(ValueError, match=rf"{name}: corrupt file, the {words}"):
        movielens(original)


def test_corrupt_archives_are_named(tmp_path):
    path = tmp_path / "ratings.npz"
    path.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"ratings\.npz: corrupt file, reading the archive failed"):
        movielens(tmp_path)
    np.savez(path, user=np.zeros(3, np.uint16))
    with pytest.raises(ValueError, match="content check failed: expected arrays user, film"):
        movielens(tmp_path)
    np.savez(path, user=np.zeros(3, np.uint16), film=np.zeros(2, np.uint16))
    with pytest.raises(ValueError, match="shape check failed"):
        movielens(tmp_path)


def test_an_empty_folder_says_what_is_expected(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"expected ml-1m/ratings\.dat or ratings\.npz"):
        movielens(tmp_path)


def test_the_generated_matrix_is_the_same_for_a_seed():
    a, b, c = (
        generate_movielens(20, films=10),
        generate_movielens(20, films=10),
        generate_movielens(20, films=10, seed=1),
    )
    np.testing.assert_array_equal(a.matrix, b.matrix)
    assert (a.matrix != c.matrix).any() and set(np.unique(a.matrix)) == {0, 1}
    assert a.source.startswith("NOT REAL DATA: 20 users and 10 films")
    with pytest.raises(ValueError, match="films must be a whole number, at least 1; got 0"):
        generate_movielens(20, films=0)
