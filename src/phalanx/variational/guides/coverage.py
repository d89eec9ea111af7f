"""Check that a guide's supports cover the model's.

Importance weights cannot reveal regions that the guide never samples: the evidence then lacks their mass, and its
error does not include it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpyro.distributions import (
    Delta,
    Distribution,
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
    constraints,
)

from phalanx.diagnostics import Finding
from phalanx.distributions.supports import AnyOf, support_of


def left_out(name: str, guide: Distribution, model: Distribution) -> str:
    """Return words for the part of a variable's support in the model that the guide's lacks; empty if it has all."""
    if is_point(guide):
        return f"{name!r} is always at one point"
    mine = bounds_of(support_of(guide))
    theirs = bounds_of(support_of(model))
    if mine is None or theirs is None:
        return ""
    (low, high), (lowest, highest) = mine, theirs
    if _is_beyond(low, lowest) or _is_beyond(_negative(high), _negative(highest)):
        return f"{name!r} is {_words(low, high)} in the guide and {_words(lowest, highest)} in the model"
    return ""


def is_point(distribution: Distribution | None) -> bool:
    """Return whether all draws of a distribution are the same."""
    while isinstance(distribution, Independent | ExpandedDistribution | MaskedDistribution):
        distribution = distribution.base_dist
    return isinstance(distribution, Delta)


def findings(supports: Mapping[str, tuple[Distribution, Distribution]]) -> list[Finding]:
    """Return a finding if the guide's distribution of a variable, given by name with the model's, lacks support."""
    problems = (left_out(name, guide, model) for name, (guide, model) in supports.items())
    if not (sentences := [sentence for sentence in problems if sentence]):
        return []
    problem = (
        f"The guide cannot draw all values that the posterior has: {'; '.join(sentences)}. Importance weights cannot "
        f"reveal them, and the evidence lacks their mass."
    )
    return [Finding("support", problem, "a guide whose distributions have the model's supports")]


def bounds_of(support: Any) -> tuple[float | None, float | None] | None:
    """Return the bounds of a support of single numbers, each None if it is computed; None for other supports."""
    while support is not None and hasattr(support, "base_constraint"):
        support = support.base_constraint
    if support is constraints.real:
        return -math.inf, math.inf
    if isinstance(support, AnyOf) and not support.is_discrete and not support.has_points:
        return bounds_of(support.hull)
    if support is constraints.boolean:
        return 0.0, 1.0
    if not (hasattr(support, "lower_bound") or hasattr(support, "upper_bound")):
        return None
    return _static(getattr(support, "lower_bound", -math.inf)), _static(getattr(support, "upper_bound", math.inf))


def _static(bound: object) -> float | None:
    """Return a bound that is one number; None if it is computed or differs by element."""
    return float(bound) if isinstance(bound, int | float | np.number) and not isinstance(bound, bool) else None


def _negative(bound: float | None) -> float | None:
    return None if bound is None else -bound


def _is_beyond(bound: float | None, least: float | None) -> bool:
    """Return whether a lower bound is above another; a computed one is above minus infinity alone."""
    return least is not None and ((bound is None and least == -math.inf) or (bound is not None and bound > least))


def _words(low: float | None, high: float | None) -> str:
    if (low, high) == (-math.inf, math.inf):
        return "any number"
    ends = ["somewhere" if end is None else f"{end:g}" for end in (low, high)]
    return f"from {ends[0]} to {ends[1]}"
