"""What every library's modules come down to: weights, what else they keep, and two ways to call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array


class Module(NamedTuple):
    """A module as functions of arrays.

    Attributes:
        begin: `begin(key)`, its weights, which are differentiated, and the rest, which is not: statistics of batches,
            counts of random numbers. Both are trees of arrays.
        train: `train(weights, rest, key, *inputs, **options)`, its outputs in training, and the rest after it.
        predict: `predict(weights, rest, *inputs, **options)`, its outputs when nothing is trained.
        keeps: what of the rest changes from call to call, by its library's names, but for random numbers.
        specs: the partition specs that the module's own metadata say, a tree like the weights; None for none.
    """

    begin: Callable[[Array], tuple[Any, Any]]
    train: Callable[..., tuple[Any, Any]]
    predict: Callable[..., Any]
    keeps: tuple[str, ...] = ()
    specs: Any = None
