"""Placement of the states of reducers over the mesh: the state of sharded rows is sharded as they are.

A reducer is written for one array, without a mesh. The dimension of rows in its state is found by comparing the shapes
of states for n and for 2 n rows, and the jaxpr of its update must show that parts without rows do not depend on rows;
otherwise all devices reduce all rows. (Phalanx does not check that a user's reducer treats rows independently.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct
from jax.sharding import PartitionSpec

from phalanx.jaxprs.dependence import varying_axes
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.row_sharding import GLOBAL, RowSharding
from phalanx.mesh.specs import PyTree
from phalanx.placements import DeviceRows
from phalanx.reducers.reducer import Reduce, Reducer
from phalanx.reducers.reductions import WHOLE, Reductions, parts_of

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
class DrawValues:
    """Values of one draw on a device.

    Attributes:
        shapes: shapes by variable, on the device.
        shardings: shardings by variable.
        rows: evaluation of functions of all rows; None if all are on one device.
    """

    shapes: Mapping[str, ShapeDtypeStruct]
    shardings: Mapping[str, RowSharding]
    rows: DeviceRows | None

    def of_chains(self, count: int) -> dict[str, ShapeDtypeStruct]:
        """Return the shapes of all rows, for several chains."""
        return {
            name: ShapeDtypeStruct((count, *self.shardings[name].whole_shape(shape.shape)), shape.dtype)
            for name, shape in self.shapes.items()
        }


class ReducedRows(NamedTuple):
    """Reducers of values that may be sharded.

    Attributes:
        reductions: the reducers with a state of their own, whose functions are evaluated on one device's rows.
        placements: placement of every array of their states, in their structure.
    """

    reductions: Reductions
    placements: StatePlacements


def reduced_rows(reductions: Reductions, values: DrawValues) -> ReducedRows:
    """Return reducers on one device's rows of the values that they reduce.

    The state of an array that has a row for each row of sharded values is sharded as they are, unless the reducer
    combines rows: then all devices have all rows.
    """
    entries: list[tuple[str, Reduce]] = []
    placements: StatePlacements = {}
    for name, entry in reductions.stateful:
        shardings = _own_shardings(entry, values)
        parts: dict[str, Any] = {}
        for part, shape in _shapes(name, entry, values).items():
            states = _state_placements(entry.reducer, shape, shardings.get(part, GLOBAL))
            if states is None:
                shardings[part] = GLOBAL
                states = _state_placements(entry.reducer, shape, GLOBAL)
            parts[part] = _with_pooled(entry.reducer, shape, states)
        placements[name] = parts
        entries.append((name, _on_rows(entry, values, shardings)))
    return ReducedRows(Reductions(tuple(entries)), placements)


def _shapes(name: str, entry: Reduce, values: DrawValues) -> dict[str, ShapeDtypeStruct]:
    """Return the shapes of the arrays that an entry reduces, for two chains, with all rows."""
    axes = [] if values.rows is None else [(axis, 1) for axis in values.rows.sizes]
    trace = jax.make_jaxpr(lambda operand: parts_of(name, entry, operand), axis_env=axes, return_shape=True)
    return trace(values.of_chains(2))[1]


def _own_shardings(entry: Reduce, values: DrawValues) -> dict[str, RowSharding]:
    """Return the shardings of the arrays that an entry reduces if no rows are moved."""
    if values.rows is None:
        return {}
    outputs = values.rows.inspect(entry.fn, (dict(values.shardings),), dict(values.shapes)).shardings
    return outputs if isinstance(outputs, dict) else {WHOLE: outputs}


def _on_rows(entry: Reduce, values: DrawValues, shardings: Mapping[str, RowSharding]) -> Reduce:
    """Return an entry whose function is evaluated on one device's rows."""
    if values.rows is None:
        return entry
    outputs = shardings[WHOLE] if WHOLE in shardings else dict(shardings)
    on_device = values.rows.function(entry.fn, (dict(values.shardings),), outputs)
    return replace(entry, fn=on_device)


def _state_placements(reducer: Reducer, whole: ShapeDtypeStruct, sharding: RowSharding) -> PyTree | None:
    """Return the placement of every array of a state; None if the reducer combines the rows of a sharded array."""
    chains, *rest = whole.shape
    shape = ShapeDtypeStruct((chains, sharding.local_rows, *rest[1:]), whole.dtype) if sharding.axes else whole
    # wrapped, since a reducer's function may be a callable tuple, which JAX refuses
    state = jax.eval_shape(lambda draw: reducer.init(draw), shape)
    if not sharding.axes:
        return jax.tree.map(lambda _: ArrayPlacement(), state)
    larger = ShapeDtypeStruct((chains, 2 * sharding.local_rows, *rest[1:]), shape.dtype)
    grown = jax.eval_shape(lambda draw: reducer.init(draw), larger)
    placements = jax.tree.map(lambda a, b: _placement(a.shape, b.shape, sharding), state, grown)
    leaves = jax.tree.leaves(placements, is_leaf=lambda node: node is None)
    if any(placement is None for placement in leaves):
        return None
    return placements if _keeps_rows(reducer, shape, state, leaves, sharding) else None


def _with_pooled(reducer: Reducer, whole: ShapeDtypeStruct, placements: PyTree) -> PyTree:
    """Return the placements with their attributes `pooled` and `empty` set."""
    chains, *rest = whole.shape
    state = jax.eval_shape(lambda draw: reducer.init(draw), whole)
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


def _placement(before: tuple[int, ...], after: tuple[int, ...], sharding: RowSharding) -> ArrayPlacement | None:
    """Return the placement of an array of a state, whose dimension of rows grows with the rows; None if several do."""
    grown = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    if not grown:
        return ArrayPlacement()
    if len(grown) > 1 or before[grown[0]] != sharding.local_rows:
        return None
    return ArrayPlacement(sharding, grown[0])


def _keeps_rows(
    reducer: Reducer, shape: ShapeDtypeStruct, state: PyTree, placements: list[ArrayPlacement], sharding: RowSharding
) -> bool:
    """Return whether the parts of a state without rows are the same on all devices."""
    leaves = [frozenset(placement.sharding.axes) for placement in placements]
    where = ShapeDtypeStruct(shape.shape[:1], np.bool_)
    program = jax.make_jaxpr(lambda *operands: reducer.update(*operands))(state, shape, where)
    varying = varying_axes(program, [*leaves, frozenset(sharding.axes), frozenset()])
    return all(axes <= allowed_axes for axes, allowed_axes in zip(varying, leaves, strict=True))
