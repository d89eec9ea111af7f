"""The posteriors, by the names of their files."""

from __future__ import annotations

from tests.statistical.posteriordb import (
    ark,
    earnings,
    eight_schools_centered,
    eight_schools_noncentered,
    garch11,
    gauss_mix,
    gp_regr,
    kidiq,
    lotka_volterra,
    mesquite,
    nes,
    sblrc,
)

_files = (
    eight_schools_noncentered, eight_schools_centered, kidiq, ark, garch11, sblrc, mesquite, lotka_volterra, gauss_mix,
    gp_regr, nes, earnings,
)  # fmt: skip

ENTRIES = {file.__name__.rpartition(".")[2]: file.entry for file in _files}
