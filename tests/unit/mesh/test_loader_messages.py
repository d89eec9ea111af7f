"""The filter of XLA's false alarm about cached programs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from phalanx.mesh.compatibility import loader_messages
from phalanx.mesh.compatibility.loader_messages import without_false_alarms

ALARM = (
    b"E1124 22:05:32.465401   11936 cpu_aot_loader.cc:195] Loading XLA:CPU AOT result. Target machine feature "
    b"+prefer-no-gather is not  supported on the host machine.\n"
)


USED_AGAIN = """
import jax, numpy as np, numpyro.distributions as dist, phalanx as phx

def model(y):
    phx.sample("y", dist.Normal(phx.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=y)

phx.use_cpu_devices(1)  # or programs of other libraries are not cached
draws = phx.mcmc(model, {"y": np.ones(3)}, num_warmup=20, num_samples=10, progress=False).draws["mean"]
print(jax.jit(lambda x: jax.numpy.exp(x).sum())(draws))
"""
"""Programs of Phalanx and of the user, which a second process reads from the cache."""


@pytest.fixture
def _old_jax(monkeypatch):
    monkeypatch.setattr(loader_messages.jax, "__version_info__", (0, 10, 1))


@pytest.mark.usefixtures("_old_jax")
def test_the_false_alarm_is_dropped_and_all_else_passes_in_order(capfd):
    with without_false_alarms():
        for line in (b"one\n", ALARM, b"two\n", ALARM.replace(b"+prefer-no-gather", b"+avx512f"), b"no end"):
            os.write(2, line)
    os.write(2, b" of line\n")
    lines = capfd.readouterr().err.splitlines()
    assert lines[:2] == ["one", "two"] and "+avx512f" in lines[2] and lines[3:] == ["no end of line"]


@pytest.mark.usefixtures("_old_jax")
def test_threads_share_it_and_standard_error_is_put_back_when_the_last_is_done(capfd):
    before = threading.active_count()
    with without_false_alarms():
        with without_false_alarms():
            os.write(2, ALARM)
        os.write(2, b"inside\n" + ALARM)
    os.write(2, ALARM)
    assert capfd.readouterr().err == "inside\n" + ALARM.decode()
    assert threading.active_count() == before


@pytest.mark.usefixtures("_old_jax")
def test_a_process_that_is_started_meanwhile_is_not_waited_for(capfd, monkeypatch):
    monkeypatch.setattr(loader_messages, "PATIENCE", 0.1)
    with without_false_alarms():
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read(); print('end', file=sys.stderr)"], stdin=subprocess.PIPE
        )
    os.write(2, b"goes on\n")
    child.communicate()
    for thread in threading.enumerate():
        if thread.daemon and "_pass_on" in thread.name:
            thread.join()
    assert capfd.readouterr().err == "goes on\nend\n"


@pytest.mark.slow
def test_a_second_process_prints_no_alarm(tmp_path):
    environment = {**os.environ, "PHALANX_CACHE": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    for _ in range(3):  # the second stores what the first compiled, or reads it
        done = subprocess.run(
            [sys.executable, "-c", USED_AGAIN], env=environment, capture_output=True, text=True, check=True
        )
        assert "cpu_aot_loader" not in done.stderr
