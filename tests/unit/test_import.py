"""Importing Phalanx changes nothing, and loads nothing that a model does not need."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

CHECK = """
import sys, warnings, logging, signal
import jax, numpyro.distributions
from jax.interpreters import xla
def settings():
    handlers = logging.getLogger().handlers[:], signal.getsignal(signal.SIGINT)
    return dict(jax.config.values), list(warnings.filters), handlers, dict(xla.canonicalize_dtype_handlers)
before = settings()
modules = set(sys.modules)
import phalanx
assert settings() == before, "importing phalanx changed a setting"
jax.config.update("jax_num_cpu_devices", 3)  # raises if JAX has started
new = {name.split(".")[0] for name in set(sys.modules) - modules}
extras = {"arviz", "blackjax", "matplotlib", "pandas", "rich", "sklearn", "typer", "xarray"}
print(" ".join(sorted(new & extras)), *(name for name in sys.modules if name.startswith("phalanx.variational")))
print(" ".join({"scipy.optimize", "scipy.stats"} & set(sys.modules) - modules))  # slow to import
phalanx.fit, phalanx.guides.mean_field  # what learns is imported when it is asked for
"""


def test_import_has_no_side_effects_and_loads_no_extra():
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_lazy_names_are_those_that_type_checkers_know():
    import phalanx as phx

    tree = ast.parse(Path(phx.__file__).read_text())
    (known,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    inside = [node for node in known.body if isinstance(node, ast.ImportFrom)]
    imports = {str(alias.asname): (str(node.module), alias.name) for node in inside for alias in node.names}
    for name, (module, attribute) in imports.items():
        found = getattr(phx, name)
        assert found is getattr(importlib.import_module(module), attribute) and name in phx.__all__
    assert set(imports) == {*phx._LATER, *phx._PACKAGES}


def test_listed_names_are_the_public_ones():
    import phalanx as phx

    shown = {"datasets", "diagnostics", "ensembles", "flows", "kernels", "networks", "reducers"}
    packages = {path.parent.name for path in Path(phx.__file__).parent.glob("*/__init__.py")} | {"extras"}
    assert not (packages - shown) & set(dir(phx))
    assert {"mcmc", "sample", "reducers", "ensembles", "datasets", "Posterior", "__version__"} <= set(dir(phx))
    namespace = {}
    exec("from phalanx import *", namespace)
    assert "mcmc" in namespace and "run" not in namespace
    for package in map(phx.__dict__.__getitem__, shown):
        assert sorted(package.__all__) == package.__all__ and all(hasattr(package, name) for name in package.__all__)
