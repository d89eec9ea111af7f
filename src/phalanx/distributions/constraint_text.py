"""What constraints hold, such as bounds: numbers that are known, or tracers, which mean nothing outside of a trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
from jax.core import Tracer
from numpyro.distributions.constraints import Constraint


def is_computed(constraint: Constraint) -> bool:
    """Whether something in it is computed while a program is traced."""
    return any(isinstance(leaf, Tracer) for leaf in _leaves(vars(constraint)))


def in_words(support: Any) -> str:
    """A support as it is written; of one with a bound that is computed, its kind alone, such as "interval"."""
    if not isinstance(support, Constraint) or not is_computed(support):
        return str(support)
    while isinstance(base := getattr(support, "base_constraint", None), Constraint):
        support = base
    words = (f" {letter.lower()}" if letter.isupper() else letter for letter in type(support).__name__.strip("_"))
    return "".join(words).strip()


def _leaves(held: Any) -> Iterator[Any]:
    """By attributes: a constraint of the user's may not say how it is flattened."""
    for leaf in jax.tree.leaves(held, is_leaf=lambda node: isinstance(node, Constraint)):
        if isinstance(leaf, Constraint):
            yield from _leaves(vars(leaf))
        else:
            yield leaf


def kind_of(distribution: Any) -> str:
    """Return the name of a distribution, whatever it is wrapped in."""
    while type(distribution).__name__ in ("Independent", "ExpandedDistribution", "MaskedDistribution"):
        distribution = distribution.base_dist
    return type(distribution).__name__
