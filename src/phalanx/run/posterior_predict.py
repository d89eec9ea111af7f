"""A function of one draw, evaluated at every draw: compiled once, batch by batch, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np


def predict(fn: Callable[[dict[str, Any]], Any], draws: Mapping[str, np.ndarray], *, batch_size: int) -> Any:
    """Evaluate `fn` at every draw; see `Posterior.predict`.

    Args:
        fn: from the values of one draw to a pytree of arrays.
        draws: arrays of shape `(chain, draw, ...)` by name.
        batch_size: draws evaluated at a time.

    Returns:
        The pytree with arrays of shape `(chain, draw, ...)`.
    """
    chains, length = _check(fn, draws, batch_size)
    count = chains * length
    flat = {name: value.reshape(count, *value.shape[2:]) for name, value in draws.items()}
    batched = jax.jit(jax.vmap(lambda values: _evaluate(fn, values)))
    batch_size = min(batch_size, count)
    outputs: list[np.ndarray] = []
    structure = None
    for start in range(0, count, batch_size):
        # The last batch reaches back, so that every batch has the same size and one compilation serves them all.
        first = min(start, count - batch_size)
        rows = slice(first, first + batch_size)
        leaves, structure = jax.tree.flatten(batched({name: value[rows] for name, value in flat.items()}))
        outputs = outputs or [np.empty((count, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        for output, leaf in zip(outputs, leaves, strict=True):
            output[rows] = leaf
    assert structure is not None  # there is at least one draw
    return jax.tree.unflatten(structure, [output.reshape(chains, length, *output.shape[1:]) for output in outputs])


def _check(fn: Any, draws: Mapping[str, np.ndarray], batch_size: int) -> tuple[int, int]:
    """Return the number of chains and of draws, after checking the arguments."""
    if not callable(fn):
        raise TypeError(f"predict: fn must be a function of a dict of one draw's values; got {type(fn).__name__}.")
    if batch_size < 1:
        raise ValueError(f"predict: batch_size must be at least 1; got {batch_size}.")
    if not draws:
        raise ValueError("predict: there are no variables to give to fn; keep some when running (keep=None).")
    chains, length = next(iter(draws.values())).shape[:2]
    if chains * length == 0:
        raise ValueError(f"predict: there are no draws to evaluate fn at: {chains} chains of {length} draws.")
    return chains, length


def _evaluate(fn: Callable[[dict[str, Any]], Any], values: dict[str, Any]) -> Any:
    """Return what `fn` returns for one draw, after checking that it is a pytree of arrays."""
    try:
        output = fn(values)
    except KeyError as error:
        known = ", ".join(map(repr, values))
        raise ValueError(f"predict: fn asks for {error}, which is not among the draws; they hold: {known}.") from error
    leaves = jax.tree.leaves(output)
    if not leaves:
        raise ValueError("predict: fn returned nothing; it must return an array or a pytree of arrays.")
    for leaf in leaves:
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
            raise TypeError(
                f"predict: fn must return a pytree of arrays; one of its leaves is a {type(leaf).__name__}."
            )
    return output
