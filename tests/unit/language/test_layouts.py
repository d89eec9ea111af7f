"""Layouts of parameters over a mesh: those that do not fit are refused by name before anything is compiled."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.sharding import PartitionSpec

import phalanx as phx

W = np.ones((4, 2), np.float32)
TREE = {"a": W, "b": np.ones(2, np.float32)}

ONE = "spec= must be a jax.sharding.PartitionSpec, or a tuple with a mesh axis or None for each dimension"
LAYOUTS = {
    "more axes than dimensions": (
        W,
        ("chain", "data", "model", "extra"),
        r"has shape \(4, 2\), .* at most 2 dim.*extra",
    ),
    "one more": (W, PartitionSpec("data", "model", None), r"spec= of its value, which has shape \(4, 2\), must be"),
    "of what a key makes": (lambda key: jnp.ones(2), ("data", "model"), r"has shape \(2,\), .* at most 1 dimension;"),
    "of a number": (1.0, ("model",), r"has shape \(\), .* at most 0 dimensions; got PartitionSpec|P\('model'"),
    "of an array of a tree": (TREE, ("data", "model"), r"spec= of 'b', which has shape \(2,\)"),
    "a string": (W, "model", f"{ONE}.*; got 'model'. Write spec=\\('model',\\)"),
    "a number": (W, 3, f"{ONE}.*; got 3"),
    "numbers": (W, (0, None), f"{ONE}.*; got \\(0, None\\)"),
    "a set": (W, {"model"}, f"{ONE}.*; got {{'model'}}"),
    "a tree of tuples": (TREE, {"a": ("data",), "b": ("model",)}, f"{ONE}.*a tree like it, with a jax.*PartitionSpec"),
    "a tree of strings": (TREE, {"a": "model", "b": PartitionSpec()}, "spec= of 'a', .* got 'model'"),
    "an axis twice": (W, ("data", "data"), r"spec=\('data', 'data'\) names the mesh axis 'data' twice"),
    "an axis twice in one": (W, (("data", "data"), None), "names the mesh axis 'data' twice"),
    "an axis twice in a tree": (
        TREE,
        {"a": PartitionSpec("data", "data"), "b": PartitionSpec()},
        "'data' twice",
    ),
    "a rule of strings": (TREE, lambda path, shape: "model", f"'a': {ONE}.*; got 'model'"),
    "a rule of numbers": (TREE, lambda path, shape: 1, f"'a': {ONE}.*; got 1"),
    "no axis of the mesh": (W, ("rows",), "names the axis 'rows', and the mesh has 'chain', 'data', 'model'. Name one"),
    "rows that do not divide": (np.ones((3, 2)), ("data",), r"of shape \(3, 2\) cannot be laid out as"),
}


def model_of(init, spec):
    def model(y):
        w = phx.param("w", init, spec=spec)
        phx.sample("y", dist.Normal(sum(jnp.sum(leaf) for leaf in jax.tree.leaves(w)), 1.0), obs=y)

    return model


@pytest.mark.parametrize("init, spec, message", LAYOUTS.values(), ids=LAYOUTS)
def test_a_layout_that_does_not_fit_is_refused_before_compiling(init, spec, message, mesh_of, monkeypatch):
    monkeypatch.setattr(jax.stages.Lowered, "compile", None)
    with pytest.raises((TypeError, ValueError), match="Parameter 'w'") as raised:
        phx.fit(model_of(init, spec), None, {"y": np.ones(8)}, mesh=mesh_of(1, 4, 2), num_steps=2, progress=False)
    assert re.search(message, str(raised.value))


@pytest.mark.parametrize("spec", [("data", "model"), ["model", None], (), (("data", "model"),), PartitionSpec("data")])
def test_layouts_that_fit_are_taken(spec):
    parameter = phx.trace(model_of(np.ones((8, 2)), spec))(np.ones(8))["w"].parameter
    assert parameter.spec == PartitionSpec(*spec)
