"""The guide that follows the model: who depends on whom, and posteriors that it is exact for."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.unit.variational.models import StartAt

import phalanx as phx
from phalanx.inputs.arguments import split_arguments
from phalanx.learning.ascent import StartingPoint
from phalanx.programs.sites import Latent
from phalanx.programs.traced_program import TracedProgram
from phalanx.variational.guides import structured
from phalanx.variational.guides.coordinates import size_of
from phalanx.variational.guides.structured import MOST_COEFFICIENTS, Structured, parents_of

Y = np.random.default_rng(0).normal(1.0, 2.0, size=6).astype(np.float32)


def family_tree(y):
    a = phx.sample("a", dist.Normal(0.0, 1.0))
    b = phx.sample("b", dist.HalfNormal(1.0))
    z = phx.sample("z", dist.Uniform(0.0, b))  # by its support
    unused = 0.0 * phx.sample("alone", dist.Normal(0.0, 1.0))
    phx.deterministic("unused", unused)
    c = phx.sample("c", dist.Normal(a, jnp.exp(z)).expand([2]))
    phx.factor("term", -((a - b) ** 2))
    phx.sample("y", dist.Normal(c.sum(), 1.0), obs=y)


def hierarchy(y):
    level = phx.sample("level", dist.Normal(0.0, 5.0))
    each = phx.sample("each", dist.Normal(level, 1.0).expand([len(y)]))
    phx.sample("y", dist.Normal(each, 1.0), obs=y)


def test_parents_are_read_off_the_program():
    """On the unconstrained scale: z is a part of b."""
    whole = TracedProgram.of_whole(family_tree, split_arguments(family_tree, {"y": Y}), {})
    assert parents_of(whole) == {"a": (), "b": (), "z": ("b",), "alone": (), "c": ("a", "b", "z")}


def test_rows_depend_on_the_same_rows_where_there_are_many(monkeypatch):
    many = MOST_COEFFICIENTS  # squared, more than may be
    latents = [
        Latent(name, shape, jnp.float32, shape=shape, support="real")
        for name, shape in {"p": (many,), "c": (many, 2), "g": (3,)}.items()
    ]
    place = StartingPoint(jnp.zeros(size_of(latents)), jnp.ones(size_of(latents)))
    monkeypatch.setattr(structured, "parents_of", lambda whole: {"p": (), "c": ("p",), "g": ("c",)})
    guide: Any = Structured()
    shapes = {
        name: value.shape for name, value in guide.begin(StartAt(place, latents)).values.items() if ".on." in name
    }
    assert shapes == {"c.on.p": (many, 2, 1), "g.on.c": (3, 2 * many)}


@pytest.mark.slow
def test_a_hierarchy_of_normals_is_its_family():
    """There the posterior of each, given its parent, is a normal whose mean is linear in it."""
    fit = phx.fit(hierarchy, phx.guides.structured(hierarchy), {"y": Y}, progress=False)
    assert fit.verdict().good
    precision = 1 / 25.0 + len(Y) / 2.0
    draws = fit.sample(seed=0, n=4000)["level"]
    assert draws.mean() == pytest.approx(Y.sum() / 2.0 / precision, abs=4 / np.sqrt(precision * 4000) + 0.01)
    assert draws.std() == pytest.approx(precision**-0.5, rel=0.06)
    assert not phx.fit(hierarchy, phx.guides.mean_field(), {"y": Y}, progress=False).verdict().good
