"""Work-arounds: what a run draws does not hang on them, and they are turned off by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from phalanx.mesh import random_numbers
from phalanx.mesh.compatibility import workarounds
from phalanx.mesh.compatibility.workarounds import VARIABLE, Workaround

RUN = """
import json, sys
import jax, numpy as np, numpyro.distributions as dist, phalanx as phx

def model(x, y):
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([3]))
    phx.sample("y", phx.blocked(lambda x: dist.Normal(x @ w, 1.0), x, block=7), obs=y)

x = np.linspace(-1.0, 1.0, 60, dtype=np.float32).reshape(20, 3)
run = phx.mcmc(
    model, {"x": x, "y": x.sum(1)}, kernel=getattr(phx, sys.argv[1])(step_size=0.05), num_chains=128,
    num_warmup=0, num_samples=4, mesh=phx.make_mesh(devices=jax.devices()[:1]), progress=False,
)
print(json.dumps(np.asarray(run.draws["w"])[::9, -1].tolist()))
"""


def draws(turned_off: str, kernel: str) -> np.ndarray:
    environment = {**os.environ, VARIABLE: turned_off}
    done = subprocess.run(
        [sys.executable, "-c", RUN, kernel], env=environment, capture_output=True, text=True, check=True
    )
    return np.array(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["hmc", "nuts", "rwmh", "chees", "mams", "laps"])
def test_draws_agree_up_to_rounding_with_all_turned_off(kernel):
    np.testing.assert_allclose(draws("off", kernel), draws("", kernel), atol=1e-4)


TRACED = "import phalanx; phalanx.trace(lambda: None)()"
"""Importing changes nothing; the first program that is traced does."""

CHANGED_IN_PLACE = """
import jax, numpy as np
x = np.zeros(3)
kept = jax.make_jaxpr(lambda w: w + x)(1.0)
x[:] = 1.0
print(np.asarray(jax.make_jaxpr(lambda w: w + x)(1.0).consts[0]).tolist())
"""


@pytest.mark.parametrize(
    "first, turned_off, read",
    [
        ("", "", 0.0),
        pytest.param("import phalanx", "", 0.0, marks=pytest.mark.slow),
        pytest.param(TRACED, "", 1.0, marks=pytest.mark.slow),
        pytest.param(TRACED, "fresh-constants", 0.0, marks=pytest.mark.slow),
    ],
)
def test_an_array_changed_in_place_is_read_as_it_was_without_the_work_around(first, turned_off, read):
    environment = {**os.environ, VARIABLE: turned_off, "JAX_ENABLE_X64": "0"}
    done = subprocess.run(
        [sys.executable, "-c", first + CHANGED_IN_PLACE], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [read] * 3, "where JAX reads 1.0 by itself, the work-around can go"


@pytest.fixture
def said(monkeypatch):
    def say(words: str) -> set[Workaround]:
        monkeypatch.setenv(VARIABLE, words)
        workarounds._turned_off.cache_clear()
        return {one for one in Workaround if not one.is_on}

    yield say
    monkeypatch.undo()
    workarounds._turned_off.cache_clear()


def test_they_are_turned_off_by_name(said):
    assert said("") == set()
    assert said("OFF") == set(Workaround)
    assert said("tiles, lanes-last") == {Workaround.TILES, Workaround.LANES_LAST}


def test_a_name_that_is_none_is_an_error_that_lists_them(said):
    with pytest.raises(ValueError, match=r"unknown name: 'tile'.*fused-loops, .*tiles"):
        said("tile")


CHAINED_HASHES = """
import jax, jax.numpy as jnp, numpy as np
from phalanx.mesh.random_numbers import Keys
from phalanx.mesh.random_numbers import standard_normals_from, threefry

def normals(seed):
    first, second = Keys.of_chains(seed, jnp.arange(4)).of_draw(0)
    words = threefry((first[None], second[None]), jnp.uint32(0), jnp.arange(3, dtype=jnp.uint32)[:, None])
    return standard_normals_from(words, jnp.float32)

jax.jit(normals).lower(np.uint32(0)).compile()
"""


def compiles_chained_hashes(turned_off: str, seconds: float) -> bool:
    try:
        environment = {**os.environ, VARIABLE: turned_off}
        subprocess.run([sys.executable, "-c", CHAINED_HASHES], env=environment, check=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


@pytest.mark.slow
def test_hashes_that_are_chained_are_compiled_in_time():
    assert compiles_chained_hashes("", 120.0), "it takes a second, or for ever"


@pytest.mark.slow
@pytest.mark.skipif(not random_numbers.CHAINS_HANG, reason="this JAX compiles them")
def test_without_the_work_around_they_are_not():
    assert not compiles_chained_hashes("hashes-apart", 60.0), "where they are, hashes-apart can go"
