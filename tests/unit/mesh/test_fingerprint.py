"""Checksums of arrays: the same however rows are sharded, and others for other numbers, places and types."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phalanx as phx
from phalanx.mesh.fingerprint import fingerprint

X = np.random.default_rng(0).normal(size=(11, 3)).astype(np.float32)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_how_rows_are_sharded_does_not_matter(devices, mesh_of):
    padded = phx.shard(X, mesh_of(1, devices))
    array, rows = (padded.array, padded.rows) if devices > 1 else (padded, None)
    assert fingerprint(array, rows) == fingerprint(X) == fingerprint(jax.device_put(X, jax.devices()[5]))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 32), st.integers(0, 31))
def test_each_bit_counts(place, bit):
    other = X.copy()
    other.view(np.uint32).ravel()[place] ^= np.uint32(1 << bit)
    assert fingerprint(other) != fingerprint(X)


def test_order_shape_and_type_count():
    assert len({fingerprint(a) for a in (X, X[::-1].copy(), X.T.copy(), X.ravel(), X.astype(np.float16))}) == 5
    swapped = X.copy()
    swapped[[2, 7]] = swapped[[7, 2]]
    assert fingerprint(swapped) != fingerprint(X)


@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "int16", "float16", "bfloat16", "int32", "complex64"])
def test_each_type(kind):
    a = jnp.arange(6).astype(kind) if kind != "bool" else jnp.arange(6) % 2 == 0
    b = a.at[3].set(a[4])
    assert fingerprint(a) == fingerprint(jnp.array(a)) != fingerprint(b)


def test_64_bits_and_keys():
    with jax.enable_x64(True):
        a = jnp.arange(6.0)
        assert a.dtype == np.float64 and fingerprint(a) != fingerprint(a.at[3].add(1e-15))
    keys = jax.random.split(jax.random.key(0), 3)
    assert fingerprint(keys) != fingerprint(keys[::-1])


def test_zero_has_no_sign():
    assert fingerprint(np.zeros(3, np.float32)) == fingerprint(-np.zeros(3, np.float32))
