"""The share rule tried out: on a few made-up rows, do the devices' shares add up to the whole?

Following what depends on what tells where a term lives, but not whether it adds up over the rows: a mean over the rows
of one device is not the mean over all, and the difference to the row before is lost where devices meet. Such models are
found by running both ways and comparing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, ShapeDtypeStruct, lax, random

from phalanx.mesh.space import Spread
from phalanx.programs.arguments import Arguments
from phalanx.programs.shares import Shares, TracedProgram, named_axes
from phalanx.programs.tracing import Program
from phalanx.programs.unconstrained import run_unconstrained

ROWS = 4
"""Rows per device that are enough to tell."""

LARGEST = 1 << 22
"""Elements of made-up data at most, where the model does not run on as few rows."""

TOLERANCE = 1e-3
"""Relative difference taken for rounding."""


def check_shares(program: Program, arguments: Arguments, sizes: Mapping[str, int], shares: Shares) -> None:
    """Refuse a program of which a term, or a deterministic value, is not on the devices what it is on the whole.

    A model that cannot be run on made-up rows passes unchecked, as does a term that is not finite there.

    Raises:
        ValueError: naming the variable.
    """
    if not any(spread.axes for spread in arguments.spreads):
        return
    unit = math.gcd(*(spread.local_rows for spread in arguments.spreads if spread.axes))
    for rows in dict.fromkeys((min(ROWS, unit), unit)):
        placed = zip(arguments.spreads, arguments.arrays, strict=True)
        shapes = [_with_rows(spread, array, rows / unit, sizes) for spread, array in placed]
        if sum(math.prod(shape.shape) for shape in shapes) > LARGEST:
            continue
        try:
            found = _run_both_ways(program, arguments, sizes, shares, shapes)
        except Exception:  # the model may need more rows than these, or other values; then try more, or leave it
            continue
        _compare(shares, *found)
        return


def _with_rows(spread: Spread, array: Any, fraction: float, sizes: Mapping[str, int]) -> ShapeDtypeStruct:
    """The shape of an array with a fraction of its rows, none of them padded."""
    if not spread.axes:
        return ShapeDtypeStruct(array.shape, array.dtype)
    rows = round(spread.local_rows * fraction) * math.prod(sizes[axis] for axis in spread.axes)
    return ShapeDtypeStruct((rows, *array.shape[1:]), array.dtype)


def _run_both_ways(program: Program, arguments: Arguments, sizes: Mapping[str, int], shares: Shares, shapes):
    """Totals of the terms in the whole, over the devices, and their magnitude; where deterministic values differ."""
    whole = TracedProgram(program, arguments.layout, shapes, dict.fromkeys(sizes, 1))
    of_latents = {latent.name: latent.spread for latent in shares.latents}
    placed = zip(arguments.arrays, arguments.spreads, shapes, strict=True)
    arrays = [
        _made_up(random.fold_in(random.key(0), i), shape) if spread.axes else array
        for i, (array, spread, shape) in enumerate(placed)
    ]
    position = {
        name: _in_order(random.normal(random.fold_in(random.key(1), i), shape.shape, shape.dtype), of_latents[name])
        for i, (name, shape) in enumerate(whole.position.items())
    }

    def run(position, arrays):
        outcome = run_unconstrained(program, position, arguments.layout.join(arrays))
        return outcome.terms(), {n: v.value for n, v in outcome.variables.items() if v.distribution is None}

    def on_device(position, arrays, expected):
        position = {name: _rows_here(leaf, of_latents[name]) for name, leaf in position.items()}
        terms, others = run(position, [_rows_here(a, s) for a, s in zip(arrays, arguments.spreads, strict=True)])
        totals = {term: add(unpadded.weigh(term, jnp.sum(values))) for term, values in terms.items()}
        magnitudes = {term: add(unpadded.weigh(term, jnp.sum(jnp.abs(values)))) for term, values in terms.items()}
        wrong = {
            name: add(_differs(values, _rows_here(expected[name], shares.others[name])))
            for name, values in others.items()
        }
        return totals, magnitudes, wrong

    def add(value):
        return lax.psum(value, shares.axes) if shares.axes else value

    unpadded = replace(shares, terms={term: Spread(spread.axes) for term, spread in shares.terms.items()})
    terms, others = jax.jit(_on_mesh(run, dict.fromkeys(sizes, 1)))(position, arrays)
    totals = {term: jnp.sum(values) for term, values in terms.items()}
    return totals, *jax.jit(_on_mesh(on_device, sizes))(position, arrays, others)


def _compare(shares: Shares, totals, over_devices, magnitudes, wrong) -> None:
    for (name, part), total in totals.items():
        summed, size = over_devices[name, part], magnitudes[name, part]
        if abs(total - summed) > TOLERANCE * (abs(total) + size) + 1e-6:  # false where they are not finite
            axes = shares.axes[0] if len(shares.axes) == 1 else shares.axes
            raise ValueError(
                f"Variable {name!r}: its log density on the whole data is not the sum of those on the rows of each "
                f"device along {named_axes(shares.axes)}; on made-up rows it is {float(total):.4g} instead of "
                f"{float(summed):.4g}. The model mixes rows, by a mean, a normalisation or a difference to the row "
                f"before, say. Do so outside of the model; or over all devices, as in "
                f"jax.lax.pmean(x.mean(0), {axes!r}); or do not shard these data."
            )
    for name, count in wrong.items():
        if count:
            raise ValueError(
                f"The deterministic value {name!r} is not on one device what it is on the whole data: it depends on "
                f"how many rows there are, or mixes them. Compute it from the draws, or from data outside of the "
                f"model."
            )


def _made_up(key: Array, like: ShapeDtypeStruct) -> Array:
    """Sharded values that most distributions take: zero or one, or between; small on the first devices."""
    if jnp.issubdtype(like.dtype, jnp.inexact):
        return jnp.sort(random.uniform(key, like.shape, like.dtype, 0.05, 0.95), axis=0)
    return jnp.sort(random.bernoulli(key, 0.5, like.shape), axis=0).astype(like.dtype)


def _in_order(values: Array, spread: Spread) -> Array:
    return jnp.sort(values, axis=0) if spread.axes else values


def _rows_here(leaf: Array, spread: Spread) -> Array:
    if not spread.axes:
        return leaf
    rows = leaf.shape[0] // math.prod(lax.axis_size(axis) for axis in spread.axes)
    return lax.dynamic_slice_in_dim(leaf, lax.axis_index(spread.axes) * rows, rows)


def _differs(values: Any, expected: Any) -> Array:
    difference = jnp.abs(jnp.asarray(values, jnp.result_type(float)) - expected)
    return jnp.any(difference > TOLERANCE * (jnp.max(jnp.abs(expected), initial=0.0)) + 1e-6).astype(np.int32)


def _on_mesh(f: Callable[..., Any], sizes: Mapping[str, int]) -> Callable[..., Any]:
    """`f` with the mesh's axes in scope, on one real device; what the first of the made-up ones returns."""
    for axis, size in sizes.items():
        f = _over(f, axis, size)
    return f


def _over(f: Callable[..., Any], axis: str, size: int) -> Callable[..., Any]:
    def mapped(*args):
        out = jax.vmap(lambda _: f(*args), axis_name=axis, axis_size=size)(jnp.zeros(size))
        return jax.tree.map(lambda leaf: leaf[0], out)

    return mapped
