"""Signatures of public functions: an argument given by position cannot be taken for another one."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx import diagnostics, kernels, reducers

AREAS = {
    "phx": phx, "phx.guides": phx.guides, "phx.kernels": kernels, "phx.reducers": reducers,
    "phx.networks": phx.networks, "phx.flows": phx.flows, "phx.diagnostics": diagnostics,
    "phx.datasets": phx.datasets, "phx.ensembles": phx.ensembles,
}  # fmt: skip

EXCEPTIONS = {
    "phx.spmd": "inputs come before outputs, as in jax.shard_map",
    "phx.make_mesh": "the axes in their order everywhere: chain, data, model",
    "phx.param": "a constraint is one of NumPyro's, a spec of JAX's: others are refused",
    "phx.hmc": "a number of steps is whole, a step size is not",
    "phx.Fit.sample": "a seed comes before a number, as in all calls that draw",
    "phx.Fits.sample": "a seed comes before a number, as in all calls that draw",
    "phx.Posterior.predictive": "data are a dict or a table, a kind is one of two words",
    "phx.Sampler.run": "a seed is a whole number, data are a dict",
    "phx.ensembles.learner": "a loss is a function, an optimiser one of optax's: others are refused",
    "phx.Sampler.plan": "called by Phalanx",
}
"""Functions with several optional arguments by position, and the reason."""


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public functions, the constructors that users call, and the methods of public classes."""
    for area, module in AREAS.items():
        names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
        for name in names:
            value = getattr(module, name)
            if not callable(value) or not getattr(value, "__module__", "").startswith("phalanx."):
                continue
            if not inspect.isclass(value):
                yield f"{area}.{name}", value
                continue
            if name not in RESULTS:
                yield f"{area}.{name}", value
            for method, of_class in vars(value).items():
                function = of_class.__func__ if isinstance(of_class, classmethod | staticmethod) else of_class
                if inspect.isfunction(function) and not method.startswith("_"):
                    yield f"{area}.{name}.{method}", function


RESULTS = {
    "Beginning", "CheckedRun", "Finding", "Fit", "FitError", "Fits", "LabelledRows", "Particles", "Point", "Posterior",
    "Posteriors", "Sampler", "Stage", "Sums", "Verdict",
}  # fmt: skip
"""Records that Phalanx makes, and users read."""


def optional(function: Callable[..., Any]) -> list[str]:
    """Return the optional arguments that may be given by position."""
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.kind in kinds and one.default is not one.empty]


def test_at_most_one_optional_argument_has_a_position():
    several = {name: optional(function) for name, function in public() if len(optional(function)) > 1}
    assert {name: names for name, names in several.items() if name not in EXCEPTIONS} == {}
    assert set(EXCEPTIONS) == set(several), "exceptions that are none"


def test_records_that_users_make_have_no_flags_by_position():
    assert all(field.kw_only for field in dataclasses.fields(phx.guides.Traits))


def test_a_prior_is_not_taken_for_the_function_of_a_network():
    network = phx.networks.from_functions(lambda key: {"w": jnp.zeros((3, 2))}, lambda p, x: x @ p["w"])

    def prior(path, shape):
        return dist.Normal(5.0, 1e-6).expand(shape)

    def program(*args, **kwargs):
        return phx.seed(lambda: phx.random_network("net", network, *args, **kwargs)(jnp.ones((1, 3))), 0)

    with pytest.raises(
        TypeError, match=r"'net': the network has its own apply; got <function .*network, prior=prior\)"
    ):
        program(prior)()
    np.testing.assert_allclose(program(prior=prior)(), 15.0, rtol=1e-4)
    with pytest.raises(TypeError, match="positional arguments but 4 were given"):
        phx.random_network("net", lambda key: 0.0, lambda w: w, prior)  # pyright: ignore[reportCallIssue]
