"""Every kernel there is that leaves a target invariant. A new one joins the conformance suite by being listed here.

Those that see a few rows at a time do not, and have a conformance of their own, `test_minibatch_kernels`.
"""

from __future__ import annotations

import blackjax
import numpy as np
import pytest
from tests.conformance.langevin import langevin

import phalanx as phx

COVARIANCE = np.array([[0.4, 0.1, 0.0], [0.1, 0.3, 0.05], [0.0, 0.05, 0.5]])

KERNELS = {
    "nuts": phx.nuts(),
    "nuts, diagonal": phx.nuts(metric="diagonal", max_depth=5),
    "chees": phx.chees(),
    "mams": phx.mams(),
    "laps": phx.laps(),
    "rwmh": phx.rwmh(),
    "hmc": phx.hmc(num_steps=8),
    "hmc, identity": phx.hmc(num_steps=8, metric="identity"),
    "hmc, diagonal": phx.hmc(num_steps=8, inverse_mass_matrix={"weights": np.array([0.5, 1.0, 2.0])}),
    "hmc, dense": phx.hmc(num_steps=8, inverse_mass_matrix=COVARIANCE),
    "mala of the docs": phx.from_draw(langevin, target_acceptance=0.574),
    "blackjax mala": phx.from_blackjax(lambda log_density: blackjax.mala(log_density, 0.02)),
}
"""Kernels for a position with one variable `weights` of three coordinates."""

KNOWING_MESHES = {
    "nuts": phx.nuts(),
    "chees": phx.chees(),
    "mams": phx.mams(),
    "laps": phx.laps(),
    "rwmh": phx.rwmh(),
    "hmc": phx.hmc(num_steps=8),
    "mala of the docs": phx.from_draw(langevin, target_acceptance=0.574),
}
"""Kernels that move variables sharded over devices, for positions of any shape."""

NAMES = ["nuts", *(pytest.param(name, marks=pytest.mark.slow) for name in ("chees", "mams", "laps", "rwmh", "hmc"))]
"""Kernels of Phalanx; tests of those that resemble nuts are slow."""

BOTH, MANY = (2, 4), (1, 8)
"""Devices along (chain, data): along both axes, and as many as there are rows almost. On other meshes kernels make the
same draws (`test_behaviours`)."""

MESHES = [BOTH, pytest.param(*MANY, marks=pytest.mark.slow)]

QUICK = [(name, BOTH) for name in ("nuts", "rwmh")]
"""Kernels whose tests are not marked slow; kernels that differ little from others are."""

KERNELS_ON_MESHES = [
    pytest.param(name, *sizes, marks=[] if (name, sizes) in QUICK else pytest.mark.slow)
    for name in KERNELS
    for sizes in (BOTH, MANY)
    if sizes == BOTH or name in ("nuts", "blackjax mala")
]
