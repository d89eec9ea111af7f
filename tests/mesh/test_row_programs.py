"""Factors of many forms on 200 and 203 rows over eight devices: equal to those on one device."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from tests.mesh.row_programs import ADDS_UP, LEVELS, MIXES, OVER_DEVICES, data_of, model_of

import phalanx as phx

EVEN, RAGGED = 200, 203
POSITION = {
    "w": np.array([0.4, -0.9, 0.3], np.float32),
    "s": np.float32(0.3),
    "b": np.linspace(-1.0, 1.2, LEVELS, dtype=np.float32),
}

ALL = {**ADDS_UP, **OVER_DEVICES, **MIXES}
SHOWN = {"scan", "fori", "norm", "cumsum", "segment sum", "stack of ones", "regression", "pmean", "median"}
CASES = [
    pytest.param(name, rows, id=f"{name}-{rows}", marks=() if rows == RAGGED and name in SHOWN else pytest.mark.slow)
    for name in ALL
    for rows in (EVEN, RAGGED)
]


@pytest.mark.parametrize("name, rows", CASES)
def test_a_factor_is_right(name, rows, mesh_of):
    model, data = model_of(ALL[name]), data_of(rows)
    found = phx.Target(model, phx.shard(data, mesh_of(1, 8)))
    one = phx.Target(model, phx.shard(data, mesh_of(1, 1)))
    (value, slopes), (wanted, wanted_slopes) = (jax.device_get(t.value_and_grad(POSITION)) for t in (found, one))
    np.testing.assert_allclose(value, wanted, rtol=3e-5)
    for of, slope in wanted_slopes.items():
        np.testing.assert_allclose(slopes[of], slope, rtol=3e-3, atol=3e-4 * max(1.0, np.abs(slope).max()))
