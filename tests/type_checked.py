"""Where annotations are checked while tests run."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

TYPE_CHECKED = [
    "phalanx.adaptation",
    "phalanx.demos.models.factorisation",
    "phalanx.demos.models.mixture_density",
    "phalanx.demos.pictures",
    "phalanx.demos.scoring",
    "phalanx.diagnostics.element_statistics",
    "phalanx.diagnostics.calibration",
    "phalanx.diagnostics.normal_scores",
    "phalanx.diagnostics.psis",
    "phalanx.kernels.integrators",
    "phalanx.kernels.metric.low_rank",
    "phalanx.kernels.protocol.lane_target",
    "phalanx.kernels.protocol.per_chain",
    "phalanx.mesh.chains",
    "phalanx.mesh.keys",
    "phalanx.mesh.position",
    "phalanx.mesh.space",
    "phalanx.mesh.take_rows",
    "phalanx.mesh.total",
    "phalanx.density.indices",
    "phalanx.flows",
    "phalanx.jaxprs.lookups",
    "phalanx.distributions.row_blocks",
    "phalanx.distributions.row_sums",
    "phalanx.networks.attention",
    "phalanx.networks.pixels",
    "phalanx.networks.transformer",
    "phalanx.reducers",
    "phalanx.report.plots",
    "phalanx.run.compile",
    "phalanx.run.continuing",
    "phalanx.run.device.blocks",
    "phalanx.run.device.executables",
    "phalanx.run.device.recorder",
    "phalanx.run.device.reduced_rows",
    "phalanx.run.device.reducing",
    "phalanx.run.device.state_layout",
    "phalanx.run.device.summing",
    "phalanx.run.device.tally",
    "phalanx.run.device.thinning",
    "phalanx.run.device.tiles",
    "phalanx.run.draws_check",
    "phalanx.run.engine",
    "phalanx.run.find_finite_start",
    "phalanx.run.host",
    "phalanx.run.host_target",
    "phalanx.run.phases",
    "phalanx.run.results",
    "phalanx.run.state",
]
"""Where types and shapes are checked at every call. What users call with arrays of their own is left out: most of it
refuses wrong ones in its own words."""

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""A whole number will do for a float, as type checkers have it."""
