"""Names of the axes of a model's variables: given by the user, by plates and by data, in this order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from phalanx.density.given_names import RESERVED, GivenNames, Shapes
from phalanx.density.imputation import names_of_missing
from phalanx.density.labels import LabelSearch
from phalanx.inputs.arguments import Arguments
from phalanx.inputs.axis_names import Axis, AxisNames, Word
from phalanx.inputs.dataframe_input import Labels, Levels
from phalanx.language.loops import AllSteps
from phalanx.language.messages import is_term
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program
from phalanx.programs.traced_program import TracedProgram

Axes = Mapping[str, tuple[Axis, ...]]
"""Names of axes by variable or argument."""


TIME = "time"
"""Name of the steps of a loop, where no other name is found."""

LOG_DENSITY = "log_density"
"""Name that tables give to the log density of the draws."""


@dataclass(frozen=True)
class Naming:
    """Names of the axes of a model's variables, for any number of data sets.

    Attributes:
        given: names that the user gives.
        program: the program, whose imputed entries are named.
        search: search for names in the program.
        variables: shapes of latent, deterministic and observed variables.
        rows: names of the variables that tables have.
        plates: names that NumPyro's plates give to axes.
        of_loops: names of the variables whose first axis is that of the steps of a loop.
        dims: names of the axes of the first data by argument, which name later data without names.
        observed: names of the observed variables.
    """

    given: GivenNames
    program: Program
    search: LabelSearch
    variables: Shapes
    rows: tuple[str, ...]
    plates: Axes
    of_loops: frozenset[str]
    dims: Mapping[str, tuple[str | None, ...]]
    observed: tuple[str, ...]

    @classmethod
    def of(cls, whole: TracedProgram, arguments: Arguments, given_names: GivenNames) -> Naming:
        """Return the naming of a program traced on the whole data.

        Raises:
            ValueError: when `given_names` does not fit the model, or a variable is named `log_density`.
        """
        by_argument = {
            name: v
            for name, v in whole.variables.items()
            if v.parameter is None and (v.distribution is None or not is_term(v.distribution))
        }
        variables = {name: v.shape for name, v in by_argument.items()}
        given_names.check(variables, _shapes_of(arguments))
        rows = tuple(name for name, v in by_argument.items() if v.is_latent or v.is_computed)
        if LOG_DENSITY in rows:
            raise ValueError(
                f"Variable {LOG_DENSITY!r}: tables have the log density of each draw in a row of this name. Rename the "
                f"variable."
            )
        plates = {name: _axes_in_plates(v) for name, v in by_argument.items() if v.plates}
        dims = {of.name: tuple(axis.dim for axis in of.axes) for of in _arrays_of(arguments) if of.axes}
        observed_names = tuple(whole.observed)
        of_loops = frozenset(name for name, v in by_argument.items() if isinstance(v.distribution, AllSteps))
        search = LabelSearch.of(whole)
        return cls(given_names, whole.program, search, variables, rows, plates, of_loops, dims, observed_names)

    def axes_of_data(self, arguments: Arguments) -> Axes:
        """Return the names of variables' axes that come from data."""
        return self.search.names(arguments, self._axes(arguments))

    def names(self, arguments: Arguments, axes_of_data: Axes) -> AxisNames:
        """Return the names of all axes of variables and data.

        Args:
            arguments: the data.
            axes_of_data: names from the data, by `axes_of_data`.

        Raises:
            ValueError: when coordinates have another length than their dimension.
        """
        shapes = _shapes_of(arguments)
        axes_of_data = dict(axes_of_data)
        for name, labels in names_of_missing(self.program, arguments).items():
            axes_of_data[name] = tuple(Axis(labels=of_axis) for of_axis in labels)
        axes = self._axes(arguments)
        for name, shape in self.variables.items():
            of_axes = axes_of_data.get(name) or (axes.get(name, ()) if shapes.get(name) == shape else ())
            of_axes = (*of_axes, *[Axis()] * (len(shape) - len(of_axes)))  # a density has no axes for those of events
            plates = self.plates.get(name, of_axes)
            axes[name] = tuple(Axis(p.dim or axis.dim, axis.labels) for p, axis in zip(plates, of_axes, strict=True))
            if name in self.of_loops:
                steps, *others = axes[name]
                axes[name] = (Axis(steps.dim or TIME, steps.labels), *others)
        shapes = {**self.variables, **{name: shape for name, shape in shapes.items() if name not in self.variables}}
        named_axes = [
            _NamedAxis(name, number, size, given_name, axis)
            for name, shape in shapes.items()
            for number, (size, given_name, axis) in enumerate(
                zip(
                    shape,
                    self.given.dims.get(name, [None] * len(shape)),
                    axes[name] or [Axis()] * len(shape),
                    strict=True,
                )
            )
        ]
        return _resolve_names(named_axes, self.given, (*self.variables, *RESERVED), self.rows)

    def _axes(self, arguments: Arguments) -> dict[str, tuple[Axis, ...]]:
        """Return the names of each array's axes; the names of columns are those of the entries of the last one."""
        return {of.name: self._axes_of(*of) for of in _arrays_of(arguments)}

    def _axes_of(self, name: str, shape: tuple[int, ...], labels: Labels, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        axes = axes or tuple(map(Axis, self.dims.get(name, (None,) * len(shape))))
        if labels and not isinstance(labels, Levels) and shape:
            axes = (*axes[:-1], axes[-1]._replace(labels=tuple(labels)))
        if name in self.given.dims and len(self.given.dims[name]) == len(shape):
            axes = tuple(
                axis._replace(dim=dim or axis.dim) for dim, axis in zip(self.given.dims[name], axes, strict=True)
            )
        axes = tuple(axis._replace(labels=self.given.coords.get(axis.dim or "", axis.labels)) for axis in axes)
        return axes if any(map(any, axes)) else ()


class _Named(NamedTuple):
    """Array of the data, passed or compiled in, with the names that came with it."""

    name: str
    shape: tuple[int, ...]
    labels: Labels
    axes: tuple[Axis, ...]


def _arrays_of(arguments: Arguments) -> list[_Named]:
    shapes = (shape.shape for shape in arguments.whole_shapes())
    array_names = zip(arguments.names, shapes, arguments.labels, arguments.axes, strict=True)
    constants = (_Named(c.name, c.shape, c.labels, c.axes) for c in arguments.constants.values())
    return [*(_Named(*of) for of in array_names), *constants]


def _shapes_of(arguments: Arguments) -> dict[str, tuple[int, ...]]:
    return {of.name: of.shape for of in _arrays_of(arguments)}


def _axes_in_plates(variable: RandomVariable) -> tuple[Axis, ...]:
    """Return the names of a variable's axes in NumPyro's plates."""
    event = 0 if variable.distribution is None else len(variable.distribution.event_shape)
    axes = [Axis()] * len(variable.shape)
    batch = len(variable.shape) - event
    for name, dim, size in variable.plates:
        if batch + dim >= 0 and variable.shape[batch + dim] == size:
            axes[batch + dim] = Axis(name.replace("/", "."))
    return tuple(axes)


class _NamedAxis(NamedTuple):
    """An axis of a variable or an argument, with the name that is given and the names that are found."""

    name: str
    number: int
    size: int
    given: str | None
    of_data: Axis

    @property
    def default(self) -> str:
        """Name of the dimension if it has no other."""
        return f"{self.name}_dim_{self.number}"


def _resolve_names(
    axes: Sequence[_NamedAxis], given_names: GivenNames, reserved_names: Collection[str], rows: Collection[str]
) -> AxisNames:
    """Return the names of axes: those that are given, and those that are found if they agree.

    A found name is left out if it is one of `reserved_names`, or of dimensions with several sizes or several entries.
    """
    sizes = defaultdict(set)
    all_labels = defaultdict(set)
    for axis in axes:
        dim = axis.given or axis.of_data.dim
        sizes[dim].add(axis.size)
        all_labels[dim] |= {axis.of_data.labels} - {None}
    dims: dict[str, list[str]] = {}
    lengths: dict[str, tuple[int, str]] = {}
    candidates: dict[str, set[tuple[Word, ...]]] = defaultdict(set)
    for name, of_name in groupby(axes, lambda axis: axis.name):
        of_name = list(of_name)
        names = [*reserved_names, *(axis.given for axis in of_name)]
        dims[name] = []
        for axis in of_name:
            dim = axis.of_data.dim
            agrees = len(sizes[dim]) == 1 and (dim in given_names.coords or len(all_labels[dim]) < 2)
            dim = axis.given or (dim if dim and agrees and dim not in names else axis.default)
            names.append(dim)
            dims[name].append(dim)
            lengths.setdefault(dim, (axis.size, name))
            if axis.of_data.labels and len(axis.of_data.labels) == axis.size:
                candidates[dim].add(axis.of_data.labels)
    given_names.check_coords(lengths)
    coords = {dim: next(iter(choices)) for dim, choices in candidates.items() if len(choices) == 1} | dict(
        given_names.coords
    )
    labels = {
        name: tuple(tuple(map(str, coords[dim])) if dim in coords else None for dim in dims[name])
        for name in rows
        if name in dims
    }
    defaults = {axis.default for axis in axes}
    not_default = {name: tuple(None if dim in defaults else dim for dim in of) for name, of in dims.items()}
    return AxisNames(
        {name: of for name, of in not_default.items() if any(of)},
        coords,
        {n: of for n, of in labels.items() if any(of)},
    )
