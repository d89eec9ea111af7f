"""Batches of matrices on CPUs: the same numbers piece by piece, and no program that hangs."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import phalanx as phx
from phalanx.mesh.compatibility.lapack_batches import LEAST_SHARED, deadlocks, pieces
from phalanx.mesh.compatibility.workarounds import VARIABLE

needed = pytest.mark.skipif(not deadlocks(jaxlib.version.__version__), reason="this jaxlib does not share batches")
RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    "version, found",
    [
        ("0.9.2", False), ("0.10.0", True), ("0.10.1", True), ("0.10.2", True), ("0.11.0", True), ("0.11.1", False),
        ("0.12.0.1", False), ("0.10.1.dev3", True), ("1.0", False),
    ],
)  # fmt: skip
def test_which_releases_deadlock(version, found):
    assert deadlocks(version) == found


ESTIMATES = {
    "trsm, getrf": lambda m, n, k: m * n * max(m, n) if k else m * n * min(m, n),
    "geqrf": lambda m, n, k: 2 * m * n * min(m, n) - 2 * min(m, n) ** 3 // 3,
    "ungqr": lambda m, n, k: 4 * m * n * k - 2 * k * k * (m + n) + 4 * k**3 // 3,
    "ormqr": lambda m, n, k: 4 * k * m * n - 2 * k * k * n,
    "svd": lambda m, n, k: 10 * m * n * min(m, n),
    "eig, schur": lambda m, n, k: 10 * m**3,
    "gtsv": lambda m, n, k: 5 * m * n,
}
"""What jaxlib 0.10.1 takes for the operations of a real matrix; of a complex one three times as many."""


@settings(max_examples=200, deadline=None)
@given(m=st.integers(1, 300), n=st.integers(1, 300), is_square=st.booleans(), data=st.data())
def test_jaxlib_computes_a_piece_without_tasks(m, n, is_square, data):
    n = m if is_square else n
    batch, piece = pieces([(4, 3, m, n), (4, 3, min(m, n))])
    assert batch == (4, 3) and piece >= 1
    k = data.draw(st.integers(1, min(m, n)))
    for name, estimate in ESTIMATES.items():
        if is_square or name not in ("eig, schur", "trsm, getrf"):
            assert piece == 1 or 3 * piece * estimate(m, n, k) < LEAST_SHARED, name


def _symmetric(x):
    return x @ jnp.swapaxes(x, -1, -2) + jnp.broadcast_to(50.0 * jnp.eye(x.shape[-1]), x.shape)


OPERATIONS = {
    "cholesky": lambda x: jnp.linalg.cholesky(_symmetric(x)),
    "solve": lambda x: jnp.linalg.solve(x, x[..., :3]),
    "solve_triangular": lambda x: jax.scipy.linalg.solve_triangular(_symmetric(x), x, lower=True),
    "cho_solve": lambda x: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(_symmetric(x)), True), x),
    "eigh": lambda x: jnp.linalg.eigh(_symmetric(x)),
    "eig": lambda x: jnp.linalg.eig(x),
    "svd": lambda x: jnp.linalg.svd(x[..., :-2], full_matrices=False),
    "qr": lambda x: jnp.linalg.qr(x[..., :-2]),
    "pivoted qr": lambda x: jax.scipy.linalg.qr(x, pivoting=True),
    "slogdet": lambda x: jnp.linalg.slogdet(x),
    "inv": jnp.linalg.inv,
    "lu": lambda x: jax.lax.linalg.lu(x),
    "schur": lambda x: jax.lax.linalg.schur(x),
    "hessenberg": lambda x: jax.lax.linalg.hessenberg(x),
    "tridiagonal": lambda x: jax.lax.linalg.tridiagonal(_symmetric(x)),
    "tridiagonal_solve": lambda x: jax.lax.linalg.tridiagonal_solve(x[..., 0], x[..., 1] + 9, x[..., 2], x),
    "complex cholesky": lambda x: jnp.linalg.cholesky(_symmetric(x) + 0j),
}
MATRICES = RANDOM.normal(size=(3, 7, 30, 30)).astype(np.float32)


def _calls(lowered) -> list[tuple[int, ...]]:
    """Batch shapes of the LAPACK calls of a program."""
    found = re.findall(r"@lapack_\w+\(.*?: \((.*?)\) ->", lowered.as_text())
    shapes = [
        [tuple(map(int, shape.split("x")[:-1])) for shape in re.findall(r"tensor<((?:\d+x)+)", operands)]
        for operands in found
    ]
    return [max(one, key=len)[:-2] for one in shapes]


@needed
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_the_same_numbers_and_is_computed_in_pieces(name):
    phx.make_mesh(chain=1)
    program = jax.jit(jax.vmap(OPERATIONS[name]))
    calls = _calls(program.lower(MATRICES))
    assert calls and all(np.prod(batch) == 1 for batch in calls), calls
    one_by_one = [jax.jit(OPERATIONS[name])(matrix) for matrix in MATRICES.reshape(-1, 30, 30)]
    right = jax.tree.map(lambda *leaves: np.stack(leaves).reshape(3, 7, *leaves[0].shape), *one_by_one)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4), program(MATRICES), right)


@needed
def test_small_matrices_stay_in_one_call():
    phx.make_mesh(chain=1)
    assert _calls(jax.jit(jnp.linalg.cholesky).lower(np.ones((8, 3, 3), np.float32))) == [(8,)]


@needed
def test_gradients_and_loops_are_covered_under_a_checked_and_an_unchecked_mesh():
    mesh = phx.make_mesh(chain=2)

    def of_device(x):
        def turn(i, total):
            return total + jax.grad(lambda x: jnp.linalg.cholesky(_symmetric(x)).sum())(x + i)

        return jax.lax.fori_loop(0, 2, turn, 0 * x)

    whole = of_device(MATRICES[:2])
    spec = PartitionSpec("chain")
    for checked in (True, False):
        program = jax.jit(jax.shard_map(of_device, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=checked))
        assert all(np.prod(batch) == 1 for batch in _calls(program.lower(MATRICES[:2])))
        np.testing.assert_allclose(program(MATRICES[:2]), whole, rtol=1e-4, atol=1e-5)


@needed
def test_arrays_that_lie_over_devices_without_shard_map_are_covered():
    mesh = phx.make_mesh(chain=2)
    placed = jax.device_put(MATRICES[:2], NamedSharding(mesh, PartitionSpec("chain")))
    program = jax.jit(lambda x: jnp.linalg.cholesky(_symmetric(x)))
    assert all(np.prod(batch) == 1 for batch in _calls(program.lower(placed)))
    np.testing.assert_allclose(program(placed), program(MATRICES[:2]), rtol=1e-4, atol=1e-5)


def test_other_programs_of_the_process_still_compile():
    phx.make_mesh(chain=1)
    mesh = jax.make_mesh((2,), ("i",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        placed = jax.device_put(_symmetric(MATRICES[:2]), NamedSharding(mesh, PartitionSpec("i")))
        jax.jit(jnp.linalg.eigh)(placed)[0].block_until_ready()  # cholesky fails in JAX 0.10.1 itself
    (n,) = export.symbolic_shape("n")
    exported = export.export(jax.jit(jnp.linalg.cholesky))(jax.ShapeDtypeStruct((n, 30, 30), np.float32))
    assert exported.call(_symmetric(MATRICES[0])).shape == (7, 30, 30)


MANY_AT_ONCE = """
import sys
import jax, jax.numpy as jnp, numpy as np
import phalanx as phx
phx.make_mesh(chain=1)
x = np.broadcast_to(np.eye(100, dtype=np.float32), (32, 4, 100, 100))
program = jax.jit(lambda x: [jnp.linalg.cholesky(jnp.sin(one) * 0.01 + one) for one in x])
for _ in range(int(sys.argv[1])):
    jax.block_until_ready(program(x))
