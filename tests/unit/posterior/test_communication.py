"""Messages of an evaluation of the log density, as a run's record tells them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.posterior.communication import Communication, communication_of, notice_of_gathers

X = np.random.default_rng(0).normal(size=(203, 2)).astype(np.float32)
Y = X.sum(1)


def row_wise(x, y):
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))
    phx.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def sorting(x, y):
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))
    residuals = jnp.stack([y - x @ w, y + x @ w, x @ w], 1)
    phx.factor("gaps", -jnp.diff(jnp.sort(residuals, 0), axis=0).sum())  # the line that gathers


def target_of(model, mesh):
    return phx.Target(model, phx.shard({"x": X, "y": Y}, mesh))


def test_rows_by_themselves_need_one_sum(mesh_of):
    (message,) = communication_of(target_of(row_wise, mesh_of(1, 4)))
    assert message == Communication("all-reduce", "data", 4 * (2 + 2), "result", "")
    assert notice_of_gathers(target_of(row_wise, mesh_of(1, 4)), [message]) is None


def test_without_sharded_rows_nothing_is_sent(mesh_of):
    assert communication_of(phx.Target(row_wise, {"x": X, "y": Y}, mesh=mesh_of(1, 4))) == ()


def local(y):
    z = phx.sample("z", dist.Normal(0.0, 1.0).expand([len(y)]))
    phx.sample("y", dist.Normal(z, 1.0), obs=y)


def test_rows_with_which_an_evaluation_begins_are_told(mesh_of):
    """Five rows on four devices leave one without any; and an axis that also divides rows by itself joins no other."""
    first, _ = communication_of(phx.Target(local, phx.shard({"y": Y[:5]}, mesh_of(1, 4))))
    assert first == Communication("all-reduce", "data", 4, "input", "")
    mesh = mesh_of(1, 2, 2)
    data = {"x": phx.shard(X, mesh, ("data", "model")), "y": phx.shard(Y, mesh, "data")}
    first, *_ = communication_of(phx.Target(row_wise, data, mesh=mesh))
    assert first == Communication("all-gather", "data+model", 4 * 2 * 204, "input", "")


def test_gathered_rows_are_reported_with_their_line(mesh_of):
    target = target_of(sorting, mesh_of(1, 4))
    messages = communication_of(target)
    gathers = [message for message in messages if message.collective == "all-gather"]
    assert {(message.operation, message.line.partition(":")[0]) for message in gathers} == {
        ("sort", "test_communication.py")
    }
    notice = notice_of_gathers(target, messages)
    total = sum(message.nbytes for message in gathers)
    assert notice is not None
    assert notice.startswith(f"each evaluation of the log density gathers {total:,} bytes of rows from all devices")
    assert f"`sort` at {gathers[0].line}" in notice
    assert notice.endswith("To sort the data once, before the run, sends nothing.")


def test_a_run_records_its_messages_and_so_does_its_file(mesh_of, tmp_path, capsys):
    posterior = phx.mcmc(
        sorting, phx.shard({"x": X, "y": Y}, mesh_of(2, 4)), num_chains=2, num_warmup=5, num_samples=5, progress=True
    )
    assert posterior.record.communication == communication_of(target_of(sorting, mesh_of(1, 4)))
    assert "each evaluation of the log density gathers" in capsys.readouterr().err
    posterior.save(tmp_path / "run.npz")
    assert phx.Posterior.load(tmp_path / "run.npz").record.communication == posterior.record.communication


@pytest.mark.slow
def test_particles_tell_what_is_gathered(mesh_of, capsys):
    data = phx.shard({"x": X, "y": Y}, mesh_of(1, 4))
    particles = phx.smc(sorting, data, num_particles=16, num_moves=1, progress=True)
    assert particles.record.communication == communication_of(target_of(sorting, mesh_of(1, 4)))
    assert "each evaluation of the log density gathers" in capsys.readouterr().err
