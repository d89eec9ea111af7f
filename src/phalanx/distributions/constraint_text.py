"""Text for constraints in messages: bounds that are tracers are left out, as they have no value outside of a trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
from jax.core import Tracer
from numpyro.distributions.constraints import Constraint
from numpyro.distributions.transforms import Transform


def is_computed(constraint: Constraint) -> bool:
    """Return whether a constraint contains values that are computed while a program is traced, such as a bound."""
    return any(isinstance(leaf, Tracer) for leaf in _leaves(vars(constraint)))


def in_words(support: Constraint | None) -> str:
    """Return a support as text; if a bound is computed, its kind alone, such as "interval"."""
    if not isinstance(support, Constraint) or not is_computed(support):
        return str(support)
    while isinstance(base := getattr(support, "base_constraint", None), Constraint):
        support = base
    words = (f" {letter.lower()}" if letter.isupper() else letter for letter in type(support).__name__.strip("_"))
    return "".join(words).strip()


def _leaves(held: object) -> Iterator[object]:
    """Yield the leaves of attributes, for a user's constraint may lack the methods that flatten it."""
    for leaf in jax.tree.leaves(held, is_leaf=lambda node: isinstance(node, Constraint | Transform)):
        if isinstance(leaf, Constraint | Transform):
            yield from _leaves(vars(leaf))
        else:
            yield leaf


def kind_of(distribution: Any) -> str:
    """Return the class name of a distribution under `.to_event`, `.expand` and `.mask`."""
    while type(distribution).__name__ in ("Independent", "ExpandedDistribution", "MaskedDistribution"):
        distribution = distribution.base_dist
    return type(distribution).__name__
