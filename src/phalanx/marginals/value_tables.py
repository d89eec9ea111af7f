"""Evaluation of a traced program at all values of its discrete variables at once.

Each array becomes a `ValueTable`, with an axis for each entry of a discrete variable that its elements depend on. Every
equation is evaluated once, by `jax.vmap` over the axes of its operands, so that an array of N rows that depends on N
entries, each row on its own, takes K evaluations and not K**N. An operation that mixes entries, such as their sum,
has a result with an axis for each: that is refused if it is too large.

Two rows y = [0, 9] with z ~ Categorical([.25, .75]) for each, and y ~ N([0, 10][z], 1):

    z                    a table of the values [0, 1] for each row
    log weight of z      [-1.386, -0.288], both rows
    log density of y     [-0.919, -50.919] of row 0, [-41.419, -1.419] of row 1
    summed out           logsumexp of their sums: -2.305 of row 0, -1.707 of row 1; in all -4.012
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var
from jax.typing import ArrayLike

from phalanx.jaxprs.source_lines import source_line_of
from phalanx.jaxprs.walking import (
    CALLS,
    CUSTOM,
    ELEMENTWISE,
    Interpreter,
    alone,
    aval_of,
    axes_named,
    needed_equations,
    not_literal,
    parts_of,
)
from phalanx.marginals.dimensions import Moves, moves_of
from phalanx.marginals.entries import (
    NO_ENTRY,
    Along,
    At,
    Component,
    Move,
    Site,
    TableAxis,
    Through,
    dims_of,
    entry_at,
    moved,
    reshaped,
)

MOST_RUNS = 2**16
"""Largest number of joint values of entries that the program is evaluated at."""

MOST_SEPARATED = 4096
"""Number of positions up to which the entries that an operation mixes are counted."""


class TooManyValues(ValueError):
    """Too many joint values to evaluate a program at."""


@dataclass(frozen=True)
class ValueTable:
    """An array of the program at all values of the entries it depends on.

    Attributes:
        array: the values, of shape (values of each axis, ..., shape of the array).
        axes: the entries, sorted.
    """

    array: Any
    axes: tuple[TableAxis, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array itself."""
        return jnp.shape(self.array)[len(self.axes) :]


def enumerated(number: int, site: Site) -> ValueTable:
    """Return the table of a discrete variable itself: each entry at each of its values."""
    where = (At(0), *(At(0) if n == 1 else Along(d, 0, 1) for d, n in enumerate(site.shape)))
    values = jnp.asarray(site.values).reshape(site.size, *(1,) * len(site.shape))
    return ValueTable(jnp.broadcast_to(values, (site.size, *site.shape)), (TableAxis(number, where),))


def check_size(entries: Sequence[Site], what: str) -> None:
    """Raise if single entries of these sites have too many joint values; `what` names the reason."""
    if (runs := math.prod(site.size for site in entries)) <= MOST_RUNS:
        return
    sizes = sorted({site.size for site in entries})
    of_size = f"{sizes[0]} values" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} values"
    names = list(dict.fromkeys(site.name for site in entries))
    listing = ", ".join(map(repr, names[:4])) + (f" and {len(names) - 4} others" if len(names) > 4 else "")
    number = f"{runs:,}" if runs < 10**15 else f"about 10**{math.floor(sum(math.log10(s.size) for s in entries))}"
    raise TooManyValues(
        f"phx.marginalize: {what} depends jointly on {len(entries):,} discrete variables of {of_size} (entries of "
        f"{listing}), and summing over them would take {number} runs; at most {MOST_RUNS:,} are made. Let each entry "
        f"or observation depend on few of them: row by row, or each on the one before it, as in a chain."
    )


