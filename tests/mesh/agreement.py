"""A target on a mesh against the same target on one device."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
from tests.mesh.models import CASES

import phalanx as phx


def ranks(name: str):
    """The rank promotion that the named case needs: none, unless NumPyro promotes ranks itself."""
    return jax.numpy_rank_promotion("allow" if CASES[name].promotes else "raise")


def first_rows(data: Any, rows: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[:rows] if np.ndim(leaf) else leaf, data)


def on_mesh(name: str, rows: int, mesh: jax.sharding.Mesh) -> phx.Target:
    """The named case on a mesh, its arrays spread over `data`; numbers and strings as they are."""
    data = first_rows(CASES[name].data, rows)
    placed = jax.tree.map(lambda leaf: phx.shard(leaf, mesh) if np.ndim(leaf) else leaf, data)
    return phx.Target(CASES[name].model, placed, mesh=mesh)


@cache
def truth(name: str, rows: int):
    """The named case on one device: where it is evaluated, value and gradient there, and the constrained values."""
    target = phx.Target(CASES[name].model, first_rows(CASES[name].data, rows))
    position = target.initial_position(jax.random.key(1))
    return jax.tree.map(np.asarray, (position, *target.value_and_grad(position), target.constrain(position)))


def assert_agree(target: phx.Target, position: Any, value: Any, gradient: Any) -> None:
    found_value, found_gradient = target.value_and_grad(position)
    np.testing.assert_allclose(found_value, value, rtol=1e-4)
    assert found_gradient.keys() == gradient.keys()
    for name, leaf in gradient.items():
        assert found_gradient[name].shape == leaf.shape
        np.testing.assert_allclose(found_gradient[name], leaf, rtol=1e-3, atol=1e-4, err_msg=name)
