"""Work-arounds for CPUs: what a run draws does not hang on them, and they are turned off by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from phalanx.mesh import workarounds
from phalanx.mesh.workarounds import VARIABLE, Workaround

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
@pytest.mark.parametrize("kernel", ["hmc", "nuts", "rwmh", "chees", "mams"])
def test_draws_agree_up_to_rounding_with_all_turned_off(kernel):
    np.testing.assert_allclose(draws("off", kernel), draws("", kernel), atol=1e-4)


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
    with pytest.raises(ValueError, match=r"'tile'.*no work-around.*fused-loops, .*tiles"):
        said("tile")
