"""Every model of the table, on every mesh, has the log density and the gradient it has on one device."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from tests.mesh.agreement import assert_agree, on_mesh, ranks, truth
from tests.mesh.models import CASES, X, Y
from tests.slow import with_slow

import phalanx as phx

BY_ROW = [name for name, case in CASES.items() if case.rows_apart]
DEPENDENT = "supports that depend on other variables, local and global"


LONG = {
    "a term that sees only the number of rows",
    "fori_loop from 0.",
    "the user's own pmean, in a scan",
    "the user's own psum of everything",
}


@pytest.mark.parametrize("chain, data", [(2, 4), pytest.param(1, 8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", with_slow([*CASES], {*BY_ROW, *LONG}))  # a test of padded rows has those of BY_ROW
def test_rows_that_divide(name, chain, data, mesh_of):
    with ranks(name):
        position, value, gradient, _ = truth(name, 16)
        assert_agree(on_mesh(name, 16, mesh_of(chain, data)), position, value, gradient)


QUICK = {"means over the rows that are equal anyway", "to_event over rows", "under an intervention"}


@pytest.mark.parametrize("name", with_slow(BY_ROW, {*BY_ROW} - QUICK))
def test_rows_that_do_not_divide(name, mesh_of):
    with ranks(name):
        position, value, gradient, _ = truth(name, 13)
        assert_agree(on_mesh(name, 13, mesh_of(2, 4)), position, value, gradient)


@pytest.mark.parametrize("rows", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(DEPENDENT, marks=pytest.mark.slow),
        "a latent per row, by its shape",
        "terms of one row each that see no data",
    ],
)
def test_fewer_rows_than_devices(name, rows, mesh_of):
    position, value, gradient, _ = truth(name, rows)
    assert_agree(on_mesh(name, rows, mesh_of(1, 8)), position, value, gradient)


@pytest.mark.parametrize(
    "name",
    [
        "a latent per row, by its shape",
        "the user's own pmean, in a scan",
        pytest.param(DEPENDENT, marks=pytest.mark.slow),
    ],
)
def test_code_that_knows_no_mesh_differentiates_the_log_density(name, mesh_of):
    position, value, gradient, _ = truth(name, 16)
    mesh = mesh_of(1, 4)
    target = on_mesh(name, 16, mesh)
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


MAPPED = [DEPENDENT, "simplices per row", "multivariate normals per row", "lkj and an ordered vector, global",
          "deterministic values, local and global"]  # fmt: skip


@pytest.mark.parametrize("rows, data", [pytest.param(16, 4, marks=pytest.mark.slow), (13, 8)])
@pytest.mark.parametrize("name", with_slow(MAPPED, MAPPED[1:]))
def test_positions_and_values_map_back_and_forth(name, rows, data, mesh_of):
    with ranks(name):
        position, _, _, values = truth(name, rows)
        target = on_mesh(name, rows, mesh_of(1, data))
        found = target.constrain(position)
        back = target.unconstrain({site: values[site] for site in position})
    assert list(found) == list(values)
    for site, leaf in values.items():
        np.testing.assert_allclose(found[site], leaf, rtol=1e-4, atol=1e-5, err_msg=site)
    for site, leaf in position.items():
        np.testing.assert_allclose(back[site], leaf, rtol=1e-3, atol=1e-3, err_msg=site)


@pytest.mark.parametrize("rows", [pytest.param(16, marks=pytest.mark.slow), 13])
@pytest.mark.parametrize("chain, data", [(2, 4), *(pytest.param(1, n, marks=pytest.mark.slow) for n in (2, 8))])
def test_the_initial_position_is_the_same_on_every_mesh(rows, chain, data, mesh_of):
    name = DEPENDENT
    position, *_ = truth(name, rows)
    for site, leaf in on_mesh(name, rows, mesh_of(chain, data)).initial_position(jax.random.key(1)).items():
        np.testing.assert_array_equal(leaf, position[site])
    everything = np.concatenate([leaf.ravel() for leaf in position.values()])
    assert len(np.unique(everything)) == everything.size  # no two coordinates from one key
    assert np.all(np.abs(everything) < 2) and np.ptp(everything) > 2


def test_a_log_density_given_as_a_function_starts_where_it_was_told(mesh_of):
    program = phx.from_logdensity(lambda p, x, y: -((y - x @ p["w"]) ** 2), {"w": np.array([0.5, -1.5])})
    mesh = mesh_of(1, 4)
    target = phx.Target(program, phx.shard({"x": X[:13], "y": Y[:13]}, mesh), mesh=mesh)
    np.testing.assert_array_equal(target.initial_position(jax.random.key(0))["w"], [0.5, -1.5])


def test_a_target_given_no_mesh_takes_that_of_the_data(mesh_of):
    mesh = mesh_of(1, 4)
    data = phx.shard(CASES["an improper log density"].data, mesh)
    target = phx.Target(CASES["an improper log density"].model, data)
    assert target.mesh == mesh
    assert target.sites.is_divided
