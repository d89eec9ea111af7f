"""Without a private part of JAX or NumPyro, Phalanx imports and runs: slower, or refusing by name."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jaxlib.version
import pytest

import phalanx
from phalanx.mesh.agreement import check_same
from phalanx.mesh.compatibility import jax_internals, numpyro_internals, shared_store
from phalanx.mesh.compatibility.jax_internals import COORDINATION, LINALG, LOWER_FUNCTION, LOWERINGS, REGISTER, SETTINGS
from phalanx.mesh.compatibility.lapack_batches import deadlocks
from phalanx.mesh.compatibility.numpyro_internals import APPLY, MESSENGER, refuse_without
from phalanx.mesh.compatibility.shared_store import SharedStore

WITHOUT = """
import importlib, sys, types
import jax, jax.interpreters.mlir, jax.interpreters.partial_eval, jax.interpreters.xla, numpyro, optax, orbax.checkpoint

def delete(name):
    \"\"\"Delete a name for all that is imported from now on; JAX, which is imported already, keeps what it needs.\"\"\"
    path, _, attribute = name.rpartition(".")
    if path == "jax.config":
        delattr(type(jax.config), attribute)
        return
    original, (parent, _, last) = importlib.import_module(path), path.rpartition(".")
    bare = types.ModuleType(path)
    bare.__dict__.update({key: value for key, value in vars(original).items() if key != attribute})
    sys.modules[path] = bare
    setattr(sys.modules[parent], last, bare)

for name in sys.argv[2:]:
    delete(name)

import numpy as np, numpyro.distributions as dist, phalanx as phx
jax.config.update("jax_num_cpu_devices", 2)

def model(x, y):
    w = phx.sample("w", dist.Normal(0.0, 1.0))
    total, _ = jax.lax.scan(lambda c, xi: (c + xi, c), 0.0, x)
    with numpyro.plate("rows", 3):
        numpyro.sample("y", dist.Normal(w * x + 0.0 * total, 1.0).mask(True), obs=y)

