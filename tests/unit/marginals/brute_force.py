"""Sums over all values of all discrete variables of a program, one by one."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import phalanx as phx


def all_values(shapes: dict[str, tuple[int, tuple[int, ...]]]) -> dict[str, np.ndarray]:
    """All joint values of variables, given the number of values of an entry and the shape of each."""
    entries = [range(size) for size, shape in shapes.values() for _ in range(math.prod(shape))]
    table = np.array(list(itertools.product(*entries)))
    cuts = np.cumsum([math.prod(shape) for _, shape in shapes.values()])[:-1]
    parts = np.split(table, cuts, axis=1)
    return {name: part.reshape(-1, *shape) for part, (name, (_, shape)) in zip(parts, shapes.items(), strict=True)}


def log_sum(model: Any, values: Any, shapes: dict[str, tuple[int, tuple[int, ...]]], **data: Any) -> Any:
    """The log of the sum of the joint density over all values of the discrete variables."""
    each = jax.vmap(lambda z: phx.log_joint(model)({**values, **z}, **data))
    return jax.nn.logsumexp(each({name: jnp.asarray(z) for name, z in all_values(shapes).items()}))


def compare(
    model: Any, values: Any, shapes: dict[str, tuple[int, tuple[int, ...]]], same_as: Any = None, **data: Any
) -> None:
    """Assert that value and gradient of the marginalised model are those of the sum, over `same_as` if given."""
    values = {name: jnp.asarray(value, float) for name, value in values.items()}
    marginal = phx.log_joint(phx.marginalize(model))

    @jax.jit
    def both(values: Any) -> Any:
        ours = jax.value_and_grad(lambda v: marginal(v, **data))(values)
        return ours, jax.value_and_grad(lambda v: log_sum(same_as or model, v, shapes, **data))(values)

    (ours, gradient), (exact, exact_gradient) = both(values)
    np.testing.assert_allclose(ours, exact, rtol=2e-5, atol=2e-5)
    for name, found in gradient.items():
        np.testing.assert_allclose(found, exact_gradient[name], rtol=1e-3, atol=1e-4, err_msg=name)
