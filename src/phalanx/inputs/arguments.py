"""A program's data: arrays become arguments of the compiled blocks, everything else is part of the program.

A whole number, a string or a flag may determine a shape or a branch, so it is compiled in, and so is a tuple of whole
numbers, such as a shape. Arrays, lists, tables and real numbers are passed, so that other values of the same shape need
no new compilation. An array whose values the program needs while it is traced, for a size or a branch, is compiled in,
too (see `needed_values`).
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

import jax
import numpy as np
from jax import Array, ShapeDtypeStruct

from phalanx.errors.message_text import first_few
from phalanx.inputs.axis_names import Axis
from phalanx.inputs.dataframe_input import Labels, as_named_array, axes_of, columns_of, is_data
from phalanx.inputs.dtype_checks import to_jax_dtype
from phalanx.inputs.placement import PaddedRows, check_alive, name_of, sharding_of
from phalanx.inputs.recoding import recode
from phalanx.mesh.devices import use_every_core
from phalanx.mesh.fingerprint import fingerprint
from phalanx.mesh.processes import to_host
from phalanx.mesh.row_sharding import RowSharding

ADDED = "_phalanx_"
"""Beginning of the names of arguments that Phalanx adds to a program, which messages and records do not show."""

COMPILED_IN = "its whole numbers, strings and flags"
"""Name in messages of the arguments that are part of the program."""


@dataclass(frozen=True)
class ArgumentLayout:
    """Keyword arguments of a program without the arrays that are passed: part of the key of compiled programs.

    It is hashable, and equal for data that differ only in the values and shapes of the passed arrays.

    Attributes:
        tree: structure of the keyword arguments as a pytree.
        leaves: the values that are compiled in, and `_ARRAY` in the place of each array that is passed.
    """

    tree: Any
    leaves: tuple[Any, ...]

    def join(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """Return the keyword arguments with `arrays` in their places."""
        values = self._in_place(arrays)
        return jax.tree.unflatten(self.tree, [x.array if isinstance(x, _NumberTuple | Constant) else x for x in values])

    def as_given(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """Return the keyword arguments in the form that `split_arguments` accepts."""
        values = self._in_place(arrays)
        values = [x.as_given if isinstance(x, Constant) else x for x in values]
        return jax.tree.unflatten(self.tree, [x.numbers if isinstance(x, _NumberTuple) else x for x in values])

    def replace_numbers(self, instead: Mapping[int, int]) -> ArgumentLayout:
        """Return the layout with whole numbers replaced: each key of `instead` by its value, also within shapes."""

        def changed(value: Any) -> Any:
            if isinstance(value, _NumberTuple):
                return _NumberTuple(tuple(instead.get(number, number) for number in value.numbers))
            return instead.get(value, value) if type(value) is int else value

        return replace(self, leaves=tuple(map(changed, self.leaves)))

    def _in_place(self, arrays: Sequence[Any]) -> list[Any]:
        following = iter(arrays)
        return [next(following) if x is _ARRAY else x for x in self.leaves]


@dataclass(frozen=True)
class Arguments:
    """A program's keyword arguments, split into a compiled-in structure and arrays.

    Attributes:
        layout: structure and values that are compiled in.
        arrays: the arrays, padded where they are sharded unevenly.
        shardings: layout of each array on the mesh.
        names: name of each array in messages, e.g. `x` or `batch['x']`.
        labels: the names that came with each array: of a table's columns, of a categorical's levels.
        axes: names of each array's axes; empty for an array whose axes have none.
    """

    layout: ArgumentLayout
    arrays: tuple[Any, ...]
    shardings: tuple[RowSharding, ...]
    names: tuple[str, ...]
    labels: tuple[Labels, ...] = ()
    axes: tuple[tuple[Axis, ...], ...] = ()

    def with_compiled_in(self, names: Collection[str]) -> Arguments:
        """Return the same arguments with these arrays compiled in."""
        is_compiled_in = [name in names for name in self.names]
        following = iter(enumerate(is_compiled_in))
        static_values: list[Any] = []
        for value in self.layout.leaves:
            if value is not _ARRAY:
                static_values.append(value)
                continue
            number, becomes_constant = next(following)
            static_values.append(Constant.of(self, number) if becomes_constant else _ARRAY)

        def passed(values: tuple[Any, ...]) -> tuple[Any, ...]:
            """Return the entries of the arrays that are still passed."""
            return tuple(x for x, gone in zip(values, is_compiled_in, strict=True) if not gone) if values else ()

        return replace(
            self,
            layout=replace(self.layout, leaves=tuple(static_values)),
            arrays=passed(self.arrays),
            shardings=passed(self.shardings),
            names=passed(self.names),
            labels=passed(self.labels),
            axes=passed(self.axes),
        )

    def as_whole_numbers(self, names: Collection[str]) -> Arguments:
        """Return the same arguments with these arrays of real numbers as whole numbers."""
        integer = jax.dtypes.canonicalize_dtype(np.int64)
        pairs = zip(self.names, self.arrays, strict=True)
        with np.errstate(invalid="ignore"):
            return replace(self, arrays=tuple(a.astype(integer) if name in names else a for name, a in pairs))

    @property
    def constants(self) -> dict[str, Constant]:
        """The arrays that are compiled in by name, whose values the program needs while it is traced."""
        return {value.name: value for value in self.layout.leaves if isinstance(value, Constant)}

    def differing_constants(self, other: Arguments) -> list[str]:
        """Return the names of the compiled-in arrays whose values differ in `other`."""
        others = other.constants
        return [name for name, value in self.constants.items() if others.get(name) != value]

    def whole_shapes(self) -> tuple[ShapeDtypeStruct, ...]:
        """Return the shapes that the user passed: all rows, no padding."""
        return tuple(
            ShapeDtypeStruct((s.rows, *a.shape[1:]) if s.axes else a.shape, a.dtype)
            for a, s in zip(self.arrays, self.shardings, strict=True)
        )

    def local_shapes(self) -> tuple[ShapeDtypeStruct, ...]:
        """Return the shapes on one device."""
        return tuple(
            ShapeDtypeStruct((s.local_rows, *a.shape[1:]) if s.axes else a.shape, a.dtype)
            for a, s in zip(self.arrays, self.shardings, strict=True)
        )

    def fingerprints(self) -> dict[str, str]:
        """Return a checksum of each array by its name, and one of the compiled-in values under `COMPILED_IN`."""
        pairs = zip(self.names, self.arrays, self.shardings, strict=True)
        fingerprints = {name: fingerprint(array, s.rows if s.axes else None) for name, array, s in pairs}
        fingerprints |= {name: fingerprint(constant.array) for name, constant in self.constants.items()}
        plain = [x.numbers if isinstance(x, _NumberTuple) else x for x in self.layout.leaves]
        plain_values = repr([x for x in plain if isinstance(x, bool | int | float | complex | str | tuple)])
        return {**fingerprints, COMPILED_IN: hashlib.sha256(plain_values.encode()).hexdigest()[:16]}

    def join(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """Return the keyword arguments with these arrays, of all rows but padding."""
        return self.layout.join([s.trim(array) for array, s in zip(arrays, self.shardings, strict=True)])

    def with_arrays(self, arrays: Sequence[Any]) -> Arguments:
        """Return the same arguments with these arrays, which are placed and padded."""
        return replace(self, arrays=tuple(arrays))

    def without_arrays(self) -> Arguments:
        """Return the same arguments with shapes in place of arrays, to be stored without keeping the data alive."""
        return replace(self, arrays=tuple(ShapeDtypeStruct(a.shape, a.dtype) for a in self.arrays))


class _Array:
    def __repr__(self) -> str:
        return "<array>"

    def __reduce__(self) -> str:
        return "_ARRAY"  # it is compared by identity


_ARRAY = _Array()


@dataclass(frozen=True)
class _NumberTuple:
    """A tuple of whole numbers, such as a shape: compiled in, and passed to the model as an array of known numbers."""

    numbers: tuple[int, ...]

    @property
    def array(self) -> np.ndarray:
        """Array of the numbers."""
        return np.array(self.numbers)


@dataclass(frozen=True)
class Constant:
    """An array that is compiled in, hashed and compared by its values.

    Attributes:
        name, dtype, shape: of the array.
        content: its bytes.
        labels, axes: names that came with it; see `Arguments`.
    """

    name: str
    content: bytes = field(repr=False)
    dtype: str
    shape: tuple[int, ...]
    labels: Labels = field(default=(), compare=False)
    axes: tuple[Axis, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, arguments: Arguments, number: int) -> Constant:
        """Return the array with this number among the passed ones as a constant, without padded rows."""
        values = to_host(arguments.arrays[number])
        sharding = arguments.shardings[number]
        values = np.ascontiguousarray(sharding.trim(values))
        return cls(
            arguments.names[number],
            values.tobytes(),
            str(values.dtype),
            values.shape if sharding.axes else arguments.arrays[number].shape,
            arguments.labels[number] if arguments.labels else (),
            arguments.axes[number] if arguments.axes else (),
        )

    @property
    def array(self) -> np.ndarray:
        """Array of the values."""
        return np.frombuffer(self.content, np.dtype(self.dtype)).reshape(self.shape)

    @property
    def as_given(self) -> np.ndarray | PaddedRows:
        """The array with its names, in the form that `split_arguments` accepts."""
        return PaddedRows(self.array, self.shape[0], self.labels, self.axes) if self.shape else self.array  # pyright: ignore[reportArgumentType]


def split_arguments(
    program: Callable[..., Any], data: object, labels_of: Callable[[str], Labels | None] = lambda name: None
) -> Arguments:
    """Split `data`, the keyword arguments of `program`: a dict, or a table that has them as columns.

    Only the columns of a table that the program asks for are checked.

    Args:
        program: the program.
        data: its keyword arguments.
        labels_of: names of the levels or columns of an array in earlier data, which determine the numbering;
            `()` for an array without names. See `phalanx.inputs.known_data`.

    Raises:
        TypeError: when `data` is not a dict, the program does not take these arguments, or an argument is neither an
            array of numbers nor hashable.
        ValueError: when an array is empty, contains a number that JAX would cut off, or lacks the known names; the
            message names the place.
    """
    use_every_core()  # placing arrays starts JAX
    check_program(program)
    data = by_keyword(program, data)
    _check_signature(program, data)
    data = {name: _words_as_array(value) if labels_of(name) else value for name, value in data.items()}
    paths, tree = jax.tree_util.tree_flatten_with_path(data, is_leaf=is_leaf)
    names = [name_of(path) for path, _ in paths]
    arguments = [_as_argument(name, leaf, labels_of(name)) for name, (_, leaf) in zip(names, paths, strict=True)]
    leaves, labels = zip(*arguments, strict=True) if arguments else ((), ())
    is_array = [isinstance(leaf, Array | np.ndarray | PaddedRows) for leaf in leaves]
    array_leaves = [leaf for leaf, array in zip(leaves, is_array, strict=True) if array]
    static_values = tuple(_ARRAY if array else leaf for leaf, array in zip(leaves, is_array, strict=True))
    return Arguments(
        ArgumentLayout(tree, static_values),
        tuple(leaf.array if isinstance(leaf, PaddedRows) else leaf for leaf in array_leaves),
        tuple(sharding_of(leaf) for leaf in array_leaves),
        tuple(name for name, array in zip(names, is_array, strict=True) if array),
        tuple(of_array for of_array, array in zip(labels, is_array, strict=True) if array),
        axes=tuple(
            leaf.axes if isinstance(leaf, PaddedRows) else axes_of(leaf)
            for (_, leaf), array in zip(paths, is_array, strict=True)
            if array
        ),
    )


def check_program(program: object, what: str = "model") -> None:
    """Raise unless `program` is callable."""
    if not callable(program):
        raise TypeError(
            f"{what}: expected a function that calls phx.sample(name, distribution), and whose arguments are the data; "
            f"got {program!r}."
        )


def by_keyword(program: Callable[..., Any], data: object) -> Mapping[str, Any]:
    """Return the keyword arguments of a program; of a table, the columns that the program asks for."""
    columns = columns_of(data)
    if columns is not None:
        return {name: columns[name] for name in _asked_for(program, columns)}
    if not isinstance(data, Mapping):
        raise TypeError(
            f"data must be a dict of the model's keyword arguments, such as {{'x': x, 'y': y}}; "
            f"got {type(data).__name__}.{_collect(data)}"
        )
    return data


def columns_left_out(program: Callable[..., Any], data: object) -> list[str]:
    """Return the columns of a table that a program does not take; empty for a dict, all of which it must take."""
    columns = columns_of(data)
    return [] if columns is None else [str(name) for name in columns if name not in _asked_for(program, columns)]


def left_out_in_words(left_out: Sequence[str]) -> str:
    """Return a line on the columns that a program does not take; empty without any."""
    return f"data: the model does not take {first_few([*map(repr, left_out)])}." if left_out else ""


def check_outcome_named(program: Callable[..., Any], left_out: Sequence[str]) -> None:
    """Raise if a program that observes nothing has an optional argument whose name is near that of an unused column.

    Args:
        program: the program.
        left_out: names in the data that it does not take.

    Raises:
        ValueError: with both names.
    """
    by_form = {_form(name): name for name in left_out}
    for name, parameter in (inspect.signature(program).parameters if left_out else {}).items():
        near = get_close_matches(_form(name), by_form, n=1)
        if near and parameter.default is not parameter.empty and name not in left_out:
            column = by_form[near[0]]
            raise ValueError(
                f"data: {column!r} is not used, and the model observes nothing; did you mean {name!r}, its argument "
                f"that was not given? Rename the column, or drop it to draw from the prior."
            )


def _form(name: str) -> str:
    """Return a name in lower case without blanks and underscores."""
    return name.lower().replace(" ", "").replace("_", "")


def _collect(value: object) -> str:
    """Return advice on a table that is not computed yet; "" for another value."""
    is_lazy = hasattr(value, "collect") and type(value).__module__.startswith("polars")
    return " It is not computed yet: give what .collect() returns." if is_lazy else ""


def _words_as_array(value: object) -> object:
    """Return a list of words as one array, for JAX would treat the list as a tree."""
    is_words = isinstance(value, list | tuple) and any(isinstance(item, str) for item in value)
    return np.array(value, dtype=object) if is_words else value


def is_leaf(value: object) -> bool:
    """Return whether a value within the data is a leaf: it becomes one array, or is compiled in as it is."""
    return isinstance(value, PaddedRows) or value is None or is_data(value)


def _as_argument(name: str, leaf: Any, names_in_run: Labels | None) -> tuple[Any, Labels]:
    """Return `leaf` as an array to pass, or unchanged to compile in; and the names of its levels or columns."""
    if isinstance(leaf, tuple) and all(type(item) is int for item in leaf) and not names_in_run:
        return _NumberTuple(leaf), ()
    check_alive(f"data: {name}", leaf)
    if names_in_run is not None:
        leaf, labels = recode(f"data: {name}", leaf, names_in_run)
    elif isinstance(leaf, PaddedRows):
        labels = leaf.labels
    else:
        leaf, labels = as_named_array(f"data: {name}", leaf)
    if isinstance(leaf, Decimal):
        leaf = float(leaf)
    if isinstance(leaf, float | complex | np.generic):
        leaf = np.asarray(leaf)
    if isinstance(leaf, np.ndarray):
        if leaf.ndim == 0 and leaf.dtype.kind in "biu":
            return leaf.item(), ()
        if 0 in leaf.shape:
            raise ValueError(f"data: {name} has shape {leaf.shape}: it is empty. Give it at least one row.")
        return to_jax_dtype(f"data: {name}", leaf), labels
    if isinstance(leaf, Array | PaddedRows):
        if 0 in leaf.shape:
            raise ValueError(f"data: {name} has shape {leaf.shape}: it is empty. Give it at least one row.")
        return leaf, labels
    try:
        hash(leaf)
    except TypeError:
        raise TypeError(
            f"data: {name} is a {type(leaf).__name__}, which cannot be part of a compiled program; give arrays, "
            f"numbers, strings or functions.{_collect(leaf)}"
        ) from None
    return leaf, ()


def _asked_for(program: Callable[..., Any], columns: Mapping[str, Any]) -> list[str]:
    """Return the columns of a table that are parameters of a program; all columns if it takes any keyword argument."""
    try:
        parameters = inspect.signature(program).parameters
    except (TypeError, ValueError):
        return list(columns)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return list(columns)
    return [name for name in columns if name in parameters]


def _check_signature(program: Callable[..., Any], data: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(program)
    except (TypeError, ValueError):  # built-ins and some callables have no signature
        return
    try:
        signature.bind(**data)
    except TypeError as error:
        parameters = [parameter for name, parameter in signature.parameters.items() if not name.startswith(ADDED)]
        data_names = [repr(name) for name in data if not name.startswith(ADDED)]
        raise TypeError(
            f"data does not fit the model {getattr(program, '__name__', program)}"
            f"{signature.replace(parameters=parameters)}: {error}. data gives {', '.join(data_names) or 'nothing'}."
        ) from None
