"""Dimensions that operations keep: along them, each element of a result depends only on operands at one position.

`moves_of` gives, for each operand of an equation, the destination of each dimension that is kept. Along all others the
operation mixes positions. An operation without a rule mixes all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.extend.core import JaxprEqn

from phalanx.jaxprs.walking import ELEMENTWISE, aval_of, words
from phalanx.marginals.entries import Move

Moves = dict[int, Move]

Params = Mapping[str, Any]
Shape = tuple[int, ...]
Shapes = Sequence[Shape]
Rule = Callable[[Params, Shapes, Shape], list[Moves]]
"""From the parameters, the shapes of the operands and that of the result to the moves of each operand."""


def moves_of(equation: JaxprEqn) -> list[Moves]:
    """Return the kept dimensions of each operand of an equation, with their destinations."""
    name = equation.primitive.name
    shapes = [aval_of(atom).shape for atom in equation.invars]
    if name in ELEMENTWISE:
        return [_same(len(shape)) for shape in shapes]
    rule = RULES.get(name)
    if rule is None:
        return [{} for _ in shapes]
    return rule(equation.params, shapes, aval_of(equation.outvars[0]).shape)


def _same(ndim: int, without: Sequence[int] = ()) -> Moves:
    return {dim: Move(dim) for dim in range(ndim) if dim not in without}


def _renumber(dims: Sequence[int]) -> Moves:
    return {dim: Move(number) for number, dim in enumerate(dims)}


def _without(name: str) -> Rule:
    """Return the rule of an operation that removes the dimensions in a parameter."""

    def rule(params: Params, shapes: Shapes, out: Shape) -> list[Moves]:
        gone = params[name]
        return [_renumber([d for d in range(len(shape)) if d not in gone]) for shape in shapes]

    return rule


def _mixing(name: str) -> Rule:
    """Return the rule of an operation that mixes positions along the dimension in a parameter only."""
    return lambda params, shapes, out: [_same(len(shape), (params[name],)) for shape in shapes]


def _matrices(params: Params, shapes: Shapes, out: Shape) -> list[Moves]:
    return [_same(max(len(shape) - 2, 0)) for shape in shapes]


def _triangular_solve(params: Params, shapes: Shapes, out: Shape) -> list[Moves]:
    """Return the moves of a solve, which treats each column of its right-hand side alone; each row from the right."""
    row_dim = len(out) - (2 if params["left_side"] else 1)
    return [_matrices(params, shapes, out)[0], _same(len(out), (row_dim,))]


def _broadcast(params: Params, shapes: Shapes, out: Shape) -> list[Moves]:
    to = params["broadcast_dimensions"]
    return [{d: Move(to[d]) for d, n in enumerate(shapes[0]) if n == out[to[d]]}, *({} for _ in shapes[1:])]


def _reshape(params: Params, shapes: Shapes, out: Shape) -> list[Moves]:
    """Return the moves of dimensions with as many elements before and after them as in the result."""
    starts = {}
    before = 1
    for dim, size in enumerate(out):
        starts.setdefault((before, size), dim)
        before *= size
    moves = {}
    before = 1
    for dim, size in enumerate(shapes[0]):
        if size > 1 and (before, size) in starts:
            moves[dim] = Move(starts[before, size])
        before *= size
    return [moves, *({} for _ in shapes[1:])]


def _transpose(params: Params, shapes: Shapes, out: Shape) -> list[Moves]:
    return [_renumber(params["permutation"])]


def _slice(params: Params, shapes: Shapes, out: Shape) -> list[Moves]:
    strides = params["strides"] or (1,) * len(out)
    return [{d: Move(d, params["start_indices"][d], strides[d]) for d in range(len(out))}]


def _reverse(params: Params, shapes: Shapes, out: Shape) -> list[Moves]:
    return [{d: Move(d, n - 1, -1) if d in params["dimensions"] else Move(d) for d, n in enumerate(shapes[0])}]


def _concatenate(params: Params, shapes: Shapes, out: Shape) -> list[Moves]:
    moves = []
    before = 0
    for shape in shapes:
        moves.append(_same(len(shape)) | {params["dimension"]: Move(params["dimension"], -before)})
        before += shape[params["dimension"]]
    return moves


def _pad(params: Params, shapes: Shapes, out: Shape) -> list[Moves]:
    sides = enumerate(params["padding_config"])
    return [{d: Move(d, -low) for d, (low, _, inside) in sides if not inside}, {}]


def _tile(params: Params, shapes: Shapes, out: Shape) -> list[Moves]:
    return [{d: Move(d) for d, count in enumerate(params["reps"]) if count == 1}]


def _dynamic_slice(params: Params, shapes: Shapes, out: Shape) -> list[Moves]:
    return [{d: Move(d) for d, n in enumerate(shapes[0]) if n == out[d]}, *({} for _ in shapes[1:])]


def _dot(params: Params, shapes: Shapes, out: Shape) -> list[Moves]:
    contracted, batch = params["dimension_numbers"]
    free = [[d for d in range(len(s)) if d not in (*c, *b)] for s, c, b in zip(shapes, contracted, batch, strict=True)]
    second = len(batch[0]) + len(free[0])
    return [
        _renumber([*batch[0], *free[0]]),
        _renumber(batch[1]) | {d: Move(second + n) for n, d in enumerate(free[1])},
    ]


def _gather(params: Params, shapes: Shapes, out: Shape) -> list[Moves]:
    numbers = params["dimension_numbers"]
    sizes = params["slice_sizes"]
    outer = [d for d in range(len(out)) if d not in numbers.offset_dims]
    pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    table = {of_table: Move(outer[of_indices]) for of_table, of_indices in pairs}
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    window = [d for d in range(len(shapes[0])) if d not in dropped]
    whole = {d: Move(to) for d, to in zip(window, numbers.offset_dims, strict=True) if sizes[d] == shapes[0][d]}
    return [table | whole, {d: Move(to) for d, to in enumerate(outer)}]


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        words("reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin"),
        _without("axes"),
    ),
    "squeeze": _without("dimensions"),
    **dict.fromkeys(words("cumsum cumprod cummax cummin cumlogsumexp"), _mixing("axis")),
    "sort": _mixing("dimension"),
    "split": _mixing("axis"),
    **dict.fromkeys(words("cholesky lu eigh qr svd"), _matrices),
    "triangular_solve": _triangular_solve,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "rev": _reverse,
    "concatenate": _concatenate,
    "pad": _pad,
    "tile": _tile,
    "dynamic_slice": _dynamic_slice,
    "dot_general": _dot,
    "gather": _gather,
}