"""


def run(script: str, *arguments: object, seconds: float, turned_off: str = "") -> None:
    environment = {**os.environ, VARIABLE: turned_off}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    subprocess.run(command, env=environment, check=True, timeout=seconds)


@pytest.mark.slow
def test_many_factorisations_at_once_end():
    run(MANY_AT_ONCE, 40, seconds=120)


@needed
@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one thread computes everything by itself")
def test_many_factorisations_at_once_hang_without_the_work_around():
    with pytest.raises(subprocess.TimeoutExpired):  # where this ends, lapack-in-pieces can go
        run(MANY_AT_ONCE, 2_000, seconds=90, turned_off="lapack-in-pieces")


MODELS = """
import sys
import jax, jax.numpy as jnp, numpy as np, numpyro.distributions as dist
import phalanx as phx

devices, lanes, name, inference = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
phx.use_cpu_devices(devices)
x = np.linspace(0, 1, 100, dtype=np.float32)

def covariance(scale):
    return jnp.exp(-0.5 * ((x[:, None] - x) / (0.2 + scale)) ** 2) + 0.1 * jnp.eye(100)

def scale():
    return phx.sample("scale", dist.HalfNormal(1.0))

OPERATIONS = {
    "eigh": lambda k: jnp.log(jnp.abs(jnp.linalg.eigh(k)[0]) + 1.0).sum(),
    "svd": lambda k: jnp.log(jnp.linalg.svd(k, compute_uv=False) + 1.0).sum(),
}

