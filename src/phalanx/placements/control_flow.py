"""Loops and branches on one device's parts: carries keep their placements from turn to turn, tests are replicated.

The placement of a carry must be the same before and after a turn. It is the join of the initial value's placement and
that after a turn, computed again until it no longer changes. In the loop
`lax.scan(lambda c, t: (c + (t * x).sum(), None), 0.0, times)` over sharded rows x, the initial value is replicated, and
after a turn the carry is a partial sum. The loop carries partial sums, and one all-reduce after the loop adds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
from jax import Array, lax
from jax.extend.core import JaxprEqn, jaxpr_as_fun

from phalanx.jaxprs.dependence import uses_collective
from phalanx.jaxprs.walking import Cond, Program, Scan, While, aval_of
from phalanx.placements.interpreter import PlacementInterpreter
from phalanx.placements.placement import PARTIAL, REPLICATED, PlacedValue, Placement, Placements, is_sharded


class Body:
    """Program of a loop or branch on one device's parts of its inputs.

    Args:
        interpreter: evaluates it.
        program: the program, over whole arrays.
        inputs: values with the placements and shapes of its inputs.

    Attributes:
        demanded: for each input the axes along which the last evaluation needed the replicated value.
    """

    def __init__(self, interpreter: PlacementInterpreter, program: Program, inputs: Sequence[PlacedValue]) -> None:
        self.interpreter = interpreter
        self.program = program
        self.inputs = list(inputs)
        self.demanded: list[set[int]] = []

    def _evaluate(self, arrays: Sequence[Array]) -> list[PlacedValue]:
        values = [
            PlacedValue(array, like.placements, like.shape, like.dtype)
            for array, like in zip(arrays, self.inputs, strict=True)
        ]
        results = self.interpreter.run(self.program, values)
        self.demanded = [value.demanded for value in values]
        return results

    def result_placements(self) -> list[Placements]:
        """Return the placements that the results have by themselves; found once for each placement of the inputs."""
        all_placements = self.interpreter.body_placements
        in_loop = tuple(axis.is_in_loop for axis in self.interpreter.axes)
        key = id(self.program), tuple(value.placements for value in self.inputs), in_loop
        if key not in all_placements:
            placements = self._probed()  # sets `demanded`, too
            # The program is kept, so that no other one has its id, which is in the key.
            all_placements[key] = placements, self.demanded, self.program
        placements, self.demanded, _ = all_placements[key]
        return placements

    def _probed(self) -> list[Placements]:
        placements: list[Placements] = []

        def evaluate(*arrays: Array) -> list[Array]:
            results = self._evaluate(arrays)
            placements.extend(result.placements for result in results)
            return [result.array for result in results]

        with self.interpreter.probing():
            jax.eval_shape(evaluate, *(value.array for value in self.inputs))
        return placements

    def to(self, placements: Sequence[Placements]) -> Callable[..., tuple[Array, ...]]:
        """Return a function of local arrays that returns the results with these placements."""

        def evaluate(*arrays: Array) -> tuple[Array, ...]:
            results = self._evaluate(arrays)
            return tuple(
                self.interpreter.convert(result, want) for result, want in zip(results, placements, strict=True)
            )

        return evaluate


class ProgramInterpreter(PlacementInterpreter):
    """Evaluation of a whole program, loops and branches included."""

    def cond(self, equation: JaxprEqn, parts: Cond, inputs: list[PlacedValue]) -> list[PlacedValue]:
        """Return the results of a choice, with the placements that some branch gives them and no other contradicts."""
        if _is_replicated(self, inputs, parts.branches):
            return self.bind_replicated(equation, inputs)
        number, *operands = inputs
        bodies = [Body(self, branch, operands) for branch in parts.branches]
        of_branches = [body.result_placements() for body in bodies]
        placements_of_results = [_agreed_placements(self, placements) for placements in zip(*of_branches, strict=True)]
        which = self.convert(number, self.replicated)
        if self.is_probing:
            return _unknown(self, equation, placements_of_results)
        results = lax.switch(
            which, [body.to(placements_of_results) for body in bodies], *(operand.array for operand in operands)
        )
        return _values(equation, results, placements_of_results)

    def scan(self, equation: JaxprEqn, parts: Scan, inputs: list[PlacedValue]) -> list[PlacedValue]:
        """Return the results of a loop over rows; rows that are scanned are gathered first."""
        if _is_replicated(self, inputs, [parts.body]):
            return self.bind_replicated(equation, inputs)
        constants, carry, rows = parts.split(inputs)
        constants = [_without(self, value, lambda at: at == PARTIAL) for value in constants]
        rows = [_without(self, value, lambda at: at in (PARTIAL, 0)) for value in rows]
        single = [_one_row(self, value) for value in rows]
        loop = _Loop(self, carry)
        constants, placements = loop.settle(parts.body, constants, single)
        of_rows = placements[len(carry) :]
        after = [value.placements for value in loop.carry]
        after += [tuple(at + 1 if is_sharded(at) else at for at in placements) for placements in of_rows]
        if self.is_probing:
            return _unknown(self, equation, after)
        body = Body(self, parts.body, [*constants, *loop.carry, *single])
        turn = body.to([*(value.placements for value in loop.carry), *of_rows])

        def step(now: tuple[Array, ...], row: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
            results = turn(*(value.array for value in constants), *now, *row)
            return results[: len(carry)], results[len(carry) :]

        params = equation.params
        with self.loop(params["length"]):
            carried, outputs = lax.scan(
                step,
                tuple(value.array for value in loop.carry),
                tuple(value.array for value in rows),
                **{name: params[name] for name in ("length", "reverse", "unroll")},
            )
        return _values(equation, [*carried, *outputs], after)

    def while_loop(self, equation: JaxprEqn, parts: While, inputs: list[PlacedValue]) -> list[PlacedValue]:
        """Return the results of a loop with a test, which is replicated; its messages are counted for one turn."""
        if _is_replicated(self, inputs, [parts.test, parts.body]):
            return self.bind_replicated(equation, inputs)
        of_test, of_body, carry = parts.split(inputs)
        if parts.test.out_avals[0].shape:
            parts = _with_one_test(parts)
            of_body = [*of_test, *of_body]
        of_test, of_body = (
            [_without(self, value, lambda at: at == PARTIAL) for value in constants] for constants in (of_test, of_body)
        )
        loop = _Loop(self, carry)
        of_body, _ = loop.settle(parts.body, of_body, [])
        test = Body(self, parts.test, [*of_test, *loop.carry])
        with self.loop(1):
            test.result_placements()
        of_test = [_replicate_demanded(self, *pair) for pair in zip(of_test, test.demanded, strict=False)]
        placements = [value.placements for value in loop.carry]
        if self.is_probing:
            return _unknown(self, equation, placements)
        test = Body(self, parts.test, [*of_test, *loop.carry]).to([self.replicated])
        turn = Body(self, parts.body, [*of_body, *loop.carry]).to(placements)
        with self.loop(1):
            results = lax.while_loop(
                lambda now: test(*(value.array for value in of_test), *now)[0],
                lambda now: turn(*(value.array for value in of_body), *now),
                tuple(value.array for value in loop.carry),
            )
        return _values(equation, results, placements)


def _with_one_test(parts: While) -> While:
    """Return the same loop with a single truth value as its test; constants of the test come before those of the body.

    A loop that JAX has mapped over a batch has a truth value for each entry, which `lax.while_loop` does not take: the
    loop goes on while one is true, and entries whose value is false stay as they are.
    """
    rank = len(parts.test.out_avals[0].shape)
    tests = jaxpr_as_fun(parts.test)
    turn = jaxpr_as_fun(parts.body)

    def goes_on(*values: Array) -> Array:
        return lax.reduce_or(tests(*values)[0], tuple(range(rank)))

    def body(*values: Array) -> list[Array]:
        of_test, of_body, carry = parts.split(values)
        (moves,) = tests(*of_test, *carry)
        return [
            lax.select(lax.broadcast_in_dim(moves, x.shape, tuple(range(rank))), x, y)
            for x, y in zip(turn(*of_body, *carry), carry, strict=True)
        ]

    test_shapes, body_shapes = (
        [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in program.in_avals] for program in (parts.test, parts.body)
    )
    return While(
        jax.make_jaxpr(goes_on)(*test_shapes),
        jax.make_jaxpr(body)(*test_shapes[: parts.of_test], *body_shapes),
        parts.of_test,
        parts.of_test + parts.of_body,
    )


class _Loop:
    """Carry of a loop, whose placements are joined with those after a turn until nothing changes.

    A carried value is replicated for good once two turns have given it different placements that are not replicated:
    a partial sum and rows, or rows along two dimensions. Their join is replicated, and the next turn could give one of
    them again, without end.
    """

    def __init__(self, interpreter: PlacementInterpreter, carry: Sequence[PlacedValue]) -> None:
        self.interpreter = interpreter
        self.carry = list(carry)
        self._contradicted: set[tuple[int, int]] = set()

    def settle(
        self, body: Program, constants: Sequence[PlacedValue], rows: Sequence[PlacedValue]
    ) -> tuple[list[PlacedValue], list[Placements]]:
        """Return the constants, replicated where a turn would gather them, and the placements of a turn's results."""
        constants = list(constants)
        while True:
            turn = Body(self.interpreter, body, [*constants, *self.carry, *rows])
            with self.interpreter.loop(1):
                after = turn.result_placements()
            resolved = [
                _replicate_demanded(self.interpreter, value, demanded)
                for value, demanded in zip(constants, turn.demanded, strict=False)
            ]
            new_placements = [self._join(number, after[number]) for number in range(len(self.carry))]
            is_settled = all(new is old for new, old in zip(resolved, constants, strict=True))
            if is_settled and new_placements == [value.placements for value in self.carry]:
                return constants, after
            constants = resolved
            self.carry = [self.interpreter.resolve(*pair) for pair in zip(self.carry, new_placements, strict=True)]

    def _join(self, number: int, after: Placements) -> Placements:
        axis_placements: list[Placement] = []
        for axis, (before, now) in enumerate(zip(self.carry[number].placements, after, strict=True)):
            if before != now and REPLICATED not in (before, now):
                self._contradicted.add((number, axis))
            other = now if before == REPLICATED else before
            axis_placements.append(REPLICATED if (number, axis) in self._contradicted else other)
        placements = _one_axis_per_dimension(axis_placements)
        if placements != tuple(axis_placements):
            self._contradicted |= {(number, axis) for axis in range(len(axis_placements))}
        return placements


