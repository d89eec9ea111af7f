"""Partial evaluation of a program on data alone: indices of its lookups, and outputs that do not need the position.

The program is followed equation by equation. A value that depends on data only is *known*, and computed when an index
needs it; a value that depends on the position or on the device is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.core
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var
from jax.typing import ArrayLike

from phalanx.jaxprs.source_lines import called, picks, source_line_of
from phalanx.jaxprs.walking import Call, Cond, Interpreter, Scan, While, aval_of, axes_named, settled

if TYPE_CHECKING:
    from jaxtyping import Bool, Integer


class KnownValue:
    """A value that data alone determine, computed once, on first use."""

    def __init__(self, compute: Callable[[], Any], sources: frozenset[int] = frozenset()):
        self._compute: Callable[[], Any] | None = compute
        self.sources = sources

    def get(self) -> Any:
        """Return the value, computed on the first call."""
        if self._compute is not None:
            self._value = self._compute()
            self._compute = None
        return self._value

    def get_if_possible(self) -> Any:
        """Return the value; None if computing it fails, as an operation does that runs only in a compiled program."""
        try:
            return self.get()
        except Exception:
            return None


MaybeKnown = KnownValue | None
"""A known value; None for a value that is not known, since it depends on the position or on the device."""


@dataclass(frozen=True)
class Lookup:
    """One operation that picks entries along an axis.

    Attributes:
        equation: the equation that picks.
        within: the outermost equation of the model that contains it.
        silent: True if the user may have given `mode=`, which leaves no trace in the program.
        size: number of entries along the axis.
        last: the largest valid index.
        sources: numbers of the data's arrays that the index is computed from.
        outside: whether any index is invalid, and the least and the largest; None if they cannot be computed.
        index: the indices; None within a loop.
    """

    equation: Any
    within: Any
    silent: bool
    size: int
    last: int
    sources: frozenset[int]
    outside: tuple[Bool[Array, ""], Integer[Array, ""], Integer[Array, ""]] | None = None
    index: Array | None = None


def follow(
    program: ClosedJaxpr, inputs: Sequence[MaybeKnown], latent: Set[Var] = frozenset()
) -> tuple[list[Lookup], list[MaybeKnown]]:
    """Return the lookups of a program whose indices are known given these inputs, and its outputs.

    Values that depend on the variables `latent` are not known. Lookups in a `while_loop` are found if their indices do
    not change between turns; the final values of the loop are known if its inputs are.
    """
    lookups: list[Lookup] = []
    outputs = _LookupWalk(lookups, None, latent).run(program, inputs)
    return lookups, outputs


class _LookupWalk(Interpreter[MaybeKnown]):
    """A partial evaluation of a jaxpr on data alone, which records every lookup; a `dry` walk computes no values."""

    def __init__(
        self, lookups: list[Lookup], outermost: JaxprEqn | None, latent: Set[Var] = frozenset(), dry: bool = False
    ):
        self.lookups = lookups
        self.outermost = outermost
        self.latent = latent
        self.dry = dry

    def constant(self, value: ArrayLike) -> MaybeKnown:
        return KnownValue(lambda: value)

    def named(self, variable: Var, value: MaybeKnown) -> MaybeKnown:
        return None if variable in self.latent else value

    def equation(self, equation: JaxprEqn, inputs: list[MaybeKnown]) -> list[MaybeKnown]:
        self._note(equation, inputs)
        return super().equation(equation, inputs)

    def primitive(self, equation: JaxprEqn, inputs: list[MaybeKnown]) -> list[MaybeKnown]:
        known_inputs = [value for value in inputs if value is not None]
        if len(known_inputs) < len(inputs) or axes_named(equation):  # the walk runs outside of the mesh
            return [None] * len(equation.outvars)
        return _lazy(
            lambda: equation.primitive.bind(*(v.get() for v in known_inputs), **equation.params), equation, known_inputs
        )

    def call(self, equation: JaxprEqn, parts: Call, inputs: list[MaybeKnown]) -> list[MaybeKnown]:
        return self._inside(equation).run(parts.program, inputs)

    def _inside(self, eqn: JaxprEqn) -> _LookupWalk:
        # JAX caches traces of inner functions with the line of their first caller: only the outermost line is right.
        return _LookupWalk(self.lookups, self.outermost or eqn, dry=self.dry)

    def cond(self, equation: JaxprEqn, parts: Cond, inputs: list[MaybeKnown]) -> list[MaybeKnown]:
        choice, *operands = inputs
        if choice is None:
            return [None] * len(equation.outvars)
        if self.dry or isinstance(choice.get(), jax.core.Tracer):
            return self._every_branch(equation, parts, choice, operands)
        branch = parts.branches[min(max(int(choice.get()), 0), len(parts.branches) - 1)]
        return self._inside(equation).run(branch, operands)

    def _every_branch(
        self, eqn: JaxprEqn, parts: Cond, choice: KnownValue, inputs: list[MaybeKnown]
    ) -> list[MaybeKnown]:
        """Return the results of the branch chosen at run time; an invalid index counts only in the chosen branch."""
        branches = parts.branches
        of_branches = []

        def taken() -> Array:
            return jnp.clip(choice.get(), 0, len(branches) - 1).astype(jnp.int32)

        for number, branch in enumerate(branches):
            walk = _LookupWalk([], self.outermost or eqn, dry=self.dry)
            of_branches.append(walk.run(branch, inputs))
            for lookup in walk.lookups:
                if lookup.outside is not None:
                    any_outside, *ends = lookup.outside
                    lookup = replace(lookup, outside=(any_outside & (taken() == number), *ends), index=None)
                self.lookups.append(lookup)
        return [_result_of_branch(taken, choice.sources, values) for values in zip(*of_branches, strict=True)]

    def while_loop(self, equation: JaxprEqn, parts: While, inputs: list[MaybeKnown]) -> list[MaybeKnown]:
        """Walk the body once, with an unknown carry, and return the final values if the inputs are known."""
        _, of_body, carry = parts.split(inputs)
        self._inside(equation).run(parts.body, [*of_body, *[None] * len(carry)])
        return self.primitive(equation, inputs)

    def scan(self, equation: JaxprEqn, parts: Scan, inputs: list[MaybeKnown]) -> list[MaybeKnown]:
        """Return the results of a scan that data alone determine, and record the lookups of all its turns.

        Dry walks of the body find which parts of the carry stay known in every turn. The known part of the scan runs
        at once if the body contains lookups, otherwise when one of its results is used.
        """
        constants, carry, rows = parts.split(inputs)
        count = len(carry)
        lookups = []
        outputs = []

        def turn(now: list[MaybeKnown]) -> list[MaybeKnown]:
            lookups.clear()
            outputs[:] = _LookupWalk(lookups, self.outermost or equation, dry=True).run(
                parts.body, [*constants, *now, *rows]
            )
            return outputs[:count]

        carry = settled(carry, turn, lambda a, b: a if b is not None else None)
        if self.dry:
            self.lookups += lookups
            return outputs
        sources = frozenset().union(*(v.sources for v in inputs if v is not None))
        known_part = KnownValue(lambda: self._run_known_part(equation, parts, inputs, carry, outputs))
        if lookups:
            for lookup, (any_outside, least, most) in known_part.get()[2]:
                outside = (jnp.any(any_outside), jnp.min(least), jnp.max(most))
                self.lookups.append(replace(lookup, outside=outside, index=None))

        def result(part: int, number: int, value: MaybeKnown) -> MaybeKnown:
            return None if value is None else KnownValue(lambda: known_part.get()[part][number], sources)

        final_carry = [result(0, number, value) for number, value in enumerate(carry)]
        stacked_outputs = [result(1, number, value) for number, value in enumerate(outputs[count:])]
        return [*final_carry, *stacked_outputs]

    def _run_known_part(
        self,
        eqn: JaxprEqn,
        parts: Scan,
        inputs: list[MaybeKnown],
        carry: list[MaybeKnown],
        outputs: list[MaybeKnown],
    ) -> tuple[dict[int, Array], dict[int, Array], list[tuple[Lookup, Any]]]:
        """Run a scan without its unknown values, which are None in `carry` and in the body's `outputs`.

        Returns:
            The known parts of the final carry and of the stacked outputs, by position, and each lookup of the body with
            its `outside` in every turn.
        """
        constants, _, rows = parts.split(inputs)
        count = len(carry)
        lookups = []
        for value in constants:  # computed inside of the loop, they would be computed in every turn
            if value is not None:
                value.get()

        def turn(carried: dict[int, Any], now: dict[int, Any]) -> Any:
            walk = _LookupWalk([], self.outermost or eqn)
            carried_values = [
                None if v is None else KnownValue(lambda i=i: carried[i], v.sources) for i, v in enumerate(carry)
            ]
            known_rows = [None if v is None else KnownValue(lambda i=i: now[i], v.sources) for i, v in enumerate(rows)]
            out = walk.run(parts.body, [*constants, *carried_values, *known_rows])
            lookups[:] = walk.lookups
            gives = {i: v.get() for i, v in enumerate(out[count:]) if outputs[count + i] is not None and v is not None}
            after = {i: v.get() for i, v in enumerate(out[:count]) if i in carried and v is not None}
            return after, (gives, [lookup.outside for lookup in walk.lookups])

        types = [aval_of(atom).dtype for atom in parts.split(eqn.invars)[1]]
        start = {i: jnp.asarray(v.get(), types[i]) for i, v in enumerate(carry) if v is not None}
        xs = {i: v.get() for i, v in enumerate(rows) if v is not None}
        end, (gives, outside) = lax.scan(turn, start, xs, length=eqn.params["length"], reverse=eqn.params["reverse"])
        return end, gives, list(zip(lookups, outside, strict=True))

    def _note(self, eqn: JaxprEqn, inputs: list[MaybeKnown]) -> None:
        """Record a lookup of the model whose indices data alone determine."""
        for size, last, index, silent in _indices(eqn, inputs):
            if not index.sources or not picks(called(eqn)) or source_line_of(self.outermost or eqn) is None:
                continue
            lookup = Lookup(eqn, self.outermost or eqn, silent, size, last, index.sources)
            if not self.dry and (values := index.get_if_possible()) is not None:
                outside = jnp.any((values < 0) | (values > last)), jnp.min(values), jnp.max(values)
                known_index = None if isinstance(values, jax.core.Tracer) else values
                lookup = replace(lookup, outside=outside, index=known_index)
            self.lookups.append(lookup)


def _indices(eqn: JaxprEqn, inputs: list[MaybeKnown]) -> Iterator[tuple[int, int, KnownValue, bool]]:
    """Yield for each axis that an equation picks from: size, largest valid index, indices and `silent` of `Lookup`."""
    name = eqn.primitive.name
    params = eqn.params
    if not name.startswith(("dynamic_slice", "dynamic_update_slice", "gather", "scatter")):
        return
    shape = aval_of(eqn.invars[0]).shape
    if name in ("dynamic_slice", "dynamic_update_slice"):
        starts = 1 if name == "dynamic_slice" else 2
        sizes = params["slice_sizes"] if name == "dynamic_slice" else aval_of(eqn.invars[1]).shape
        for axis, start in enumerate(inputs[starts : starts + len(shape)]):
            if start is not None:
                yield shape[axis], shape[axis] - sizes[axis], start, True
        return
    if inputs[1] is None:
        return
    numbers = params["dimension_numbers"]
    axes = numbers.start_index_map if name == "gather" else numbers.scatter_dims_to_operand_dims
    silent = "PROMISE" not in str(params["mode"])
    index = inputs[1]
    for column, axis in enumerate(axes):
        window = params["slice_sizes"][axis] if name == "gather" else _window(eqn, numbers, int(axis))
        picked = KnownValue(lambda c=column: index.get()[..., c], index.sources)
        yield shape[axis], shape[axis] - window, picked, silent


def _window(eqn: JaxprEqn, numbers: Any, axis: int) -> int:
    """Return the number of entries along an axis that a scatter writes at once."""
    left_out = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    if axis in left_out:
        return 1
    dims = [d for d in range(len(aval_of(eqn.invars[0]).shape)) if d not in left_out]
    return aval_of(eqn.invars[2]).shape[numbers.update_window_dims[dims.index(axis)]]


def _lazy(compute: Callable[[], Any], eqn: JaxprEqn, inputs: Sequence[KnownValue]) -> list[MaybeKnown]:
    sources = frozenset().union(*(v.sources for v in inputs))
    if not eqn.primitive.multiple_results:
        return [KnownValue(compute, sources)]
    every = KnownValue(compute)
    return [KnownValue(lambda i=i: every.get()[i], sources) for i in range(len(eqn.outvars))]


def _result_of_branch(
    choice: Callable[[], Array], sources: frozenset[int], of_branches: Sequence[MaybeKnown]
) -> MaybeKnown:
    """Return the result of the chosen branch if the results of all branches are known."""
    known_results = [value for value in of_branches if value is not None]
    if len(known_results) < len(of_branches):
        return None
    sources = sources.union(*(value.sources for value in known_results))
    return KnownValue(lambda: lax.select_n(choice(), *(jnp.asarray(value.get()) for value in known_results)), sources)
