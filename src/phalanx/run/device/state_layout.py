"""Placement of the states of reducers over the mesh: the state of sharded rows is sharded as they are.

A reducer is written for one array, without a mesh. The dimension of rows in its state is found by comparing the shapes
of states for n and for 2 n rows. The jaxpr of its update must show that parts without rows do not depend on rows.
(Phalanx does not check that a user's reducer treats rows independently.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct
from jax.sharding import PartitionSpec

from phalanx.jaxprs.dependence import Axes, varying_axes
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.space import GLOBAL, RowSharding
from phalanx.mesh.specs import PyTree
from phalanx.reducers.reducer import Reduce, Reducer, is_of_user
from phalanx.reducers.reductions import Reductions, parts_of
from phalanx.run.device.reduced_rows import mixed_parts

if TYPE_CHECKING:
    from jaxtyping import Shaped

StatePlacements = dict[str, dict[str, Any]]
"""Placements by reducer and by reduced array, in the structure of the states."""


@dataclass(frozen=True)
class ArrayPlacement:
    """Placement of one array of a state.

    Attributes:
        sharding: sharding of its rows.
        dimension: dimension along which its rows lie.
        pooled: true if each device has one entry for all of its chains, rather than one for each chain.
        empty: if only some arrays of the state are pooled, the entry of a chain without draws, `(1, ...)`.
    """

    sharding: RowSharding = GLOBAL
    dimension: int = 0
    pooled: bool = False
    empty: np.ndarray | None = field(default=None, repr=False, compare=False)

    @property
    def spec(self) -> PartitionSpec:
        """Partition of the array; chains are its first dimension."""
        if not self.sharding.axes:
            return PartitionSpec(CHAIN)
        return PartitionSpec(CHAIN, *[None] * (self.dimension - 1), self.sharding.axes)

    def trim(self, whole: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        """Return the array without padded rows."""
        if not self.sharding.axes:
            return whole
        return whole[(slice(None),) * self.dimension + (slice(0, self.sharding.rows),)]

    def padded(self, whole: Shaped[np.ndarray, "..."], devices: int) -> Shaped[np.ndarray, "..."]:
        """Return the inverse of `trim` for a number of devices, with zeros in padded rows."""
        if not self.sharding.axes:
            return whole
        missing = self.sharding.local_rows * devices - self.sharding.rows
        return np.pad(whole, [(0, missing * (axis == self.dimension)) for axis in range(whole.ndim)])


@dataclass(frozen=True)
class DrawShapes:
    """Shapes of the values of one draw on a device.

    Attributes:
        shapes: shapes by variable.
        shardings: shardings by variable.
        sizes: devices along each mesh axis except the chains'.
    """

    shapes: Mapping[str, ShapeDtypeStruct]
    shardings: Mapping[str, RowSharding]
    sizes: Mapping[str, int]

    def of_chains(self, count: int) -> dict[str, ShapeDtypeStruct]:
        """Return the shapes for several chains."""
        return {name: ShapeDtypeStruct((count, *s.shape), s.dtype) for name, s in self.shapes.items()}


def placements_of(reductions: Reductions, values: DrawShapes) -> StatePlacements:
    """Return the placement of every array of the reducers' states, in their structure.

    Raises:
        ValueError: when a result that depends on sharded variables lacks their rows, or a reducer mixes rows.
    """
    return {
        name: {
            part: _state_placements(f"reducers[{name!r}]", entry.reducer, shape, sharding)
            for part, (shape, sharding) in _parts(name, entry, values).items()
        }
        for name, entry in reductions.stateful
    }


def _parts(name: str, entry: Reduce, values: DrawShapes) -> dict[str, tuple[ShapeDtypeStruct, RowSharding]]:
    """Return the shapes, for two chains, and the shardings of the arrays that an entry reduces."""
    axis_env = list(values.sizes.items())
    program, shapes = jax.make_jaxpr(lambda given: parts_of(name, entry, given), axis_env=axis_env, return_shape=True)(
        values.of_chains(2)
    )
    inputs = [frozenset(values.shardings[variable].axes) for variable in sorted(values.shapes)]
    axes = dict(zip(sorted(shapes), varying_axes(program, inputs), strict=True))
    shardings = {part: _sharding_of_part(name, part, shape, axes[part], values) for part, shape in shapes.items()}
    if is_of_user(entry) and any(sharding.axes for sharding in values.shardings.values()):
        mixed = mixed_parts(
            lambda given: parts_of(name, entry, given), values.of_chains(2), values.shardings, values.sizes, shardings
        )
        if mixed:
            raise ValueError(_function_mixes(name, mixed[0], values))
    return {part: (shape, shardings[part]) for part, shape in shapes.items()}


def _function_mixes(name: str, part: str, values: DrawShapes) -> str:
    spread = {n: sharding for n, sharding in values.shardings.items() if sharding.axes}
    variables = ", ".join(map(repr, spread))
    axis = sorted({axis for sharding in spread.values() for axis in sharding.axes})[0]
    what = f" {part!r}" if part else ""
    return (
        f"reducers[{name!r}]: the function's result{what} from one device's rows of {variables} differs from its "
        f"result from all rows, or is finite at no test value. The function may mix rows, like a sort, a mean or a "
        f"difference to the row before, or read their number from a shape. Return a value for each row; or a value "
        f"equal on all devices, such as jax.lax.psum(x.sum(0), {axis!r}) if rows divide evenly; or compute it from "
        f"stored draws, with posterior.predict(fn)."
    )


def _sharding_of_part(name: str, part: str, shape: ShapeDtypeStruct, axes: Axes, values: DrawShapes) -> RowSharding:
    if not axes:
        return GLOBAL
    fitting = {
        variable: sharding
        for variable, sharding in values.shardings.items()
        if set(sharding.axes) == axes and shape.shape[1:2] == (sharding.local_rows,)
    }
    if part in fitting:
        return fitting[part]
    if len({sharding.rows for sharding in fitting.values()}) == 1:
        return next(iter(fitting.values()))
    if fitting:
        first, names = next(iter(fitting)), ", ".join(map(repr, fitting))
        raise ValueError(
            f"reducers[{name!r}]: the function's result has as many rows on a device as {names} have, but these "
            f"differ in their total numbers of rows. Name the variable whose rows the result has: return a dict "
            f"{{{first!r}: ...}}."
        )
    where = " and ".join(map(repr, sorted(axes)))
    what = f" for {part!r}" if part else ""
    raise ValueError(
        f"reducers[{name!r}]: the function's result{what} depends on variables that are sharded over {where}, but its "
        f"shape {shape.shape[1:]} on one device does not begin with their rows. Return one row for each of theirs; or "
        f"make it equal on all devices, with jax.lax.psum or pmean over {where}."
    )


def _state_placements(what: str, reducer: Reducer, shape: ShapeDtypeStruct, sharding: RowSharding) -> PyTree:
    # wrapped, since a reducer's function may be a callable tuple, which JAX refuses
    state = jax.eval_shape(lambda draw: reducer.init(draw), shape)
    if not sharding.axes:
        placements = jax.tree.map(lambda _: ArrayPlacement(), state)
        return _with_pooled(reducer, state, placements, shape)
    chains, rows, *rest = shape.shape
    larger = jax.eval_shape(lambda draw: reducer.init(draw), ShapeDtypeStruct((chains, 2 * rows, *rest), shape.dtype))
    placements = jax.tree.map(lambda a, b: _placement(what, reducer, a.shape, b.shape, sharding), state, larger)
    _check_parts_without_rows(what, reducer, shape, state, placements, sharding)
    whole = ShapeDtypeStruct((chains, sharding.rows, *rest), shape.dtype)
    return _with_pooled(reducer, state, placements, whole)


def _with_pooled(reducer: Reducer, state: PyTree, placements: PyTree, whole: ShapeDtypeStruct) -> PyTree:
    """Return the placements with their attributes `pooled` and `empty` set."""
    chains, *rest = whole.shape
    more = jax.eval_shape(lambda draw: reducer.init(draw), ShapeDtypeStruct((2 * chains, *rest), whole.dtype))
    pooled = jax.tree.map(lambda a, b: a.shape[:1] == b.shape[:1], state, more)
    placements = jax.tree.map(lambda placement, flag: replace(placement, pooled=flag), placements, pooled)
    flags = jax.tree.leaves(pooled)
    if not any(flags) or all(flags):
        return placements
    nothing = reducer.init(jnp.zeros(whole.shape, whole.dtype))
    return jax.tree.map(lambda placement, leaf: replace(placement, empty=np.asarray(leaf)[:1]), placements, nothing)


def split_pooled(placements: PyTree, state: PyTree) -> list[PyTree]:
    """Return one state for each device, which merge to `state`.

    Arrays with an entry for each chain are in the first state; in the others they are as for chains without draws.
    """
    flat, structure = jax.tree.flatten(state)
    of = jax.tree.leaves(placements)
    devices = {len(leaf) for placement, leaf in zip(of, flat, strict=True) if placement.pooled}
    if devices <= {1}:
        return [state]

    def part(number: int, placement: ArrayPlacement, leaf: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        if placement.pooled:
            return leaf[number : number + 1]
        return leaf if number == 0 or placement.empty is None else np.repeat(placement.empty, len(leaf), axis=0)

    return [
        jax.tree.unflatten(structure, [part(number, placement, leaf) for placement, leaf in zip(of, flat, strict=True)])
        for number in range(max(devices))
    ]


def _placement(
    what: str, reducer: Reducer, before: tuple[int, ...], after: tuple[int, ...], sharding: RowSharding
) -> ArrayPlacement:
    grown = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    if not grown:
        return ArrayPlacement()
    if len(grown) > 1 or before[grown[0]] != sharding.local_rows:
        raise ValueError(_reducer_mixes(what, reducer, sharding))
    return ArrayPlacement(sharding, grown[0])


def _check_parts_without_rows(
    what: str, reducer: Reducer, shape: ShapeDtypeStruct, state: PyTree, placements: PyTree, sharding: RowSharding
) -> None:
    """Raise if a part of the state without rows would differ from device to device."""
    leaves = [frozenset(placement.sharding.axes) for placement in jax.tree.leaves(placements)]
    where = ShapeDtypeStruct(shape.shape[:1], np.bool_)
    program = jax.make_jaxpr(lambda *given: reducer.update(*given))(state, shape, where)
    found = varying_axes(program, [*leaves, frozenset(sharding.axes), frozenset()])
    if any(axes - known for axes, known in zip(found, leaves, strict=True)):
        raise ValueError(_reducer_mixes(what, reducer, sharding))


def _reducer_mixes(what: str, reducer: Reducer, sharding: RowSharding) -> str:
    return (
        f"{what}: {reducer} mixes the rows of the array that it reduces, which are sharded over "
        f"{' and '.join(map(repr, sharding.axes))}. Use a reducer of single elements, such as moments(); or "
        f"reduce a function that is equal on all devices, with phx.reduce and jax.lax.psum."
    )
