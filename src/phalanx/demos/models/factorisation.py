"""Bernoulli matrix factorisation of users and films, with hidden entries for the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax

from phalanx.distributions.blocked import blocked
from phalanx.language.tracing import deterministic, sample

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

MATHEMATICS = """
    U ~ Normal(0, 1)  [{users:,}, {dimensions}]      u ~ Normal(0, 1)  [{users:,}]
    V ~ Normal(0, 1)  [{films:,}, {dimensions}]      v ~ Normal(0, 1)  [{films:,}]
    W ~ Bernoulli(sigmoid(U V' + u + v'))  [{users:,}, {films:,}], {hidden} of each row hidden
"""
ROWS = 64
"""Users per batch of held-out probabilities."""


class Entries(NamedTuple):
    """Matrix with some hidden entries in each row.

    Attributes:
        watched: ones and zeros, `(users, films)`, int8.
        shown: True for entries that are not hidden, `(users, films)`.
        columns: columns of the hidden entries, `(users, hidden)`.
    """

    watched: Int[np.ndarray, "user film"]
    shown: Bool[np.ndarray, "user film"]
    columns: Int[np.ndarray, "user hidden"]


def hide(watched: Int[np.ndarray, "user film"], fraction: float, seed: int) -> Entries:
    """Hide a fraction of the entries, as many in each row, chosen uniformly."""
    users, films = watched.shape
    hidden = max(1, round(fraction * films))
    random = np.random.RandomState(seed)
    columns = np.argpartition(random.uniform(size=(users, films)).astype(np.float32), hidden, axis=1)[:, :hidden]
    shown = np.ones(watched.shape, bool)
    np.put_along_axis(shown, columns, False, axis=1)
    return Entries(watched, shown, columns.astype(np.int32))


def model(watched: Array, shown: Array, columns: Array, dimensions: int) -> None:
    """Model watched films by the inner products of users and films; a user's variables live with the user's row."""
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

    # evaluated once a draw; the compiler removes it from the leapfrogs
    deterministic("held_out", lax.map(held_out, (user_embeddings, user_biases, columns), batch_size=ROWS))
