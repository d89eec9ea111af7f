"""Where annotations are checked while tests run."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

TYPE_CHECKED = [
    "phalanx.adaptation",
    "phalanx.diagnostics.element_statistics",
    "phalanx.diagnostics.calibration",
    "phalanx.diagnostics.normal_scores",
    "phalanx.diagnostics.psis",
    "phalanx.kernels.acceptance",
    "phalanx.kernels.lane_target",
    "phalanx.kernels.lanes",
    "phalanx.kernels.leapfrog",
    "phalanx.kernels.low_rank",
    "phalanx.kernels.tree",
    "phalanx.kernels.vector",
    "phalanx.mesh.chains",
    "phalanx.mesh.keys",
    "phalanx.mesh.space",
    "phalanx.mesh.take_rows",
    "phalanx.mesh.total",
    "phalanx.programs.indices",
    "phalanx.programs.lookups",
    "phalanx.programs.row_blocks",
    "phalanx.programs.row_sums",
    "phalanx.reducers",
]
"""Where types and shapes are checked at every call. What users call with arrays of their own is left out: most of it
refuses wrong ones in its own words."""

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""A whole number will do for a float, as type checkers have it."""
