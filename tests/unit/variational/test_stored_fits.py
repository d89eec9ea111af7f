"""Programs of fits that earlier processes compiled: read where nothing has changed, compiled where anything has."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from tests.slow import with_slow

import phalanx as phx
from phalanx.learning import compiled
from phalanx.run.compile import stored_programs
from phalanx.run.compile.lru_cache import LRUCache

Y = np.array([1.0, 2.0, 4.0], np.float32)
SHORT = {"num_steps": 8, "until": False, "progress": False}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Folder of the files, which every call reads: programs are not kept in this process."""
    monkeypatch.setattr(stored_programs, "folder", lambda: tmp_path)
    monkeypatch.setattr(compiled, "COMPILED", LRUCache(0))
    return tmp_path


def model_of(scale=1.0, prior: Any = dist.Normal):
    def model(y):
        mean = phx.sample("mean", prior(0.0, scale))
        phx.sample("y", dist.Normal(mean, 1.0), obs=y)

    return model


def fitted(model=None, guide=None, y: Any = Y, **options):
    model = model_of() if model is None else model
    guide = phx.guides.mean_field() if guide is None else guide
    return phx.fit(model, guide, {"y": y}, **{**SHORT, **options})


def numbers(fit):
    return jax.tree.map(np.asarray, (fit.params, fit.elbo if isinstance(fit, phx.Fits) else fit.losses))


def without_files(monkeypatch, **options):
    with monkeypatch.context() as patch:
        patch.setattr(stored_programs, "folder", lambda: None)
        return fitted(**options)


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, numbers(one), numbers(other))


@pytest.mark.parametrize("options", [
    {}, pytest.param({"guide": phx.guides.full_rank(), "until": None}, marks=pytest.mark.slow),
    pytest.param({"each": {"y": 0}, "y": np.stack([Y, Y + 1])}, marks=pytest.mark.slow),
], ids=["mean field", "full rank", "each"])  # fmt: skip
def test_a_fit_that_an_earlier_process_compiled_is_read(options, files):
    first, second = fitted(**options), fitted(**options)
    assert first.timing.compilations > 0 and second.timing.compilations == 0
    assert_equal(first, second)


QUICK = {
    "model": {"model": model_of(2.0)}, "optimizer": {"optimizer": optax.sgd(0.01)},
    "guide": {"guide": phx.guides.mean_field(init_scale=0.3)},
}  # fmt: skip
SLOW = {
    "rows": {"y": Y[:2]}, "particles": {"num_particles": 4}, "objective": {"objective": phx.guides.elbo(path=False)},
    "class of guide": {"guide": phx.guides.low_rank(rank=1)}, "fixed draws": {"optimizer": "lbfgs"},
    "precision": {"matmul_precision": "bfloat16"}, "prior": {"model": model_of(prior=dist.Cauchy)},
    "data sets": {"each": {"y": 0}, "y": np.stack([Y, Y + 1])},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        *(pytest.param(change, id=name) for name, change in QUICK.items()),
        *(pytest.param(change, id=name, marks=pytest.mark.slow) for name, change in SLOW.items()),
    ],
)
def test_changes_of_a_fit_compile_it_anew(change, files, monkeypatch):
    fitted()
    changed = fitted(**change)
    assert changed.timing.compilations > 0
    assert_equal(changed, without_files(monkeypatch, **change))


@pytest.mark.slow
def test_other_numbers_run_the_same_programs(files, monkeypatch):
    fitted()
    for change in ({"y": Y + 1, "seed": 1}, {"optimizer": 0.2}):
        changed = fitted(**change)
        assert changed.timing.compilations == 0
        assert_equal(changed, without_files(monkeypatch, **change))


@pytest.mark.slow
def test_a_damaged_file_is_compiled_anew(files):
    first = fitted()
    for path in files.iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    second = fitted()
    assert second.timing.compilations == first.timing.compilations
    assert_equal(first, second)
    assert fitted().timing.compilations == 0


class Shifted(dist.Normal):
    """Distribution of a user, whose draws no trace of its density determines."""

    def sample(self, key, sample_shape=()):
        return super().sample(key, sample_shape) + 1.0


def drawn(y):
    phx.sample("mean", dist.Normal(phx.param("m", 0.0), 1.0))


@pytest.mark.parametrize(
    "options",
    with_slow({"distribution": {"model": model_of(prior=Shifted)}, "guide": {"guide": drawn}}, {"guide"}),
)
def test_code_of_the_user_is_traced_in_every_process(options, files):
    assert fitted(**options).timing.compilations == fitted(**options).timing.compilations > 0
    assert not list(files.iterdir())