def _is_replicated(
    interpreter: PlacementInterpreter, inputs: Sequence[PlacedValue], programs: Sequence[Program]
) -> bool:
    """Return whether programs of replicated inputs can be bound as they are."""
    communicate = any(uses_collective(program, name) for program in programs for name in interpreter.names)
    return not communicate and all(value.is_replicated for value in inputs)


def _agreed_placements(interpreter: PlacementInterpreter, each: Sequence[Placements]) -> Placements:
    axis_placements: list[Placement] = []
    for axis in range(len(interpreter.axes)):
        dims = {placements[axis] for placements in each} - {REPLICATED}
        axis_placements.append(dims.pop() if len(dims) == 1 else REPLICATED)
    return _one_axis_per_dimension(axis_placements)


def _one_axis_per_dimension(placements: Sequence[Placement]) -> Placements:
    """Return placements in which no two axes divide the same dimension; all are replicated otherwise."""
    dims = [placement for placement in placements if is_sharded(placement)]
    return tuple(placements) if len(set(dims)) == len(dims) else (REPLICATED,) * len(placements)


def _without(
    interpreter: PlacementInterpreter, value: PlacedValue, is_unwanted: Callable[[Placement], bool]
) -> PlacedValue:
    """Return a value that is replicated along the axes with unwanted placements."""
    placements = tuple(REPLICATED if is_unwanted(placement) else placement for placement in value.placements)
    return interpreter.resolve(value, placements)


