"""What data alone determine of a program: the numbers by which it picks entries of arrays, and what comes out.

The program is followed equation by equation. What depends on data only is known, and computed when an index needs it;
what depends on the position is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.core
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import ClosedJaxpr

from phalanx.jaxprs.source_lines import called, picks, place_of
from phalanx.jaxprs.walking import Call, Cond, Interpreter, Scan, While, axes_named, settled

if TYPE_CHECKING:
    from jaxtyping import Bool, Integer


class Value:
    """What data alone determine: computed when it is asked for, once."""

    def __init__(self, compute: Callable[[], Any] | None, sources: frozenset[int] = frozenset()):
        self._compute, self.sources = compute, sources

    def get(self) -> Any:
        """The value."""
        if self._compute is not None:
            self._value, self._compute = self._compute(), None
        return self._value


Known = Value | None
"""None is what depends on the position, or on the device."""


@dataclass(frozen=True)
class Lookup:
    """One operation that picks from an axis.

    Attributes:
        equation: what picks.
        within: the equation of the model that it is, or is within.
        silent: whether `mode=` may have been given: the program is the same.
        size: entries of the axis.
        last: the last index that is inside.
        sources: the data's arrays that the index is computed from.
        outside: whether any index is outside, and the least and the largest; None where they cannot be computed.
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
    program: ClosedJaxpr, inputs: Sequence[Known], latent: Set[Any] = frozenset(), dry: bool = False
) -> tuple[list[Lookup], list[Known]]:
    """The lookups of a program whose indices follow from what is known of its inputs alone, and its outputs.

    What depends on the variables `latent` is left out, and lookups within a `while_loop` or a branch of a `cond` where
    they depend on which turn or branch it is. What a `while_loop` ends with is known where it follows from data. A
    `dry` walk computes nothing.
    """
    found: list[Lookup] = []
    outputs = _Walk(found, None, latent, dry).run(program, inputs)
    return found, outputs


class _Walk(Interpreter[Known]):
    """An evaluation of a jaxpr as far as data alone determine it, that notes every lookup."""

    def __init__(self, found: list[Lookup], outermost: Any, latent: Set[Any] = frozenset(), dry: bool = False):
        self.found, self.outermost, self.latent, self.dry = found, outermost, latent, dry

    def constant(self, value: Any) -> Known:
        return Value(lambda: value)

    def named(self, variable: Any, value: Known) -> Known:
        return None if variable in self.latent else value

    def equation(self, equation: Any, inputs: list[Known]) -> list[Known]:
        self._note(equation, inputs)
        return super().equation(equation, inputs)

    def primitive(self, equation: Any, inputs: list[Known]) -> list[Known]:
        given = [value for value in inputs if value is not None]
        if len(given) < len(inputs) or axes_named(equation):  # of devices there is none here
            return [None] * len(equation.outvars)
        return _lazy(lambda: equation.primitive.bind(*(v.get() for v in given), **equation.params), equation, given)

    def call(self, equation: Any, parts: Call, inputs: list[Known]) -> list[Known]:
        return self._inside(equation).run(parts.program, inputs)

    def _inside(self, eqn: Any) -> _Walk:
        # JAX keeps traces of inner functions, with the line of whoever called them first: the outermost line is right.
        return _Walk(self.found, self.outermost or eqn, dry=self.dry)

    def cond(self, equation: Any, parts: Cond, inputs: list[Known]) -> list[Known]:
        choice, *operands = inputs
        if choice is None:
            return [None] * len(equation.outvars)
        if self.dry or isinstance(choice.get(), jax.core.Tracer):
            return self._every_branch(equation, parts, choice, operands)
        branch = parts.branches[min(max(int(choice.get()), 0), len(parts.branches) - 1)]
        return self._inside(equation).run(branch, operands)

    def _every_branch(self, eqn: Any, parts: Cond, choice: Value, inputs: list[Known]) -> list[Known]:
        """What all branches give, of which one is chosen when the program runs; lookups count in theirs alone."""
        branches, made = parts.branches, []

        def taken() -> Array:
            return jnp.clip(choice.get(), 0, len(branches) - 1).astype(jnp.int32)

        for number, branch in enumerate(branches):
            walk = _Walk([], self.outermost or eqn, dry=self.dry)
            made.append(walk.run(branch, inputs))
            for lookup in walk.found:
                if lookup.outside is not None:
                    any_outside, *ends = lookup.outside
                    lookup = replace(lookup, outside=(any_outside & (taken() == number), *ends), index=None)
                self.found.append(lookup)
        return [_chosen(taken, choice.sources, of_branches) for of_branches in zip(*made, strict=True)]

    def while_loop(self, equation: Any, parts: While, inputs: list[Known]) -> list[Known]:
        """The body once, with what its turns change unknown, and what it ends with where data alone determine it."""
        _, of_body, carry = parts.split(inputs)
        self._inside(equation).run(parts.body, [*of_body, *[None] * len(carry)])
        return self.primitive(equation, inputs)

    def scan(self, equation: Any, parts: Scan, inputs: list[Known]) -> list[Known]:
        """Every turn, with what turns hand on unknown where it depends on more than data."""
        constants, carry, rows = parts.split(inputs)
        count, seen, made = len(carry), [], []

        def turn(now: list[Known]) -> list[Known]:
            seen.clear()
            made[:] = _Walk(seen, self.outermost or equation, dry=True).run(parts.body, [*constants, *now, *rows])
            return made[:count]

        carry = settled(carry, turn, lambda a, b: a if b is not None else None)
        if self.dry:
            self.found += seen
            return made
        sources = frozenset().union(*(v.sources for v in inputs if v is not None))
        turns = Value(lambda: self._turns(equation, parts, inputs, carry, made))
        if seen:
            for lookup, (any_outside, least, most) in turns.get()[2]:
                outside = (jnp.any(any_outside), jnp.min(least), jnp.max(most))
                self.found.append(replace(lookup, outside=outside, index=None))
        first = [None if v is None else Value(lambda i=i: turns.get()[0][i], sources) for i, v in enumerate(carry)]
        rest = [
            None if v is None else Value(lambda i=i: turns.get()[1][i], sources) for i, v in enumerate(made[count:])
        ]
        return [*first, *rest]

    def _turns(self, eqn: Any, parts: Scan, inputs: list[Known], carry: list[Known], made: list[Known]) -> Any:
        """What is handed on in the end, what each turn gives, and the lookups in them."""
        constants, _, rows = parts.split(inputs)
        count, lookups = len(carry), []
        for value in constants:  # within the loop they would be computed again, turn by turn
            if value is not None:
                value.get()

        def turn(carried: dict[int, Any], now: dict[int, Any]) -> Any:
            walk = _Walk([], self.outermost or eqn)
            known = [None if v is None else Value(lambda i=i: carried[i], v.sources) for i, v in enumerate(carry)]
            given = [None if v is None else Value(lambda i=i: now[i], v.sources) for i, v in enumerate(rows)]
            out = walk.run(parts.body, [*constants, *known, *given])
            lookups[:] = walk.found
            gives = {i: v.get() for i, v in enumerate(out[count:]) if made[count + i] is not None and v is not None}
            after = {i: v.get() for i, v in enumerate(out[:count]) if i in carried and v is not None}
            return after, (gives, [lookup.outside for lookup in walk.found])

        types = [atom.aval.dtype for atom in parts.split(eqn.invars)[1]]
        start = {i: jnp.asarray(v.get(), types[i]) for i, v in enumerate(carry) if v is not None}
        xs = {i: v.get() for i, v in enumerate(rows) if v is not None}
        end, (gives, outside) = lax.scan(turn, start, xs, length=eqn.params["length"], reverse=eqn.params["reverse"])
        return end, gives, list(zip(lookups, outside, strict=True))

    def _note(self, eqn: Any, inputs: list[Known]) -> None:
        """Look at the indices of a lookup, where data alone determine them and the user does not say `mode=`."""
        for size, last, index, silent in _indices(eqn, inputs):
            if not index.sources or not picks(called(eqn)) or place_of(self.outermost or eqn) is None:
                continue
            lookup = Lookup(eqn, self.outermost or eqn, silent, size, last, index.sources)
            if not self.dry:
                try:
                    values = index.get()
                except Exception:  # an operation that runs within a compiled program only
                    self.found.append(lookup)
                    continue
                outside = jnp.any((values < 0) | (values > last)), jnp.min(values), jnp.max(values)
                kept = None if isinstance(values, jax.core.Tracer) else values
                lookup = replace(lookup, outside=outside, index=kept)
            self.found.append(lookup)