data, chain = {"x": np.arange(3.0), "y": np.ones(3)}, phx.make_mesh(chain=1)
posterior = phx.mcmc(
    model, data, kernel=phx.rwmh(0.5), num_chains=2, num_warmup=5, num_samples=50, mesh=phx.make_mesh(), progress=False
)
assert np.isfinite(posterior.draws["w"]).all() and posterior.draws["w"].std() > 0
training = phx.training(every=2, checkpoint=sys.argv[1])
fit = lambda steps: phx.fit(
    model, phx.guides.mean_field(), data, num_steps=steps, optimizer=optax.adam(0.1), training=training, mesh=chain,
    progress=False,
)
fit(2)
assert [look.step for look in fit(4).looks] == [2, 4]
mesh = phx.make_mesh(chain=1, data=2)
draw = lambda key: phx.Sharded(dist.Normal(0.0, 1.0).expand([2]), "data").sample(key)
assert phx.spmd(draw, mesh, in_axes=None, out_axes="data")(jax.random.key(0)).shape == (2, 2)
"""

NAMES = {
    name: words
    for name, words in (jax_internals.NAMES | numpyro_internals.NAMES).items()
    if name != COORDINATION  # Orbax needs it, too
}

REFUSED = {
    **dict.fromkeys(
        [LOWERINGS, LINALG, REGISTER, LOWER_FUNCTION] * deadlocks(jaxlib.version.__version__),
        ("jaxlib", "=lapack-in-pieces"),
    ),
    **dict.fromkeys([MESSENGER, APPLY], ("numpyro", "pip install")),
}
"""Names without which programs are refused, with how the refusal begins, and the way out of it."""


def run(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PHALANX_WORKAROUNDS": "", "JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "default"}
    command = [sys.executable, "-c", WITHOUT, str(folder / "fit"), *names]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_without_all_that_can_be_spared_it_runs_and_says_what_it_could_not_compare(tmp_path):
    done = run(tmp_path, *sorted(NAMES.keys() - REFUSED.keys()))
    assert done.returncode == 0, done.stderr
    assert "not compared were the model and the guide and the objective" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NAMES.keys() - REFUSED.keys()))
def test_without_one_it_runs(tmp_path, name):
    done = run(tmp_path, name)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n != APPLY)) for n in REFUSED])
def test_without_one_that_cannot_be_spared_it_refuses_by_name(tmp_path, name):
    done = run(tmp_path, name)
    assert done.returncode == 1
    (last,) = (line for line in done.stderr.splitlines() if line.startswith("RuntimeError"))
    begins, way_out = REFUSED[name]
    assert last.startswith(f"RuntimeError: {begins}") and f" {name}," in last and way_out in last


def test_without_the_store_processes_are_not_compared(monkeypatch):
    monkeypatch.setattr(shared_store, "find", lambda name: None)
    assert COORDINATION in jax_internals.NAMES and SharedStore.joined() is None
    check_same("phx.mcmc", lambda: pytest.fail("compared"))


def test_no_other_module_names_private_parts():
    """Neither in an import nor in a string."""
    source = Path(phalanx.__file__).parent
    private = (
        "jax._src", "jax.interpreters", "jax.lib", "jaxlib._", "--xla_backend", "xla_backend", "xla_cpu", "xla_gpu",
        "numpyro.primitives", "numpyro.distributions.util", "numpyro.nn", "substitute_stack",
    )  # fmt: skip
    attributes = ("vma", "manual_axis_type", "_mask", "_component_distribution", "_component_distributions")
    found = set()
    for file in source.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{a.name}" for a in node.names]
            if any(name.startswith(private) for name in names):
                found.add(file.name)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(private):
                found.add(file.name)
            if isinstance(node, ast.Attribute) and node.attr in attributes:
                found.add(file.name)
    assert found <= {"jax_internals.py", "numpyro_internals.py"}


def test_a_refusal_says_what_to_install():
    with pytest.raises(RuntimeError, match=r"numpyro .* has no numpyro\.nothing,.* pip install numpyro=="):
        refuse_without("numpyro.nothing")


# -- parts without a name that can be deleted -----------------------------------------------------------------------


def test_an_option_that_xla_does_not_know_is_left_out(monkeypatch):
    monkeypatch.setattr(jax_internals, "_unknown", set())
    lowered = jax.jit(lambda x: x + 1.0).lower(1.0)
    for _ in range(2):
        program = jax_internals.compile_with(lowered, {"xla_no_such_option": "1", **jax_internals.RARELY})
        assert program(1.0) == 2.0
    assert jax_internals._unknown == {"xla_no_such_option"}
    with pytest.raises(Exception, match="xla_backend_optimization_level"):
        jax_internals.compile_with(lowered, {"xla_backend_optimization_level": "many"})


def test_a_scan_is_read_as_either_release_describes_it_or_refused():
    def parts(*lengths: int) -> Any:
        return SimpleNamespace(unpack=lambda: tuple(range(n) for n in lengths))

    assert jax_internals.scan_sizes({"num_consts": 2, "num_carry": 3}) == (2, 3)
    assert jax_internals.scan_sizes({"ft_in": parts(2, 3, 4)}) == (2, 3)
    with pytest.raises(NotImplementedError, match=r"describes jax\.lax\.scan by length, body, which this release"):
        jax_internals.scan_sizes({"length": 3, "body": None})


@pytest.mark.parametrize(
    "kind, axes",
    [
        (SimpleNamespace(manual_axis_type=SimpleNamespace(varying={"data"})), {"data"}),
        (SimpleNamespace(vma=frozenset({"data"})), {"data"}),
        (SimpleNamespace(), set()),
    ],
)
def test_tracked_axes_of_either_release(monkeypatch, kind, axes):
    monkeypatch.setattr(jax, "typeof", lambda value: kind)
    assert jax_internals.tracked_axes(1.0) == axes


def test_all_settings_are_read_that_matter_without_the_list_of_them(monkeypatch):
    whole = jax_internals.settings()
    monkeypatch.delattr(type(jax.config), SETTINGS.rpartition(".")[2])
    part = jax_internals.settings()
    assert part and all(whole[name] == value for name, value in part.items())
    assert {"jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_rank_promotion"} <= part.keys()
