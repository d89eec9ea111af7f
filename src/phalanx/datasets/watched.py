"""Matrix of users by films with ones for the films that a user has watched: data for matrix factorisation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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