class Tabulation(Interpreter[ValueTable]):
    """An evaluation of a program at all values of some variables.

    Attributes:
        sites: the discrete variables.
        given: tables of variables of the program, which replace the values that it computes.
        indices: arrays of the program that select entries, by number; see `Through`.
    """

    def __init__(self, sites: Sequence[Site], value_tables: Mapping[Var, ValueTable], indices: list[Any] | None = None):
        self.sites = sites
        self.given = value_tables
        self.indices = [] if indices is None else indices
        self._known: dict[Any, tuple[list[ValueTable], list[ValueTable]]] = {}

    def named(self, variable: Var, value: ValueTable) -> ValueTable:
        """Return the given table of a variable, or else its value."""
        return self.given.get(variable, value)

    def constant(self, value: ArrayLike) -> ValueTable:
        """Return the table of a constant, without axes."""
        return ValueTable(value)

    def equations(self, jaxpr: Jaxpr) -> Sequence[JaxprEqn]:
        """Return the equations that the outputs need."""
        return needed_equations(jaxpr, jaxpr.outvars)

    def equation(self, equation: JaxprEqn, inputs: list[ValueTable]) -> list[ValueTable]:
        """Evaluate an equation at all values of its operands; equal equations without axes once."""
        if any(table.axes for table in inputs):
            return self._at_all_values(equation, inputs)
        key = _key(equation, inputs)
        if key is not None and key in self._known:
            return self._known[key][1]
        outputs = self._without_axes(equation, inputs)
        if key is not None:
            self._known[key] = inputs, outputs  # the operands are kept, since their addresses are in the key
        return outputs

    def _without_axes(self, equation: JaxprEqn, inputs: list[ValueTable]) -> list[ValueTable]:
        arrays = [table.array for table in not_literal(equation, inputs)]
        if all(map(_is_constant, arrays)) and all(_is_whole_number(aval_of(atom)) for atom in equation.outvars):
            with jax.ensure_compile_time_eval():  # an index, such as the -1 of z[-1]
                return list(map(ValueTable, alone(equation)(*arrays)))
        if equation.primitive.name in CALLS:
            parts: Any = parts_of(equation)
            return self.run(parts.program, inputs)
        return list(map(ValueTable, alone(equation)(*arrays)))

    def _at_all_values(self, equation: JaxprEqn, inputs: list[ValueTable]) -> list[ValueTable]:
        name = equation.primitive.name
        parts = parts_of(equation)
        if name in CALLS:
            return self.run(parts.program, inputs)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
        if name in CUSTOM and (outputs := self._custom(equation, parts, inputs)) is not None:
            return outputs
        if name in CUSTOM:
            return self.run(parts.program, inputs)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
        if name == "optimization_barrier" and len(inputs) == 1:
            return inputs
        if name == "gather" and (outputs := self._selected(equation, inputs)) is not None:
            return outputs
        if name == "reshape" and (outputs := self._reshaped(equation, inputs)) is not None:
            return outputs
        if name == "stack":
            return self._stacked(equation, inputs)
        if name == "unstack":
            return self._unstacked(equation, inputs)
        if name == "concatenate":
            inputs = _in_place(inputs, equation.params["dimension"])
        if axis_names := axes_named(equation):
            self._check_collective(equation, inputs, axis_names)
        return self._mapped(equation, inputs, self._moves(equation, inputs))

    def _moves(self, equation: JaxprEqn, inputs: Sequence[ValueTable]) -> list[Moves]:
        """Return the kept dimensions of each operand; a slice at a constant place is known, too."""
        moves = moves_of(equation)
        if equation.primitive.name == "dynamic_slice" and all(not t.axes and _is_constant(t.array) for t in inputs[1:]):
            sizes, (table, *starts) = equation.params["slice_sizes"], inputs
            for dim, (size, start) in enumerate(zip(sizes, starts, strict=True)):
                first = int(np.clip(int(start.array), 0, table.shape[dim] - size))
                moves[0][dim] = Move(dim, first)
        return moves

    def _reshaped(self, equation: JaxprEqn, inputs: Sequence[ValueTable]) -> list[ValueTable] | None:
        """Return the result of a reshape; None if an element of it depends on no single entry."""
        (table, *_), shape = inputs, aval_of(equation.outvars[0]).shape
        axes = [reshaped(axis, table.shape, shape) for axis in table.axes]
        if None in axes:
            return None
        array = jnp.reshape(table.array, (*jnp.shape(table.array)[: len(axes)], *shape))
        return [merged(array, axes)]  # pyright: ignore[reportArgumentType]

    def _stacked(self, equation: JaxprEqn, inputs: Sequence[ValueTable]) -> list[ValueTable]:
        """Return the concatenation of arrays along a new dimension."""
        dim = equation.params["axis"]
        shape = aval_of(equation.outvars[0]).shape
        moves = {d: Move(d + (d >= dim)) for d in range(len(shape) - 1)}
        single = (*shape[:dim], 1, *shape[dim + 1 :])
        wide = [self._placed(table, moves, single) for table in inputs]
        wide = [ValueTable(jnp.expand_dims(table.array, len(table.axes) + dim), table.axes) for table in wide]
        wide = _in_place(wide, dim)
        tables_here = [
            self._placed(table, {d: Move(d, -number if d == dim else 0) for d in range(len(shape))}, shape)
            for number, table in enumerate(wide)
        ]
        axes = self._union(tables_here, equation)
        sizes = [self.sites[axis.site].size for axis in axes]
        arrays = [jnp.broadcast_to(over(table, axes), (*sizes, *single)) for table in tables_here]
        return [ValueTable(jnp.concatenate(arrays, axis=len(axes) + dim), axes)]

    def _unstacked(self, equation: JaxprEqn, inputs: Sequence[ValueTable]) -> list[ValueTable]:
        """Return the slices of an array along a dimension, without it."""
        (table,), dim = inputs, equation.params["axis"]
        if any(isinstance(c, Through) and dim in c.dims for axis in table.axes for c in axis.where):
            raise self._refusal(equation, table.axes)
        moves = {d: Move(d - (d > dim)) for d in range(len(table.shape)) if d != dim}
        parts = [self._at_position(table, dim, position) for position in range(table.shape[dim])]
        parts = [ValueTable(jnp.squeeze(part.array, len(part.axes) + dim), part.axes) for part in parts]
        return [self._placed(part, moves, aval_of(equation.outvars[0]).shape) for part in parts]

    def _mapped(self, equation: JaxprEqn, inputs: Sequence[ValueTable], moves: Sequence[Moves]) -> list[ValueTable]:
        shape = aval_of(equation.outvars[0]).shape
        inputs = [self.separated(t, m, equation) for t, m in zip(inputs, moves, strict=True)]
        tables_here = [self._placed(t, m, shape) for t, m in zip(inputs, moves, strict=True)]
        axes = self._union(tables_here, equation)
        operands = not_literal(equation, tables_here)
        if equation.primitive.name in ELEMENTWISE:  # as vmap does, but traced in a tenth of the time
            sizes = tuple(self.sites[axis.site].size for axis in axes)
            outputs = alone(equation)(*(_broadcast(over(table, axes), (*sizes, *shape)) for table in operands))
            return [ValueTable(array, axes) for array in outputs]
        function = alone(equation)
        for axis in reversed(axes):
            function = jax.vmap(function, in_axes=[0 if axis in table.axes else None for table in operands])
        outputs = function(*(table.array for table in operands))
        return [ValueTable(array, axes) for array in outputs]

    def _placed(self, table: ValueTable, moves: Moves, shape: tuple[int, ...]) -> ValueTable:
        """Return an operand whose axes are indexed by positions of the result, of this `shape`, instead of its own."""
        axes = [moved(axis, moves, shape) for axis in table.axes]
        assert None not in axes
        return merged(table.array, axes)  # pyright: ignore[reportArgumentType]

    def _union(self, tables: Sequence[ValueTable], equation: JaxprEqn) -> tuple[TableAxis, ...]:
        axes = tuple(sorted({axis for table in tables for axis in table.axes}))
        check_size([self.sites[axis.site] for axis in axes], described(equation))
        return axes

    def separated(self, table: ValueTable, moves: Moves, equation: JaxprEqn) -> ValueTable:
        """Return the same values with an axis for each entry along the dimensions that an equation mixes."""
        for dim in range(len(table.shape)):
            if any(not _follows(c, dim, moves) for axis in table.axes for c in axis.where):
                table = self._separated(table, dim, equation)
        if any(isinstance(c, Through) and not _kept_whole(c, moves) for axis in table.axes for c in axis.where):
            raise self._refusal(equation, table.axes)
        return table

    def _separated(self, table: ValueTable, dim: int, equation: JaxprEqn) -> ValueTable:
        length = table.shape[dim]
        here = [axis for axis in table.axes if axis.runs_along(dim)]
        if any(isinstance(c, Through) and dim in c.dims for axis in here for c in axis.where):
            raise self._refusal(equation, here)
        others = [self.sites[axis.site] for axis in table.axes if axis not in here]
        positions = range(min(length, MOST_SEPARATED))
        single = {(a.site, *entry_at(a, dim, p, self.sites[a.site])) for a in here for p in positions}
        inside = [self.sites[site] for site, *entry in single if At(NO_ENTRY) not in entry]
        check_size([*others, *inside], described(equation))
        parts = [self._at_position(table, dim, position) for position in range(length)]
        axes = tuple(sorted({axis for part in parts for axis in part.axes}))
        sizes = [self.sites[axis.site].size for axis in axes]
        arrays = [jnp.broadcast_to(over(part, axes), (*sizes, *part.shape)) for part in parts]
        return ValueTable(jnp.concatenate(arrays, axis=len(axes) + dim), axes)

    def _at_position(self, table: ValueTable, dim: int, position: int) -> ValueTable:
        """Return the elements at one position along a dimension, which is kept with a single element."""
        array = jax.lax.slice_in_dim(table.array, position, position + 1, axis=len(table.axes) + dim)
        axes: list[TableAxis | None] = []
        for axis in table.axes:
            where = entry_at(axis, dim, position, self.sites[axis.site])
            axes.append(None if At(NO_ENTRY) in where else TableAxis(axis.site, where))
        for number in reversed([i for i, axis in enumerate(axes) if axis is None]):  # no entry: any value will do
            array = array[(slice(None),) * number + (0,)]
        return merged(array, [axis for axis in axes if axis is not None])

    def _selected(self, equation: JaxprEqn, inputs: list[ValueTable]) -> list[ValueTable] | None:
        """Return entries that an array of the program selects, as in `z[group]`; None if it does not."""
        (table, indices), numbers = inputs, equation.params["dimension_numbers"]
        mapped_dims = numbers.start_index_map
        sizes = equation.params["slice_sizes"]
        if indices.axes or len(mapped_dims) != 1 or indices.shape[-1] != 1 or numbers.operand_batching_dims:
            return None
        (dim,) = mapped_dims
        along = [axis for axis in table.axes if axis.runs_along(dim)]
        if sizes[dim] != 1 or dim not in numbers.collapsed_slice_dims or not along:
            return None
        site_dims = [i for axis in along for i, c in enumerate(axis.where) if dim in dims_of(c)]
        if len(along) > 1 or not along[0].full(dim, table.shape, self.sites[along[0].site]) or len(site_dims) > 1:
            return None
        out = aval_of(equation.outvars[0]).shape
        moves = moves_of(equation)
        outer = tuple(move.dim for d, move in sorted(moves[1].items()))
        new = [moved(axis if axis is not along[0] else _without(axis, dim), moves[0], out) for axis in table.axes]
        if math.prod(out[d] for d in outer) == 1 or None in new:
            return None
        if not any(array is indices.array for array in self.indices):
            self.indices.append(indices.array)
        number = next(n for n, array in enumerate(self.indices) if array is indices.array)
        where = list(new[table.axes.index(along[0])].where)  # pyright: ignore[reportOptionalMemberAccess]
        where[site_dims[0]] = Through(outer, number)
        new[table.axes.index(along[0])] = TableAxis(along[0].site, tuple(where))
        gather = alone(equation)
        for _ in table.axes:
            gather = jax.vmap(gather, in_axes=(0, None))
        (array,) = gather(*(operand.array for operand in inputs))
        return [merged(array, new)]  # pyright: ignore[reportArgumentType]

    def _custom(self, equation: JaxprEqn, parts: Any, inputs: list[ValueTable]) -> list[ValueTable] | None:
        """Evaluate a function that has derivative rules of its own, such as a `custom_jvp`, without losing the rules.

        None if the function mixes entries: its equations are then evaluated one by one.
        """
        axes: list[tuple[TableAxis, ...]] = []

        def note(*arrays: Array) -> None:
            inner = _Keeping(self.sites, {}, self.indices)
            tables = [ValueTable(a, t.axes) for a, t in zip(arrays, inputs, strict=True)]
            axes.extend(table.axes for table in inner.run(parts.program, tables))

        numbers = len(self.indices)
        try:
            jax.eval_shape(note, *(table.array for table in inputs))
        except _Mixes:
            return None
        if len(self.indices) > numbers:  # selected inside of the function, by arrays of that trace
            del self.indices[numbers:]
            return None
        union = axes[0]
        if any(before != union for before in axes) or any(a not in union for table in inputs for a in table.axes):
            return None
        function = alone(equation)
        operands = not_literal(equation, inputs)
        for axis in reversed(union):
            function = jax.vmap(function, in_axes=[0 if axis in table.axes else None for table in operands])
        return [ValueTable(array, union) for array in function(*(table.array for table in operands))]

    def _check_collective(self, equation: JaxprEqn, inputs: Sequence[ValueTable], axis_names: Sequence[str]) -> None:
        """Raise if a collective adds up rows that depend on entries, which may be entries of several devices."""
        for table in inputs:
            if rows := [axis for axis in table.axes if any(not isinstance(c, At) for c in axis.where)]:
                raise self._refusal(equation, rows)

    def _refusal(self, equation: JaxprEqn, axes: Sequence[TableAxis]) -> TooManyValues:
        names = ", ".join(dict.fromkeys(repr(self.sites[axis.site].name) for axis in axes))
        return TooManyValues(
            f"phx.marginalize: {described(equation)} mixes entries of the discrete variable {names} that the data "
            f"select, so that all entries would have to be summed over jointly. Let each row depend on a single entry, "
            f"and write its density row by row."
        )