def _indices(eqn: Any, inputs: list[Known]) -> Iterator[tuple[int, int, Value, bool]]:
    """Of an equation that picks: size of each axis, last index inside, the indices, and whether `mode=` may be said."""
    name, params = eqn.primitive.name, eqn.params
    if not name.startswith(("dynamic_slice", "dynamic_update_slice", "gather", "scatter")):
        return
    shape = eqn.invars[0].aval.shape
    if name in ("dynamic_slice", "dynamic_update_slice"):
        starts = 1 if name == "dynamic_slice" else 2
        sizes = params["slice_sizes"] if name == "dynamic_slice" else eqn.invars[1].aval.shape
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
        window = params["slice_sizes"][axis] if name == "gather" else _window(eqn, numbers, axis)
        picked = Value(lambda c=column: index.get()[..., c], index.sources)
        yield shape[axis], shape[axis] - window, picked, silent


def _window(eqn: Any, numbers: Any, axis: int) -> int:
    """How many entries of an axis a scatter writes at once."""
    left_out = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    if axis in left_out:
        return 1
    dims = [d for d in range(len(eqn.invars[0].aval.shape)) if d not in left_out]
    return eqn.invars[2].aval.shape[numbers.update_window_dims[dims.index(axis)]]


def _lazy(compute: Callable[[], Any], eqn: Any, inputs: Sequence[Value]) -> list[Known]:
    sources = frozenset().union(*(v.sources for v in inputs))
    if not eqn.primitive.multiple_results:
        return [Value(compute, sources)]
    every = Value(compute)
    return [Value(lambda i=i: every.get()[i], sources) for i in range(len(eqn.outvars))]


def _chosen(taken: Callable[[], Array], sources: frozenset[int], of_branches: Sequence[Known]) -> Known:
    """What the branch that is taken gives, where it is known of all of them."""
    given = [value for value in of_branches if value is not None]
    if len(given) < len(of_branches):
        return None
    sources = sources.union(*(value.sources for value in given))
    return Value(lambda: lax.select_n(taken(), *(jnp.asarray(value.get()) for value in given)), sources)
