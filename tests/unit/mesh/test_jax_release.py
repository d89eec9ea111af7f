"""JAX releases that compute wrong numbers are refused; the installed one computes the right ones."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.slow import with_slow

import phalanx as phx
from phalanx.mesh.compatibility import jax_release, workarounds
from phalanx.mesh.compatibility.jax_release import refusal


@pytest.mark.parametrize(
    "version, platform, issue",
    [
        ("0.10.0", "cpu", None), ("0.10.1", "cpu", None), ("0.10.2", "cpu", "39103"), ("0.10.2", "cuda", None),
        ("0.10.2", "gpu", None), ("0.10.2", "tpu", None), ("0.10.2.dev20260617", "cpu", "39103"),
        ("0.10.20", "cpu", None), ("0.11.0", "cpu", "39257"), ("0.11.0", "gpu", None), ("0.11.1", "cpu", None),
        ("0.11.2", "cpu", None), ("0.12.0.1", "cpu", None), ("0.10.2+local", "cpu", "39103"), ("unknown", "cpu", None),
    ],
)  # fmt: skip
def test_a_release_is_refused_by_its_version_and_platform(version, platform, issue):
    reason = refusal(version, platform, (3, 12))
    assert (reason is None) == (issue is None)
    if reason is not None:
        assert issue in reason and version in reason and "pip install 'jax>=0.11.2,<0.13'" in reason
        assert "PHALANX_WORKAROUNDS=refused-releases" in reason


@pytest.mark.parametrize(
    "python, good", [((3, 11), "'jax==0.10.1' 'jaxlib==0.10.1'"), ((3, 14), "'jax>=0.11.2,<0.13'")]
)
def test_it_says_what_to_install_for_the_python_in_use(python, good):
    assert f"pip install {good}." in (refusal("0.10.2", "cpu", python) or "")


def model(y=None):
    mu = phx.sample("mu", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(mu, 1.0).expand([3]), obs=y)


DATA = {"y": np.zeros(3, np.float32)}
SHORT = {"num_warmup": 2, "num_samples": 2, "progress": False}


def _ensemble():
    return phx.ensemble(lambda key: jnp.zeros(2), lambda state, batch: (state, jnp.zeros(())), 2)


CALLS = {
    "mcmc": lambda _: phx.mcmc(model, DATA, **SHORT),
    "compile": lambda _: phx.compile(model, DATA),
    "stream": lambda _: next(
        iter(phx.stream(model, DATA, keep=[], reducers={"m": phx.reducers.moments()}, num_warmup=2, progress=False))
    ),
    "fit": lambda _: phx.fit(model, phx.guides.mean_field(), DATA, progress=False),
    "maximize": lambda _: phx.maximize(model, DATA),
    "target": lambda _: phx.Target(model, DATA),
    "ensemble": lambda _: _ensemble(),
    "predictive": lambda posterior: posterior.predictive(),
    "predict": lambda posterior: posterior.predict(lambda draw: draw["mu"]),
    "log_joint": lambda _: phx.log_joint(model)({"mu": 0.0}, **DATA),
    "spmd": lambda _: phx.spmd(lambda x: x, jax.make_mesh((1,), ("i",)), 0, 0),
}


@pytest.fixture(scope="module")
def posterior():
    return phx.mcmc(model, DATA, **SHORT)


@pytest.fixture
def bad_jax(monkeypatch):
    """The installed JAX says that it is 0.10.2; a work-around can be turned off by name."""

    def say(turned_off: str) -> None:
        monkeypatch.setenv(workarounds.VARIABLE, turned_off)
        workarounds._turned_off.cache_clear()

    monkeypatch.setattr("jaxlib.version.__version__", "0.10.2")
    jax_release._check.cache_clear()
    say("")
    yield say
    monkeypatch.undo()
    workarounds._turned_off.cache_clear()
    jax_release._check.cache_clear()


@pytest.mark.parametrize("name", with_slow([*CALLS], {"mcmc", "compile"}))
def test_whatever_computes_refuses_it(bad_jax, posterior, name):
    with pytest.raises(RuntimeError, match=r"jaxlib 0\.10\.2 computes wrong sums on CPUs.*39103.*pip install"):
        CALLS[name](posterior)


def test_the_refusal_is_lifted_by_name(bad_jax, posterior):
    bad_jax("refused-releases")
    assert np.isfinite(CALLS["log_joint"](posterior))
    CALLS["target"](posterior)


IMPORT = """
import jax, jaxlib.version
jaxlib.version.__version__ = "0.10.2"
from jax._src import xla_bridge
from jax._src.interpreters.mlir import _platform_specific_lowerings as rules
from jax._src.lax.linalg import cholesky_p
before = rules["cpu"][cholesky_p]
import phalanx, phalanx.variational.fit
assert rules["cpu"][cholesky_p] is before
assert not xla_bridge.backends_are_initialized()
"""


def test_import_refuses_nothing_and_changes_nothing():
    subprocess.run([sys.executable, "-c", IMPORT], check=True, env={**os.environ, workarounds.VARIABLE: ""})


def test_the_installed_jax_sums_products_of_many_rows_right():
    """The reproducer of jax #39103: wrong from 32,769 rows on in float32 with jaxlib 0.10.2."""
    rows = 40_001
    y = np.zeros((rows, 3), np.float32)
    y[:, 0] = np.arange(rows) / rows * 10
    matrix = jnp.eye(3, dtype=jnp.float32)

    def model(y):
        s = phx.sample("s", dist.Normal(0.0, 1.0))
        phx.factor("f", -50.0 / rows * jax.vmap(lambda row: jnp.sum((matrix @ (row - s)) ** 2))(y))

    found = jax.jit(lambda s: phx.log_joint(model)({"s": s}, y))(1.0)
    right = -50.0 / rows * np.sum((y.astype(float) - 1.0) ** 2) - 0.5 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(found, right, rtol=1e-4)  # jaxlib 0.10.2: off by 3.6e-3
