"""The share rule: which terms and variables of a program are local to a device, read off the program before compiling.

Each device evaluates its *share* of the log density: the terms that live on it, plus 1/n of each term that n devices
compute alike. The shares add up to the log density, and the gradients of the shares to its gradient, with one sum and
no collective inside what is differentiated.

What is local follows from the program. It is traced twice, once with the shapes of the whole data and once with those
of one device. A variable whose leading size shrinks with the data has its rows on the devices; a term or parameter that
depends on sharded values, through the jaxpr, is local too. Making a variable local may make others so: repeat until
nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, random
from numpyro.distributions import Independent

from phalanx.exactness.proof.proof import adds_up, has_rows, read_kinds
from phalanx.inputs.arguments import Arguments
from phalanx.jaxprs.dependence import Axes, compute_alike, uses_collective, varying_axes
from phalanx.jaxprs.row_masks import Masks, Plan
from phalanx.jaxprs.sharding_state import Groups
from phalanx.language.tracing import Program
from phalanx.mesh.space import GLOBAL, RowSharding
from phalanx.mesh.virtual_mesh import on_virtual_mesh
from phalanx.programs.declared_axis import RowsOfOneEvent, giving_own_rows
from phalanx.programs.shares import Shares, Term, named_axes
from phalanx.programs.traced_program import TracedProgram


def read_shares(
    program: Program, arguments: Arguments, sizes: Mapping[str, int], whole: TracedProgram
) -> tuple[Shares, TracedProgram]:
    """Read off `program` what is local on a mesh with `sizes` devices along its axes, the chains' axis apart.

    `whole` is its trace on the whole data. The trace on the rows of one device comes back with the shares.

    Raises:
        ValueError: naming the variable, when it contradicts how the data are sharded, has no rows to spread, or
            cannot leave padded rows out.
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
                f"data: {name} is sharded over {named_axes(other)}, the axis that chains are spread over, so each "
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
                    f"Variable {name!r}: axis={axis!r} is no axis that a variable can be spread over; choose from "
                    f"{', '.join(map(repr, sizes))}."
                )


