"""Positions: vectors of coordinates with their layout over the mesh, and conversions to values by variable.

Replicated coordinates are one array; sharded ones are another array for each set of mesh axes. In an array variables
are in the order of their names. A vector of all lanes (the chains that one device advances together) has the lanes as
its last axis, so that elementwise operations and sums over coordinates run along the lanes, which a CPU vectorises. A
vector without lanes has its coordinates last. On the host the parts of the devices follow one another.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from phalanx.mesh.devices import CHAIN
from phalanx.mesh.processes import to_devices, to_host
from phalanx.mesh.random_numbers import is_key, uniforms
from phalanx.mesh.row_sharding import GLOBAL, RowSharding
from phalanx.mesh.specs import PyTree, is_spec
from phalanx.mesh.total import Total

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

ByVariable = Any
"""A dict of arrays by variable."""

Shared = TypeVar("Shared", Array, Total)


@dataclass(frozen=True)
class Variable:
    """A latent variable on one device, on the unconstrained scale."""

    name: str
    unconstrained_shape: tuple[int, ...]
    dtype: Any
    sharding: RowSharding = GLOBAL

    @property
    def size(self) -> int:
        """Number of coordinates on one device."""
        return math.prod(self.unconstrained_shape)

    @property
    def whole_unconstrained_shape(self) -> tuple[int, ...]:
        """Shape in the whole, without padded rows."""
        return self.sharding.whole_shape(self.unconstrained_shape)


@dataclass(frozen=True)
class VectorLayout:
    """Layout of the coordinates of a position: their variables, and their sharding over devices.

    Attributes:
        variables: the variables in the order of their names.
        sizes: devices along each mesh axis that has several.
    """

    variables: tuple[Variable, ...]
    sizes: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, variables: Iterable[Variable], sizes: Mapping[str, int]) -> VectorLayout:
        """Return the layout of these variables, in any order."""
        return cls(tuple(sorted(variables, key=lambda v: v.name)), tuple(sizes.items()))

    @cached_property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Sets of mesh axes that coordinates are sharded over, each once; the empty set, for global ones, is first."""
        return tuple(sorted({(), *(v.sharding.axes for v in self.variables)}))

    @cached_property
    def members(self) -> tuple[tuple[Variable, ...], ...]:
        """The variables of each group."""
        return tuple(tuple(v for v in self.variables if v.sharding.axes == axes) for axes in self.groups)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Number of coordinates of each group on one device."""
        return tuple(sum(v.size for v in members) for members in self.members)

    @property
    def coordinates(self) -> int:
        """Number of coordinates in the whole, without padded rows."""
        return sum(math.prod(v.whole_unconstrained_shape) for v in self.variables)

    @property
    def whole_lengths(self) -> list[int]:
        """Number of coordinates of each group on all devices, with padded rows."""
        return [length * self.devices(axes) for length, axes in zip(self.lengths, self.groups, strict=True)]

    @property
    def whole_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of positions in the whole by variable, without padded rows."""
        return {v.name: v.whole_unconstrained_shape for v in self.variables}

    @property
    def dtype(self) -> np.dtype:
        """Type of the coordinates."""
        return jnp.result_type(*(v.dtype for v in self.variables))

    def devices(self, axes: Sequence[str]) -> int:
        """Return the number of devices along these mesh axes."""
        return math.prod(dict(self.sizes).get(axis, 1) for axis in axes)

    def of_groups(self, count: int) -> VectorLayout:
        """Return the layout of the variables of the first groups alone."""
        return VectorLayout(tuple(v for v in self.variables if v.sharding.axes in self.groups[:count]), self.sizes)

    def specs(self, *leading: str | None) -> tuple[PartitionSpec, ...]:
        """Return the partition of each group's array, with dimensions `leading` and then coordinates."""
        return tuple(PartitionSpec(*leading, axes or None) for axes in self.groups)

    # -- on a device ------------------------------------------------------------------------------------------------

    def zeros(self, *leading: int) -> dict[str, Array]:
        """Return the origin, by variable."""
        return {v.name: jnp.zeros((*leading, *v.unconstrained_shape), v.dtype) for v in self.variables}

    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes of a position on this device, by variable."""
        return {v.name: jax.ShapeDtypeStruct(v.unconstrained_shape, v.dtype) for v in self.variables}

    def vector(self, values: Mapping[str, Array]) -> Vector:
        """Return the vector `(..., coordinates)` of this device's values `(..., *shape)`; without values, no parts."""
        if not values:
            return Vector((), self)
        leading = self._leading(values)

        def together(members: Sequence[Variable]) -> Array:
            parts = [values[v.name].reshape(*leading, v.size) for v in members]
            return jnp.concatenate(parts or [jnp.zeros((*leading, 0), self.dtype)], -1)

        return Vector(tuple(map(together, self.members)), self)

    def numbers(self) -> Vector:
        """Return the numbers of this device's coordinates in the whole position."""
        first = 0
        numbers = {}
        for v in self.variables:
            numbers[v.name] = (first + _numbers_of(v)).reshape(v.unconstrained_shape)
            first += math.prod(v.whole_unconstrained_shape)
        flat = self.vector(numbers)
        return jax.tree.map(lambda part: part.astype(jnp.uint32), flat)  # an empty group has another type

    def real(self) -> Vector:
        """Return one for each coordinate, and zero in padded rows, which have no momentum and do not move."""
        return self.vector({n: self._of(n).keep_rows(jnp.ones_like(x, self.dtype)) for n, x in self.zeros().items()})

    def uniform(self, key: Array, low: float, high: float) -> dict[str, Array]:
        """Return independent uniforms on `(low, high)` by variable, zeros in padded rows.

        A uniform is a function of the key and the coordinate's number, and so the same under any sharding. One call
        makes all: hashes are most of the compile time of a small model.
        """
        numbers = jnp.concatenate(self.numbers().parts)
        flat = low + (high - low) * uniforms(key, numbers, self.dtype)
        parts = tuple(jnp.split(flat, list(accumulate(self.lengths[:-1]))))
        return {n: self._of(n).keep_rows(x) for n, x in Vector(parts, self).by_variable().items()}

    # -- on the host ------------------------------------------------------------------------------------------------

    def of_whole(self, values: Mapping[str, np.ndarray], zero: bool = False) -> Vector:
        """Return the vector on all devices of whole values `(..., *shape)` by variable; without values, no parts.

        A padded row repeats the last row, so that a variance stays positive, or is zero.
        """
        if not values:
            return Vector((), self)
        leading = self._leading(values)
        dtype = values[self.variables[0].name].dtype

        def together(axes: Sequence[str], members: Sequence[Variable]) -> np.ndarray:
            devices = self.devices(axes)
            parts = [
                self.padded(v, values[v.name], len(leading), zero).reshape(*leading, devices, v.size) for v in members
            ]
            vector = np.concatenate(parts or [np.zeros((*leading, devices, 0), dtype)], -1)
            return vector.reshape(*leading, math.prod(vector.shape[-2:]))

        return Vector(tuple(map(together, self.groups, self.members)), self)

    def padded(self, variable: Variable, values: np.ndarray, leading: int = 0, zero: bool = False) -> np.ndarray:
        """Return whole values with padded rows, each the last row or zeros; rows follow `leading` dimensions."""
        sharding = variable.sharding
        missing = sharding.local_rows * self.devices(sharding.axes) - sharding.rows if sharding.axes else 0
        if not missing:
            return values
        last = np.take(values, [-1], axis=leading) * (1 - zero)
        return np.concatenate([values, np.repeat(last, missing, axis=leading)], axis=leading)

    # -- trees in which a dict by variable stands for a position ----------------------------------------------------

    def is_position(self, node: object) -> bool:
        """Return whether a node of a tree is a dict with all variables."""
        return isinstance(node, dict) and set(node) == {v.name for v in self.variables}

    def fetched(self, tree: PyTree) -> PyTree:
        """Return arrays `(chain, ...)` on devices as NumPy arrays without padded rows."""

        def whole(node: PyTree) -> PyTree:
            if not self.is_position(node):
                return node if is_key(node) else to_host(node)
            return {name: self._of(name).trim(to_host(values), leading=1) for name, values in node.items()}

        return jax.tree.map(whole, tree, is_leaf=self.is_position)

    def placed(self, tree: PyTree, mesh: Mesh) -> PyTree:
        """Return the inverse of `fetched`; a padded row is zero, as it is in a run."""

        def place(node: PyTree) -> PyTree:
            if self.is_position(node):
                node = {v.name: self.padded(v, node[v.name], leading=1, zero=True) for v in self.variables}
            layout = jax.tree.map(lambda spec: NamedSharding(mesh, spec), self.chain_specs(node), is_leaf=is_spec)
            return jax.tree.map(to_devices, node, layout)

        return jax.tree.map(place, tree, is_leaf=self.is_position)

    def chain_specs(self, tree: PyTree) -> PyTree:
        """Return the partition of arrays whose first dimension is the chains."""

        def of(node: PyTree) -> PyTree:
            if not self.is_position(node):
                return PartitionSpec(CHAIN)
            return {name: self._of(name).spec(CHAIN) for name in node}

        return jax.tree.map(of, tree, is_leaf=self.is_position)

    def _of(self, name: str) -> RowSharding:
        return next(v.sharding for v in self.variables if v.name == name)

    def _leading(self, values: Mapping[str, Any]) -> tuple[int, ...]:
        first = self.variables[0]
        shape = values[first.name].shape
        return shape[: len(shape) - len(first.unconstrained_shape)]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Vector:
    """A vector of coordinates, with sums, differences, negation, and products and quotients, scalar or elementwise.

    A scalar is a number, or an array `(lanes,)` with one for each lane.

    Attributes:
        parts: arrays `(coordinates, lanes)`, or `(..., coordinates)` without lanes: the coordinates that are replicated
            and, where variables are sharded over mesh axes, one array for each set of axes.
        layout: layout of the coordinates; None for a vector that is only computed with.

    Example:
        >>> import jax.numpy as jnp
        >>> from phalanx.kernels import Vector
        >>> x = Vector((jnp.ones((3, 2)),))  # three coordinates, two lanes
        >>> (x + jnp.array([1.0, 2.0]) * x).parts[0][0]
        Array([2., 3.], dtype=float32)
    """

    parts: tuple[Any, ...]  # any: the same record holds arrays, their shapes, or their shardings
    layout: VectorLayout | None = field(default=None, repr=False, metadata={"static": True})

    __array_ufunc__ = None  # NumPy scalars on the left then use `__rmul__`

    def __add__(self, other: Vector) -> Vector:
        return self._with(other, operator.add)

    def __sub__(self, other: Vector) -> Vector:
        return self._with(other, operator.sub)

    def __neg__(self) -> Vector:
        return jax.tree.map(operator.neg, self)

    def __mul__(self, other: Vector | float | Float[Array, ""] | Float[Array, "lanes"]) -> Vector:
        return self._with(other, operator.mul)

    __rmul__ = __mul__

    def __truediv__(self, other: Vector | float | Float[Array, ""] | Float[Array, "lanes"]) -> Vector:
        return self._with(other, operator.truediv)

    @property
    def T(self) -> Vector:
        """Transpose of a vector `(coordinates, lanes)` to `(lanes, coordinates)`, or back."""
        return jax.tree.map(lambda part: part.T, self)

    def by_variable(self) -> dict[str, Any]:
        """Return the values `(..., *shape)` by variable of a vector without lanes; empty if it has no parts.

        On the host these are the whole values, without padded rows.
        """
        if not self.parts:
            return {}
        assert self.layout is not None
        variables = {}
        for part, length, members in zip(self.parts, self.layout.lengths, self.layout.members, strict=True):
            leading = part.shape[:-1]
            devices = part.shape[-1] // max(length, 1)
            by_device = part.reshape(*leading, devices, length) if devices > 1 else part
            end = 0
            for v in members:
                end += v.size
                values = by_device[..., end - v.size : end]
                if devices > 1:
                    first, *rest = v.unconstrained_shape
                    rows = values.reshape(*leading, devices * first, *rest)
                    variables[v.name] = v.sharding.trim(rows, len(leading))
                else:
                    variables[v.name] = values.reshape((*leading, *v.unconstrained_shape))
        return {v.name: variables[v.name] for v in self.layout.variables}

    def _with(self, other: Any, of_two: Callable[[Array, Any], Array]) -> Vector:
        if not isinstance(other, Vector):
            return jax.tree.map(lambda part: of_two(part, _across(other, part.ndim)), self)
        parts = tuple(of_two(a, b) for a, b in zip(self.parts, other.parts, strict=True))
        return Vector(parts, other.layout if self.layout is None else self.layout)


