"""Common form of every library's modules: weights, other state, and a call each for training and prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array


class Module(NamedTuple):
    """A module as functions of arrays.

    Attributes:
        begin: `begin(key)`, its weights, which are differentiated, and other state, which is not: statistics of
            batches, counts of random numbers. Both are trees of arrays.
        train: `train(weights, state, key, *inputs, **options)`, its outputs in training, and the state after it.
        predict: `predict(weights, state, *inputs, **options)`, its outputs in prediction.
        keeps: the library's names of the state that changes from call to call, except for random numbers.
        specs: partition specs from the module's own metadata, a tree like the weights; None without metadata.
    """

    begin: Callable[[Array], tuple[Any, Any]]
    train: Callable[..., tuple[Any, Any]]
    predict: Callable[..., Any]
    keeps: tuple[str, ...] = ()
    specs: Any = None
