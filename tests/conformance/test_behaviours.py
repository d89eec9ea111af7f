"""Conformance of every kernel on every mesh, for global, sharded and constrained positions, also on two axes.

Kernels have fixed tuning, so that a few draws can be held against the same draws on one device to the last digits that
sums in another order leave: then momenta, kinetic energies, acceptance and trees are those of the whole.
"""

from __future__ import annotations

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.apart import of_a_run
from tests.conformance.kernels import NAMES

import phalanx as phx
from phalanx.adaptation.warm_up import WarmUp
from phalanx.diagnostics import ess
from phalanx.run.device.executables import block_arguments, first_tuning
from phalanx.run.init_values import Initial
from phalanx.run.loop import Run
from phalanx.run.progress.display import Silent
from phalanx.run.state import RunArguments

KERNELS = {
    "nuts": phx.nuts(step_size=0.15, max_depth=3),
    "chees": phx.chees(step_size=0.15, trajectory_length=0.8),
    "mams": phx.mams(step_size=0.4, trajectory_length=1.5),
    "laps": phx.laps(step_size=0.4),
    "rwmh": phx.rwmh(step_size=0.1),
    "hmc": phx.hmc(num_steps=5, step_size=0.15),
}

ROWS, CHAINS, DRAWS = 10, 4, 6
X = np.random.default_rng(0).normal(size=(ROWS, 2)).astype(np.float32)
Y = (X @ [0.5, -1.0]).astype(np.float32)
A = np.random.default_rng(1).normal(size=7).astype(np.float32)


def everywhere_alike(x, y, a):
    weights = phx.sample("weights", dist.Normal(0.0, 1.0).expand([2]))
    phx.sample("y", dist.Normal(x @ weights, 1.0), obs=y)


def all_spread(x, y, a):
    rows = phx.sample("rows", dist.Normal(0.0, 1.0).expand([y.shape[0], 2]))
    phx.sample("y", dist.Normal(rows.sum(1), 1.0), obs=y)


def mixed(x, y, a):
    """Global and spread variables, of each one that is constrained, and by a global one."""
    weights = phx.sample("weights", dist.Normal(0.0, 1.0).expand([2]))
    noise = phx.sample("noise", dist.HalfNormal(1.0))
    top = phx.sample("top", dist.LogNormal(0.0, 0.3))
    rows = phx.sample("rows", dist.Uniform(0.0, top).expand([y.shape[0]]))
    scale = phx.sample("scale", dist.Gamma(3.0, 3.0).expand([y.shape[0]]))
    phx.sample("y", dist.Normal(x @ weights + rows, noise + scale), obs=y)


def over_two_axes(x, y, a):
    """Rows of y along one axis, of a along another, and variables for each and for both."""
    weights = phx.sample("weights", dist.Normal(0.0, 1.0).expand([2]))
    of_y = phx.sample("of_y", dist.HalfNormal(1.0).expand([y.shape[0]]))
    of_a = phx.sample("of_a", dist.Normal(weights[0], 1.0).expand([a.shape[0]]))
    phx.sample("y", dist.Normal(x @ weights + of_y, 1.0), obs=y)
    phx.sample("a", dist.Normal(of_a, 1.0), obs=a)


PLACES = {
    "mixed 2x4": (mixed, (2, 4)),
    "over two axes 2x2x2": (over_two_axes, (2, 2, 2)),
    "all spread 4x2": (all_spread, (4, 2)),
    "replicated 1x8": (everywhere_alike, (1, 8)),
    "mixed 1x8": (mixed, (1, 8)),
    "mixed 4x2": (mixed, (4, 2)),
    "over two axes 1x4x2": (over_two_axes, (1, 4, 2)),
}
MANY_PLACES = ("nuts", "rwmh")
"""Kernels that are tried in all places. The others share their leapfrogs, and are tried in the first two."""


def data_on(mesh):
    along = "model" if mesh.shape["model"] > 1 else "data"
    return {"x": phx.shard(X, mesh), "y": phx.shard(Y, mesh), "a": phx.shard(A, mesh, along)}


SIZES = {"num_chains": CHAINS, "num_warmup": 0, "num_samples": DRAWS, "progress": False}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, place", [(name, place) for name in KERNELS for place in [*PLACES][: None if name in MANY_PLACES else 2]]
)
def test_draws_are_those_of_one_device(name, place, mesh_of):
    """11, 12, 17: momenta, kinetic energy, acceptance, leapfrogs and depth, and where chains begin."""
    model, sizes = PLACES[place]
    mesh, one = mesh_of(*sizes), phx.make_mesh(devices=jax.devices()[:1])
    sampler = phx.compile(model, data_on(mesh), kernel=KERNELS[name], mesh=mesh, num_chains=CHAINS)
    spread = sampler.run(2, **of_a_run(SIZES))
    alone = phx.mcmc(model, {"x": X, "y": Y, "a": A}, kernel=KERNELS[name], mesh=one, seed=2, **SIZES)
    for variable, values in alone.draws.items():
        np.testing.assert_allclose(spread.draws[variable], values, rtol=5e-3, atol=5e-4, err_msg=variable)
    for stat, values in alone.stats.items():
        np.testing.assert_allclose(spread.stats[stat], values, rtol=5e-3, atol=5e-3, err_msg=stat)
    check_what_is_held(sampler, mesh)


