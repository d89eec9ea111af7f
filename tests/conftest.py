"""Settings of all tests: eight virtual CPU devices, no implicit rank promotion, a compilation cache of their own."""

from __future__ import annotations

import builtins
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before JAX is imported, which reads them then; subprocesses do, too.
os.environ["JAX_PLATFORMS"] = "cpu"
# Compiling dominates the time of the tests: they omit LLVM's expensive passes, except under `as_users_compile`.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

import jax
import jaxtyping
import pytest
from jaxtyping import install_import_hook
from tests.type_checked import TYPE_CHECKED

# Through the configuration and not XLA_FLAGS, so that a test's subprocess starts as a user's process would.
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
# No test reads the lines of Python in a lowered program; recording them takes a tenth of the time of lowering.
jax.config.update("jax_traceback_in_locations_limit", 0)

for dtype in ("Bool", "Float", "Float64", "Int", "Integer", "Key", "Shaped", "UInt32"):
    # The package imports them for type checkers alone, so that users neither need jaxtyping nor wait for it. To the
    # checker here a name that it cannot find would be any type.
    setattr(builtins, dtype, getattr(jaxtyping, dtype))
for drawn in ("Axes", "Figure"):  # matplotlib takes long to import, and its types have no shapes
    setattr(builtins, drawn, Any)
install_import_hook(TYPE_CHECKED, "tests.type_checked.checked")

# Only now, so that its types are checked.
from phalanx.mesh.compatibility.jax_internals import PLAIN, Options, compile_with  # noqa: E402
from phalanx.run.compile import compilation, stored_programs  # noqa: E402

# Tests replace parts of Phalanx, which the keys of stored programs cannot know. Their own tests name a folder.
stored_programs.folder = lambda: None


def compile_quickly(lowered: jax.stages.Lowered, options: Options) -> jax.stages.Compiled:
    """Compile a program of Phalanx's with XLA's older fusion, in two thirds of the time."""
    return compile_with(lowered, {**PLAIN, **options})


compilation.compile_with = compile_quickly

# Traces leave millions of objects, which the collector would walk through again and again: a tenth of the time.
gc.set_threshold(100_000, 20, 100)

# Shells ignore SIGINT in background jobs, and tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    # The process that starts the tests makes the folder; xdist's workers inherit the variable.
    if not hasattr(config, "workerinput"):
        os.environ["PHALANX_CACHE"] = tempfile.mkdtemp(prefix="phalanx-cache-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop("PHALANX_CACHE"), ignore_errors=True)


SLOW_EXAMPLES = frozenset(
    [
        "distributions.blocked.blocked",
        "flows.images.MultiScale",
        "networks.pixels.image_transformer",
        "particles.result.Particles",
        "particles.smc.smc",
        "posterior.calibrate.calibrate",
        "posterior.criticism.compare.compare",
        "posterior.criticism.loo.Loo",
        "posterior.each.posteriors.Posteriors",
        "posterior.recovery.recover",
        "reducers.autocovariance.autocovariance",
        "reducers.covariance.covariance",
        "reducers.ess.ess",
        "reducers.loo.loo",
        "reducers.moments.moments",
        "reducers.moments.rhat",
        "reducers.reservoir.reservoir",
        "reducers.sketch.quantiles",
        "run.init_values.superchains",
        "variational.each.fits.Fits",
        "variational.guides.constructors.flow",
        "variational.guides.constructors.full_rank",
        "variational.guides.constructors.low_rank",
        "variational.guides.constructors.pathfinder",
        "variational.guides.constructors.structured",
        "variational.importance.importance",
        "variational.maximum.maximize",
        "variational.reparameterize.reparameterize",
        "variational.result.Fit",
        "variational.result.Fit.covariance",
    ]
)
"""Examples in docstrings that compile for more than four seconds. Each runs what quick tests of its module run, too."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "data_folder" in getattr(item, "fixturenames", ()):
            item.add_marker("real_data")
        if item.name.removeprefix("phalanx.") in SLOW_EXAMPLES:
            item.add_marker("slow")


AS_USERS_DO = (
    "conformance", "mesh", "statistical", "unit/ensembles", "unit/learning/test_compiled", "unit/run",
    "unit/variational/test_fit", "unit/variational/test_likelihood", "unit/variational/test_options",
    "unit/variational/test_stored_fits",
)  # fmt: skip
"""Folders and files, by how their paths begin, whose tests compile as users do: answers, and draws and parameters that
are compared bit by bit between programs."""


@pytest.fixture(autouse=True, scope="module")
def as_users_compile(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile as in a user's process in some folders and files."""
    if not request.path.relative_to(Path(__file__).parent).as_posix().startswith(AS_USERS_DO):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS")
        jax.config.update("jax_disable_most_optimizations", False)
        patch.setattr(compilation, "compile_with", compile_with)
        yield
        jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """`ctrl_c()` does what the keys do, also where the tests run in the background and Ctrl-C is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data files; the test skips when PHALANX_DATA does not name one."""
    named = os.environ.get("PHALANX_DATA")
    if not named:
        pytest.skip("PHALANX_DATA is not set: this test needs real data files in the folder it names")
    folder = Path(named).absolute()
    if not folder.is_dir():
        pytest.fail(f"PHALANX_DATA names {folder}, which is not a folder")
    return folder


@pytest.fixture
def mesh_of() -> Callable[..., jax.sharding.Mesh]:
    """`mesh_of(chain, data, model=1)`: a mesh over the first of the eight devices."""
    import phalanx as phx

    def make(chain: int, data: int, model: int = 1) -> jax.sharding.Mesh:
        return phx.make_mesh(chain=chain, data=data, model=model)

    return make
