"""Every model of the table, on every mesh, has the log density and the gradient it has on one device."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from tests.mesh.agreement import assert_agree, first_rows, on_mesh, truth
from tests.mesh.models import CASES

import phalanx as phx

BY_ROW = [name for name, case in CASES.items() if case.rows_apart]


@pytest.mark.parametrize("chain, data", [(1, 1), (1, 2), (2, 4), (1, 8)])
@pytest.mark.parametrize("name", CASES)
def test_rows_that_divide(name, chain, data, mesh_of):
    position, value, gradient, _ = truth(name, 16)
    mesh = mesh_of(chain, data)
    target = phx.Target(CASES[name].model, on_mesh(CASES[name].data, mesh), mesh=mesh)
    assert_agree(target, position, value, gradient)


@pytest.mark.parametrize("rows, chain, data", [(13, 2, 4), (3, 1, 8)])
@pytest.mark.parametrize("name", BY_ROW)
def test_rows_that_do_not_divide(name, rows, chain, data, mesh_of):
    position, value, gradient, values = truth(name, rows)
    mesh = mesh_of(chain, data)
    target = phx.Target(CASES[name].model, on_mesh(first_rows(CASES[name].data, rows), mesh), mesh=mesh)
    assert_agree(target, position, value, gradient)
    if data == 4:
        for site, constrained in target.constrain(position).items():
            np.testing.assert_allclose(constrained, values[site], rtol=1e-4, atol=1e-5, err_msg=site)


DEPENDENT = "supports that depend on other variables, local and global"


@pytest.mark.parametrize("name", ["a latent per row, by its shape", DEPENDENT, "the user's own pmean, in a scan"])
def test_code_that_knows_no_mesh_differentiates_the_log_density(name, mesh_of):
    position, value, gradient, _ = truth(name, 16)
    mesh = mesh_of(1, 4)
    target = phx.Target(CASES[name].model, on_mesh(CASES[name].data, mesh), mesh=mesh)
    np.testing.assert_allclose(target.log_density(position), value, rtol=1e-4)

    def on_device(position, arrays):
        density = target.on_device(arrays)
        return jax.grad(lambda u: 3.0 * density.log_density(u))(position)

    run = jax.shard_map(
        on_device, mesh=mesh, in_specs=(target.position_specs(), target.array_specs()),
        out_specs=target.position_specs(), check_vma=False,
    )  # fmt: skip
    found = jax.jit(run)(position, target.place_arrays())
    for site, leaf in gradient.items():
        np.testing.assert_allclose(found[site], 3 * leaf, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "name", [DEPENDENT, "simplices per row", "multivariate normals per row", "lkj and an ordered vector, global"]
)
@pytest.mark.parametrize("rows, data", [(16, 4), (13, 8)])
def test_positions_and_values_map_back_and_forth(name, rows, data, mesh_of):
    position, _, _, values = truth(name, rows)
    mesh = mesh_of(1, data)
    target = phx.Target(CASES[name].model, on_mesh(first_rows(CASES[name].data, rows), mesh), mesh=mesh)
    back = target.unconstrain(values)
    assert back.keys() == position.keys()
    for site, leaf in position.items():
        np.testing.assert_allclose(back[site], leaf, rtol=1e-3, atol=1e-3, err_msg=site)


@pytest.mark.parametrize("rows", [16, 13])
@pytest.mark.parametrize("chain, data", [(1, 2), (2, 4), (1, 8)])
def test_the_initial_position_is_the_same_on_every_mesh(rows, chain, data, mesh_of):
    name = "simplices per row"
    position, *_ = truth(name, rows)
    mesh = mesh_of(chain, data)
    target = phx.Target(CASES[name].model, on_mesh(first_rows(CASES[name].data, rows), mesh), mesh=mesh)
    for site, leaf in target.initial_position(jax.random.key(1)).items():
        np.testing.assert_array_equal(leaf, position[site])
    assert len(np.unique(position["rows"])) == position["rows"].size
    assert np.all(np.abs(position["rows"]) < 2)


def test_a_target_given_no_mesh_takes_that_of_the_data(mesh_of):
    mesh = mesh_of(1, 4)
    target = phx.Target(CASES["mixtures"].model, on_mesh(CASES["mixtures"].data, mesh))
    assert target.mesh == mesh
    position, value, gradient, _ = truth("mixtures", 16)
    assert_agree(target, position, value, gradient)
