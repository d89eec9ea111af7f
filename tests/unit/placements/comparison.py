"""Comparison of placed programs with the same programs on one device."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from phalanx.mesh.compatibility.jax_internals import RARELY
from phalanx.placements import Message, PlacedProgram, pad_rows

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")

Divided = Mapping[str, int]


class Comparison(NamedTuple):
    """Results on a mesh and on one device, and the communication of the compiled program."""

    placed: list[np.ndarray]
    whole: list[np.ndarray]
    messages: list[Message]
    collectives: dict[str, int]

    def error(self) -> float:
        """Return the largest difference, relative to one plus the largest number; infinite if NaN or inf differ."""
        errors = [0.0]
        for placed, whole in zip(self.placed, self.whole, strict=True):
            finite = np.isfinite(whole)
            same_kind = np.array_equal(np.isnan(placed), np.isnan(whole)) and np.array_equal(
                np.isfinite(placed), finite
            )
            if (
                placed.shape != whole.shape
                or not same_kind
                or not np.array_equal(placed[~finite], whole[~finite], True)
            ):
                return np.inf
            scale = 1 + np.max(np.abs(whole[finite]), initial=0)
            errors.append(float(np.max(np.abs(placed - whole)[finite], initial=0) / scale))
        return max(errors)


def compare(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    divided: Sequence[Divided],
    sizes: Mapping[str, int],
    *,
    outputs: Sequence[Divided] | None = None,
    pad: Callable[[np.ndarray, int, int], np.ndarray] = pad_rows,
) -> Comparison:
    """Return the flat results of a function on whole arrays, on a mesh and on one device."""
    names = tuple(sizes)
    program = jax.make_jaxpr(function, axis_env=[(name, 1) for name in names])(*arguments)
    outputs = outputs or [{}] * len(program.jaxpr.outvars)
    placed = PlacedProgram(program, divided, outputs, sizes)
    mesh = _mesh(sizes)
    specs = [_spec(each, np.ndim(array)) for each, array in zip(divided, arguments, strict=True)]
    avals: list[Any] = [variable.aval for variable in program.jaxpr.outvars]
    out_specs = [_spec(each, aval.ndim) for each, aval in zip(outputs, avals, strict=True)]
    shards = []
    for array, each, spec in zip(arguments, divided, specs, strict=True):
        for axis, dim in each.items():
            array = pad(np.asarray(array), dim, sizes[axis])
        shards.append(jax.device_put(array, NamedSharding(mesh, spec)))
    run = jax.jit(jax.shard_map(placed, mesh=mesh, in_specs=tuple(specs), out_specs=out_specs, check_vma=False))
    compiled = run.lower(*shards).compile(RARELY)
    results = [
        np.asarray(result)[tuple(map(slice, aval.shape))] for result, aval in zip(compiled(*shards), avals, strict=True)
    ]
    one = jax.shard_map(
        function,
        mesh=_mesh(dict.fromkeys(names, 1)),
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    whole = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(one).lower(*arguments).compile(RARELY)(*arguments))]
    return Comparison(results, whole, placed.messages, count_collectives(compiled.as_text() or ""))


def compare_gradients(
    density: Callable[..., Any],
    arguments: Sequence[Any],
    divided: Sequence[Divided],
    sizes: Mapping[str, int],
    parameters: int = 1,
    **options: Any,
) -> Comparison:
    """Return value and gradients, with respect to the first arguments, of a log density."""
    return compare(
        jax.value_and_grad(density, tuple(range(parameters))),
        arguments,
        divided,
        sizes,
        outputs=[{}, *divided[:parameters]],
        **options,
    )


def count_collectives(text: str) -> dict[str, int]:
    """Return the number of collectives of each kind in a compiled program."""
    counts = {name: len(re.findall(rf"= [^=]*\b{name}(?:-start)?\(", text)) for name in COLLECTIVES}
    return {name: count for name, count in counts.items() if count}


def _mesh(sizes: Mapping[str, int]) -> Mesh:
    devices = jax.devices()[: math.prod(sizes.values())]
    types = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=types, devices=devices)


def _spec(divided: Divided, ndim: int) -> PartitionSpec:
    axes = {dim: axis for axis, dim in divided.items()}
    return PartitionSpec(*(axes.get(dim) for dim in range(ndim)))
