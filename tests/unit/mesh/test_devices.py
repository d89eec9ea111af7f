"""Meshes, and asking for CPU devices."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import jax
import pytest
from jax.sharding import AxisType

import phalanx as phx
from phalanx.mesh.devices import default_mesh


def test_axes_are_auto_and_chains_take_what_is_left():
    mesh = phx.make_mesh(data=4)
    assert dict(mesh.shape) == {"chain": 2, "data": 4, "model": 1}
    assert mesh.axis_types == (AxisType.Auto,) * 3
    assert dict(phx.make_mesh(data=2, model=2).shape) == {"chain": 2, "data": 2, "model": 2}


def test_given_all_sizes_the_first_devices_are_used():
    assert phx.make_mesh(chain=1, data=3).devices.ravel().tolist() == jax.devices()[:3]
    chosen = jax.devices()[4:6]
    assert phx.make_mesh(data=2, devices=chosen).devices.ravel().tolist() == chosen


@pytest.mark.parametrize("chains, along", [(1, 1), (4, 4), (6, 2), (8, 8), (12, 4), (16, 8)])
def test_without_a_mesh_chains_fill_the_devices_evenly(chains, along):
    assert default_mesh(chains).shape["chain"] == along


@pytest.mark.parametrize("sizes, words", [
    ({"chain": 0}, "make_mesh: chain must be a whole number of devices, at least 1; got 0."),
    ({"data": 2.0}, "make_mesh: data must be a whole number of devices, at least 1; got 2.0."),
    ({"model": True}, "make_mesh: model must be a whole number of devices, at least 1; got True."),
    ({"data": 3}, "make_mesh: 8 devices cannot be split into groups of data * model = 3 * 1; choose sizes whose "
                  "product divides 8, or pass devices=."),
    ({"data": 4, "model": 4}, "make_mesh: 8 devices cannot be split into groups of data * model = 4 * 4;"),
    ({"chain": 4, "data": 4}, "make_mesh: chain * data * model = 4 * 4 * 1 = 16 devices were asked for, but there "
                              "are 8. On a CPU machine call phx.use_cpu_devices(16) before anything else."),
])  # fmt: skip
def test_sizes_that_do_not_fit_are_refused(sizes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.make_mesh(**sizes)


def test_asking_again_for_as_many_cpu_devices_as_there_are_is_fine():
    jax.devices()
    assert phx.use_cpu_devices(8) == 8


def test_asking_for_other_cpu_devices_once_jax_has_started_says_what_to_do():
    jax.devices()
    words = (
        "use_cpu_devices(3): JAX has already started with 8 CPU device(s). Call phx.use_cpu_devices(3) at the top of "
        "the script, before the first array is made or jax.devices() is called, or set the environment variable "
        "XLA_FLAGS=--xla_force_host_platform_device_count=3."
    )
    with pytest.raises(RuntimeError, match=re.escape(words)):
        phx.use_cpu_devices(3)


@pytest.mark.parametrize("n", [0, -1, 2.0, True])
def test_a_number_of_devices_is_a_whole_number(n):
    words = f"use_cpu_devices: n must be a whole number of devices, at least 1; got {n!r}."
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.use_cpu_devices(n)


@pytest.mark.slow
def test_asked_for_in_time_there_are_as_many():
    script = "import phalanx as phx, jax; assert phx.use_cpu_devices(3) == 3 == len(jax.devices())"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.slow
def test_a_number_that_was_chosen_on_purpose_is_not_advised_against():
    begin = "import jax, phalanx as phx; from phalanx.mesh import devices; devices.count_cores = lambda: 2; "
    after = "jax.devices(); assert 'phx.use_cpu_devices(2)' in (devices.use_every_core() or ''); "
    chosen = "assert phx.use_cpu_devices(1) == 1 and devices.use_every_core() is None"
    for script in (begin + chosen, begin + after + chosen):
        subprocess.run([sys.executable, "-c", script], check=True)


EVERY_ENTRY = """
import jax, numpy as np, numpyro.distributions as dist, phalanx as phx
from jax.extend.backend import clear_backends
from phalanx.mesh import devices

assert not jax._src.xla_bridge.backends_are_initialized()  # an import starts nothing
devices.count_cores = lambda: 3

def model(y=None):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(mean, 1.0).expand([3]), obs=y)

data = {"y": np.ones(3, np.float32)}
for call in (
    lambda: phx.predictive(model, num_draws=2),
    lambda: phx.log_joint(model)({"mean": 0.5}, **data),
    lambda: phx.Joint(model).sample(0),
    lambda: phx.trace(phx.seed(model, 0))(),
    lambda: phx.trace(phx.substitute(model, {"mean": 0.5}))(**data),
    lambda: phx.Target(model, data),
    lambda: phx.make_mesh(chain=1),
):
    clear_backends()
    jax.clear_caches()
    jax.config.update("jax_num_cpu_devices", -1)
    call()
    print(len(jax.devices()))
"""


@pytest.mark.slow
def test_whatever_starts_jax_asks_for_every_core():
    environment = {
        name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
    }
    done = subprocess.run([sys.executable, "-c", EVERY_ENTRY], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["3"] * 7
