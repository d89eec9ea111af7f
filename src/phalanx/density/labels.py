"""Names of the axes of variables: those of the data, followed through a program's equations.

An axis of a variable gets the names of an axis of the data, such as those of a table's columns, if both are combined
entry by entry, in a product or a sum; and the levels of a coded argument, with the argument's name, if its codes index
the axis. Equal sizes alone do not connect two axes. An axis that meets different names gets no names, and equations
without a rule are not followed.

A table x with the columns age and income, and codes g of the cities Bonn and Ulm:

    x @ weights      the axis of weights meets the columns of x: weights[age], weights[income]
    level[g]         codes of g index the axis of level:         level[Bonn], level[Ulm]
    x @ w + v @ w    meets the columns of two tables:            w has no names
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var
from jax.typing import ArrayLike

from phalanx.inputs.arguments import Arguments
from phalanx.inputs.axis_names import Axis, EntryLabels, entry_labels
from phalanx.inputs.dataframe_input import Labels, Levels
from phalanx.jaxprs.walking import Cond, Interpreter, Scan, aval_of, words
from phalanx.marginals.dimensions import moves_of
from phalanx.marginals.entries import Move
from phalanx.programs.traced_program import TracedProgram

_SAME_CODES = words("squeeze broadcast_in_dim reshape transpose slice dynamic_slice gather copy stop_gradient")


@dataclass(frozen=True)
class LabelSearch:
    """Search for the names of the axes of variables, for any number of data sets.

    Attributes:
        program: the trace of the model on the whole data; its inputs are the data's arrays.
        variables: jaxpr variables that are latent variables of the model, constrained or unconstrained, or
            deterministic values.
        values: number of the output by name: that of a value of a latent or deterministic variable, or of the log
            density of an observed one by entry.
    """

    program: ClosedJaxpr
    variables: frozenset[Any]
    values: Mapping[str, int]

    @classmethod
    def of(cls, whole: TracedProgram) -> LabelSearch:
        """Return the search in a trace on the whole data."""
        outputs = whole.at_zero.jaxpr.outvars
        first = len(whole.position) + len(whole.terms)
        values = {name: number for number, name in enumerate(sorted(whole.values), first)}
        terms = {name: number for number, (name, _) in enumerate(sorted(whole.terms), len(whole.position))}
        atoms = [*outputs[: len(whole.position)], *(outputs[number] for number in values.values())]
        return cls(whole.at_zero, frozenset(atom for atom in atoms if not isinstance(atom, Literal)), terms | values)

    def names(self, arguments: Arguments, axes: Mapping[str, Sequence[Axis]]) -> dict[str, tuple[Axis, ...]]:
        """Return the names of the axes of each variable that has names; of an observed one, of its batch dimensions.

        Args:
            arguments: the data.
            axes: names of the axes of each array by its name; empty for an array without.

        Raises:
            ValueError: when the program combines entries whose labels differ; the message names both arguments.
        """
        constants = list(arguments.constants.values())
        labels = [*arguments.labels, *(constant.labels for constant in constants)]
        every = [*chain.from_iterable(axes.values())]
        has_levels = any(isinstance(label, Levels) for label in labels)
        if not has_levels and not any(axis.dim or axis.labels for axis in every) and not _differ(every):
            return {}
        walk = _LabelWalk(_Axes(), self.variables)
        data = zip(self.program.jaxpr.invars, arguments.names, arguments.labels, strict=True)
        inputs = [walk.of_argument(aval_of(a).shape, name, labels, axes[name]) for a, name, labels in data]
        for c in constants:
            walk.constants.append((c.array, walk.of_argument(c.shape, c.name, c.labels, axes[c.name])))
        outputs = walk.run(self.program, inputs)
        shapes = [aval.shape for aval in self.program.out_avals]
        walk.axes.check_labels(list(axes))
        along = {name: tuple(map(walk.axes.names_of, outputs[i].axes, shapes[i])) for name, i in self.values.items()}
        return {name: names for name, names in along.items() if any(map(any, names))}


def any_labels_differ(arguments: Arguments) -> bool:
    """Return whether two axes of the data with as many entries have other labels."""
    return _differ([*chain.from_iterable(_axes_by_name(arguments).values())])


def _differ(axes: Sequence[Axis]) -> bool:
    kinds = {(axis.entries.count, axis.entries.ordered) for axis in axes if axis.entries is not None}
    return len(kinds) > len({count for count, _ in kinds})


class _Labels(NamedTuple):
    """Labels that an argument gives to an axis; `levels` are those of its codes, if they index the axis."""

    argument: str
    dim: str | None
    entries: EntryLabels
    levels: tuple[Any, ...] = ()


def _check_labels(first: _Labels, second: _Labels) -> None:
    if first.argument == second.argument:
        return
    a = first.entries
    b = second.entries
    if first.levels and second.levels:
        code = {level: number for number, level in enumerate(first.levels)}
        if wrong := [w for n, w in enumerate(second.levels) if code.get(w, n) != n]:
            raise ValueError(
                f"data: {first.argument} and {second.argument} look up entries of the same axis, and their levels are "
                f"numbered differently: {wrong[0]!r} is number {code[wrong[0]]} of {first.argument} and number "
                f"{second.levels.index(wrong[0])} of {second.argument}. Give both the same list of levels, as in "
                f"pandas.Categorical(words, categories=levels)."
            )
        return
    along = f" along {first.dim!r}" if first.dim is not None and first.dim == second.dim else ""
    first_labels = (
        f"{first.argument} begins with {_list_labels(a.shown)}, {second.argument} with {_list_labels(b.shown)}"
    )
    by_position = f"{second.argument}.to_numpy()"
    if a.reorder(b):
        raise ValueError(
            f"data: {first.argument} and {second.argument} are combined entry by entry, and have the same labels"
            f"{along} in different orders: {first_labels}. Give both in one order, as {second.argument}.reindex or "
            f"xarray.align return them; or {by_position}, if entries belong together by position."
        )
    if a.contradict(b) and first.dim == second.dim:
        raise ValueError(
            f"data: {first.argument} and {second.argument} are combined entry by entry, and have different labels"
            f"{along}: {first_labels}. Give both the entries that they share, as in {first.argument}.loc[labels]; or "
            f"{by_position}, if entries belong together by position."
        )


def _list_labels(labels: Sequence[str]) -> str:
    return ", ".join(map(repr, labels))


def check_labels(whole: TracedProgram, arguments: Arguments) -> None:
    """Raise if a program, traced on the whole data, combines entries whose labels differ; see `LabelSearch.names`."""
    LabelSearch.of(whole).names(arguments, _axes_by_name(arguments))


def _axes_by_name(arguments: Arguments) -> dict[str, Sequence[Axis]]:
    axes = dict(zip(arguments.names, arguments.axes, strict=True))
    return {**axes, **{constant.name: constant.axes for constant in arguments.constants.values()}}


class _Axes:
    """Disjoint sets of axes that are combined entry by entry, with their names."""

    def __init__(self):
        self._parent: list[int] = []
        self._names: list[set[Axis]] = []
        self._labels: list[list[_Labels]] = []

    def new(self, *names: Axis, argument: str = "") -> int:
        self._parent.append(len(self._parent))
        self._names.append(set(names))
        self._labels.append([_Labels(argument, a.dim, a.entries) for a in names if a.entries is not None])
        return self._parent[-1]

    def name(self, axis: int | None, levels: Axis, argument: str) -> None:
        """Give an axis the levels of an argument, by which the program looks its entries up."""
        if axis is not None and levels.labels is not None:
            root = self._root(axis)
            labels = entry_labels(list(levels.labels), identify=False)
            self._names[root].add(levels)
            self._labels[root].append(_Labels(argument, None, labels, levels.labels))

    def check_labels(self, arguments: Sequence[str]) -> None:
        """Raise if entries that are combined have labels that differ."""
        for labels in self._labels:
            labels = sorted(labels, key=lambda one: arguments.index(one.argument))
            for number, second in enumerate(labels):
                for first in labels[:number]:
                    _check_labels(first, second)

    def join(self, axes: Sequence[int | None]) -> int | None:
        """Merge the sets of these axes and return their root; None is the axis of a broadcast value."""
        roots = [self._root(axis) for axis in axes if axis is not None]
        for root in set(roots[1:]) - set(roots[:1]):
            self._parent[root] = roots[0]
            self._names[roots[0]] |= self._names[root]
            self._labels[roots[0]] += self._labels[root]
            self._labels[root] = []
        return roots[0] if roots else None

    def names_of(self, axis: int | None, size: int) -> Axis:
        """Return the names of an axis; none if different labels meet along it, or their number is not `size`."""
        sources = set() if axis is None else self._names[self._root(axis)]
        labels = {names.labels for names in sources if names.labels}
        if len(labels) > 1 or any(not len(levels) == len(set(levels)) == size for levels in labels):
            return Axis()
        dims = {names.dim for names in sources if names.dim}
        return Axis(dims.pop() if len(dims) == 1 else None, labels.pop() if labels else None)

    def _root(self, axis: int) -> int:
        while self._parent[axis] != axis:
            axis = self._parent[axis]
        return axis


class _Code(NamedTuple):
    """Codes of levels; with `sign`, the result of comparing them to zero, which is always False."""

    levels: Axis
    argument: str = ""
    sign: bool = False


_NEVER = _Code(Axis(), sign=True)
"""Code of a flag that is always False: a trace has it where codes that are compiled in were compared with zero."""


@dataclass(frozen=True)
class _Value:
    """Axes of a value, None if unknown; and the codes that its numbers are: one for all, or one for each column."""

    axes: tuple[int | None, ...]
    codes: tuple[_Code | None, ...] = ()

    @property
    def code(self) -> _Code | None:
        return self.codes[0] if len(self.codes) == 1 else None


class _LabelWalk(Interpreter[_Value]):
    """One pass over a program."""

    def __init__(self, axes: _Axes, variables: frozenset[Var]):
        self.axes = axes
        self.variables = variables
        self.constants: list[tuple[np.ndarray, _Value]] = []
        """Arguments that are compiled in, which a trace contains by their numbers alone."""

    def of_argument(self, shape: Sequence[int], name: str, labels: Labels, named_axes: Sequence[Axis]) -> _Value:
        dim = name if name.isidentifier() else None  # not of an array within an argument, `batch['x']`
        codes = (_Code(Axis(dim, tuple(labels)), name),) if isinstance(labels, Levels) else ()
        axes = named_axes or (Axis(),) * len(shape)
        return _Value(tuple(self.axes.new(a, argument=name) if any(a) else None for a in axes), codes)

    def constant(self, value: ArrayLike) -> _Value:
        equal = [
            (array.shape, constant)
            for array, constant in self.constants
            if np.size(value) == array.size > 1 and np.array_equal(np.ravel(value), array.ravel())
        ]
        if len(equal) == 1:  # of several arguments with these numbers it may be any
            ((shape, constant),) = equal
            return constant if np.shape(value) == shape else _Value((None,) * np.ndim(value), constant.codes)
        never = self.constants and np.asarray(value).dtype == bool and not np.any(value)
        return _Value((None,) * np.ndim(value), (_NEVER,) if never else ())

    def named(self, variable: Any, value: _Value) -> _Value:
        if variable not in self.variables:
            return value
        return _Value(tuple(self.axes.new() if axis is None else axis for axis in value.axes))

    def primitive(self, equation: JaxprEqn, inputs: list[_Value]) -> list[_Value]:
        name = equation.primitive.name
        if name == "optimization_barrier":
            return inputs
        if name in ("gather", "dynamic_slice"):
            self._name_looked_up(equation, *inputs)
        if name == "dot_general":
            x, y = inputs
            for i, j in zip(*equation.params["dimension_numbers"][0], strict=True):
                self.axes.join([x.axes[i], y.axes[j]])
        codes = self._codes(equation, inputs)
        return [_Value(self._axes(equation, inputs, aval_of(v).shape), codes) for v in equation.outvars]

    def cond(self, equation: JaxprEqn, parts: Cond, inputs: list[_Value]) -> list[_Value]:
        for branch in parts.branches:
            self.run(branch, inputs[1:])
        return self.primitive(equation, inputs)

    def scan(self, equation: JaxprEqn, parts: Scan, inputs: list[_Value]) -> list[_Value]:
        """Walk the body once, with an unknown carry."""
        constants, carry, rows = parts.split(inputs)
        unknown = [_Value((None,) * len(value.axes)) for value in carry]
        elements = [_Value(x.axes[1:], x.codes if x.code else ()) for x in rows]
        outputs = self.run(parts.body, [*constants, *unknown, *elements])[len(carry) :]
        return [*unknown, *(_Value((None, *y.axes)) for y in outputs)]

    def _axes(self, equation: JaxprEqn, inputs: Sequence[_Value], shape: Sequence[int]) -> tuple[int | None, ...]:
        """Return the axes of a result: those that the operation keeps whole, of all operands."""
        operand_axes: list[list[int | None]] = [[] for _ in shape]
        for atom, value, moves in zip(equation.invars, inputs, moves_of(equation), strict=True):
            for dim, move in moves.items():
                if move == Move(move.dim) and aval_of(atom).shape[dim] == shape[move.dim]:
                    operand_axes[move.dim].append(value.axes[dim])
        return tuple(map(self.axes.join, operand_axes))

    def _codes(self, eqn: JaxprEqn, inputs: Sequence[_Value]) -> tuple[_Code | None, ...]:
        """Return the codes that a result contains; JAX selects `i + size` for indices `i < 0`."""
        name = eqn.primitive.name
        code = inputs[0].code if inputs else None
        if name == "concatenate":
            return _columns(eqn, inputs)
        if code is None:
            return ()
        if name in _SAME_CODES:
            return (code,)
        if name == "convert_element_type":
            kinds = aval_of(eqn.invars[0]).dtype, eqn.params["new_dtype"]
            whole = all(np.issubdtype(kind, np.integer) for kind in kinds)
            return (code,) if whole and np.iinfo(kinds[1]).max >= np.iinfo(kinds[0]).max else ()
        if name == "lt" and isinstance(zero := eqn.invars[1], Literal) and np.all(zero.val == 0):
            return (code._replace(sign=True),)
        keeps_code = (
            name == "select_n" and code.sign and (code == _NEVER or inputs[1].code == code._replace(sign=False))
        )
        return inputs[1].codes if keeps_code else ()

    def _name_looked_up(self, eqn: JaxprEqn, x: _Value, *indices: _Value) -> None:
        """Give axes the levels of the codes by which single entries along them are looked up."""
        picked = range(len(x.axes))
        codes = [index.code for index in indices]
        if eqn.primitive.name == "gather":
            picked = eqn.params["dimension_numbers"].start_index_map
            (index,) = indices
            codes = [index.code] * len(picked) if index.code else index.codes or [None] * len(picked)
        for axis, code in zip(picked, codes, strict=True):
            if code and not code.sign and eqn.params["slice_sizes"][axis] == 1:
                self.axes.name(x.axes[axis], code.levels, code.argument)


def _columns(eqn: JaxprEqn, inputs: Sequence[_Value]) -> tuple[_Code | None, ...]:
    """Return the codes of a concatenation: columns of index vectors keep theirs."""
    along = eqn.params["dimension"]
    shapes = [aval_of(atom).shape for atom in eqn.invars]
    sizes = [shape[along] for shape in shapes]
    if along < len(shapes[0]) - 1 or sum(sizes) > 32:
        return ()
    codes = tuple(x.code for x, size in zip(inputs, sizes, strict=True) for _ in range(size))
    return codes if any(codes) and len(codes) > 1 else ()