class _Mixes(Exception):
    """Raised by `_Keeping` at an operation that mixes entries."""


class _Keeping(Tabulation):
    """Tabulation that raises where an operation mixes entries, instead of adding an axis for each of them."""

    def _separated(self, table: ValueTable, dim: int, equation: JaxprEqn) -> ValueTable:
        raise _Mixes


def _broadcast(array: Array, shape: tuple[int, ...]) -> Array:
    """Return an array with the dimensions of a table or, as a scalar, none, broadcast to `shape`."""
    before = jnp.shape(array)
    dims = [d for d, n in enumerate(jnp.shape(array)) if n == shape[d]]
    if before == shape:
        return array
    return jax.lax.broadcast_in_dim(jnp.squeeze(array, [d for d in range(len(before)) if d not in dims]), shape, dims)


def over(table: ValueTable, axes: Sequence[TableAxis]) -> Array:
    """Return the array of a table with these axes, of size one where it does not depend on an entry."""
    missing = [number for number, axis in enumerate(axes) if axis not in table.axes]
    return jnp.expand_dims(table.array, missing)


def merged(array: Array, axes: Iterable[TableAxis]) -> ValueTable:
    """Return a table with these axes in sorted order; equal ones become one, on which their values agree."""
    axes = list(axes)
    number = 0
    while number < len(axes):
        if (first := axes.index(axes[number])) < number:
            array = jnp.moveaxis(jnp.diagonal(array, axis1=first, axis2=number), -1, first)
            del axes[number]
        else:
            number += 1
    order = sorted(range(len(axes)), key=lambda n: axes[n])
    if order != list(range(len(axes))):
        array = jnp.transpose(array, [*order, *range(len(axes), jnp.ndim(array))])
    return ValueTable(array, tuple(axes[n] for n in order))


