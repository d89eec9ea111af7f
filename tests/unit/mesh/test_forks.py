"""A forked process, in which JAX would hang, is refused by name; other processes work."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import warnings

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.mesh.forks import refuse_fork


def model():
    phx.sample("x", dist.Normal(0.0, 1.0))


SIZES = {"num_warmup": 5, "num_samples": 5, "num_chains": 2, "progress": False}


def in_child(call) -> str:
    """Return the error of a call in a forked process, which ends after it."""
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX's own, of the fork
        number = os.fork()
    if number == 0:
        signal.alarm(20)  # a child that hangs ends without words
        try:
            call()
            words = "no error"
        except BaseException as error:
            words = f"{type(error).__name__}: {error}"
        os.write(writes, words.encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as opened:
        words = opened.read()
    os.waitpid(number, 0)
    return words


def check_refused(*calls):
    for call in calls:
        words = in_child(call)
        assert words.startswith("RuntimeError: This process was forked from one in which JAX had started"), words
        assert "multiprocessing.get_context('spawn')" in words


def test_a_forked_process_is_refused():
    jnp.zeros(3).block_until_ready()
    target = phx.Target(model)
    check_refused(
        lambda: phx.mcmc(model, **SIZES), lambda: phx.fit(model, phx.guides.mean_field()), lambda: phx.make_mesh(),
        lambda: target.log_density({"x": np.float32(0.0)}),
    )  # fmt: skip


@pytest.mark.slow
def test_a_forked_process_is_refused_in_every_call(tmp_path):
    jnp.zeros(3).block_until_ready()
    sampler = phx.compile(model, kernel=phx.rwmh(1.0), num_chains=2)
    posterior = sampler.run(num_warmup=5, num_samples=5, progress=False)
    fit = phx.fit(model, phx.guides.mean_field(), optimizer="lbfgs", progress=False)
    check_refused(
        lambda: sampler.run(progress=False), lambda: phx.compile(model), lambda: phx.smc(model),
        lambda: phx.maximize(model), lambda: phx.stream(model, reducers={"m": phx.reducers.moments()}),
        lambda: fit.sample(), lambda: fit.posterior(), lambda: fit.covariance(), lambda: phx.seed(model, 0)(),
        lambda: phx.Target(model), lambda: posterior.predictive(), lambda: posterior.loo(),
        lambda: posterior.predict(lambda draw: draw["x"]), lambda: phx.predictive(model, num_draws=5),
        lambda: posterior.continue_run(5), lambda: posterior.save(tmp_path / "run.npz"),
    )  # fmt: skip
    assert in_child(lambda: np.asarray(posterior.draws["x"]).mean()) == "no error"


def test_this_process_and_one_that_is_spawned_are_no_forks():
    jnp.zeros(3).block_until_ready()
    refuse_fork()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(refuse_fork)


def test_a_process_that_was_forked_before_jax_started_works():
    script = (
        "import os, phalanx; from phalanx.mesh.forks import refuse_fork; import jax.numpy as jnp; n = os.fork(); "
        "refuse_fork(); jnp.zeros(3).block_until_ready(); n and os.waitpid(n, 0)[1] and 1 / 0"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=120).returncode == 0
