"""Runs in several threads at once: each gets its own right answer, as it would alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import phalanx as phx
from phalanx.mesh.compatibility.numpyro_internals import unvalidated
from phalanx.run.compile.lru_cache import LRUCache

THREADS = 8


def at_once(jobs: list[Callable[[], Any]]) -> list[Any]:
    """Run each job in a thread of its own, all of which begin together."""
    ready = threading.Barrier(len(jobs))

    def run(job: Callable[[], Any]) -> Any:
        ready.wait(timeout=60)
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(run, jobs))


def job(number: int, seed: int) -> Callable[[], np.ndarray]:
    """A run of a model of its own: its size, its prior and what it reads from outside of it differ."""
    centre = np.full(1 + number % 3, 1.0 * number)

    def model(y):
        x = phx.sample("x", dist.Normal(centre, 1.0).to_event(1))
        phx.sample("y", dist.Normal(x, 0.5).to_event(1), obs=y)

    def run() -> np.ndarray:
        mesh = phx.make_mesh(chain=2, data=1 + number % 2)
        posterior = phx.mcmc(
            model, {"y": centre + 1.0}, kernel=phx.rwmh() if number else phx.nuts(), num_chains=2, num_warmup=200,
            num_samples=400, seed=seed, mesh=mesh, progress=False,
        )  # fmt: skip
        return posterior.draws["x"]

    return run


@pytest.mark.slow
def test_models_in_threads_draw_what_they_draw_alone():
    """Two threads run the same model."""
    jobs = [job(number, number) for number in range(THREADS)] + [job(0, 0)]
    together = at_once(jobs)
    for number, draws in enumerate(together[:-1]):
        np.testing.assert_allclose(draws.mean((0, 1)), number + 0.8, atol=0.4)
        np.testing.assert_array_equal(draws, jobs[number]())
    # it may have been compiled twice, and equal programs be rounded in two ways
    np.testing.assert_allclose(together[0], together[-1], rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_fits_and_ensembles_run_beside_the_main_thread():
    """Neither installs a handler of signals there."""

    def model(y):
        phx.sample("y", dist.Normal(phx.sample("x", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    def fit() -> list[float]:
        found = phx.fit(
            model, phx.guides.mean_field(), {"y": np.ones(3)}, num_steps=20, optimizer=optax.sgd(0.1), progress=False
        )
        return np.concatenate(list(map(np.ravel, jax.tree.leaves(found.params)))).tolist()

    def ensemble() -> float:
        made = phx.ensemble(lambda key: jnp.zeros(2), lambda state, batch: (state + 1.0, {"loss": jnp.sum(state)}), 2)
        for _ in made.train({"x": np.zeros((4, 1), np.float32)}, batch_size=2):
            break
        return float(np.sum(made.member(1)))

    assert at_once([fit, fit, ensemble, ensemble]) == [fit(), fit(), 4.0, 4.0]


def test_numpyro_checks_values_again_when_the_last_thread_has_left():
    inside, seen = threading.Barrier(2, timeout=60), []

    def first():
        with unvalidated():
            inside.wait()
        seen.append(dist.Normal(0.0, 1.0)._validate_args)
        inside.wait()

    def second():
        with unvalidated():
            inside.wait()
            inside.wait()
        seen.append(dist.Normal(0.0, 1.0)._validate_args)

    with numpyro.validation_enabled():
        at_once([first, second])
        assert seen == [False, True]


def test_a_memory_is_one_for_all_threads():
    memory: LRUCache[int] = LRUCache(4)

    def use(first: int) -> bool:
        for number in range(3000):
            key = (first + number) % 7
            memory.keep(key, key)
            if memory.look_up((key + 3) % 7) not in (None, (key + 3) % 7):
                return False
        return True

    assert all(at_once([lambda i=i: use(i) for i in range(THREADS)]))
    assert jax.process_count() == 1 and memory.look_up(memory.last()[0]) is not None
