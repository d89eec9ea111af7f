"""Evaluation of a program by rules of placement: converts operands, masks padded rows, binds on local shapes.

The program `jnp.sum((x @ w) * y)` of x (4, 2) and y (4,), whose rows are sharded over two devices, and w (2,):

    x @ w       rows times replicated weights       sharded: two rows on each device
    (...) * y   two values that are sharded in the same way   sharded
    sum         over the rows                       partial sum: a number on each device
    result      wanted replicated                   one all-reduce of four bytes
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jax.extend.core import JaxprEqn
from jax.typing import ArrayLike

from phalanx.jaxprs.source_lines import source_line_of
from phalanx.jaxprs.walking import (
    ELEMENTWISE,
    Call,
    Interpreter,
    aval_of,
    axes_named,
    needed_equations,
    opened,
)
from phalanx.mesh.compatibility.jax_internals import bind
from phalanx.placements.mesh_axis import AxisName, MeshAxis
from phalanx.placements.placement import (
    PARTIAL,
    REPLICATED,
    PlacedValue,
    Placement,
    Placements,
    is_sharded,
)
from phalanx.placements.row_functions import ADDED_TOGETHER, DIVIDED, RowFunction
from phalanx.placements.rules import RULES, Plan
from phalanx.placements.rules.random_bits import bits_of_rows
from phalanx.placements.rules.reductions import function_plan
from phalanx.placements.rules.shapes import own_sizes

RECOMPUTED = ELEMENTWISE | {
    "broadcast_in_dim",
    "concatenate",
    "cumlogsumexp",
    "cummax",
    "cumprod",
    "cumsum",
    "dot_general",
    "reduce_max",
    "random_bits",
    "reduce_min",
    "reduce_sum",
    "reshape",
    "split",
    "squeeze",
    "threefry2x32",
    "transpose",
}
"""Primitives whose result is computed again: from replicated operands if those are smaller, or from some rows."""

COLLECTIVES = frozenset(
    ("psum", "pmax", "pmin", "psum_invariant", "pvary", "ppermute", "all_gather", "reduce_scatter", "all_to_all")
)
"""Collectives of the user's own program, which is traced as on one device: their results are their operands."""


