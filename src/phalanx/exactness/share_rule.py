"""Share rule: the terms and variables of a program that are local to a device, determined before compiling.

Each device evaluates its *share* of the log density: its local terms, plus 1/n of each term that n devices all compute.
The shares add up to the log density, and the gradients of the shares to its gradient, with a single sum and no
collective in differentiated code.

The program is traced twice, with the shapes of the whole data and with those of one device. A variable whose leading
size shrinks with the data has its rows on the devices. A term or parameter that depends on sharded values is local,
too. A variable that becomes local may make others local: this is repeated until no further one does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array, random
from numpyro.distributions import Independent

from phalanx.exactness.padding import Padding, depends_on_number
from phalanx.inputs.arguments import ADDED, Arguments
from phalanx.jaxprs.dependence import Axes, are_equal, uses_collective, varying_axes
from phalanx.language.tracing import Program
from phalanx.mesh.space import GLOBAL, RowSharding
from phalanx.mesh.virtual_mesh import on_virtual_mesh
from phalanx.programs.declared_axis import RowsOfOneEvent, giving_own_rows
from phalanx.programs.shares import Shares, Term, named_axes
from phalanx.programs.traced_program import TracedProgram


def read_shares(
    program: Program, arguments: Arguments, sizes: Mapping[str, int], whole: TracedProgram
) -> tuple[Shares, TracedProgram]:
    """Return the shares of `program` on a mesh with `sizes` devices along its axes, and its trace on one device.

    `sizes` excludes the axis of the chains; `whole` is the trace on the whole data.

    Raises:
        ValueError: naming the variable, when it contradicts the sharding of the data, has no rows to shard, or padded
            rows cannot be masked.
    """
    _check_axes(arguments, sizes)
    _check_declared(whole, sizes)
    _check_real(whole)
    if all(size == 1 for size in sizes.values()):
        return whole.undivided(), whole
    reading = _Reading(program, arguments, sizes, whole)
    return reading.shares(), reading.local


def _check_axes(arguments: Arguments, sizes: Mapping[str, int]) -> None:
    for name, sharding in zip(arguments.names, arguments.shardings, strict=True):
        if other := [axis for axis in sharding.axes if axis not in sizes]:
            raise ValueError(
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


def _check_declared(whole: TracedProgram, sizes: Mapping[str, int]) -> None:
    for name, variable in whole.variables.items():
        for axis in variable.axes:
            if axis not in sizes:
                raise ValueError(
                    f"Variable {name!r}: axis={axis!r} is not an axis that a variable can be sharded over; choose from "
                    f"{', '.join(map(repr, sizes))}."
                )


class _Reading:
    """The two traces of a program side by side."""

    def __init__(self, program: Program, arguments: Arguments, sizes: Mapping[str, int], whole: TracedProgram):
        self.arguments, self.whole = arguments, whole
        self.sizes = {axis: size for axis, size in sizes.items() if size > 1}
        self.own_rows = _own_rows(whole, arguments, self.sizes)
        on_device = giving_own_rows(program, self.own_rows)
        try:
            self.local = TracedProgram(on_device, arguments.layout, arguments.local_shapes(), sizes)
        except RowsOfOneEvent:
            raise
        except Exception as error:
            raise ValueError(
                f"The model runs on the whole data but not on the rows one device holds "
                f"({_shapes(arguments)}). Inside the model take sizes from the data, as in x.shape[0], not from "
                f"constants, and do not mix sharded with unsharded rows. The error: {error}"
            ) from error
        self.jaxpr = self.local.jaxpr
        self.padding = Padding(on_device, arguments, self.sizes, whole, self.local)

    def shares(self) -> Shares:
        shardings = self._latent_shardings()
        outputs = self._outputs(shardings)
        terms = {term: self._term_sharding(term, outputs[term], shardings) for term in self.whole.terms}
        others = {
            name: self._rows(
                f"The deterministic value {name!r}", outputs[name], before.shape, self.local.deterministic[name].shape
            )
            for name, before in self.whole.deterministic.items()
        }
        masks, padded = self.padding.of(terms, shardings, others)
        used = {axis for sharding in (*terms.values(), *shardings.values()) for axis in sharding.axes}
        # The derivative of the model's own sum over devices is that of the sum of the shares: add these axes.
        used |= {axis for axis in self.sizes if uses_collective(self.jaxpr, axis)}
        axes = tuple(axis for axis in self.sizes if axis in used)
        latents = tuple(replace(latent, sharding=shardings[latent.name]) for latent in self.local.latents())
        sizes = {axis: self.sizes[axis] for axis in axes}
        return Shares(axes, latents, others, terms, sizes, self.own_rows, masks=masks, padded=padded)

    # -- latent variables ---------------------------------------------------------------------------------------

    def _latent_shardings(self) -> dict[str, RowSharding]:
        shardings = {latent.name: self._first_guess(latent.name) for latent in self.local.latents()}
        while True:
            outputs = self._outputs(shardings)
            wider = {name: s for name, s in shardings.items() if not outputs[name, "density"] <= set(s.axes)}
            if not wider:
                return shardings
            for name, sharding in wider.items():
                shardings[name] = self._widen(name, sharding, outputs[name, "density"])

    def _first_guess(self, name: str) -> RowSharding:
        """Return the sharding that a variable declares; otherwise that which its shapes imply."""
        axes = tuple(axis for axis in self.sizes if axis in self.whole.variables[name].axes)
        before, after = self.whole.variables[name].shape, self.local.variables[name].shape
        if not axes:
            return self._rows(f"Variable {name!r}", None, before, after)
        if not self._has_rows(axes, before, after):
            devices = math.prod(self.sizes[axis] for axis in axes)
            raise ValueError(
                f"Variable {name!r} is declared axis={named_axes(axes)}, but its shape is {before} on the whole data "
                f"and {after} on one of {devices} devices: its rows are not sharded over them. Take its size from the "
                f"data, as in .expand([x.shape[0]]), or leave out axis=."
            )
        return self._rows(f"Variable {name!r}", frozenset(axes), before, after)

    def _widen(self, name: str, sharding: RowSharding, found: Axes) -> RowSharding:
        if declared := self.whole.variables[name].axes:
            raise ValueError(
                f"Variable {name!r} is declared axis={named_axes(declared)}, but its distribution depends on what is "
                f"sharded over {named_axes(tuple(found - set(declared)))}. Declare that axis, or none: it then "
                f"follows from the data."
            )
        before, after = self.whole.variables[name].shape, self.local.variables[name].shape
        return self._rows(f"Variable {name!r}", found | set(sharding.axes), before, after)

    def _rows(self, what: str, axes: Axes | None, before: tuple[int, ...], after: tuple[int, ...]) -> RowSharding:
        """Return the sharding of an array of shape `before` in the whole and `after` on one device.

        With `axes=None` the shapes determine the axes.
        """
        if axes is None:
            if before == after:
                return GLOBAL
            axes = self._axes_of_rows(what, before, after)
        if not axes:
            return GLOBAL
        names = tuple(axis for axis in self.sizes if axis in axes)
        devices = math.prod(self.sizes[axis] for axis in names)
        if not self._has_rows(names, before, after):
            raise ValueError(
                f"{what} depends on data sharded over {named_axes(names)}, so it needs one leading row for each row "
                f"of the data; but its shape is {before} on the whole data and {after} on one of {devices} devices. "
                f"Take its size from the data, as in .expand([x.shape[0]]); or, if it is meant to be global, make its "
                f"inputs equal on all devices first, with jax.lax.pmean or psum over {named_axes(names)}."
            )
        return RowSharding(names, before[0], after[0])

    def _has_rows(self, axes: tuple[str, ...], before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        """Return whether the leading dimension is sharded over `axes` as the rows of the data are."""
        if not before or not after or before[1:] != after[1:]:
            return False
        if not any(axis in self.padding.axes for axis in axes):
            return before[0] == after[0] * math.prod(self.sizes[axis] for axis in axes)
        rows = {
            (sharding.rows, sharding.local_rows)
            for sharding in self.arguments.shardings
            if set(sharding.axes) == set(axes)
        }
        return (before[0], after[0]) in rows

    def _axes_of_rows(self, what: str, before: tuple[int, ...], after: tuple[int, ...]) -> Axes:
        rows = (before[0], after[0]) if before and after else None
        found = {frozenset(s.axes) for s in self.arguments.shardings if s.axes and (s.rows, s.local_rows) == rows}
        if len(found) == 1:
            return found.pop()
        if found:
            where = " and others over ".join(sorted(named_axes(tuple(axes)) for axes in found))
            raise ValueError(
                f"{what} has one row for each row of the data, but some data of {before[0]} rows are sharded over "
                f"{where}: choose one, as in phx.sample(name, distribution, axis='data')."
            )
        raise ValueError(
            f"{what} has shape {before} on the whole data but {after} on one device: its size depends on the sharded "
            f"rows, but they are not its leading dimension. Give it one leading row for each row of the data."
        )

    # -- terms of the log density -------------------------------------------------------------------------------

    def _outputs(self, shardings: Mapping[str, RowSharding]) -> dict[Term | str, Axes]:
        """Return the axes that each term and value varies over, given the shardings of the latent variables."""
        position = [frozenset(shardings[name].axes) for name in sorted(self.local.position)]
        arrays = [frozenset(sharding.axes) for sharding in self.arguments.shardings]
        found = [axes & self.sizes.keys() for axes in varying_axes(self.jaxpr, [*position, *arrays])]
        return dict(zip(self.local.outputs, found, strict=True))

    def _term_sharding(self, term: Term, axes: Axes, latents: Mapping[str, RowSharding]) -> RowSharding:
        name, _ = term
        before, after = self.whole.terms[term].shape, self.local.terms[term].shape
        self._check_event(name)
        if not axes and before != after:
            own = latents.get(name, GLOBAL)  # log |det T'| of a shift is zero for each of its rows
            follows = before and after and (before[0], after[0]) == (own.rows, own.local_rows)
            axes = frozenset(own.axes) if follows else self._axes_of_rows(f"A term of variable {name!r}", before, after)
        if not axes:
            axes = self._if_only_shapes_differ(term)
        names = tuple(axis for axis in self.sizes if axis in axes)
        leads = any(axis in self.padding.axes for axis in names) and self._has_rows(names, before, after)
        return RowSharding(names, before[0], after[0]) if leads else RowSharding(names)

    def _check_event(self, name: str) -> None:
        """Raise if a variable's event contains the rows, as for a multivariate normal: its density does not factor."""
        pair = []
        for traced in (self.whole, self.local):
            distribution = traced.variables[name].distribution
            while isinstance(distribution, Independent):
                distribution = distribution.base_dist
            pair.append(distribution)
        if pair[0].event_shape != pair[1].event_shape:
            raise ValueError(
                f"Variable {name!r}: the event of {type(pair[0]).__name__} runs over the sharded rows (shape "
                f"{pair[0].event_shape}), and its density is no product over rows, so it cannot be sharded over "
                f"devices. Do not shard these data."
            )

    def _if_only_shapes_differ(self, term: Term) -> Axes:
        """Return the axes of a term that depends on the sharded data through the number of rows only.

        Such a term, for instance -n log(scale), is equal on all devices, but local if it adds up over them. If the
        programs of the two traces differ, their values at one point determine which.
        """
        if self.padding.adds or are_equal(self.whole.only_jaxpr(term), self.local.only_jaxpr(term)):
            return frozenset()  # a sum over devices with padded rows is masked, or refused, by the proof
        whole, local = _value_at_a_point(self.whole, term, {}), _value_at_a_point(self.local, term, self.sizes)
        if jnp.allclose(whole, local, rtol=1e-4):
            return frozenset()
        for sharding in dict.fromkeys(sharding for sharding in self.arguments.shardings if sharding.axes):
            added_up = math.prod(self.sizes[axis] for axis in sharding.axes) * local
            row = self.padding.on_one_row if sharding == self.padding.rows else ""
            if isinstance(row, TracedProgram):
                added_up -= self.padding.missing(sharding) * _value_at_a_point(row, term, self.sizes)
            if jnp.allclose(whole, added_up, rtol=1e-4):
                return frozenset(sharding.axes)
        if not self.padding.axes:
            raise ValueError(depends_on_number(term, self.arguments))
        self.padding.by_number.add(term)
        return frozenset()


