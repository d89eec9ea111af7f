"""A target on a mesh against the same target on one device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from tests.mesh.models import CASES

import phalanx as phx
from phalanx.placements import pad_rows


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


def results_at(target: phx.Target, positions: Sequence[Mapping[str, Any]]) -> tuple[Any, Any, Any]:
    """The log density, its gradient and the values of variables at whole positions, compiled together."""
    mesh = target.mesh

    def stacked(name: str) -> np.ndarray:
        whole = np.stack([position[name] for position in positions])
        devices = math.prod(mesh.shape[axis] for axis in target.sharding(name).axes)
        return pad_rows(whole, 1, devices) if devices > 1 else whole

    def on_device(positions, arrays):
        density = target.on_device(arrays)

        def at(position):
            total, gradient = density.value_and_grad(position)
            return total.value, gradient, density.constrain(position)

        return lax.map(at, positions)

    specs = target.position_specs(None)
    out_specs = PartitionSpec(), specs, {name: target.sharding(name).spec(None) for name in target.value_names()}
    in_specs = specs, target.array_specs()
    run = jax.shard_map(on_device, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    value, *by_name = jax.device_get(jax.jit(run)({name: stacked(name) for name in specs}, target.place_arrays()))
    gradient, values = ({name: target.trim(name, leaf, 1) for name, leaf in tree.items()} for tree in by_name)
    return value, gradient, values


def compare_with_one_device(
    model: Callable[..., Any],
    data: Mapping[str, Any],
    mesh: jax.sharding.Mesh,
    axes: Mapping[str, Any] | None = None,
    at: Sequence[Mapping[str, Any]] = ({},),
) -> None:
    """Compare a model on a mesh with one device, at random positions but for the variables in `at`.

    Args:
        model: the model.
        data: its arguments, whole arrays.
        mesh: the mesh.
        axes: mesh axes by argument, if not `data`.
        at: for each position the values of some variables.
    """
    axes = axes or {}
    placed = {name: phx.shard(array, mesh, axes.get(name, "data")) for name, array in data.items()}
    target = phx.Target(model, placed, mesh=mesh)
    one = phx.Target(model, data, mesh=phx.make_mesh(chain=1, data=1, devices=jax.devices()[:1]))
    positions = []
    for number, fixed in enumerate(at):
        position = one.initial_position(jax.random.key(number))
        positions.append(position | {name: jnp.float32(x) for name, x in fixed.items() if name in position})
    found, expected = results_at(target, positions), results_at(one, positions)
    np.testing.assert_allclose(found[0], expected[0], rtol=3e-5, atol=1e-5)
    for of_mesh, of_one, rtol in zip(found[1:], expected[1:], (3e-3, 1e-4), strict=True):
        assert of_mesh.keys() == of_one.keys()
        for name, leaf in of_one.items():
            assert of_mesh[name].shape == leaf.shape, name
            size = np.max(np.abs(leaf), initial=1.0, where=np.isfinite(leaf))
            np.testing.assert_allclose(of_mesh[name], leaf, rtol=rtol, atol=1e-4 * size, err_msg=name)
