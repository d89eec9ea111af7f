"""MovieLens 1M: the films, among 3,706, that each of 6,040 users has rated.

F. M. Harper and J. A. Konstan (2015), The MovieLens datasets: history and context. From GroupLens; for research,
not to be redistributed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phalanx.datasets.folder import check, find_folder, read_archive

ORIGIN = "https://grouplens.org/datasets/movielens/1m (ml-1m/ratings.dat and ml-1m/movies.dat)"
ARCHIVE = "ratings.npz"
RATINGS = "ratings.dat"
FILMS = "movies.dat"
USERS = 6040
FILMS_RATED = 3706
ROWS = 1_000_209


@dataclass(frozen=True)
class Watched:
    """Matrix of ones and zeros, users by films, with its source and licence.

    Attributes:
        matrix: shape `(users, films)`, int8; one where the user has rated the film.
        titles: titles of the films; None if they are not known.
        genres: genres of each film; None if they are not known.
        name: short name of the data.
        source: who made the data and where this copy came from.
        licence: the licence of the data.

    Example:
        >>> import phalanx as phx
        >>> phx.datasets.generate_movielens(20, films=30).matrix.shape
        (20, 30)
    """

    matrix: np.ndarray
    titles: tuple[str, ...] | None
    genres: tuple[tuple[str, ...], ...] | None
    name: str
    source: str
    licence: str


def movielens(folder: str | os.PathLike[str] | None = None) -> Watched:
    """Load MovieLens 1M as a matrix of users by films.

    The source is GroupLens' own folder `ml-1m`, whose films have titles and genres, else an archive `ratings.npz` with
    arrays `user` and `film`, numbered from zero.

    Args:
        folder: the folder with the files, or one that has them in a folder `movielens` or `ml-1m`; None means the
            folder that the environment variable PHALANX_DATA names.

    Returns:
        The matrix, `(6040, 3706)`; `name` is "movielens-1m", or "movielens-format" for other ratings.

    Raises:
        FileNotFoundError: when there is no folder, or the folder has neither source.
        ValueError: when a file is corrupt; the message names the file and the check that failed.

    Example:
        >>> import phalanx as phx
        >>> phx.datasets.movielens("data/ml-1m").matrix.shape  # doctest: +SKIP
        (6040, 3706)
    """
    files = find_folder("movielens", folder, ORIGIN)
    for inner in (files, files / "ml-1m"):
        if (inner / RATINGS).is_file():
            return _read_original(inner)
    if (files / ARCHIVE).is_file():
        return _read_archive(files / ARCHIVE)
    raise FileNotFoundError(
        f"movielens: no data in {files}: expected ml-1m/{RATINGS} or {ARCHIVE}. Get them from {ORIGIN}, and pass their "
        f"folder or set PHALANX_DATA to it."
    )


def _read_original(folder: Path) -> Watched:
    path = folder / RATINGS
    fields = [line.split("::") for line in path.read_text(encoding="latin-1").splitlines()]
    whole = bool(fields) and all(len(row) == 4 and row[0].isdigit() and row[1].isdigit() for row in fields)
    check(path, "row format", whole, "rows user::film::rating::time", "others")
    numbers = np.array([(int(row[0]), int(row[1])) for row in fields])
    user = np.unique(numbers[:, 0], return_inverse=True)[1]
    films, film = np.unique(numbers[:, 1], return_inverse=True)
    titles, genres = _read_films(folder / FILMS, films)
    return _watched(user, film, path, titles, genres)


def _read_films(path: Path, films: np.ndarray) -> tuple[tuple[str, ...] | None, tuple[tuple[str, ...], ...] | None]:
    """Return titles and genres of the films with these numbers; None without the file."""
    if not path.is_file():
        return None, None
    rows = [line.split("::") for line in path.read_text(encoding="latin-1").splitlines()]
    check(path, "row format", all(len(row) == 3 for row in rows), "rows film::title::genres", "others")
    films_by_number = {int(number): (title, tuple(genres.split("|"))) for number, title, genres in rows}
    missing = [int(film) for film in films if int(film) not in films_by_number]
    check(path, "completeness", not missing, "every film that was rated", f"none for {missing[:3]}")
    columns = [films_by_number[int(film)] for film in films]
    return tuple(title for title, _ in columns), tuple(genres for _, genres in columns)


def _read_archive(path: Path) -> Watched:
    user, film = read_archive(path, ("user", "film"))
    fits = user.ndim == 1 and user.shape == film.shape and len(user) > 0 and user.dtype.kind == film.dtype.kind == "u"
    check(path, "shape", fits, "two rows of unsigned numbers, equally long", f"{user.shape} and {film.shape}")
    return _watched(user, film, path)


def _watched(
    user: np.ndarray,
    film: np.ndarray,
    path: Path,
    titles: tuple[str, ...] | None = None,
    genres: tuple[tuple[str, ...], ...] | None = None,
) -> Watched:
    matrix = np.zeros((int(user.max()) + 1, int(film.max()) + 1), np.int8)
    matrix[user, film] = 1
    whole = (*matrix.shape, len(user)) == (USERS, FILMS_RATED, ROWS)
    text = f"{len(user):,} ratings of {matrix.shape[1]:,} films by {matrix.shape[0]:,} users"
    return Watched(
        matrix,
        titles,
        genres,
        "movielens-1m" if whole else "movielens-format",
        source=f"MovieLens 1M (Harper, Konstan, 2015), {text}, from {path}" if whole else f"{text}, from {path}",
        licence="for research, not to be redistributed" if whole else "as stated by whoever made the file",
    )


def generate_movielens(users: int = 400, *, films: int = 240, dimensions: int = 3, seed: int = 0) -> Watched:
    r"""Generate a matrix of users by films from a factorisation, as a substitute for MovieLens.

    These are not real data: $U, V \sim N(0, 1)$ and biases $u \sim N(0, 1)$, $v \sim N(-1, 1)$ are drawn, then
    $W_{ij} \sim \text{Bernoulli}(\sigma(U_i \cdot V_j + u_i + v_j))$.

    Args:
        users: number of rows.
        films: number of columns.
        dimensions: number of dimensions of the embeddings.
        seed: 0 to 2**32 - 1.

    Returns:
        The matrix; `name` is "movielens-generated".

    Raises:
        ValueError: when a size is not a whole number of at least 1.

    Example:
        >>> import phalanx as phx
        >>> phx.datasets.generate_movielens(30, films=20).matrix.shape
        (30, 20)
    """
    for name, size in (("users", users), ("films", films), ("dimensions", dimensions)):
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"generate_movielens: {name} must be a whole number, at least 1; got {size!r}.")
    random = np.random.RandomState(seed)  # not a Generator: NumPy has frozen the streams of this one
    embeddings = random.normal(size=(users, dimensions)) @ random.normal(size=(films, dimensions)).T
    logits = embeddings + random.normal(size=(users, 1)) + random.normal(-1.0, size=(1, films))
    matrix = (random.uniform(size=logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.int8)
    return Watched(
        matrix,
        None,
        None,
        "movielens-generated",
        source=f"NOT REAL DATA: {users:,} users and {films:,} films generated from a factorisation",
        licence="no licence needed",
    )
