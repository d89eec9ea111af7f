"""Check that a function gives the same on a device's rows as on all rows: by a proof, else by a numerical test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, ShapeDtypeStruct

from phalanx.exactness.proof.proof import read_kinds_of
from phalanx.jaxprs.branches import MOST_SITES, NATURAL, Branches
from phalanx.jaxprs.sharding_state import Groups, Kind, Replicated, ShardedRows
from phalanx.mesh.space import RowSharding
from phalanx.mesh.virtual_mesh import all_rows, on_virtual_mesh, rows_here

if TYPE_CHECKING:
    from jaxtyping import Shaped

CLOSE = 1e-3
"""Tolerance relative to the largest result."""

Parts = Callable[[dict[str, Any]], dict[str, Any]]


def mixed_parts(
    parts: Parts, shapes: Mapping[str, ShapeDtypeStruct], shardings: Mapping[str, RowSharding],
    sizes: Mapping[str, int], found: Mapping[str, RowSharding],
) -> list[str]:  # fmt: skip
    """Return the results that differ between a device's rows and all rows, or are finite at no test value.

    Args:
        parts: function from values of several chains, `(chains, ...)` by variable, to results by name.
        shapes: shapes of the values on a device.
        shardings: shardings of the values.
        sizes: devices along the mesh axes.
        found: expected shardings of the results.
    """
    names, one = sorted(shapes), dict.fromkeys(sizes, 1)
    whole_shapes = {name: _whole(shape, shardings[name]) for name, shape in shapes.items()}
    whole = jax.make_jaxpr(parts, axis_env=list(one.items()))(whole_shapes)
    local = jax.make_jaxpr(parts, axis_env=list(sizes.items()))(dict(shapes))
    groups = Groups(shardings.values(), sizes)
    given: list[Kind] = [
        ShardedRows(groups.of(shardings[n]), 1) if shardings[n].axes else Replicated() for n in names
    ]  # fmt: skip
    kinds = dict(zip(sorted(found), read_kinds_of(whole, local, given, groups), strict=True))
    open_ones = [name for name, kind in kinds.items() if not _is_apart(kind, found[name], groups)]
    if not open_ones:
        return []
    wanted = [sorted(found).index(name) for name in open_ones]
    sides = [Branches(program, [True] * len(names), wanted) for program in (whole, local)]

    def on_device(codes: Array, values: Sequence[Array]) -> list[Array]:
        here = [_chains_last(rows_here, value, shardings[n]) for n, value in zip(names, values, strict=True)]
        results = zip(open_ones, sides[1](here, codes), strict=True)
        return [_chains_last(all_rows, result, found[name]) for name, result in results]

    ways = (
        jax.jit(on_virtual_mesh(lambda codes, values: sides[0](values, codes), one)),
        jax.jit(on_virtual_mesh(on_device, sizes)),
    )
    return _differing(ways, sides[0], [whole_shapes[name] for name in names], open_ones)


def _differing(
    ways: Sequence[Any], branches: Branches, shapes: Sequence[ShapeDtypeStruct], names: Sequence[str]
) -> list[str]:
    natural = np.full(MOST_SITES, NATURAL, np.int32)
    differ, seen = dict[str, None](), set[str]()
    for number in (0, 1):
        values = [_numbers(shape, number) for shape in shapes]
        jax.eval_shape(ways[0], natural, values)  # finds the branches
        for codes in (natural, *branches.plans()):
            for name, *pair in zip(names, *(way(codes, values) for way in ways), strict=True):
                a, b = (np.asarray(x, np.float64) for x in pair)
                if codes is natural and np.isfinite(a).any():
                    seen.add(name)
                if a.shape != b.shape or not _agree(a, b):
                    differ[name] = None
    return [name for name in names if name in differ or name not in seen]


def _agree(a: np.ndarray, b: np.ndarray) -> bool:
    finite = np.isfinite(a) & np.isfinite(b)
    scale = np.max(np.abs(a[finite]), initial=0.0)
    return bool((np.isfinite(a) == np.isfinite(b)).all() and (np.abs(a - b)[finite] <= CLOSE * scale).all())


def _numbers(shape: ShapeDtypeStruct, number: int) -> Shaped[np.ndarray, "..."]:
    """Return test values: normal for number 0, between 0 and 1 for number 1; of whole numbers and flags 0 or 1."""
    random = np.random.default_rng(number)
    if jnp.issubdtype(shape.dtype, jnp.floating):
        values = random.normal(size=shape.shape) if number == 0 else random.uniform(0.05, 0.95, size=shape.shape)
    else:
        values = random.integers(0, 2, size=shape.shape)
    return values.astype(shape.dtype)


def _is_apart(kind: Kind, sharding: RowSharding, groups: Groups) -> bool:
    if not sharding.axes:
        return isinstance(kind, Replicated) and kind.factor == 1
    layout = ShardedRows(groups.of(sharding), 1).layout
    return isinstance(kind, ShardedRows) and kind.factor == 1 and kind.layout == layout


def _whole(shape: ShapeDtypeStruct, sharding: RowSharding) -> ShapeDtypeStruct:
    chains, *rest = shape.shape
    return ShapeDtypeStruct((chains, sharding.rows, *rest[1:]), shape.dtype) if sharding.axes else shape


def _chains_last(f: Callable[[Any, RowSharding], Any], values: Array, sharding: RowSharding) -> Array:
    """Apply `f`, which works on leading rows, to values whose rows come after their chains."""
    return jnp.swapaxes(f(jnp.swapaxes(values, 0, 1), sharding), 0, 1) if sharding.axes else values
