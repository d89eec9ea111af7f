"""Factors of many forms on 203 rows over eight devices: equal to those on one device."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from tests.mesh.row_programs import ADDS_UP, LEVELS, MIXES, OVER_DEVICES, data_of, model_of

import phalanx as phx

ROWS = 203
POSITION = {
    "w": np.array([0.4, -0.9, 0.3], np.float32),
    "s": np.float32(0.3),
    "b": np.linspace(-1.0, 1.2, LEVELS, dtype=np.float32),
}

ALL = {**ADDS_UP, **OVER_DEVICES, **MIXES}
SHOWN = {"scan", "fori", "norm", "cumsum", "segment sum", "stack of ones", "regression", "pmean", "median"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in SHOWN else pytest.mark.slow) for n in ALL])
def test_a_factor_is_right(name, mesh_of):
    model, data = model_of(ALL[name]), data_of(ROWS)
    if name == "while":  # which JAX does not differentiate in reverse
        (found, wanted) = (phx.Target(model, phx.shard(data, mesh_of(1, n))).log_density(POSITION) for n in (8, 1))
        np.testing.assert_allclose(found, wanted, rtol=3e-5)
        return
    found = phx.Target(model, phx.shard(data, mesh_of(1, 8)))
    one = phx.Target(model, phx.shard(data, mesh_of(1, 1)))
    (value, slopes), (wanted, wanted_slopes) = (jax.device_get(t.value_and_grad(POSITION)) for t in (found, one))
    np.testing.assert_allclose(value, wanted, rtol=3e-5)
    for of, slope in wanted_slopes.items():
        np.testing.assert_allclose(slopes[of], slope, rtol=3e-3, atol=3e-4 * max(1.0, np.abs(slope).max()))
