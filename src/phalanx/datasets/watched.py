"""Which user has watched which film: the form in which matrix factorisation is given its data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Watched:
    """A matrix of ones and zeros, and where it comes from.

    Attributes:
        matrix: shape `(users, films)`, int8; one where the user has rated the film.
        titles: of the films; None where they are not known.
        genres: of each film its genres; None where they are not known.
        name: a short name for these very data.
        source: where they come from.
        licence: under which terms.
    """

    matrix: np.ndarray
    titles: tuple[str, ...] | None
    genres: tuple[tuple[str, ...], ...] | None
    name: str
    source: str
    licence: str
