from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.networks.transformer import attend, attend_next, empty_cache


def random_heads(length=13, seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    return [jax.random.normal(key, (2, length, 2, 4)) for key in keys]


def by_hand(query, key, value, window):
    """Position by position, in NumPy."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    found = np.zeros_like(value)
    for i in range(query.shape[1]):
        first = 0 if window is None else max(0, i - window)
        scores = np.einsum("bhd,bshd->bhs", query[:, i], key[:, first : i + 1]) / np.sqrt(query.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        found[:, i] = np.einsum("bhs,bshd->bhd", weights, value[:, first : i + 1])
    return found


@pytest.mark.parametrize("window", [None, 1, 2, 3, 5, 12, 13, 40])
@pytest.mark.parametrize("length", [1, pytest.param(12, marks=pytest.mark.slow), 13])
def test_each_position_sees_its_window_and_nothing_else(length, window):
    heads = random_heads(length)
    expected = by_hand(*heads, window=window)
    np.testing.assert_allclose(jax.jit(partial(attend, window=window))(*heads), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [None, 1, 4, 12])
def test_one_after_another_is_all_at_once(window):
    heads = random_heads()
    cache = empty_cache(2, 13, 2, 4, window=window, dtype=jnp.float32)
    assert cache.key.shape[1] == (13 if window is None else min(window + 1, 13))
    found, step = [], jax.jit(attend_next)
    for i in range(13):
        result, cache = step(*(x[:, i : i + 1] for x in heads), cache, jnp.int32(i))
        found.append(result)
    expected = jax.jit(partial(attend, window=window))(*heads)
    np.testing.assert_allclose(jnp.concatenate(found, 1), expected, rtol=1e-4, atol=1e-5)


def test_members_of_an_ensemble_are_mapped():
    heads = [jnp.stack([a, b]) for a, b in zip(random_heads(), random_heads(seed=1), strict=True)]
    one = partial(attend, window=3)
    found, expected = jax.jit(jax.vmap(one))(*heads), jax.jit(one)(*random_heads(seed=1))
    np.testing.assert_allclose(found[1], expected, rtol=1e-4, atol=1e-5)


def test_memory_of_windows_grows_with_them_and_not_with_the_length():
    def most_bytes(window):
        heads = [jax.ShapeDtypeStruct((1, 1024, 1, 4), jnp.float32)] * 3
        memory = jax.jit(partial(attend, window=window)).lower(*heads).compile().memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    assert most_bytes(32) < most_bytes(None) / 4


@pytest.mark.parametrize("window", [0, -3])
def test_a_window_without_anything_is_refused(window):
    words = f"attention: window must be at least 1, or None for all earlier positions; got {window}."
    with pytest.raises(ValueError, match=words):
        attend(*random_heads(), window=window)
