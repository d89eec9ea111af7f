"""Programs of earlier processes: used again where nothing has changed, and compiled anew where anything has."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import phalanx as phx
from phalanx.run.compile import compilation, executable_cache, stored_programs
from phalanx.run.compile.compilation import own_folder
from phalanx.run.compile.lru_cache import LRUCache
from phalanx.run.compile.stored_programs import StoredPrograms

SHORT = {"num_warmup": 5, "num_samples": 5, "num_chains": 2, "progress": False}
MESH = phx.make_mesh(chain=1)
KERNELS = {"nuts": phx.nuts(), "hmc": phx.hmc(2), "rwmh": phx.rwmh(0.5)}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Folder of the files, which every call reads: compiled blocks are not kept in this process."""
    monkeypatch.setattr(stored_programs, "folder", lambda: tmp_path)
    monkeypatch.setattr(executable_cache, "EXECUTABLES", LRUCache(0))
    return tmp_path


@pytest.fixture
def compiled(monkeypatch):
    """Numbers of programs that were compiled, call by call."""
    counts, compile_them = [], stored_programs._compiled

    def count(*arguments):
        programs, shared = compile_them(*arguments)
        counts.append(len(programs))
        return programs, shared

    monkeypatch.setattr(stored_programs, "_compiled", count)
    return counts


def model(scale=1.0):
    x = phx.sample("x", dist.Normal(0.0, scale).expand([3]))
    phx.sample("y", dist.Normal(x.sum(), 1.0), obs=np.float32(0.5))


def run(kernel="rwmh", **options):
    return phx.mcmc(model, kernel=KERNELS[kernel], mesh=MESH, **{**SHORT, **options})


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [pytest.param("nuts", marks=pytest.mark.slow), "rwmh"])
@pytest.mark.parametrize(
    "options", [{}, {"keep": [], "reducers": {"m": phx.reducers.moments()}}], ids=["stored", "reduced"]
)
def test_the_draws_are_those_of_compiled_programs(kernel, options, files, compiled):
    first, second = run(kernel, **options), run(kernel, **options)
    assert len(compiled) == 1
    assert second.timing.compilations == first.timing.compilations
    for name, draws in first.draws.items():
        np.testing.assert_array_equal(draws, second.draws[name])
    assert str(first.reduced) == str(second.reduced)