def model(y=None):
    if name == "gp":
        phx.sample("y", dist.MultivariateNormal(jnp.zeros(100), covariance_matrix=covariance(scale())), obs=y)
    elif name == "normal":
        phx.sample("z", dist.MultivariateNormal(jnp.zeros(100), covariance_matrix=covariance(0.1)))
    elif name == "lkj":
        factor = phx.sample("factor", dist.LKJCholesky(20, 1.0))
        phx.sample("y", dist.MultivariateNormal(jnp.zeros(20), scale_tril=factor), obs=y)
    else:
        phx.sample("y", dist.Normal(jnp.full(3, 0.01 * OPERATIONS[name](covariance(scale()))), 1.0), obs=y)

widths = {"gp": 100, "lkj": 20}
data = {} if name in ("normal", "wishart") else {"y": np.ones(widths.get(name, 3), np.float32)}
if inference == "nuts":
    posterior = phx.mcmc(
        model, data, num_chains=devices * lanes, num_warmup=20, num_samples=10, progress=False,
        kernel=phx.nuts(max_depth=4),
    )
    if data:
        posterior.predictive(seed=1)
    if "scale" in posterior.draws:
        posterior.predict(lambda draw: jnp.linalg.cholesky(covariance(draw["scale"])), batch_size=16)
else:
    mesh = phx.make_mesh(data=devices) if devices > 1 else None
    fit = phx.fit(model, getattr(phx.guides, inference)(), data, num_steps=30, progress=False, mesh=mesh)
    fit.posterior(16, seed=1).predictive(seed=1)
print("ended")
"""
GRID = [
    (2, 8, "normal", "nuts"), (2, 4, "gp", "nuts"), (2, 4, "lkj", "nuts"), (8, 2, "svd", "nuts"),
    (2, 1, "eigh", "full_rank"),
]  # fmt: skip
"""Each operation is in pieces in any program (above); these are whole programs, many batches of them at once."""


@pytest.mark.slow
@pytest.mark.parametrize("devices, lanes, name, inference", GRID)
def test_models_with_batched_linear_algebra_end(devices, lanes, name, inference):
    run(MODELS, devices, lanes, name, inference, seconds=500)
