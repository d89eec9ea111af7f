"""What a program reads from outside of its arguments is told by a digest."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.programs.arguments import split_arguments
from phalanx.programs.outside import outside
from phalanx.programs.shares import TracedProgram

READ = {
    "array": np.arange(3.0, dtype=np.float32),
    "on the device": jnp.arange(2.0),
    "scale": 2.0,
    "power": 2,
    "inside a loop": 1.0,
    "key": jax.random.key(0),
    "branch": True,
}


def digest(fill=1.0, **changes):
    read, x = {**READ, **changes}, np.full(4, fill, np.float32)

    def model(x):
        a = phx.sample("a", dist.Normal(0.0, read["scale"]))
        phx.factor("of arrays", a * (read["array"].sum() + jnp.sum(read["on the device"])))
        phx.factor("of a power", a ** read["power"] if read["branch"] else -(a**2))
        phx.factor("of a loop", jax.lax.fori_loop(0, 3, lambda _, b: b + read["inside a loop"] * a, a))
        phx.factor("of a key", a * jax.random.normal(read["key"]))
        phx.sample("x", dist.Normal(a, 1.0), obs=x)

    return outside(TracedProgram.of_whole(model, split_arguments(model, {"x": x}), {"data": 2, "model": 1}))


def test_it_is_the_same_where_nothing_has_changed():
    assert digest() == digest() == digest(fill=0.0)


@pytest.mark.parametrize(
    "name, other",
    [
        ("array", np.arange(3.0, dtype=np.float32) + 1),
        ("on the device", jnp.arange(2.0) + 1),
        ("scale", 2.5),
        ("power", 3),
        ("inside a loop", 2.0),
        ("key", jax.random.key(1)),
        ("branch", False),
    ],
)
def test_it_tells_what_has_changed(name, other):
    assert digest(**{name: other}) != digest()
