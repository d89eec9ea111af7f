"""Bernoulli matrix factorisation: who watches what, and what of it is hidden to test the answer."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax

from phalanx.distributions.blocked import blocked
from phalanx.language.tracing import deterministic, sample

MATHEMATICS = """
    U ~ Normal(0, 1)  [{users:,}, {dimensions}]      u ~ Normal(0, 1)  [{users:,}]
    V ~ Normal(0, 1)  [{films:,}, {dimensions}]      v ~ Normal(0, 1)  [{films:,}]
    W ~ Bernoulli(sigmoid(U V' + u + v'))  [{users:,}, {films:,}], {hidden} of each row hidden
"""
ROWS = 64
"""Users whose held-out probabilities are computed at a time."""


class Entries(NamedTuple):
    """A matrix of which some entries of each row are hidden.

    Attributes:
        watched: ones and zeros, `(users, films)`, int8.
        shown: which entries are not hidden, `(users, films)`.
        columns: of the hidden entries, `(users, hidden)`.
    """

    watched: np.ndarray
    shown: np.ndarray
    columns: np.ndarray


def hide(watched: np.ndarray, fraction: float, seed: int) -> Entries:
    """Hide a fraction of the entries: as many in each row, drawn evenly."""
    users, films = watched.shape
    hidden = max(1, round(fraction * films))
    random = np.random.RandomState(seed)
    columns = np.argpartition(random.uniform(size=(users, films)).astype(np.float32), hidden, axis=1)[:, :hidden]
    shown = np.ones(watched.shape, bool)
    np.put_along_axis(shown, columns, False, axis=1)
    return Entries(watched, shown, columns.astype(np.int32))


def model(watched: Array, shown: Array, columns: Array, dimensions: int) -> None:
    """Users and films are points; who is near a film has watched it. What is of a user lives with the user's row."""
    users, films = watched.shape
    film_embeddings = sample("film_embeddings", dist.Normal(0.0, 1.0).expand([films, dimensions]))
    film_biases = sample("film_biases", dist.Normal(0.0, 1.0).expand([films]))
    user_embeddings = sample("user_embeddings", dist.Normal(0.0, 1.0).expand([users, dimensions]))
    user_biases = sample("user_biases", dist.Normal(0.0, 1.0).expand([users]))

    def rows(embeddings: Array, biases: Array, shown: Array) -> dist.Distribution:
        logits = embeddings @ film_embeddings.T + biases[:, None] + film_biases[None]
        return dist.Bernoulli(logits=logits).mask(shown).to_event(1)

    sample("watched", blocked(rows, user_embeddings, user_biases, shown), obs=watched)

    def held_out(user: tuple[Array, Array, Array]) -> Array:
        embedding, bias, columns = user
        return jax.nn.sigmoid(film_embeddings[columns] @ embedding + bias + film_biases[columns])

    # looked at once a draw: where nobody asks, the compiler leaves it out
    deterministic("held_out", lax.map(held_out, (user_embeddings, user_biases, columns), batch_size=ROWS))
