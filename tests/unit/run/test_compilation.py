"""The persistent compilation cache, and the cores of a CPU machine: what a process finds when it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from phalanx.mesh.devices import count_cores
from phalanx.run.compile.compilation import _use_cache, cache_folder, sends_in_order

RUN = """
import sys
import numpy as np, numpyro.distributions as dist, phalanx as phx
if "started" in sys.argv:
    import jax.numpy as jnp
    jnp.ones(1)
def model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)
posterior = phx.mcmc(model, {"y": np.ones(3)}, kernel=phx.rwmh(0.5), num_chains=4, num_warmup=5, num_samples=5)
print(len(posterior.record.devices), posterior.timing.compile)
"""


def run(*arguments: str, cache: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PHALANX_CACHE": cache, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_every_core_is_used_unasked_and_programs_are_kept_between_processes(tmp_path):
    first = run(cache=str(tmp_path / "cache"))
    assert int(first.stdout.split()[0]) == max(n for n in (1, 2, 4) if n <= count_cores() and count_cores() % n == 0)

    def kept() -> set[str]:
        return {path.name for path in (tmp_path / "cache").rglob("*") if path.parent.name == "phalanx-runs"}

    (name,) = kept()
    run(cache=str(tmp_path / "cache"))
    assert kept() == {name}


def test_a_message_of_a_function_that_is_called_twice_counts_twice(mesh_of):
    @jax.jit
    def total(x):
        return jax.lax.psum(x, "chain")

    @jax.jit
    def wrapped(x):
        return total(x) + 1.0

    def once(x):
        return jax.lax.fori_loop(0, 3, lambda _, x: wrapped(x), x)

    def twice(x):
        return once(x) + wrapped(x)

    mesh = mesh_of(2, 1)
    for function, in_order in ((once, False), (twice, True), (jnp.sin, False), (lambda x: total(total(x)), True)):
        on_mesh = jax.shard_map(function, mesh=mesh, in_specs=jax.P("chain"), out_specs=jax.P("chain"), check_vma=False)
        assert sends_in_order(jax.jit(on_mesh).lower(jnp.ones(2))) is in_order


TWO_DEVICES = """
import sys
import jax
import jax.numpy as jnp
jax.config.update("jax_num_cpu_devices", 2)
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None)
import numpy as np, numpyro.distributions as dist, phalanx as phx
from phalanx.mesh.compatibility import jax_internals
from phalanx.run import engine
engine.check_on_one_device = lambda *_: None  # its programs, of one device, may be kept
load = jax_internals.loaded
def loaded(*stored):
    program = load(*stored)
    hits.append("with sums" if "all-reduce" in program.as_text() else "without")
    return program
jax_internals.loaded = loaded
def model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)
mesh = phx.make_mesh(**{sys.argv[1]: 2})
data = {"y": phx.shard(np.ones(4), mesh) if sys.argv[1] == "data" else np.ones(4)}
if sys.argv[2] == "mcmc":
    phx.mcmc(model, data, kernel=phx.rwmh(0.5), num_chains=4, num_warmup=5, num_samples=5, mesh=mesh, progress=False)
else:
    phx.fit(model, phx.guides.mean_field(), data, num_steps=3, mesh=mesh, progress=False)
print(len(hits), hits.count('with sums'))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "axis, what, turned_off, read",
    [("chain", "mcmc", "", 4), ("data", "mcmc", "sums-compiled-afresh", 0), ("data", "fit", "", 3)],
)
def test_programs_with_sums_over_cpu_devices_are_not_kept(tmp_path, axis, what, turned_off, read):
    """XLA would read it without the order of its sums. Other programs of the same run or fit may be read.

    Nor is it read where a process without the work-around has kept it.
    """
    environment = {**os.environ, "PHALANX_CACHE": str(tmp_path), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    counts = [
        subprocess.run(
            [sys.executable, "-c", TWO_DEVICES, axis, what],
            env=environment | {"PHALANX_WORKAROUNDS": off}, capture_output=True, text=True, check=True, timeout=300,
        ).stdout.split()
        for off in (turned_off, "")
    ]  # fmt: skip
    assert counts == [["0", "0"], [str(read), "0"]]


@pytest.mark.skipif(count_cores() == 1, reason="on one core there is nothing to say")
def test_when_jax_has_started_one_line_says_what_to_call_first(tmp_path):
    done = run("started", cache="off")
    assert done.stdout.startswith("1 ")
    lines = [line for line in done.stderr.splitlines() if "phalanx:" in line]
    assert lines == [
        f"phalanx: JAX had already started with one CPU device, so 1 of {count_cores()} cores runs chains. "
        f"Call phx.use_cpu_devices({count_cores()}) before the first array is made to use them all."
    ]


@pytest.fixture
def without_jax_setting():
    before = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", before)


def test_where_the_cache_is(monkeypatch, tmp_path, without_jax_setting):
    monkeypatch.setenv("PHALANX_CACHE", "off")
    assert cache_folder() is None
    monkeypatch.setenv("PHALANX_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("PHALANX_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == Path(tmp_path) / "phalanx"
    jax.config.update("jax_compilation_cache_dir", "/elsewhere")
    assert cache_folder() == Path("/elsewhere")


def test_the_folder_of_the_cache_is_made_for_its_owner_alone(monkeypatch, tmp_path, without_jax_setting):
    monkeypatch.setenv("PHALANX_CACHE", str(tmp_path / "above" / "cache"))
    _use_cache()
    assert (tmp_path / "above" / "cache").stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_double_precision_where_the_user_enables_it():
    code = """
import jax
import jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
import numpy as np, numpyro.distributions as dist, phalanx as phx
def model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0).expand([2]))
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)
for kernel in (phx.hmc(4), phx.rwmh()):
    posterior = phx.mcmc(model, {"y": np.ones((3, 2))}, kernel=kernel, num_warmup=9, num_samples=9, progress=False)
    print(posterior.draws["mean"].dtype, posterior.stats["log_density"].dtype, posterior.stats["step_size"].dtype)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["float64"] * 6
