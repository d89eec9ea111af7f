"""Whether a guide can be wherever the model can.

What it never draws no importance weight shows: the evidence is then too low, by as much as the posterior has there,
with an error that knows nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpyro.distributions import Delta, ExpandedDistribution, Independent, MaskedDistribution, constraints

from phalanx.diagnostics import Finding


def left_out(name: str, guide: Any, model: Any) -> str:
    """What a guide's distribution of a variable leaves out of the model's, as far as their supports say; or nothing."""
    if is_point(guide):
        return f"{name!r} is always at one point"
    mine, theirs = bounds_of(getattr(guide, "support", None)), bounds_of(getattr(model, "support", None))
    if mine is None or theirs is None:
        return ""
    (low, high), (lowest, highest) = mine, theirs
    if _is_beyond(low, lowest) or _is_beyond(_negative(high), _negative(highest)):
        return f"{name!r} is {_words(low, high)} in the guide and {_words(lowest, highest)} in the model"
    return ""


def is_point(distribution: Any) -> bool:
    """Whether all draws of a distribution are alike."""
    while isinstance(distribution, Independent | ExpandedDistribution | MaskedDistribution):
        distribution = distribution.base_dist
    return isinstance(distribution, Delta)


def findings(supports: Mapping[str, tuple[Any, Any]]) -> list[Finding]:
    """What is wrong with a guide of such variables, by name its distribution and the model's."""
    found = (left_out(name, guide, model) for name, (guide, model) in supports.items())
    if not (sentences := [sentence for sentence in found if sentence]):
        return []
    problem = (
        f"The guide cannot be wherever the posterior can: {'; '.join(sentences)}. What it never draws no weight shows, "
        f"and the evidence is too low by it."
    )
    return [Finding("support", problem, "a guide whose distributions have the model's supports")]


def bounds_of(support: Any) -> tuple[Any, Any] | None:
    """The least and the largest value of a support of numbers one by one; None of any other."""
    while support is not None and hasattr(support, "base_constraint"):
        support = support.base_constraint
    if support is constraints.real:
        return -math.inf, math.inf
    if support is constraints.boolean:
        return 0.0, 1.0
    if not (hasattr(support, "lower_bound") or hasattr(support, "upper_bound")):
        return None
    return _static(getattr(support, "lower_bound", -math.inf)), _static(getattr(support, "upper_bound", math.inf))


def _static(bound: Any) -> Any:
    """A bound that is the same everywhere; None where it is computed or differs by element."""
    return float(bound) if isinstance(bound, int | float | np.number) and not isinstance(bound, bool) else None


def _negative(bound: Any) -> Any:
    return None if bound is None else -bound


def _is_beyond(bound: Any, least: Any) -> bool:
    """Whether a lower bound is above another; a computed one is above none at all."""
    return least is not None and ((bound is None and least == -math.inf) or (bound is not None and bound > least))


def _words(low: Any, high: Any) -> str:
    if (low, high) == (-math.inf, math.inf):
        return "any number"
    ends = ["somewhere" if end is None else f"{end:g}" for end in (low, high)]
    return f"from {ends[0]} to {ends[1]}"