def test_another_process_reads_them(tmp_path):
    """The second process fails if it compiles a program; the third has another XLA flag, and compiles.

    The model calls LAPACK, which a process must load before it runs a program that it has not lowered.
    """
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import sys
        import jax.numpy as jnp, numpyro.distributions as dist, phalanx as phx
        from phalanx.run.compile import stored_programs

        def refuse(*arguments):
            raise AssertionError("compiled")

        if sys.argv[1] == "again":
            stored_programs._compiled = refuse

        def model():
            scale = phx.sample("scale", dist.LogNormal(0.0, 1.0))
            phx.sample("x", dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2) + scale))

        run = phx.mcmc(model, kernel=phx.rwmh(1.0), num_warmup=5, num_samples=5, progress=False)
        fit = phx.fit(model, phx.guides.full_rank(), num_steps=5, until=False, progress=False)
        assert bool(fit.timing.compilations) != (sys.argv[1] == "again")
        print(run.draws["x"].tolist(), fit.params["loc"].tolist(), fit.losses.elbo.tolist())
    """)
    )

    def output(argument: str, **variables: str) -> tuple[int, str]:
        environment = {**os.environ, "PHALANX_CACHE": str(tmp_path / "cache"), **variables}
        environment["PYTHONPATH"] = str(Path(__file__).parents[3] / "src")
        done = subprocess.run([sys.executable, script, argument], env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout if not done.returncode else done.stderr

    first, second = output("first"), output("again")
    assert first == second and first[0] == 0
    status, message = output("again", XLA_FLAGS="--xla_cpu_enable_fast_math=false")
    assert status and "AssertionError: compiled" in message


@given(st.integers(0, 2**31), st.integers(1, 255))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_not_read(files, place, bits):
    file = StoredPrograms.of(("a key", 1))
    assert file is not None
    file.write({})
    assert file.read(MESH) == {}
    content = bytearray(file.path.read_bytes())
    content[place % len(content)] ^= bits
    file.path.write_bytes(content)
    assert file.read(MESH) is None
    file.path.write_bytes(content[: place % len(content)])
    assert file.read(MESH) is None


@pytest.mark.slow
def test_a_damaged_file_is_written_anew(files, compiled):
    first = run()
    (path,) = files.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    second, third = run(), run()
    assert len(compiled) == 2
    np.testing.assert_array_equal(first.draws["x"], second.draws["x"])
    np.testing.assert_array_equal(first.draws["x"], third.draws["x"])


def test_a_file_of_another_run_is_not_read(files):
    one, other = StoredPrograms.of(("a key", 1)), StoredPrograms.of(("a key", 2))
    assert one is not None and other is not None
    one.write({})
    one.path.rename(other.path)
    assert other.read(MESH) is None


@pytest.mark.parametrize("name, value", [
    ("LIBRARIES", ("numpy",)), ("processor", lambda: "another"), ("__file__", __file__)
], ids=["versions", "processor", "files"])  # fmt: skip
def test_changes_of_programs_change_the_file(name, value, files, monkeypatch):
    before = StoredPrograms.of(("a key",))
    stored_programs._surroundings.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(stored_programs, name, value)
            after = StoredPrograms.of(("a key",))
    finally:
        stored_programs._surroundings.cache_clear()
    assert before is not None and after is not None and before.path != after.path
    assert StoredPrograms.of(("a key",)) == before


@pytest.mark.slow
def test_other_models_and_sizes_have_other_files(files, compiled, monkeypatch):
    for scale, tile in (1.0, ""), (2.0, ""), (2.0, "1"), (2.0, ""):
        monkeypatch.setenv("PHALANX_TILE", tile)
        phx.mcmc(partial(model, scale), kernel=KERNELS["rwmh"], mesh=MESH, **SHORT)
    assert len(compiled) == len(list(files.iterdir())) == 3


def test_the_oldest_files_are_removed(files, monkeypatch):
    monkeypatch.setattr(stored_programs, "FILES", 3)
    for number in range(5):
        file = StoredPrograms.of(("a key", number))
        assert file is not None
        file.write({})
        assert file.read(MESH) == {}
        os.utime(file.path, (number, number))
    assert len(list(files.iterdir())) == 3


def test_a_function_of_the_user_is_in_no_key(files):
    assert StoredPrograms.of((lambda x: x,)) is None
    assert StoredPrograms.of((object(),)) is None
    assert StoredPrograms.of((np.zeros(2000),)) is None


@pytest.mark.slow
def test_a_kernel_of_the_user_is_compiled_in_every_process(files, compiled):
    blackjax = pytest.importorskip("blackjax")
    kernel = phx.from_blackjax(lambda log_density: blackjax.mala(log_density, 0.1))
    for _ in range(2):
        phx.mcmc(model, kernel=kernel, mesh=MESH, **SHORT)
    assert len(compiled) == 2 and not list(files.iterdir())


@pytest.mark.slow
def test_programs_that_call_lapack_are_compiled_in_every_process_if_jax_cannot_load_it(files, compiled, monkeypatch):
    """A process that read them, and lowered no such call itself, would crash."""

    def correlated(y):
        x = phx.sample("x", dist.LogNormal(0.0, 1.0))
        covariance = jnp.eye(3) + x * jnp.ones((3, 3))
        phx.sample("y", dist.MultivariateNormal(jnp.zeros(3), covariance_matrix=covariance), obs=y)

    monkeypatch.setattr(compilation, "find", lambda name: None)
    for _ in range(2):
        phx.mcmc(correlated, {"y": np.zeros(3, np.float32)}, kernel=KERNELS["rwmh"], mesh=MESH, **SHORT)
    assert len(compiled) == 2 and not list(files.iterdir())


def many(y):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)


@pytest.mark.slow
def test_runs_on_many_data_sets_are_read(files, compiled):
    def draws(data, **options):
        options = {"kernel": KERNELS["rwmh"], "mesh": MESH, "each": {"y": 0}, **SHORT, **options}
        return phx.mcmc(many, {"y": np.asarray(data, np.float32)}, **options).draws["mean"]

    data = np.arange(6.0).reshape(2, 3)
    first, second = draws(data), draws(data)
    assert len(compiled) == 1
    np.testing.assert_array_equal(first, second)
    changed = draws(data + 1)
    assert len(compiled) == 1 and not np.array_equal(changed, first)
    draws(data[:, :2])
    draws(data[0], each=None)
    assert len(compiled) == len(list(files.iterdir())) == 3


class Shifted(dist.Normal):
    """Distribution of a user, whose draws no trace of its density determines."""

    def sample(self, key, sample_shape=()):
        return super().sample(key, sample_shape) + 1.0


@pytest.mark.slow
def test_particles_are_read_unless_a_distribution_is_a_users(files, compiled):
    def particles(prior):
        def one(y):
            mean = phx.sample("mean", prior(0.0, 1.0).expand([2]).to_event(1))
            phx.sample("y", dist.Normal(mean, 1.0), obs=y)

        data, kernel = {"y": np.ones(2, np.float32)}, KERNELS["rwmh"]
        return phx.smc(one, data, kernel=kernel, num_particles=16, num_moves=2, mesh=MESH, progress=False)

    first, second = particles(dist.Normal), particles(dist.Normal)
    assert len(compiled) == len(list(files.iterdir())) == 1
    assert first.evidence() == second.evidence()
    particles(Shifted)
    assert len(compiled) == 2 and len(list(files.iterdir())) == 1


@pytest.mark.parametrize("name", ["", "phalanx-runs"])
@pytest.mark.parametrize("mode, owner, words", [
    (0o770, 0, r"may be written to by other users \(mode 770\)"), (0o702, 0, r"\(mode 702\)"),
    (0o700, 1, r"belongs to user \d+"),
])  # fmt: skip
def test_a_folder_of_other_users_is_ignored_with_a_warning(tmp_path, monkeypatch, name, mode, owner, words):
    """Programs are executed as they are found: a file that another user placed would run as this one."""
    monkeypatch.setattr(stored_programs, "folder", lambda: tmp_path / "cache" / "phalanx-runs")
    file = StoredPrograms.of(("a key", 1))
    assert file is not None
    before = os.umask(0)
    try:
        file.write({})
    finally:
        os.umask(before)
    assert file.read(MESH) == {} and file.path.parent.parent == tmp_path / "cache"
    assert [path.stat().st_mode & 0o777 for path in (file.path.parent, tmp_path / "cache")] == [0o700, 0o700]
    (tmp_path / "cache" / name).chmod(mode)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + owner)
    with pytest.warns(UserWarning, match=rf"PHALANX_CACHE: '.*' .*{words}, .* folder that is yours alone"):
        assert StoredPrograms.of(("a key", 1)) is None
    assert StoredPrograms.of(("a key", 2)) is None  # without a second warning


@pytest.mark.parametrize("mode, owner", [(0o777, 0), (0o770, 0), (0o700, 1)])
def test_jax_caches_nothing_in_a_folder_of_other_users(tmp_path, monkeypatch, mode, owner):
    monkeypatch.setenv("PHALANX_CACHE", str(tmp_path))
    before = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    compilation.compiled(jax.jit(lambda x: x + 1).lower(1.0), {}, keep=True)  # what JAX sets once is set
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        files = set(tmp_path.iterdir())
        tmp_path.chmod(mode)
        user = os.geteuid()
        with monkeypatch.context() as patched, pytest.warns(UserWarning, match="would execute programs that others"):
            patched.setattr(os, "geteuid", lambda: user + owner)
            compilation.compiled(jax.jit(lambda x: x + 2).lower(1.0), {}, keep=True)
        assert jax.config.jax_compilation_cache_dir is None  # pyright: ignore[reportAttributeAccessIssue]
        assert set(tmp_path.iterdir()) == files
        tmp_path.chmod(0o700)
        compilation.compiled(jax.jit(lambda x: x + 3).lower(1.0), {}, keep=True)
        assert jax.config.jax_compilation_cache_dir == str(tmp_path)  # pyright: ignore[reportAttributeAccessIssue]
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_a_cache_of_jax_that_the_user_chose_is_left_to_jax(monkeypatch, tmp_path):
    monkeypatch.setenv("PHALANX_CACHE", str(tmp_path))
    before = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    try:
        for folder, own in ("gs://bucket/cache", None), (str(tmp_path), tmp_path), (None, tmp_path):
            jax.config.update("jax_compilation_cache_dir", folder)
            assert own_folder() == own
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