class _Reading:
    """The two traces of a program side by side, and what they say."""

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
                f"constants, and do not mix sharded with unsharded rows. What failed: {error}"
            ) from error
        self.jaxpr = self.local.jaxpr

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
        masks = self._masks(terms, shardings, others)
        used = {axis for sharding in (*terms.values(), *shardings.values()) for axis in sharding.axes}
        # Differentiated, the model's own sum over devices gives the gradient of the sum of the shares: so add those.
        used |= {axis for axis in self.sizes if uses_collective(self.jaxpr, axis)}
        axes = tuple(axis for axis in self.sizes if axis in used)
        latents = tuple(replace(latent, sharding=shardings[latent.name]) for latent in self.local.latents())
        sizes = {axis: self.sizes[axis] for axis in axes}
        return Shares(axes, latents, others, terms, sizes, self.own_rows, masks=masks)

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
        """Where the variable says it lives, or where its shape says so."""
        axes = tuple(axis for axis in self.sizes if axis in self.whole.variables[name].axes)
        before, after = self.whole.variables[name].shape, self.local.variables[name].shape
        if not axes:
            return self._rows(f"Variable {name!r}", None, before, after)
        if not self._has_rows(axes, before, after):
            devices = math.prod(self.sizes[axis] for axis in axes)
            raise ValueError(
                f"Variable {name!r} is declared axis={named_axes(axes)}, but its shape is {before} on the whole data "
                f"and {after} on one of {devices} devices: its rows are not spread over them. Take its size from the "
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
        """The spread of something shaped `before` in the whole and `after` on one device; axes None: read them off."""
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
                f"{what} lives with data sharded over {named_axes(names)}, so it needs one leading row for each of "
                f"theirs; but its shape is {before} on the whole data and {after} on one of {devices} devices. Take "
                f"its size from the data, as in .expand([x.shape[0]]); or, if it is meant to be global, make what it "
                f"depends on equal everywhere first, with jax.lax.pmean or psum over {named_axes(names)}."
            )
        return RowSharding(names, before[0], after[0])

    def _has_rows(self, axes: tuple[str, ...], before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        """Whether the leading dimension is spread over `axes` as the rows of the data are."""
        if not before or not after or before[1:] != after[1:]:
            return False
        if not any(self._is_padded(axis) for axis in axes):
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
            where = " as over ".join(sorted(named_axes(tuple(axes)) for axes in found))
            raise ValueError(
                f"{what} has one row for each of the data's, but data of {before[0]} rows are sharded over {where}: "
                f"say which, as in phx.sample(name, distribution, axis='data')."
            )
        raise ValueError(
            f"{what} has shape {before} on the whole data but {after} on one device: its size follows the sharded "
            f"rows, yet its leading dimension is not theirs. Give it one leading row for each row of the data."
        )

    # -- terms of the log density -------------------------------------------------------------------------------

    def _outputs(self, shardings: Mapping[str, RowSharding]) -> dict[Any, Axes]:
        """The axes that each term and deterministic value varies over, given where the latent variables live."""
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
        leads = any(self._is_padded(axis) for axis in names) and self._has_rows(names, before, after)
        return RowSharding(names, before[0], after[0]) if leads else RowSharding(names)

    def _masks(
        self,
        terms: Mapping[Term, RowSharding],
        latents: Mapping[str, RowSharding],
        others: Mapping[str, RowSharding],
    ) -> Masks | None:
        """The terms of which padded rows are left out while the program adds them up, where that is proved to be right.

        Raises:
            ValueError: naming the variable, where it is not.
        """
        padded = [axis for axis in self.sizes if self._is_padded(axis)]
        adds = any(uses_collective(self.jaxpr, axis) for axis in padded)
        unfit = [t for t, s in terms.items() if set(s.axes) & set(padded) and (adds or not s.rows)]
        if not padded or not (unfit or adds):
            return None
        groups = Groups([*self.arguments.shardings, *latents.values()], self.sizes)
        inputs = [*(latents[name] for name in sorted(self.local.position)), *self.arguments.shardings]
        plan, outputs = Plan(), self.local.outputs
        plain, masked = (
            dict(zip(outputs, read_kinds(self.whole.jaxpr, self.jaxpr, inputs, groups, masks), strict=True))
            for masks in (None, plan)
        )
        unfit = [t for t in terms if (t in unfit or adds) and not adds_up(plain[t], terms[t], groups)]
        of_group = {groups.of(sharding): sharding for sharding in inputs if sharding.axes}
        masks = Masks(self.jaxpr, plan, {term: outputs.index(term) for term in unfit}, of_group)
        for term in unfit:
            if not masks.is_supported or not adds_up(masked[term], terms[term], groups):
                raise ValueError(self._not_masked(term, adds))
        known = {**latents, **others}
        for name in known if adds else ():
            if not has_rows(plain[name], known[name], groups):
                raise ValueError(
                    f"The value of {name!r} depends on what the model adds or gathers over devices itself, or it could "
                    f"not be proved that it does not; and the rows of the data do not divide evenly over them: padded "
                    f"rows would count. Give a number of rows that divides evenly."
                )
        return masks if unfit else None

    def _not_masked(self, term: Term, adds: bool) -> str:
        before = self.whole.terms[term].shape
        devices = math.prod(self.sizes.values())
        what = "adds or gathers over devices itself" if adds else "adds up rows itself, or takes their number"
        return (
            f"Variable {term[0]!r}: the rows of the data do not divide evenly over {devices} devices, and the model "
            f"{what}, in a way of which it is not proved that padded rows can be left out (its log density has shape "
            f"{before} on the whole data). A sum over rows, jnp.sum, x.T @ x or jax.lax.psum of one, is; a mean, "
            f"x.shape[0] or a loop over rows is not. Keep the rows apart (no to_event or sum over them), give the "
            f"number of rows as data, or a number of rows divisible by {devices}."
        )

    def _is_padded(self, axis: str) -> bool:
        devices = {s.axes: math.prod(self.sizes[a] for a in s.axes) for s in self.arguments.shardings if axis in s.axes}
        return any(s.rows != s.local_rows * devices[s.axes] for s in self.arguments.shardings if axis in s.axes)

    def _check_event(self, name: str) -> None:
        """A joint density over rows, such as a multivariate normal's, is not the product of the devices' densities."""
        pair = []
        for traced in (self.whole, self.local):
            distribution = traced.variables[name].distribution
            while isinstance(distribution, Independent):
                distribution = distribution.base_dist
            pair.append(distribution)
        if pair[0].event_shape != pair[1].event_shape:
            raise ValueError(
                f"Variable {name!r}: the event of {type(pair[0]).__name__} runs over the sharded rows (shape "
                f"{pair[0].event_shape}), and its density is no product over rows, so it cannot be spread over "
                f"devices. Do not shard these data."
            )

    def _if_only_shapes_differ(self, term: Term) -> Axes:
        """The axes of a term that sees of the sharded data only how many rows there are.

        Such a term, -n log(scale) say, is alike on all devices, but it is a device's and not the whole's if it adds up
        over them. The two traces tell: where their programs differ, their values at one point are compared.
        """
        if compute_alike(self.whole.only_jaxpr(term), self.local.only_jaxpr(term)):
            return frozenset()
        whole, local = _value_at_a_point(self.whole, term, {}), _value_at_a_point(self.local, term, self.sizes)
        if jnp.allclose(whole, local, rtol=1e-4):
            return frozenset()
        for axes in dict.fromkeys(sharding.axes for sharding in self.arguments.shardings if sharding.axes):
            if jnp.allclose(whole, math.prod(self.sizes[axis] for axis in axes) * local, rtol=1e-4):
                return frozenset(axes)
        raise ValueError(
            f"Variable {term[0]!r}: its log density depends on how many rows a device holds, and does not add up to "
            f"that of the whole data. Pass the number of rows as data, for instance "
            f"data={{'num_rows': {self._rows_of_data()}, ...}}, and use it instead of x.shape[0]."
        )

    def _rows_of_data(self) -> int:
        return max(sharding.rows for sharding in self.arguments.shardings)


def _own_rows(whole: TracedProgram, arguments: Arguments, sizes: Mapping[str, int]) -> dict[str, int]:
    """Variables declared to lie over axes that no data lie over, with their rows in the whole."""
    of_data = {axis for sharding in arguments.shardings for axis in sharding.axes}
    found: dict[str, int] = {}
    for name, variable in whole.variables.items():
        devices = math.prod(sizes.get(axis, 1) for axis in variable.axes)
        if devices == 1 or of_data & set(variable.axes) or not variable.shape:
            continue
        found[name] = rows = variable.shape[0]
        if rows % devices:
            raise ValueError(
                f"Variable {name!r}: axis={named_axes(variable.axes)} spreads its {rows} rows over {devices} devices, "
                f"which does not come out even. Give it a number of rows divisible by {devices}, or leave out axis=."
            )
    return found


def _value_at_a_point(traced: TracedProgram, term: Term, sizes: Mapping[str, int]) -> Array:
    """A term's value at one generic position, the same on all devices, with ones for data."""
    shapes = jax.tree.leaves(traced.position)
    keys = jax.tree.unflatten(jax.tree.structure(traced.position), list(random.split(random.key(0), len(shapes))))

    def value():
        # row by row alike, so that the whole's rows and one device's have equal means
        position = jax.tree.map(
            lambda k, a: jnp.broadcast_to(random.normal(k, a.shape[1:], a.dtype), a.shape), keys, traced.position
        )
        return traced.only(term)(position, [jnp.ones(a.shape, a.dtype) for a in traced.shapes])

    return jax.jit(on_virtual_mesh(value, {axis: sizes.get(axis, 1) for axis in traced.axis_names}))()


def _shapes(arguments: Arguments) -> str:
    return ", ".join(f"{n} {s.shape}" for n, s in zip(arguments.names, arguments.local_shapes(), strict=True))