def _in_place(tables: Sequence[ValueTable], dim: int) -> list[ValueTable]:
    """Return the operands of a concatenation, where one of length 1 depends on its variable at its own position alone.

    The position along `dim` becomes the variable's index along the first dimension of `Site.entries`, which has length
    1: all other positions are outside of it, and have no entry. Entries that several operands share, as in
    `stack([z, z**2])`, stay as they are.
    """
    count = Counter(axis for table in tables for axis in table.axes)

    def placed(axis: TableAxis) -> TableAxis:
        whole = axis.where[0] == At(0) and not axis.runs_along(dim) and count[axis] == 1
        return TableAxis(axis.site, (Along(dim, 0, 1), *axis.where[1:])) if whole else axis

    return [merged(t.array, map(placed, t.axes)) if t.shape[dim] == 1 else t for t in tables]


def described(equation: JaxprEqn) -> str:
    """Return an equation as text for a message, with the line of the model that it comes from."""
    line = source_line_of(equation)
    return f"{equation.primitive.name} in line {line}" if line is not None else f"the operation {equation.primitive}"


def _follows(component: Component, dim: int, moves: Moves) -> bool:
    """Return whether a result follows an index along a dimension of its operand."""
    if dim not in dims_of(component):
        return True
    return dim in moves and (not isinstance(component, Along) or component.sliced(moves[dim]) is not None)


def _kept_whole(component: Through, moves: Moves) -> bool:
    return all((moves[d].offset, moves[d].stride) == (0, 1) for d in component.dims)


def _without(axis: TableAxis, dim: int) -> TableAxis:
    return TableAxis(axis.site, tuple(At(0) if dim in dims_of(c) else c for c in axis.where))


def _is_constant(array: Array) -> bool:
    return not isinstance(array, Tracer)


def _is_whole_number(aval: Any) -> bool:
    return aval.shape == () and (jnp.issubdtype(aval.dtype, jnp.integer) or aval.dtype == jnp.bool_)


def _key(equation: JaxprEqn, inputs: Sequence[ValueTable]) -> Any:
    """Return a key of an equation and its operands; None if its parameters cannot be compared."""
    try:
        params = tuple(sorted(equation.params.items()))
        hash(params)
    except TypeError:
        return None
    pairs = zip(equation.invars, inputs, strict=True)
    operands = tuple((str(a), str(a.aval)) if isinstance(a, Literal) else id(t.array) for a, t in pairs)
    return equation.primitive, params, operands