def check_what_is_held(sampler, mesh):
    """12, 13: after any step a chain's devices hold the same global leaves and statistics, and rows of their own."""
    blocks, tuning = sampler.executables, first_tuning(sampler.executables.blocks)
    begun = blocks.start(np.uint32(2), sampler.arrays, Initial())
    order = block_arguments(np.full(CHAINS, DRAWS), ticks=300)
    none = blocks.no_records(sampler.arrays, np.zeros(blocks.blocks.num_chains, np.int32))
    rounds = blocks.rounds.no_rounds()
    drawn = blocks.record(np.uint32(2), sampler.arrays, tuning, order, rounds, begun.chains, none).sinks.states[0]
    held = {piece.device.id: np.asarray(piece.data) for piece in drawn[0].addressable_shards}
    for group in np.vectorize(lambda device: device.id)(mesh.devices).reshape(mesh.shape["chain"], -1):
        assert held[group[0]][:DRAWS].any()
        assert all(np.array_equal(held[group[0]], held[device]) for device in group)
    for rows, axes in zip(drawn[1:], blocks.blocks.layout.groups[1:], strict=True):
        pieces = {str(piece.index[2]): np.asarray(piece.data)[:DRAWS, 0, 0] for piece in rows.addressable_shards}
        assert len(pieces) == int(np.prod([mesh.shape[axis] for axis in axes]))
        first = [piece for piece in pieces.values() if piece.any()]  # rows that only fill devices stay at zero
        assert 2 * len(first) >= len(pieces)
        assert all(not np.allclose(a, b) for i, a in enumerate(first) for b in first[:i])


def independent(y):
    rows = phx.sample("rows", dist.Normal(0.0, 1.0).expand([y.shape[0]]))
    phx.sample("y", dist.Normal(rows, 1.0), obs=y)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_coordinates_on_different_devices_are_unrelated(name, mesh_of):
    """13: they are correlated by 0.98 where devices share the momenta of their rows."""
    mesh = mesh_of(1, 4)
    data = phx.shard({"y": np.ones(4, np.float32)}, mesh)
    found = phx.mcmc(
        independent, data, kernel=getattr(phx, name)(), mesh=mesh, num_chains=4, num_warmup=300,
        num_samples=1500 if name != "rwmh" else 6000, progress=False,
    ).draws["rows"]  # fmt: skip
    correlation = np.corrcoef(found.reshape(-1, 4).T) - np.eye(4)
    # a correlation of n unrelated pairs is off by one in sqrt(n); 5 standard errors: 6 pairs, false failures 4e-6
    assert np.abs(correlation).max() < 5 / np.sqrt(ess(found).min())


@pytest.mark.slow
@pytest.mark.parametrize("name, sizes", [*((name, (2, 4)) for name in KERNELS), ("nuts", (4, 2)), ("chees", (1, 8))])
def test_tuning_is_pooled_over_all_chains_and_equal_on_all_devices(name, sizes, mesh_of, monkeypatch):
    """14: warm-up learns from the draws of all chains, whole; what it finds is the same wherever it is used."""
    mesh, parts, windows = mesh_of(*sizes), [], []
    learn, learned_on_devices, next_window = WarmUp.learn, WarmUp.learned_on_devices, WarmUp.next_window

    def listen(self, state, sums):
        parts.append((sums, self.length(state)))
        return learn(self, state, sums)

    def listen_to_devices(self, state, states, sums, num_draws, step_size):
        parts.append((sums, num_draws - state.draws))
        return learned_on_devices(self, state, states, sums, num_draws, step_size)

    def listen_to_windows(self, state, sample, *other):
        windows.extend([] if sample is None else [sample])
        return next_window(self, state, sample, *other)

    monkeypatch.setattr(WarmUp, "learn", listen)
    monkeypatch.setattr(WarmUp, "learned_on_devices", listen_to_devices)
    monkeypatch.setattr(WarmUp, "next_window", listen_to_windows)
    sampler = phx.compile(mixed, data_on(mesh), kernel=getattr(phx, name)(), mesh=mesh, num_chains=CHAINS)
    inner = Run(sampler.executables, sampler.kernel, 0, sampler.arrays, Silent())
    inner.begin(Initial(), RunArguments(60, 1, "random"))
    assert set(np.concatenate([sample.chain for sample in windows])) == set(range(CHAINS))
    sizes_of = [part.shape[1] for part in windows[-1].position]
    assert sizes_of[0] == 4 and sizes_of[1] >= 2 * ROWS  # all rows, from all devices
    sums, num_draws = parts[-1]
    assert sums.draws == num_draws * CHAINS
    for moments, size in zip(sums.position, sizes_of, strict=bool(sums.position)):
        assert moments.count == sums.draws and len(moments.mean) == size
    for leaf in jax.tree.leaves(inner.engine._placed_tuning(inner.state.tuning)):
        if isinstance(leaf, jax.Array) and leaf.sharding.is_fully_replicated:
            held = [np.asarray(piece.data) for piece in leaf.addressable_shards]
            assert all(np.array_equal(held[0], other) for other in held[1:])
        assert np.isfinite(np.asarray(leaf, float)).all()


def test_tuning_the_length_of_trajectories_needs_two_chains(mesh_of):
    """15."""
    for kernel in (phx.chees(), phx.mams(), phx.laps()):
        with pytest.raises(ValueError, match="needs at least two"):
            phx.mcmc(everywhere_alike, {"x": X, "y": Y, "a": A}, kernel=kernel, num_chains=1, progress=False)
