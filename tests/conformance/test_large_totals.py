"""Log densities as large as those of a billion rows: chains move as they do where it is small."""

from __future__ import annotations

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.conformance.kernels import KNOWING_MESHES

import phalanx as phx

FAR = -(2.0**30)
"""A multiple of what totals are multiples of: it changes no other digit of one."""

ROWS = 20_000
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(ROWS, 3)).astype(np.float32)
Y = (RANDOM.random(ROWS) < 1 / (1 + np.exp(-X @ [0.5, -0.2, 0.1]))).astype(np.float32)


def model(x, y, far):
    weights = phx.sample("weights", dist.Normal(0.0, 1.0).expand([3]))
    phx.factor("far", far)
    phx.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name == "nuts" else pytest.param(name, marks=pytest.mark.slow) for name in KNOWING_MESHES]
)
def test_draws_are_those_of_a_log_density_without_the_constant(name, mesh_of):
    mesh = mesh_of(2, 4)
    rows = phx.shard({"x": X[:103], "y": Y[:103]}, mesh)
    near, far = (
        phx.mcmc(
            model, {**rows, "far": np.float32(constant)}, kernel=KNOWING_MESHES[name], mesh=mesh, num_warmup=60,
            num_samples=20, progress=False, init={"weights": np.zeros(3, np.float32)},
        )
        for constant in (0.0, FAR)
    )  # fmt: skip
    np.testing.assert_array_equal(far.draws["weights"], near.draws["weights"])
    for stat in ("log_density", "energy"):
        assert far.stats[stat].dtype == np.float64
        moved = FAR if stat == "log_density" else -FAR
        np.testing.assert_allclose(far.stats[stat] - moved, near.stats[stat], atol=1e-3)


def scaled(scale, in_blocks=False):
    """A logistic regression on as many times the rows."""

    def likelihood(weights, x, y):
        def rows(x):
            return dist.Bernoulli(logits=x @ weights)

        phx.sample("y", phx.blocked(rows, x, block=700) if in_blocks else rows(x), obs=y)

    def model(x, y):
        weights = phx.sample("weights", dist.Normal(0.0, 1.0).expand([3]))
        phx.scale(likelihood, scale)(weights, x, y)

    return model


def in_double(weights, scale):
    """Its log density."""
    weights = np.asarray(weights, np.float64)
    logits = X.astype(np.float64) @ weights
    rows = Y * logits - np.logaddexp(0.0, logits)
    return scale * rows.sum() - 0.5 * np.square(weights).sum() - 1.5 * np.log(2 * np.pi)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "in_blocks"),
    [(4, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, False), (1, True), (4, False)))],
)
def test_differences_of_nearby_points_are_right_to_a_hundredth(devices, in_blocks, mesh_of):
    """Up to 1.3e9. Of that many rows each is rounded on its own; scaled rows err together, and so more by the root.

    Processors with short vectors add the few neighbouring terms of a sum one after the other, and round more often:
    with AVX2, 0.013 was measured.
    """
    mesh = mesh_of(1, devices)
    data = phx.shard({"x": X, "y": Y}, mesh) if devices > 1 else {"x": X, "y": Y}
    for scale in (1e2, 1e3, 1e4, 1e5):
        away = np.random.default_rng(1).normal(size=(40, 3)) / np.sqrt(scale * ROWS)
        points = (np.array([0.5, -0.2, 0.1]) + away).astype(np.float32)
        found = totals(phx.Target(scaled(scale, in_blocks), data, mesh=mesh), points)
        wrong = found.in_double() - [in_double(point, scale) for point in points]
        assert np.abs(found.value).max() > 0.5 * scale * ROWS
        assert np.diff(wrong).std() < 0.02 * np.sqrt(scale)
        here, there = (jax.tree.map(lambda part, which=which: part[which::2], found) for which in (0, 1))
        np.testing.assert_allclose(there - here, there.in_double() - here.in_double(), atol=1e-3)


def by_pieces(count):
    """Covariates times the signs of labels, of so many rows that all differ, and where each piece begins."""
    for number, start in enumerate(range(0, count, 2**18)):
        random = np.random.default_rng(number)
        x = random.standard_normal(min(2**18, count - start), np.float32)
        yield start, np.where(random.random(len(x)) < 1 / (1 + np.exp(-0.7 * x)), x, -x)


@pytest.mark.slow
def test_differences_of_a_hundred_million_real_rows_are_right_to_a_hundredth(mesh_of):
    """Each is rounded on its own; `benchmarks/energies.py` goes up to a billion, which takes minutes and 4 GB."""
    count, mesh = 100_000_000, mesh_of(1, 2)
    points = np.float32(0.7) + np.array([0.0, 1.0, -2.0, 3.0], np.float32) / np.float32(np.sqrt(count))
    rows, exact = np.empty(count, np.float32), np.zeros(len(points))
    for start, piece in by_pieces(count):
        rows[start : start + len(piece)] = piece
        logits = points.astype(np.float64)[:, None] * piece
        exact += (np.minimum(logits, 0.0) - np.log1p(np.exp(-np.abs(logits)))).sum(1)

    def model(rows):
        weight = phx.sample("weights", dist.ImproperUniform(dist.constraints.real, (), ()))
        phx.factor("rows", phx.blocked(lambda rows: jax.nn.log_sigmoid(weight * rows), rows))

    found = totals(phx.Target(model, phx.shard({"rows": rows}, mesh), mesh=mesh), points)
    np.testing.assert_allclose(np.diff(found.in_double()), np.diff(exact), atol=0.01)
    in_one_float = np.diff(np.asarray(found.value, np.float64))
    assert np.abs(in_one_float - np.diff(exact)).max() > 0.05


def totals(target, points):
    """The log density at each point."""

    def on_device(points, arrays):
        return jax.vmap(lambda point: target.on_device(arrays).total({"weights": point}))(points)

    everywhere = jax.sharding.PartitionSpec()
    specs = {"in_specs": (everywhere, target.array_specs()), "out_specs": everywhere}
    return jax.jit(jax.shard_map(on_device, mesh=target.mesh, **specs, check_vma=False))(points, target.place_arrays())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hmc", "rwmh"])
def test_small_steps_are_taken_at_the_size_of_twenty_million_rows(name):
    kernel = phx.hmc(num_steps=3, step_size=1e-6) if name == "hmc" else phx.rwmh(step_size=1e-7)
    posterior = phx.mcmc(
        scaled(1e3), {"x": X, "y": Y}, kernel=kernel, init={"weights": np.array([0.5, -0.2, 0.1])}, num_warmup=0,
        num_samples=200, progress=False,
    )  # fmt: skip
    assert posterior.stats["acceptance_rate"].mean() > 0.98
