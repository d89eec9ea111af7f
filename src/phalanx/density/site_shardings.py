"""Rows that each device has of a program's latent variables and values.

A latent variable with one row for each row of sharded data is sharded as they are, and so is one declared with `axis=`.
Every choice gives the same density; it determines memory and messages. What a program computes is sharded as the rules
of placement leave it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import jax.numpy as jnp
from jax import Array

from phalanx.density.given_entries import of_given_entries
from phalanx.inputs.arguments import Arguments
from phalanx.jaxprs.dependence import uses_collective
from phalanx.language.observations import marked_term_of
from phalanx.mesh.row_sharding import GLOBAL, RowSharding
from phalanx.programs.sites import Latent, Sites, named_axes
from phalanx.programs.traced_program import TracedProgram
from phalanx.programs.unconstrained import run_unconstrained


class WrongAxis(ValueError):
    """Refusal of data or variables that are sharded over an axis along which the mesh has none of their rows."""


def read_sites(arguments: Arguments, sizes: Mapping[str, int], whole: TracedProgram) -> Sites:
    """Return the sites of a program on a mesh with `sizes` devices along its axes, but that of the chains.

    Raises:
        ValueError: naming the data or variable, when it is sharded over an axis that the mesh lacks, or over that of
            the chains; when a variable that `axis=` shards has no rows; when a deterministic value is complex.
    """
    _check_real(whole)
    shardings = latent_shardings(arguments, sizes, whole)
    sites = Sites(
        tuple(latent.on_device(shardings[latent.name]) for latent in whole.latents()),
        dict.fromkeys(whole.deterministic, GLOBAL),
        tuple(whole.terms),
        arguments.shardings,
        sizes,
        names_axes=any(uses_collective(whole.at_zero, axis) for axis in sizes),
    )
    return _with_values(sites, arguments, whole) if sites.is_divided else sites


def latent_shardings(arguments: Arguments, sizes: Mapping[str, int], whole: TracedProgram) -> dict[str, RowSharding]:
    """Return the shardings of the latent variables: as declared, or as data with as many rows are.

    Raises:
        WrongAxis: naming the data or variable, when it is sharded over another axis than those in `sizes`.
    """
    _check_axes(arguments, sizes)
    return {latent.name: _sharding_of(latent, arguments, sizes, whole) for latent in whole.latents()}


def _sharding_of(latent: Latent, arguments: Arguments, sizes: Mapping[str, int], whole: TracedProgram) -> RowSharding:
    axes = whole.variables[latent.name].axes
    _check_declared(latent, axes, sizes)
    several = tuple(axis for axis in sizes if axis in axes and sizes[axis] > 1)
    rows = latent.shape[0] if latent.shape else 0
    if several:
        return RowSharding(several, rows, -(-rows // _devices(several, sizes)))
    if not rows or latent.unconstrained_shape[:1] != (rows,):
        return GLOBAL
    like = (s for s in arguments.shardings if s.rows == rows > 1 and _devices(s.axes, sizes) > 1)
    return next(like, GLOBAL) if not axes else GLOBAL


def _with_values(sites: Sites, arguments: Arguments, whole: TracedProgram) -> Sites:
    """Return the sites with the shardings of what the program computes."""

    def values(position: dict[str, Array], arrays: list[Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        data = whole.layout.join(arrays)
        run = run_unconstrained(whole.program, position, data, any_latent=whole.checking)
        computed = run.values()
        terms = {name: marked_term_of(v) for name, v in of_given_entries(run.observed, data).items()}
        return {name: jnp.asarray(computed[name]) for name in sites.others}, terms

    inputs = sites.positions, list(arguments.shardings)
    shapes = sites.layout.shapes(), list(arguments.local_shapes())
    others, observations = sites.rows.inspect(values, inputs, *shapes).shardings
    return replace(sites, others=others, observations=observations)


def _devices(axes: tuple[str, ...], sizes: Mapping[str, int]) -> int:
    return math.prod(sizes[axis] for axis in axes)


def _check_axes(arguments: Arguments, sizes: Mapping[str, int]) -> None:
    for name, sharding in zip(arguments.names, arguments.shardings, strict=True):
        if other := [axis for axis in sharding.axes if axis not in sizes]:
            raise WrongAxis(
                f"data: {name} is sharded over {named_axes(other)}, the axis that chains are sharded over, so each "
                f"chain would see a part of it. Shard it over {' or '.join(map(repr, sizes))}."
            )


def _check_real(whole: TracedProgram) -> None:
    for name, value in whole.deterministic.items():
        if jnp.issubdtype(value.dtype, jnp.complexfloating):
            raise ValueError(
                f"The deterministic value {name!r} is complex ({value.dtype}), and summaries and plots are of real "
                f"numbers. Name its parts: phx.deterministic('real_{name}', jnp.real(value)), and jnp.imag(value) too; "
                f"or compute it afterwards, with posterior.predict(fn)."
            )


def _check_declared(latent: Latent, axes: tuple[str, ...], sizes: Mapping[str, int]) -> None:
    """Raise unless a variable can be sharded over the axes that it declares."""
    for axis in axes:
        if axis not in sizes:
            raise WrongAxis(
                f"Variable {latent.name!r}: axis={axis!r} is not an axis that a variable can be sharded over; choose "
                f"from {', '.join(map(repr, sizes))}."
            )
    if axes and not latent.shape:
        raise ValueError(
            f"Variable {latent.name!r}: it is declared axis={named_axes(axes)}, but it is one number, without rows to "
            f"shard. Leave out axis=, or give it rows, as in dist.Normal(0.0, 1.0).expand([n])."
        )
    if axes and latent.unconstrained_shape[:1] != latent.shape[:1]:
        raise ValueError(
            f"Variable {latent.name!r}: it is declared axis={named_axes(axes)}, but its {latent.shape[0]} rows are one "
            f"event, with {latent.unconstrained_shape[:1]} unconstrained numbers. Leave out axis=, or give it "
            f"independent rows, as in dist.Normal(0.0, 1.0).expand([{latent.shape[0]}])."
        )