def choose(condition: Bool[Array, "lanes"], a: PyTree, b: PyTree) -> PyTree:
    """Return `a` in the lanes where `condition` holds, else `b`; their arrays have lanes last."""
    return jax.tree.map(lambda x, y: jnp.where(condition.reshape((1,) * (x.ndim - 1) + condition.shape), x, y), a, b)


def inner_products(groups: Sequence[tuple[str, ...]], *pairs: tuple[Vector, Vector]) -> list[Array]:
    """Return x·y over coordinates and devices for each pair `(..., coordinates, lanes)`, with one sum over devices."""
    totals: list[Array] = []
    for index, axes in enumerate(groups):
        parts = _sums_of_products([(x.parts[index], y.parts[index]) for x, y in pairs])
        parts = list(lax.psum(parts, axes)) if axes else parts
        totals = [a + b for a, b in zip(totals, parts, strict=True)] if totals else parts
    return totals


def _numbers_of(variable: Variable) -> Array:
    """Return the numbers of this device's coordinates of a variable in the whole variable, flat."""
    if not variable.sharding.axes:
        return jnp.arange(variable.size, dtype=jnp.uint32)
    per_row = math.prod(variable.unconstrained_shape[1:])
    rows = variable.sharding.row_numbers().astype(jnp.uint32)[:, None]
    return (rows * per_row + jnp.arange(per_row, dtype=jnp.uint32)[None]).ravel()


def _across(scalar: Any, dimensions: int) -> Any:
    """Return a scalar of each lane with the dimensions of the array that it scales: lanes come last."""
    return jnp.reshape(scalar, (1,) * (dimensions - 1) + jnp.shape(scalar)) if jnp.ndim(scalar) else scalar


def _sums_of_products(pairs: Sequence[tuple[Array, Array]]) -> list[Array]:
    """Return sums of x * y over the second to last dimension, in one pass for each shape, which is twice as fast."""
    products = [x * y for x, y in pairs]
    sums: list[Any] = [None] * len(products)
    for shape in {product.shape for product in products}:
        where = [i for i, product in enumerate(products) if product.shape == shape]
        together = [products[i] for i in where]
        zeros = [np.zeros((), product.dtype) for product in together]
        results = lax.reduce(
            together, zeros, lambda a, b: [x + y for x, y in zip(a, b, strict=True)], (len(shape) - 2,)
        )
        for i, value in zip(where, results, strict=True):
            sums[i] = value
    return sums
