"""What each primitive makes of values whose rows are apart: the rules of the proof, by name.

A rule is asked when it is known of all inputs what they are of the whole's, and when both equations have the same
parameters (but for those that `MAY_DIFFER` names, which it looks at itself). It gives the kinds of the outputs, or None
where the rows may be mixed.
"""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.programs.row_algebra import ALGEBRA
from phalanx.programs.row_arithmetic import ARITHMETIC
from phalanx.programs.row_collectives import OVER_DEVICES
from phalanx.programs.row_layout import LAYOUT
from phalanx.programs.row_step import Rule, words
from phalanx.programs.row_tables import TABLES

MAY_DIFFER: dict[str, tuple[str, ...]] = {
    "broadcast_in_dim": ("shape",),
    "reshape": ("new_sizes",),
    "iota": ("shape",),
    "slice": ("start_indices", "limit_indices"),
    "dynamic_slice": ("slice_sizes",),
    "gather": ("slice_sizes",),
    "all_gather": ("axis_size",),
}
"""Parameters that follow the number of rows."""


OPAQUE = words("pure_callback io_callback debug_callback custom_partitioning shard_map ffi_call")
"""What cannot be compared: two that look the same may do different things."""

RULES: Mapping[str, Rule] = {**ARITHMETIC, **LAYOUT, **TABLES, **ALGEBRA, **OVER_DEVICES}