class PlacementInterpreter(Interpreter[PlacedValue]):
    """Evaluation of a program on one device's parts of whole arrays.

    Args:
        sizes: number of devices along each mesh axis, or along several axes taken together; at least two.
        names: mesh axes whose names the program may use, in collectives of its own.
        functions: functions of rows by name, which are called on local arrays.

    Attributes:
        is_probing: whether only shapes and placements are evaluated, in which case messages are not recorded.
        body_placements: cached placements of the results of loop bodies, by program and placements of its inputs.
    """

    def __init__(
        self,
        sizes: Mapping[AxisName, int],
        names: Collection[str] = (),
        functions: Mapping[str, RowFunction] | None = None,
    ) -> None:
        self.axes = [MeshAxis(name, size, self._message) for name, size in sizes.items()]
        self.names = frozenset(names)
        self._functions = functions or {}
        self.replicated: Placements = (REPLICATED,) * len(self.axes)
        self.messages: list[tuple[str, AxisName, int, str, Any]] = []
        self._equations: list[JaxprEqn] = []  # the one that is evaluated, after those that call it
        self._turns = 1
        self.is_probing = False
        self.body_placements: dict[Any, Any] = {}

    # -- messages -----------------------------------------------------------------------------------------------------

    def record(self, collective: str, axis: AxisName, arrays: Sequence[Array], copies: int = 1) -> None:
        """Record a message of arrays."""
        if self.is_probing:
            return
        nbytes = sum(array.size * getattr(array.dtype, "itemsize", 8) for array in arrays) * copies * self._turns
        primitive = self._equations[-1].primitive.name if self._equations else "result"
        lines = map(source_line_of, reversed(self._equations))
        self.messages.append((collective, axis, nbytes, primitive, next(filter(None, lines), None)))

    def _message(self, collective: str, axis: AxisName, array: Array, copies: int) -> None:
        self.record(collective, axis, [array], copies)

    @contextlib.contextmanager
    def probing(self) -> Iterator[None]:
        """Evaluate shapes and placements only: messages are not recorded."""
        before = self.is_probing
        self.is_probing = True
        yield
        self.is_probing = before

    @contextlib.contextmanager
    def loop(self, turns: int) -> Iterator[None]:
        """Evaluate the body of a loop: messages are counted as often as it turns."""
        turns_before = self._turns
        self._turns = self._turns * turns
        in_loop_before = [axis.is_in_loop for axis in self.axes]
        for axis in self.axes:
            axis.is_in_loop = True
        yield
        self._turns = turns_before
        for axis, before in zip(self.axes, in_loop_before, strict=True):
            axis.is_in_loop = before

    # -- conversions ---------------------------------------------------------------------------------------------------

    def local_shape(self, shape: Sequence[int], placements: Placements) -> tuple[int, ...]:
        """Return the shape of one device's part of a value."""
        local = list(shape)
        for axis, placement in zip(self.axes, placements, strict=True):
            if is_sharded(placement):
                local[placement] = axis.rows(local[placement])
        return tuple(local)

    def convert(self, value: PlacedValue, target: Placements) -> Array:
        """Return this device's array of a value with other placements; each conversion is made once.

        The first way that is possible is taken:

        1. A broadcast is made again from its operand, which is smaller.
        2. A device computes its own rows of a replicated value from rows of the replicated operands.
        3. A sum is computed from operands that are added first, where those are no larger.
        4. A replicated value is computed from operands that are gathered first, where those are smaller.
        5. The array itself is moved.
        """
        if target in value.forms:
            return value.forms[target]
        pairs = list(zip(value.placements, target, strict=True))
        only_adds = all(old == new or (old == PARTIAL and new == REPLICATED) for old, new in pairs)
        value.demanded |= {axis for axis, (old, new) in enumerate(pairs) if old != new and new == REPLICATED}
        if value.equation is not None and value.equation.primitive.name == "broadcast_in_dim":
            array = self._broadcast(value.equation, value, target)
        elif (plans := self._division(value, target)) is not None:
            assert value.equation is not None
            array = self._bind(value.equation, value.operands, plans)[value.output].array
        elif value.equation is not None and only_adds and value.is_added_before:
            array = self._bind(value.equation, value.operands, self._plans_of_sums(value, target))[value.output].array
        elif target == self.replicated and value.equation is not None and value.is_recomputed:
            operands = [PlacedValue(self.convert(x, target), target, x.shape, x.dtype) for x in value.operands]
            array = self.bind_replicated(value.equation, operands)[value.output].array
        else:
            array = self._move(value, target)
        value.forms[target] = array
        if only_adds:
            value.placements = target  # the sum has been added: later equations read it as replicated
        return array

    def _broadcast(self, equation: JaxprEqn, value: PlacedValue, target: Placements) -> Array:
        """Return a broadcast from its operand, which is smaller, in the placement that corresponds to `target`."""
        operand = value.operands[0]
        dims = equation.params["broadcast_dimensions"]

        def source(want: Placement) -> Placement:
            if not is_sharded(want):
                return want
            is_kept = want in dims and operand.shape[dims.index(want)] == value.shape[want]
            return dims.index(want) if is_kept else REPLICATED

        array = self.convert(operand, tuple(map(source, target)))
        return lax.broadcast_in_dim(array, self.local_shape(value.shape, target), dims)

    def _division(self, value: PlacedValue, target: Placements) -> list[Plan] | None:
        """Return plans by which a device computes only its own rows of a replicated value; None if it cannot.

        A parameter that a program repeats for all rows is replicated, and so are values computed from it alone. Rows
        that are sliced out of such a value would be recorded as a selection of rows by number, which they are not; see
        `MeshAxis.note_row_numbers`.
        """
        changed_axes = [
            number for number, (old, new) in enumerate(zip(value.placements, target, strict=True)) if old != new
        ]
        equation = value.equation
        operands = value.operands
        if equation is None or len(changed_axes) != 1 or value.placements[changed_axes[0]] != REPLICATED:
            return None
        (number,) = changed_axes
        dim = target[number]
        if not is_sharded(dim) or any(operand.placements[number] != REPLICATED for operand in operands):
            return None  # rows of the operands would be sent
        plan = self._plan_of_rows(self.axes[number], equation, operands, dim, value.output)
        if plan is None:
            return None
        plans = self._plans(equation, operands)
        plans[number] = plan
        gives_wanted = all(other.results[value.output] == want for other, want in zip(plans, target, strict=True))
        conflicts = any(_conflict(plan, other) for axis, other in enumerate(plans) if axis != number)
        return plans if gives_wanted and not conflicts else None

    def _plans_of_sums(self, value: PlacedValue, target: Placements) -> list[Plan]:
        """Return plans that compute a value from operands that are added first, along the axes where it is a sum.

        That includes axes along which the value itself has been added before.
        """
        equation = value.equation
        operands = value.operands
        assert equation is not None
        replicated_plan = Plan([REPLICATED] * len(operands), [REPLICATED] * len(equation.outvars))
        pairs = zip(self._plans(equation, operands), target, strict=True)
        return [plan if plan.results[value.output] == want else replicated_plan for plan, want in pairs]

    def _plan_of_rows(
        self, axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], dim: int, output: int
    ) -> Plan | None:
        """Return the plan that computes each device's rows of a result from replicated operands; None without one."""
        if equation.primitive.name == "random_bits":
            return bits_of_rows(axis, equation, operands[0], dim)
        rule = RULES.get(equation.primitive.name)
        size = aval_of(equation.outvars[output]).shape[dim]
        if rule is None:
            return None
        for position, operand in enumerate(operands):
            for operand_dim in (number for number, length in enumerate(operand.shape) if length == size):
                placements: list[Placement] = [REPLICATED] * len(operands)
                placements[position] = operand_dim
                plan = rule(axis, equation, operands, placements)
                if plan is not None and plan.results[output] == dim and not plan.masks and plan.local is None:
                    return plan
        return None

    def _move(self, value: PlacedValue, goal: Placements) -> Array:
        """Return a value moved axis by axis: gathers, sums, own rows, so that no dimension is divided twice."""
        array = value.array
        placements = list(value.placements)

        def move(number: int, target: Placement) -> None:
            nonlocal array
            others = [REPLICATED if axis == number else placement for axis, placement in enumerate(placements)]
            shape = self.local_shape(value.shape, tuple(others))
            array = self.axes[number].move(array, placements[number], target, shape)
            placements[number] = target
            value.forms.setdefault(tuple(placements), array)

        for number, want in enumerate(goal):
            if is_sharded(placements[number]) and placements[number] != want:
                move(number, REPLICATED)
        for number, want in enumerate(goal):
            if not is_sharded(want) and placements[number] != want:
                move(number, want)
        for number, want in enumerate(goal):
            if placements[number] != want:
                if is_sharded(want) and value.has_equal_rows(want):  # any rows will do
                    rows = self.axes[number].rows(value.shape[want])
                    array = lax.slice_in_dim(array, 0, rows, axis=want)
                    placements[number] = want
                else:
                    move(number, want)
        return array

    def add(self, values: Sequence[PlacedValue], targets: Sequence[Placements]) -> list[Array]:
        """Return values in the placements `targets`; those that are added over the same axes share one all-reduce."""
        parts: list[Array] = []
        added_over: dict[tuple[int, ...], list[int]] = {}
        for number, (value, placements) in enumerate(zip(values, targets, strict=True)):
            pairs = list(zip(value.placements, placements, strict=True))
            is_added = [old == PARTIAL and new == REPLICATED for old, new in pairs]
            before = tuple(PARTIAL if adds else new for adds, (_, new) in zip(is_added, pairs, strict=True))
            parts.append(self.convert(value, before))
            added_over.setdefault(tuple(axis for axis, adds in enumerate(is_added) if adds), []).append(number)
        added_over.pop((), None)
        for over, numbers in added_over.items():
            for axis in over:
                self.record("all-reduce", self.axes[axis].name, [parts[number] for number in numbers])
            mesh_axes = [self.axes[axis].name for axis in over]
            names = [name for axis in mesh_axes for name in ((axis,) if isinstance(axis, str) else axis)]
            for number, total in zip(numbers, lax.psum([parts[number] for number in numbers], names), strict=True):
                parts[number] = total
        return parts

    def _added_together(self, values: Sequence[PlacedValue], like: Sequence[PlacedValue]) -> list[PlacedValue]:
        """Return partial sums added in one all-reduce; a device gets its rows where the value in `like` is sharded."""
        targets = [
            tuple(
                (of_other if is_sharded(of_other) else REPLICATED) if old == PARTIAL else old
                for old, of_other in zip(value.placements, other.placements, strict=True)
            )
            for value, other in zip(values, like, strict=True)
        ]
        targets = [
            want if _is_valid(want) else tuple(REPLICATED if old == PARTIAL else old for old in value.placements)
            for value, want in zip(values, targets, strict=True)
        ]
        triples = zip(self.add(values, targets), targets, values, strict=True)
        return [PlacedValue(array, want, value.shape, value.dtype) for array, want, value in triples]

    def resolve(self, value: PlacedValue, placements: Placements) -> PlacedValue:
        """Return a value that has these placements and no origin, as the operand of a loop or branch."""
        if placements == value.placements:
            return value
        return PlacedValue(self.convert(value, placements), placements, value.shape, value.dtype)

    # -- equations -----------------------------------------------------------------------------------------------------

    def constant(self, value: ArrayLike) -> PlacedValue:
        """Return a constant of the program, which all devices have."""
        array = value if isinstance(value, jax.Array) else jnp.asarray(value)
        placed_value = PlacedValue(array, self.replicated, array.shape, array.dtype)
        placed_value.constant = None if isinstance(value, Tracer) else value
        return placed_value

    def equation(self, equation: JaxprEqn, inputs: list[PlacedValue]) -> list[PlacedValue]:
        """Return the results of an equation; messages are recorded under its name and line."""
        self._equations.append(equation)
        results = super().equation(equation, inputs)
        self._equations.pop()
        return results

    def primitive(self, equation: JaxprEqn, inputs: list[PlacedValue]) -> list[PlacedValue]:
        """Return the results of a primitive, by its rule along each axis."""
        name = equation.primitive.name
        if name in COLLECTIVES | {"axis_index"} and self.names.issuperset(axes_named(equation)):
            return [self._of_one_device(equation, *inputs)] if len(inputs) < 2 else inputs
        if name == "custom_linear_solve" and (solution := self._solve(equation, inputs)) is not None:
            return solution
        return self._bind(equation, inputs, self._plans(equation, inputs))

    def _of_one_device(self, equation: JaxprEqn, *operand: PlacedValue) -> PlacedValue:
        """Return the result of a user's own collective over one device, which has all rows."""
        if not operand:
            return self.constant(np.int32(0))  # the number of the device
        (value,), shape = operand, aval_of(equation.outvars[0]).shape
        if shape == value.shape:
            return value
        new = equation.params["all_gather_dimension"]  # the devices' arrays, stacked

        def with_new_dimension(dim: Placement) -> Placement:
            return dim + 1 if is_sharded(dim) and dim >= new else dim

        placements = tuple(map(with_new_dimension, value.placements))
        return PlacedValue(lax.expand_dims(value.array, [new]), placements, shape, value.dtype)

    def _plans(self, equation: JaxprEqn, inputs: Sequence[PlacedValue]) -> list[Plan]:
        """Return a plan for each axis; where the plans of two axes conflict, the later axis replicates."""
        everything_replicated = Plan([REPLICATED] * len(inputs), [REPLICATED] * len(equation.outvars))
        plans: list[Plan] = []
        for number, axis in enumerate(self.axes):
            placements = [value.placements[number] for value in inputs]
            rule = RULES.get(equation.primitive.name)
            if rule is None or all(placement == REPLICATED for placement in placements):
                plan = everything_replicated
            else:
                plan = rule(axis, equation, inputs, placements) or everything_replicated
            plans.append(everything_replicated if any(_conflict(plan, other) for other in plans) else plan)
        return plans

    def _bind(self, equation: JaxprEqn, inputs: Sequence[PlacedValue], plans: Sequence[Plan]) -> list[PlacedValue]:
        """Return the results of a primitive on local arrays."""
        needs = list(zip(*(plan.needs for plan in plans), strict=True))
        results = list(zip(*(plan.results for plan in plans), strict=True))
        arrays = [self.convert(value, need) for value, need in zip(inputs, needs, strict=True)]
        for axis, plan in zip(self.axes, plans, strict=True):
            for operand, dim, fill in plan.masks:
                arrays[operand] = axis.mask(arrays[operand], dim, inputs[operand].shape[dim], fill)
        local = next((plan.local for plan in plans if plan.local), None)
        if local is not None:
            outputs = local(*arrays)
        else:
            parameters = self._local_parameters(equation, inputs, needs, results, arrays)
            outputs = bind(equation.primitive, arrays, parameters)
        is_recomputed = equation.primitive.name in RECOMPUTED
        avals = [aval_of(variable) for variable in equation.outvars]
        triples = zip(outputs, results, avals, strict=True)
        return [
            PlacedValue(
                output, placements, aval.shape, aval.dtype, (equation, inputs, number) if is_recomputed else None
            )
            for number, (output, placements, aval) in enumerate(triples)
        ]

    def _local_parameters(
        self,
        equation: JaxprEqn,
        inputs: Sequence[PlacedValue],
        needs: Sequence[Placements],
        results: Sequence[Placements],
        arrays: Sequence[Array],
    ) -> dict[str, Any]:
        """Return the parameters of an equation with shapes of one device's arrays."""
        name = equation.primitive.name
        parameters = dict(equation.params)
        if all(need == self.replicated for need in needs):
            return parameters
        if name in ("broadcast_in_dim", "reshape"):
            shape = self.local_shape(aval_of(equation.outvars[0]).shape, results[0])
            parameters["shape" if name == "broadcast_in_dim" else "new_sizes"] = shape
            parameters["sharding"] = None
        if name == "slice":
            parameters["limit_indices"] = tuple(own_sizes(parameters["limit_indices"], inputs[0], arrays[0]))
        if name in ("gather", "dynamic_slice"):
            parameters["slice_sizes"] = tuple(own_sizes(parameters["slice_sizes"], inputs[0], arrays[0]))
        return parameters

    def _solve(self, equation: JaxprEqn, inputs: list[PlacedValue]) -> list[PlacedValue] | None:
        """Return a linear solve by the program that solves it: its other programs serve derivatives only."""
        solver = equation.params["jaxprs"].solve
        if len(opened(solver)[0].outvars) != len(equation.outvars):
            return None
        lengths = equation.params["const_lengths"]
        first = lengths.matvec + lengths.vecmat
        constants = inputs[first : first + lengths.solve]
        sides = inputs[sum(lengths) :]
        return self.run(solver, [*constants, *sides])

    def equations(self, jaxpr: Any) -> Sequence[JaxprEqn]:
        """Return the equations that the outputs need: checks of arguments would be reported as gathers."""
        return needed_equations(jaxpr, jaxpr.outvars)

    # -- calls ----------------------------------------------------------------------------------------

    def call(self, equation: JaxprEqn, parts: Call, inputs: list[PlacedValue]) -> list[PlacedValue]:
        """Follow a primitive that only calls a program; rematerialised programs keep the barrier before them."""
        if not parts.has_rule:
            return self.primitive(equation, inputs)
        name = equation.params.get("name", "")
        if name.startswith(DIVIDED):
            over = [0 if axis.name == name.removeprefix(DIVIDED) else REPLICATED for axis in self.axes]
            return [self.resolve(inputs[0], tuple(over))]
        if name == ADDED_TOGETHER:
            half = len(inputs) // 2
            return self._added_together(inputs[:half], inputs[half:])
        function = self._functions.get(name)
        if function is not None and (row_function := function.batched(equation)) is not None:
            return self._call_on_rows(row_function, equation, inputs[-len(row_function.shapes) :])
        if equation.params.get("differentiated") and np.any(equation.params["prevent_cse"]):
            arrays = lax.optimization_barrier([value.array for value in inputs])
            inputs = [
                PlacedValue(array, value.placements, value.shape, value.dtype)
                for array, value in zip(arrays, inputs, strict=True)
            ]
        return self.run(parts.program, inputs)

    def _call_on_rows(
        self, function: RowFunction, equation: JaxprEqn, inputs: Sequence[PlacedValue]
    ) -> list[PlacedValue]:
        """Return the results of a function of rows, called on local arrays."""
        plans: list[Plan] = []
        real: Array | None = None
        for number, axis in enumerate(self.axes):
            plan = function_plan(function, equation, [value.placements[number] for value in inputs])
            if not function.adds_entries and 0 in plan.needs:
                if any(0 in other.needs for other in plans):
                    plan = function_plan(function, equation, [REPLICATED] * len(inputs))
                else:
                    real = axis.real_rows(inputs[plan.needs.index(0)].shape[0])
            plans.append(plan)
        plans = [plan._replace(local=lambda *arrays: function.on_device(real, arrays)) for plan in plans]
        return self._bind(equation, inputs, plans)

    def bind_replicated(self, equation: JaxprEqn, inputs: Sequence[PlacedValue]) -> list[PlacedValue]:
        """Return the results of an equation on replicated operands; programs that it calls are not rewritten."""
        plan = Plan([REPLICATED] * len(inputs), [REPLICATED] * len(equation.outvars))
        return self._bind(equation, inputs, [plan] * len(self.axes))


def _is_valid(placements: Placements) -> bool:
    """Return whether no two axes divide the same dimension."""
    dims = list(filter(is_sharded, placements))
    return len(set(dims)) == len(dims)


def _conflict(plan: Plan, other: Plan) -> bool:
    """Return whether two plans divide the same dimension of an operand or result, or both replace the primitive."""
    if plan.local and other.local:
        return True
    pairs = [*zip(plan.needs, other.needs, strict=True), *zip(plan.results, other.results, strict=True)]
    return any(is_sharded(one) and one == another for one, another in pairs)
