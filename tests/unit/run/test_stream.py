"""Streams: blocks of draws, or of what reducers know, one after the other, and nothing kept."""

from __future__ import annotations

import itertools
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.apart import compiled_in

import phalanx as phx
from phalanx.run.phases import streaming

R = phx.reducers


def model():
    phx.sample("x", dist.Normal(0.0, 1.0).expand([2]))


OPTIONS = {"num_chains": 4, "num_warmup": 50, "progress": False, "kernel": phx.rwmh(0.5)}


def test_blocks_are_the_draws_of_a_run():
    one = phx.make_mesh(devices=jax.devices()[:1])
    blocks = list(phx.stream(model, num_samples=1200, mesh=one, **OPTIONS))
    whole = phx.mcmc(model, num_samples=1200, mesh=one, **OPTIONS)
    assert len(blocks) > 1
    np.testing.assert_array_equal(np.concatenate([block["x"] for block in blocks], axis=1), whole.draws["x"])


@pytest.mark.slow
def test_reducers_know_all_draws_so_far(monkeypatch):
    monkeypatch.setattr(streaming, "STREAM_DRAWS", 100)
    counts = [
        block["m"]["x"].count
        for block in phx.stream(model, num_samples=350, keep=[], reducers={"m": R.moments()}, **OPTIONS)
    ]
    assert counts == [400, 800, 1200, 1400]


@pytest.mark.slow
def test_draws_and_reducers_together():
    block = next(phx.stream(model, reducers={"m": R.moments()}, **OPTIONS))
    np.testing.assert_allclose(block["m"]["x"].mean, block["x"].mean((0, 1)), rtol=1e-4, atol=1e-5)


def test_a_stream_without_end_is_left_early():
    stream = phx.stream(model, keep=[], reducers={"m": R.moments()}, thin=2, **OPTIONS)
    seen = [block["m"]["x"].count for block in itertools.islice(stream, 3)]
    stream.close()
    assert seen[0] < seen[1] < seen[2]
    assert next(stream, None) is None


def test_stream_refuses_wrong_options():
    with pytest.raises(ValueError, match="'x' names both"):
        next(phx.stream(model, reducers={"x": R.moments()}, **OPTIONS))
    with pytest.raises(ValueError, match="num_samples"):
        next(phx.stream(model, num_samples=0, **OPTIONS))
    with pytest.raises(ValueError, match="seed"):
        next(phx.stream(model, seed=-1, **OPTIONS))


def test_the_plan_is_told_before_a_run(capsys):
    phx.mcmc(model, num_samples=100, **{**OPTIONS, "progress": True})
    lines = capsys.readouterr().err.splitlines()
    told, begun = (next(i for i, line in enumerate(lines) if words in line) for words in ("memory: ", "warm-up"))
    assert told < begun


def test_a_run_that_needs_too_much_on_a_device_is_refused(monkeypatch):
    from phalanx.run.compile import memory_estimate

    monkeypatch.setattr(memory_estimate, "free_memory", lambda: 10_000)
    with pytest.raises(ValueError, match="This run needs .* of memory .*keep=\\[\\] and reducers="):
        phx.mcmc(model, num_samples=100, **OPTIONS)


@pytest.mark.slow
def test_data_that_are_in_memory_already_are_not_asked_for_again(monkeypatch):
    from phalanx.run.compile import memory_estimate

    data = {"y": np.zeros((1000, 1000), np.float32)}
    one = phx.make_mesh(devices=jax.devices()[:1])

    def rows(y):
        phx.sample("y", dist.Normal(phx.sample("m", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    sampler = phx.compile(rows, data, mesh=one, **compiled_in(OPTIONS))
    plan = sampler.plan(100)
    assert plan.placed == 4_000_000 < plan.on_device
    monkeypatch.setattr(memory_estimate, "free_memory", lambda: plan.here)
    phx.compile(rows, data, mesh=one, **compiled_in(OPTIONS))


@pytest.mark.slow
def test_deterministic_variables_are_planned_for():
    def squared():
        phx.deterministic("table", phx.sample("x", dist.Normal(0.0, 1.0)) * np.ones((3, 5), np.float32))

    sampler = phx.compile(squared, keep=["table"], **compiled_in(OPTIONS))
    assert sampler.plan(100).draws == {"table": 4 * 4 * 100 * 15}


def test_pages_of_files_count_as_free_memory(monkeypatch):
    from phalanx.run.compile import memory_estimate
    from phalanx.run.compile.memory_estimate import free_memory

    monkeypatch.setattr(memory_estimate, "OWN_GROUPS", Path("/nowhere"))
    free, told = free_memory(), Path("/proc/meminfo")
    if not told.exists():
        pytest.skip("this system has no /proc/meminfo")
    available = next(int(line.split()[1]) for line in told.read_text().splitlines() if "MemAvailable" in line)
    assert free == pytest.approx(1024 * available, rel=0.2)


@pytest.mark.parametrize("own", ["0::/job/step", "0::/elsewhere", "7:cpu,memory:/job/step", "7:memory:/"])
def test_a_container_may_have_less_than_its_host(own, tmp_path, monkeypatch):
    from phalanx.run.compile import memory_estimate

    old = "memory:" in own
    limit, used, stat = memory_estimate.OLD_GROUP if old else memory_estimate.GROUP
    root = tmp_path / "memory" if old else tmp_path
    for folder, bytes_ in ((root, "3000000"), (root / "job", "2000000"), (root / "job" / "step", "max")):
        folder.mkdir(exist_ok=True)
        (folder / limit).write_text(bytes_ + "\n")
        (folder / used).write_text("500000\n")
        (folder / "memory.stat").write_text(f"anon 400000\n{stat} 100000\n")
    (tmp_path / "own").write_text(f"9:pids:/other\n{own}\n")
    monkeypatch.setattr(memory_estimate, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(memory_estimate, "GROUPS", tmp_path)
    assert memory_estimate.free_memory() == (1_600_000 if "job" in own else 2_600_000)


def test_sizes_are_told_in_words():
    from phalanx.run.compile.memory_estimate import size

    assert [size(n) for n in (12, 2048, 3 * 2**20, 5 * 2**30)] == ["12 bytes", "2 KiB", "3 MiB", "5.0 GiB"]