def _own_rows(whole: TracedProgram, arguments: Arguments, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the variables declared to be sharded over axes without data, with their numbers of rows in the whole."""
    of_data = {axis for sharding in arguments.shardings for axis in sharding.axes}
    found: dict[str, int] = {}
    for name, variable in whole.variables.items():
        devices = math.prod(sizes.get(axis, 1) for axis in variable.axes)
        if devices == 1 or of_data & set(variable.axes) or not variable.shape:
            continue
        found[name] = rows = variable.shape[0]
        if rows % devices:
            raise ValueError(
                f"Variable {name!r}: axis={named_axes(variable.axes)} shards its {rows} rows over {devices} devices, "
                f"and they do not divide evenly. Give it a number of rows divisible by {devices}, or leave out axis=."
            )
    return found


def _value_at_a_point(traced: TracedProgram, term: Term, sizes: Mapping[str, int]) -> Array:
    """Return a term's value at one position, the same on all devices, with data of ones."""
    shapes = jax.tree.leaves(traced.position)
    keys = jax.tree.unflatten(jax.tree.structure(traced.position), list(random.split(random.key(0), len(shapes))))

    def value():
        # all rows are equal, so that the whole and one device have equal means over rows
        position = jax.tree.map(
            lambda k, a: jnp.broadcast_to(random.normal(k, a.shape[1:], a.dtype), a.shape), keys, traced.position
        )
        return traced.only(term)(position, [jnp.ones(a.shape, a.dtype) for a in traced.shapes])

    return jax.jit(on_virtual_mesh(value, {axis: sizes.get(axis, 1) for axis in traced.axis_names}))()


def _shapes(arguments: Arguments) -> str:
    named = zip(arguments.names, arguments.local_shapes(), strict=True)
    return ", ".join(f"{name} {s.shape}" for name, s in named if not name.startswith(ADDED))
