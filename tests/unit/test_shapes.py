"""The shapes that functions say they take and return are checked while tests run."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
import typing

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from tests.type_checked import TYPE_CHECKED


def checked_modules():
    for name in TYPE_CHECKED:
        module = importlib.import_module(name)
        yield module
        for inner in pkgutil.iter_modules(getattr(module, "__path__", [])):
            yield importlib.import_module(f"{name}.{inner.name}")


def functions_of(namespace, module):
    for value in vars(namespace).values():
        value = inspect.unwrap(getattr(value, "__func__", getattr(value, "fget", getattr(value, "func", value))))
        if getattr(value, "__module__", None) != module:
            continue
        if inspect.isfunction(value):
            yield value
        elif inspect.isclass(value):
            yield from functions_of(value, module)


@pytest.mark.parametrize("module", list(checked_modules()), ids=lambda module: module.__name__)
def test_every_annotation_can_be_evaluated(module):
    """What cannot be is taken for any type, without a word."""
    for function in functions_of(module, module.__name__):
        typing.get_type_hints(function)


REFUSED = {
    "mesh.row_sharding.only_rows": (jnp.ones(3, bool), jnp.ones((2, 4))),
    "mesh.total.multiples": (jnp.arange(3), 2.0),
    "distributions.row_sums.total_of": (np.ones(3),),
    "kernels.integrators.tree.u_turn": (jnp.ones((3, 2)), jnp.ones((3, 2)), jnp.ones(3)),
    "kernels.integrators.acceptance.metropolis": (jnp.ones(3), jnp.ones(2)),
    "kernels.integrators.acceptance.broken_down": (jnp.ones((3, 2)),),
    "mesh.position.choose": (jnp.ones(3), jnp.ones(3), jnp.ones(3)),
    "reducers.shifted.add_to": (jnp.ones(3), jnp.ones(3), jnp.ones((3, 1))),
    "reducers.shifted.begin_at": (jnp.ones((3, 2)), jnp.zeros(2, int), jnp.ones((3, 2))),
    "reducers.thinning.take": (None, jnp.ones((3, 2)), jnp.ones(2, bool)),
    "reducers.effective_size.effective_size": (np.ones((3, 2)),),
    "diagnostics.element_statistics.normal_scores": (np.ones((2, 3), int), np.ones((2, 4))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arrays_that_do_not_fit_are_refused(name):
    module, function = name.rsplit(".", 1)
    with pytest.raises(jaxtyping.TypeCheckError):
        getattr(importlib.import_module(f"phalanx.{module}"), function)(*REFUSED[name])


def test_users_need_no_jaxtyping():
    check = "import sys, phalanx as phx, phalanx.reducers; phx.fit; print('jaxtyping' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.stdout.split() == ["False"], done.stderr
