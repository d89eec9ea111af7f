"""Names of dimensions and entries that the user gives, `dims=` and `coords=`, with their checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.errors.names import hint
from phalanx.inputs.axis_names import Word, words_of

RESERVED = ("chain", "draw")
"""Dimensions of all draws."""

Dims = Mapping[str, Sequence[str | None] | str]
"""Names of the axes by variable or argument of a model; one name for an only axis."""

Coords = Mapping[str, Any]
"""Names of the entries by dimension: lists, arrays, indices or series of text, numbers or dates."""

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes by variable or argument."""


@dataclass(frozen=True)
class GivenNames:
    """Names that the user gives.

    Attributes:
        dims: names of the axes by variable or argument of the model; None for an axis without a name.
        coords: names of the entries along dimensions.
    """

    dims: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    coords: Mapping[str, tuple[Word, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, dims: Any, coords: Any) -> GivenNames:
        """Return the names of a call.

        Raises:
            TypeError: when one is not a dict of lists of names.
            ValueError: when a name is used twice, or for another purpose.
        """
        _check_dict("dims", dims, "variable, such as {'weights': ['feature']}")
        _check_dict("coords", coords, "dimension, such as {'feature': ['age', 'income']}")
        names = cls(
            {name: _dims_of(name, of_axes) for name, of_axes in (dims or {}).items()},
            {dim: _coords_of(dim, labels) for dim, labels in (coords or {}).items()},
        )
        for name, of_axes in names.dims.items():
            _check_dims(name, of_axes)
        return names

    def __bool__(self) -> bool:
        return bool(self.dims or self.coords)

    def check(self, variables: Shapes, arguments: Shapes) -> None:
        """Raise unless names fit the model and its data.

        Raises:
            ValueError: when a variable is unknown or has another number of axes, a dimension has the name of a
                variable, or two sizes.
        """
        sizes: dict[str, tuple[int, str]] = {}
        shapes = {**variables, **arguments, **variables}
        for name, of_axes in self.dims.items():
            if name not in shapes:
                raise ValueError(
                    f"dims: the model has no variable or argument {name!r}; it has "
                    f"{', '.join(map(repr, shapes)) or 'none'}.{hint(name, shapes)}"
                )
            shape = shapes[name]
            if len(of_axes) != len(shape):
                raise ValueError(
                    f"dims[{name!r}]: {len(of_axes)} names, {list(of_axes)}, for shape {shape} of {len(shape)} axes. "
                    f"Give one name for each axis, or None for an axis without a name."
                )
            for dim, size in zip(of_axes, shape, strict=True):
                if dim in variables:
                    raise ValueError(
                        f"dims[{name!r}]: the dimension {dim!r} has the name of a variable of the model. Give it "
                        f"another name."
                    )
                if dim is not None and sizes.setdefault(dim, (size, name))[0] != size:
                    raise ValueError(
                        f"dims: the dimension {dim!r} has {sizes[dim][0]} entries in {sizes[dim][1]!r}, and {size} in "
                        f"{name!r}. Give one of them another name."
                    )

    def check_coords(self, sizes: Mapping[str, tuple[int, str]]) -> None:
        """Raise unless coordinates fit known dimensions; `sizes` has the size of each, and a variable that has it."""
        for dim, labels in self.coords.items():
            if dim not in sizes:
                raise ValueError(
                    f"coords: there is no dimension {dim!r}; there are {', '.join(map(repr, sizes)) or 'none'}. Name "
                    f"the axes that have it, as in dims={{'variable': [{dim!r}]}}.{hint(dim, sizes)}"
                )
            size, name = sizes[dim]
            if len(labels) != size:
                raise ValueError(
                    f"coords[{dim!r}] has {len(labels)} names, and {name!r} has {size} entries along this dimension. "
                    f"Give one name for each entry; or give the axis of {name!r} another name in dims=."
                )


def _check_dict(what: str, names: object, example: str) -> None:
    if names is not None and not (isinstance(names, Mapping) and all(isinstance(name, str) for name in names)):
        raise TypeError(f"{what}: expected a dict of names by {example}; got {names!r}.")


def _dims_of(name: str, of_axes: object) -> tuple[str | None, ...]:
    of_axes = (of_axes,) if isinstance(of_axes, str) else of_axes
    if not isinstance(of_axes, Iterable):
        raise TypeError(f"dims[{name!r}]: expected a list of names, one for each axis; got {of_axes!r}.")
    return tuple(of_axes)


def _check_dims(name: str, of_axes: tuple[Any, ...]) -> None:
    for axis, dim in enumerate(of_axes):
        if dim is None or dim == f"{name}_dim_{axis}":
            continue
        if not isinstance(dim, str) or not dim or "/" in dim or dim.startswith("__"):
            raise TypeError(
                f"dims[{name!r}]: expected words without '/' that do not begin with '__', or None; got {dim!r}."
            )
        if dim in RESERVED or dim.rstrip("0123456789").endswith("_dim_"):
            raise ValueError(
                f"dims[{name!r}]: {dim!r} names another dimension of the draws already. Give it another name."
            )
        if of_axes.count(dim) > 1:
            raise ValueError(
                f"dims[{name!r}] names two axes {dim!r}. Give them two names, such as {dim!r} and {f'{dim}_2'!r}, with "
                f"coords= for each."
            )


def _coords_of(dim: str, labels: object) -> tuple[Word, ...]:
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise TypeError(f"coords[{dim!r}]: expected a list of names, one for each entry; got {labels!r}.")
    if getattr(labels, "ndim", 1) != 1:
        raise TypeError(f"coords[{dim!r}]: expected a list of names, one for each entry; got {labels.ndim} axes.")  # pyright: ignore[reportAttributeAccessIssue]
    levels = words_of(labels)
    first: dict[str, int] = {}
    for number, word in enumerate(map(str, levels)):
        if first.setdefault(word, number) != number:
            raise ValueError(
                f"coords[{dim!r}] has the name {word!r} twice, at {first[word]} and {number}. Two rows of tables would "
                f"have one name: give each entry its own."
            )
    return levels
