"""Factors of many forms on 200 and 203 rows over eight devices: equal to those on one device, or refused by name."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from tests.mesh.row_programs import ADDS_UP, LEVELS, MIXES, OVER_DEVICES, data_of, model_of

import phalanx as phx

EVEN, RAGGED = 200, 203
MOST_REFUSED = 40
"""Most programs of all that are refused on ragged rows."""

UNTESTED = {"while"}
"""Factors that add up, refused by check="strict": without a proof or a gradient."""

GATHERED = {"gathered"}
"""Factors that are refused on ragged rows alone: padded rows cannot be left out of what devices gather."""

BY_NUMBER = {"log of the number"}
"""Factors that are refused on even rows alone: on ragged rows the number of rows is scaled to that of the whole."""

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


def is_refused(name, rows):
    if name in GATHERED | BY_NUMBER:
        return rows == (RAGGED if name in GATHERED else EVEN)
    return name in MIXES or name in UNTESTED


def test_most_programs_are_taken_on_ragged_rows():
    assert len(ALL) == len(ADDS_UP) + len(OVER_DEVICES) + len(MIXES) >= 80
    assert sum(is_refused(name, RAGGED) for name in ALL) <= MOST_REFUSED


@pytest.mark.parametrize("name, rows", CASES)
def test_a_factor_is_right_or_refused(name, rows, mesh_of):
    model, data = model_of(ALL[name]), data_of(rows)
    if is_refused(name, rows):
        with pytest.raises(ValueError, match="'f'"):
            phx.Target(model, phx.shard(data, mesh_of(1, 8)), check="strict")
        return
    found = phx.Target(model, phx.shard(data, mesh_of(1, 8)), check="strict")
    one = phx.Target(model, phx.shard(data, mesh_of(1, 1)))
    (value, slopes), (wanted, wanted_slopes) = (jax.device_get(t.value_and_grad(POSITION)) for t in (found, one))
    np.testing.assert_allclose(value, wanted, rtol=3e-5)
    for of, slope in wanted_slopes.items():
        np.testing.assert_allclose(slopes[of], slope, rtol=3e-3, atol=3e-4 * max(1.0, np.abs(slope).max()))
