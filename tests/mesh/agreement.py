"""A target on a mesh against the same target on one device."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
from tests.mesh.models import CASES

import phalanx as phx


def first_rows(data: Any, rows: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[:rows] if np.ndim(leaf) else leaf, data)


def on_mesh(data: Any, mesh: jax.sharding.Mesh) -> Any:
    """`data` with its arrays spread over `data`; numbers and strings as they are."""
    return jax.tree.map(lambda leaf: phx.shard(leaf, mesh) if np.ndim(leaf) else leaf, data)


@cache
def truth(name: str, rows: int):
    """The named case on one device: where it is evaluated, value and gradient there, and the constrained values."""
    target = phx.Target(CASES[name].model, first_rows(CASES[name].data, rows))
    position = target.initial_position(jax.random.key(1))
    return position, *target.value_and_grad(position), target.constrain(position)


def assert_agree(target: phx.Target, position: Any, value: Any, gradient: Any) -> None:
    found_value, found_gradient = target.value_and_grad(position)
    np.testing.assert_allclose(found_value, value, rtol=1e-4)
    assert found_gradient.keys() == gradient.keys()
    for name, leaf in gradient.items():
        assert found_gradient[name].shape == leaf.shape
        np.testing.assert_allclose(found_gradient[name], leaf, rtol=1e-3, atol=1e-4, err_msg=name)
