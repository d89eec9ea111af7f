"""Settings of the compiler: the flag that Phalanx adds to XLA's, and runs that go on under other settings."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import phalanx as phx
from phalanx.mesh.compatibility import workarounds
from phalanx.mesh.compatibility.compiler_settings import compiler_settings
from phalanx.store import identity

FLAG = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold="
FIRST = {
    "JAX": ("import jax; jax.numpy.zeros(3); ", False),
    "an import of JAX": ("import jax; ", True),
}
RUNS = "import phalanx; print(os.environ['XLA_FLAGS']); import jax; jax.numpy.zeros(3)"


def test_all_tests_compile_with_the_flag():
    assert FLAG in os.environ["XLA_FLAGS"] and FLAG in compiler_settings()["XLA_FLAGS"]


@pytest.mark.parametrize("before", FIRST)
def test_the_flag_is_added_only_where_it_has_an_effect(before):
    script, adds = FIRST[before]
    command = f"import os; {script}import phalanx; phalanx.make_mesh(chain=1); print(os.environ.get('XLA_FLAGS'))"
    plain = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, "-c", command], env=plain, capture_output=True, text=True, check=True)
    assert (FLAG in done.stdout) is adds


def test_a_file_of_flags_is_the_users(tmp_path):
    """A flag behind the name would be a part of it: XLA ends a process that names a file that does not exist."""
    file = tmp_path / "flags"
    file.write_text("--xla_cpu_enable_fast_math=false\n")
    environment = {**os.environ, "XLA_FLAGS": str(file)}
    done = subprocess.run([sys.executable, "-c", f"import os; {RUNS}"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, str(file)), done.stderr[-2000:]


def test_settings_are_those_in_effect(monkeypatch):
    before = compiler_settings()
    monkeypatch.setenv("XLA_FLAGS", "--xla_too_late=1")
    monkeypatch.setenv("PHALANX_WORKAROUNDS", "group-sums")  # read already
    assert compiler_settings() == before


def model():
    phx.sample("x", dist.Normal().expand([2]))


def test_a_run_that_goes_on_under_other_settings_says_so():
    half = phx.mcmc(model, num_chains=2, num_warmup=10, num_samples=10, progress=False)
    assert half.record.compiler == compiler_settings()
    half.continue_run(5)  # a warning would be an error
    there = {**half.record.compiler, "XLA_FLAGS": "--xla_there=1"}
    other = replace(half, record=replace(half.record, compiler=there))
    with pytest.warns(UserWarning, match=r"^continue_run: .* XLA_FLAGS is '--xla_there=1' there, and '.*small_while"):
        both = other.continue_run(5)
    assert both.record.compiler == compiler_settings()
    np.testing.assert_array_equal(both.draws["x"], half.continue_run(5).draws["x"])
    replace(half, record=replace(half.record, compiler={})).continue_run(5)  # of an older release


def test_a_saved_run_of_other_settings_says_so(tmp_path, monkeypatch):
    sizes = {"num_chains": 2, "num_warmup": 10, "progress": False, "checkpoint": tmp_path / "run"}
    with monkeypatch.context() as patch:
        patch.setattr(workarounds, "_turned_off", lambda: frozenset([workarounds.Workaround.GROUP_SUMS]))
        phx.mcmc(model, num_samples=10, **sizes)
    with pytest.warns(UserWarning, match="PHALANX_WORKAROUNDS is 'group-sums' there, and '' here"):
        assert phx.mcmc(model, num_samples=20, **sizes).num_draws == 20


def test_a_saved_fit_of_other_settings_says_so(tmp_path, monkeypatch):
    given = {"optimizer": optax.adam(0.1), "progress": False, "checkpoint": tmp_path / "fit"}
    with monkeypatch.context() as patch:
        patch.setattr(identity, "compiler_settings", lambda: {**compiler_settings(), "the processor": "an abacus"})
        phx.fit(model, phx.guides.mean_field(), num_steps=20, **given)
    with pytest.warns(UserWarning, match="fit': the fit was compiled otherwise: the processor is .an abacus"):
        phx.fit(model, phx.guides.mean_field(), num_steps=20, **given)
