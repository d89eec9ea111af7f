"""Draws of every kernel are the same in a store and in memory."""

from __future__ import annotations

import numpy as np
import numpyro.distributions as dist
import pytest
from tests.conformance.kernels import KERNELS

import phalanx as phx

pytest.importorskip("zarr")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mams", *(pytest.param(n, marks=pytest.mark.slow) for n in KERNELS if n != "mams")])
def test_a_store_has_the_draws_of_memory(tmp_path, name):
    sampler = phx.compile(
        lambda: phx.sample("weights", dist.Normal(0.0, 1.0).expand([3])), kernel=KERNELS[name], num_chains=8
    )
    sizes = {"num_warmup": 20, "num_samples": 41, "thin": 2, "progress": False}
    memory, stored = sampler.run(1, **sizes), sampler.run(1, **sizes, store=tmp_path / "run.zarr")
    for of in ("draws", "stats"):
        one, other = getattr(memory, of), getattr(phx.open(tmp_path / "run.zarr"), of)
        assert set(one) == set(other) == set(getattr(stored, of))
        for values in one:
            np.testing.assert_array_equal(one[values], np.asarray(other[values]))
