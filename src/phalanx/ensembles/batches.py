"""Which rows a member sees when: the same order for all, an order of its own, or a sample with replacement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

ORDERS = ("shared", "own", "bootstrap")


def rows_of_epoch(order: str, seed: int, epoch: int, members: int, rows: int) -> np.ndarray:
    """Numbers of the rows in the order of an epoch: `(rows,)` where it is shared, else `(members, rows)`.

    With `"bootstrap"` each member has drawn its rows with replacement once, and shuffles them anew in every epoch.
    """
    if order == "shared":
        return np.random.default_rng([seed, epoch]).permutation(rows).astype(np.int32)
    found = np.empty((members, rows), np.int32)
    for member in range(members):
        own = np.random.default_rng([seed, epoch, member]).permutation(rows)
        drawn = np.random.default_rng([seed, 2**31, member]).integers(0, rows, rows) if order == "bootstrap" else None
        found[member] = own if drawn is None else drawn[own]
    return found


def cut(rows: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Batches along the last dimension; the last may be smaller."""
    for first in range(0, rows.shape[-1], batch_size):
        yield rows[..., first : first + batch_size]


def check_order(order: Any) -> None:
    """Refuse an order that is none."""
    if order not in ORDERS:
        raise ValueError(f"ensemble.train: order must be one of {', '.join(map(repr, ORDERS))}; got {order!r}.")