def _replicate_demanded(interpreter: PlacementInterpreter, value: PlacedValue, axes: set[int]) -> PlacedValue:
    """Return a value that is replicated along some axes, so that a loop does not gather it in each turn."""
    placements = tuple(REPLICATED if axis in axes else placement for axis, placement in enumerate(value.placements))
    return interpreter.resolve(value, placements)


def _one_row(interpreter: PlacementInterpreter, rows: PlacedValue) -> PlacedValue:
    """Return the value that a turn of a scan gets of some rows; its array has a shape only."""
    placements = tuple(at - 1 if is_sharded(at) else at for at in rows.placements)
    shape = interpreter.local_shape(rows.shape[1:], placements)
    return PlacedValue(jax.ShapeDtypeStruct(shape, rows.dtype), placements, rows.shape[1:], rows.dtype)


def _unknown(
    interpreter: PlacementInterpreter, equation: JaxprEqn, placements: Sequence[Placements]
) -> list[PlacedValue]:
    """Return results of known placements where only these are asked for, so that nested loops are followed once."""
    avals = [aval_of(variable) for variable in equation.outvars]
    pairs = zip(avals, placements, strict=True)
    arrays = [lax.full(interpreter.local_shape(aval.shape, at), 0, aval.dtype) for aval, at in pairs]
    return _values(equation, arrays, placements)


def _values(equation: JaxprEqn, arrays: Sequence[Array], placements: Sequence[Placements]) -> list[PlacedValue]:
    avals = [aval_of(variable) for variable in equation.outvars]
    return [
        PlacedValue(array, at, aval.shape, aval.dtype)
        for array, at, aval in zip(arrays, placements, avals, strict=True)
    ]
