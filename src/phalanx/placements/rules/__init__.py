"""Rules of placement, one file for each group of primitives; importing the package fills the table."""

from phalanx.placements.rules import contractions, cumulative, elementwise, linear_algebra, lookups, reductions, shapes
from phalanx.placements.rules.table import RULES, Mask, Plan

__all__ = [
    "RULES",
    "Mask",
    "Plan",
    "contractions",
    "cumulative",
    "elementwise",
    "linear_algebra",
    "lookups",
    "reductions",
    "shapes",
]
