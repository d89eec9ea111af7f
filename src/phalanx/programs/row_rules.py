"""What each primitive makes of values whose rows are apart: the rules of the proof, one short function each.

A rule is asked when it is known of all inputs what they are of the whole's, and when both equations have the same
parameters (but for those that `MAY_DIFFER` names, which it looks at itself). It gives the kinds of the outputs, or None
where the rows may be mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any

import jax.numpy as jnp

from phalanx.programs.row_values import ONE, Alike, Apart, Indices, Kind, Numbers, Partial

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """A pair of equations, the kinds of what they are given, and the programs that they are from."""

    whole: Any
    local: Any
    inputs: Sequence[Kind]
    proof: Any
    hosts: tuple[Any, Any]

    @property
    def params(self) -> Mapping[str, Any]:
        """Parameters of the equation on a device."""
        return self.local.params

    @property
    def same_shapes(self) -> bool:
        """Whether inputs and outputs have the same shapes in the whole and on a device."""
        pairs = zip((*self.whole.invars, *self.whole.outvars), (*self.local.invars, *self.local.outvars), strict=True)
        return all(_shape(a) == _shape(b) for a, b in pairs)

    def shape(self, number: int) -> Shape:
        """Shape of an input on a device."""
        return _shape(self.local.invars[number])

    def shapes(self, number: int) -> tuple[Shape, Shape]:
        """Shape of an input in the whole, and on a device."""
        return _shape(self.whole.invars[number]), self.shape(number)

    @property
    def out(self) -> Shape:
        """Shape of the first output on a device."""
        return _shape(self.local.outvars[0])

    @property
    def outs(self) -> tuple[Shape, Shape]:
        """Shape of the first output in the whole, and on a device."""
        return _shape(self.whole.outvars[0]), self.out

    def all_outputs(self, kind: Kind) -> list[Kind]:
        """The same kind for every output."""
        return [kind] * len(self.local.outvars)


Rule = Callable[[Step], "list[Kind] | None"]

MAY_DIFFER: dict[str, tuple[str, ...]] = {
    "broadcast_in_dim": ("shape",),
    "reshape": ("new_sizes",),
    "iota": ("shape",),
    "slice": ("start_indices", "limit_indices"),
    "dynamic_slice": ("slice_sizes",),
    "gather": ("slice_sizes",),
    "all_gather": ("axis_size",),
}
"""Parameters that follow the number of rows."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ELEMENTWISE = _words(
    """abs acos acosh and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type cbrt ceil clamp clz
    complex conj copy copy_p cos cosh digamma eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a
    igammac imag integer_pow is_finite le le_to lgamma log log1p logistic lt_to max min ne neg nextafter not or
    polygamma population_count pow random_gamma_grad real reduce_precision regularized_incomplete_beta rem round rsqrt
    shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient tan tanh xor zeta"""
)

LINEAR = _words(
    """neg copy copy_p stop_gradient reshape transpose squeeze broadcast_in_dim reduce_sum slice rev cumsum real imag
    dynamic_slice expand_dims gather"""
)
"""What takes the multiple of its first operand to the multiple of the result, the others being alike."""

LEADING = {
    "cholesky": 2, "lu": 2, "qr": 2, "eigh": 2, "eig": 2, "svd": 2, "schur": 2, "geqrf": 2, "hessenberg": 2,
    "tridiagonal": 2, "lu_pivots_to_permutation": 1, "cholesky_update": 2, "approx_top_k": 1,
}  # fmt: skip
"""Primitives that do the same along leading dimensions, and how many dimensions behind them they work on."""


def keeps_factor(step: Step) -> bool:
    """Whether a multiple of the first operand, or a part of its sum, gives that of the result."""
    if not step.inputs or not isinstance(step.inputs[0], Alike | Partial):
        return False
    name, over = step.local.primitive.name, getattr(step.inputs[0], "over", "sum")
    if name == "convert_element_type":
        return jnp.issubdtype(step.params["new_dtype"], jnp.inexact)
    if over != "sum" and name in ("neg", "reduce_sum", "cumsum"):
        return False
    return name in LINEAR and all(kind == Alike() or _is_zero(kind) for kind in step.inputs[1:])


def _shape(atom: Any) -> Shape:
    return tuple(atom.aval.shape)


def _is_zero(kind: Kind) -> bool:
    return isinstance(kind, Alike) and kind.zero


def _apart(kinds: Sequence[Kind]) -> Apart | None:
    """Where the rows of several values lie, all in one place; those that are alike have none."""
    found = [kind for kind in kinds if isinstance(kind, Apart)]
    others = [kind for kind in kinds if not isinstance(kind, Apart)]
    if not found or len({kind.layout for kind in found}) > 1:
        return None
    if any(kind.factor != 1 for kind in found) or not all(
        isinstance(kind, Alike) and kind.factor == 1 for kind in others
    ):
        return None
    return replace(found[0], constant=all(kind.constant for kind in found), false=False)


def _elementwise(step: Step) -> list[Kind] | None:
    if step.local.primitive.name == "bitcast_convert_type" and step.shape(0) != step.out:
        return None
    kinds = step.inputs
    if (
        len(kinds) == 1
        and isinstance(kinds[0], Apart)
        and step.local.primitive.name in ("neg", "copy", "stop_gradient")
    ):
        return [kinds[0]]
    return step.all_outputs(_apart(kinds)) if _apart(kinds) else None


def _convert(step: Step) -> list[Kind] | None:
    if isinstance(step.inputs[0], Numbers):
        return [step.inputs[0]]
    if isinstance(step.inputs[0], Apart) and jnp.issubdtype(step.params["new_dtype"], jnp.inexact):
        return [step.inputs[0]]
    return _elementwise(step)


def _less(step: Step) -> list[Kind] | None:
    """A row's number is not below zero: `x[numbers]` asks."""
    if isinstance(step.inputs[0], Numbers) and _is_zero(step.inputs[1]):
        return [Apart(step.inputs[0].group, step.inputs[0].dim, false=True)]
    return _elementwise(step)


def _select(step: Step) -> list[Kind] | None:
    which, *cases = step.inputs
    if isinstance(which, Apart) and which.false:
        return [cases[0]]
    if None in step.inputs:
        return None
    if which == Alike() and all(isinstance(case, Partial | Alike) for case in cases):
        first = next((case for case in cases if not _is_zero(case)), cases[0])
        same = all(case == first or _is_zero(case) for case in cases)
        return [replace(first, zero=False) if isinstance(first, Alike) else first] if same else None
    return _elementwise(step)


def _add(step: Step) -> list[Kind] | None:
    a, b = step.inputs
    if _is_zero(a) or _is_zero(b):
        other = b if _is_zero(a) else a
        if isinstance(other, Partial):
            return [other] if other.over == "sum" else None
        if isinstance(other, Alike):
            return [Alike(other.factor, zero=_is_zero(a) and _is_zero(b))]
    if isinstance(a, Apart) and isinstance(b, Apart):
        if a.layout != b.layout or a.factor != b.factor:
            return None
        return [replace(a, constant=a.constant and b.constant, false=False)]
    if isinstance(a, Alike) and isinstance(b, Alike):
        return [Alike(a.factor)] if a.factor == b.factor else None
    if isinstance(a, Partial | Alike) and isinstance(b, Partial | Alike):
        axes = a.axes if isinstance(a, Partial) else b.axes if isinstance(b, Partial) else frozenset()
        a, b = _as_sum(step, a, axes), _as_sum(step, b, axes)
        return [a] if a == b and a.over == "sum" else None
    return _elementwise(step)


def _as_sum(step: Step, kind: Any, axes: frozenset[str]) -> Partial:
    """What is alike on n devices is a part of a sum: n times as much."""
    return kind if isinstance(kind, Partial) else Partial(axes, kind.factor / step.proof.groups.devices(axes))


def _product(a: Kind, b: Kind, factor: Fraction) -> Kind:
    if isinstance(a, Partial) or isinstance(b, Partial):
        part, other = (a, b) if isinstance(a, Partial) else (b, a)
        return replace(part, factor=factor) if isinstance(other, Alike) and part.over == "sum" else None
    if isinstance(a, Alike) and isinstance(b, Alike):
        return Alike(factor)
    rows = _apart([replace(k, factor=ONE) if isinstance(k, Apart | Alike) else k for k in (a, b)])
    return replace(rows, factor=factor) if rows else None


def _multiply(step: Step) -> list[Kind] | None:
    a, b = step.inputs
    if not isinstance(a, Alike | Apart | Partial) or not isinstance(b, Alike | Apart | Partial):
        return None
    return [_product(a, b, a.factor * b.factor)]


def _divide(step: Step) -> list[Kind] | None:
    a, b = step.inputs
    if not isinstance(a, Alike | Apart | Partial) or not isinstance(b, Alike | Apart):
        return None
    if not jnp.issubdtype(step.local.invars[0].aval.dtype, jnp.inexact):
        return _elementwise(step)
    return [_product(a, b, a.factor / b.factor)]


def _broadcast(step: Step) -> list[Kind] | None:
    kind, into = step.inputs[0], step.params["broadcast_dimensions"]
    whole, local = step.outs
    if isinstance(kind, Alike):
        rows = step.proof.groups.rows_of(whole, local)
        return [replace(rows, factor=kind.factor, constant=True)] if rows else None
    if not isinstance(kind, Apart | Numbers):
        return None
    dim = into[kind.dim]
    same = whole[:dim] == local[:dim] and whole[dim + 1 :] == local[dim + 1 :]
    kept = (whole[dim], local[dim]) == tuple(shape[kind.dim] for shape in step.shapes(0))
    return [replace(kind, dim=dim)] if same and kept else None


def _reshape(step: Step) -> list[Kind] | None:
    kind = step.inputs[0]
    if step.params.get("dimensions") is not None:
        return None
    if isinstance(kind, Numbers):
        found = _split(Apart(kind.group, kind.dim), step)
        return [Numbers(kind.group, found.dim)] if found and found.before == found.per == 1 else None
    return [_split(kind, step)] if isinstance(kind, Apart) else None


def _split(kind: Apart, step: Step) -> Apart | None:
    """Where rows lie after a reshape: it keeps the order of elements, and so what lies before and behind the rows."""
    before = prod(step.shape(0)[: kind.dim]) * kind.before
    behind = prod(step.shape(0)[kind.dim + 1 :]) * kind.per
    found = []
    for dim in range(len(step.out)):
        p, s = prod(step.out[:dim]), prod(step.out[dim + 1 :])
        if not p or not s or before % p or behind % s:
            continue
        each = (before // p) * (behind // s)
        sizes = tuple(shape[dim] for shape in step.outs)
        whole = step.outs[0]
        same = whole[:dim] == step.out[:dim] and whole[dim + 1 :] == step.out[dim + 1 :]
        if same and sizes == (each * kind.group.rows, each * kind.group.local_rows):
            found.append(replace(kind, dim=dim, before=before // p, per=behind // s))
    return min(found, key=lambda rows: rows.before * rows.per, default=None)


def _moved(kind: Kind, dim: int) -> list[Kind]:
    return [replace(kind, dim=dim)] if isinstance(kind, Apart | Numbers | Indices) else [None]


def _transpose(step: Step) -> list[Kind] | None:
    kind = step.inputs[0]
    return _moved(kind, step.params["permutation"].index(kind.dim)) if isinstance(kind, Apart | Numbers) else None


def _squeeze(step: Step) -> list[Kind] | None:
    kind, dims = step.inputs[0], step.params["dimensions"]
    if not isinstance(kind, Apart | Numbers) or kind.dim in dims:
        return None
    return _moved(kind, kind.dim - sum(d < kind.dim for d in dims))


def _reduce(step: Step) -> list[Kind] | None:
    axes, name = step.params["axes"], step.local.primitive.name
    over = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min"}.get(name)
    kind = step.inputs[0] if len(step.inputs) == 1 else _apart(step.inputs)
    if not isinstance(kind, Apart):
        return None
    if kind.dim not in axes:
        if kind.factor != 1 and over != "sum":
            return None
        return step.all_outputs(replace(kind, dim=kind.dim - sum(d < kind.dim for d in axes), false=False))
    if kind.constant and over == "sum":
        return [Alike(kind.factor * Fraction(kind.group.rows, kind.group.local_rows))]
    if kind.group.padded or over is None or (over != "sum" and kind.factor != 1):
        return None
    return [Partial(kind.group.axes, kind.factor, over)]


def _along(param: str) -> Rule:
    """A rule for what works along one dimension, or several: it must not be that of the rows."""

    def rule(step: Step) -> list[Kind] | None:
        dims, kind = step.params[param], _apart(step.inputs)
        return (
            step.all_outputs(kind) if kind and kind.dim not in (dims if isinstance(dims, tuple) else (dims,)) else None
        )

    return rule


def _top_k(step: Step) -> list[Kind] | None:
    kind, dim = _apart(step.inputs), step.params.get("axis", len(step.shape(0)) - 1)
    return step.all_outputs(kind) if kind and kind.dim != dim else None


def _concatenate(step: Step) -> list[Kind] | None:
    dim, numbers = step.params["dimension"], [k for k in step.inputs if isinstance(k, Numbers)]
    if not numbers:
        return _along("dimension")(step)
    rows = Apart(numbers[0].group, numbers[0].dim)
    others = [k for k in step.inputs if not isinstance(k, Numbers)]
    if dim == rows.dim or len(numbers) > 1 or not all(isinstance(k, Apart) and k.layout == rows.layout for k in others):
        return None
    column = sum(step.shape(i)[dim] for i in range(step.inputs.index(numbers[0])))
    return [Indices(rows.group, rows.dim, column)] if dim == len(step.out) - 1 else None


def _slice(step: Step) -> list[Kind] | None:
    kind = step.inputs[0]
    if not isinstance(kind, Apart):
        return None
    (before, now), strides = step.shapes(0), step.params["strides"]
    for equation, shape in ((step.whole, before), (step.local, now)):
        starts, ends = equation.params["start_indices"], equation.params["limit_indices"]
        if starts[kind.dim] != 0 or ends[kind.dim] != shape[kind.dim] or (strides and strides[kind.dim] != 1):
            return None
    others = [d for d in range(len(now)) if d != kind.dim]
    names = ("start_indices", "limit_indices")
    same = all(step.whole.params[n][d] == step.params[n][d] for n in names for d in others)
    return [replace(kind, false=False)] if same else None


def _dynamic_slice(step: Step) -> list[Kind] | None:
    kind, *starts = step.inputs
    if not isinstance(kind, Apart) or not all(start == Alike() or _is_zero(start) for start in starts):
        return None
    return [replace(kind, false=False)] if _full(step, "slice_sizes", kind.dim) else None


def _full(step: Step, param: str, dim: int) -> bool:
    """Whether a slice has all of the rows, and the same of everything else."""
    sizes = step.whole.params[param], step.params[param]
    same = all(a == b for d, (a, b) in enumerate(zip(*sizes, strict=True)) if d != dim)
    return same and tuple(size[dim] for size in sizes) == tuple(shape[dim] for shape in step.shapes(0))


def _dynamic_update_slice(step: Step) -> list[Kind] | None:
    (kind, update), starts = step.inputs[:2], step.inputs[2:]
    rows = _apart([kind, update])
    if not isinstance(kind, Apart) or not isinstance(update, Apart) or rows is None:
        return None
    full = all(a[rows.dim] == b[rows.dim] for a, b in zip(step.shapes(0), step.shapes(1), strict=True))
    return [rows] if full and all(start == Alike() or _is_zero(start) for start in starts) else None


def _pad(step: Step) -> list[Kind] | None:
    kind = step.inputs[0]
    if not isinstance(kind, Apart) or kind.factor != 1 or step.inputs[1] not in (Alike(), Alike(zero=True)):
        return None
    return (
        [replace(kind, constant=False, false=False)] if step.params["padding_config"][kind.dim] == (0, 0, 0) else None
    )


def _iota(step: Step) -> list[Kind] | None:
    rows = step.proof.groups.rows_of(*step.outs)
    if rows is None or rows.per != 1:
        return None
    if step.params["dimension"] != rows.dim:
        return [replace(rows, constant=True)]
    return [Numbers(rows.group, rows.dim)]


def _dot(step: Step) -> list[Kind] | None:
    a, b = step.inputs
    (over_a, over_b), (batch_a, batch_b) = step.params["dimension_numbers"]
    if not isinstance(a, Alike | Apart | Partial) or not isinstance(b, Alike | Apart | Partial):
        return None
    factor = a.factor * b.factor
    if not isinstance(a, Apart) and not isinstance(b, Apart):
        return [_product(a, b, factor)]
    if isinstance(a, Partial) or isinstance(b, Partial):
        return None
    if isinstance(a, Apart) and isinstance(b, Apart):
        if (a.group, a.before, a.per) != (b.group, b.before, b.per):
            return None
        if a.dim in over_a and b.dim in over_b and over_a.index(a.dim) == over_b.index(b.dim):
            return None if a.group.padded else [Partial(a.group.axes, factor)]
        if a.dim in batch_a and b.dim in batch_b and batch_a.index(a.dim) == batch_b.index(b.dim):
            return [replace(a, dim=batch_a.index(a.dim), factor=factor, constant=False, false=False)]
        return None
    rows, number = (a, 0) if isinstance(a, Apart) else (b, 1)
    over, batch = (over_a, batch_a) if number == 0 else (over_b, batch_b)
    if rows.dim in over or rows.dim in batch:
        return None
    free = [[d for d in range(len(step.shape(i))) if d not in (*o, *s)] for i, (o, s) in enumerate(
        ((over_a, batch_a), (over_b, batch_b)))]  # fmt: skip
    dim = len(batch) + free[number].index(rows.dim) + (len(free[0]) if number else 0)
    return [replace(rows, dim=dim, factor=factor, constant=False, false=False)]


def _gather(step: Step) -> list[Kind] | None:
    table, indices = step.inputs
    numbers, sizes = step.params["dimension_numbers"], step.params["slice_sizes"]
    batch = [d for d in range(len(step.out)) if d not in numbers.offset_dims]
    if isinstance(indices, Numbers) and step.shape(1)[-1] == 1:
        indices = Indices(indices.group, indices.dim, 0)
    if isinstance(indices, Alike) and isinstance(table, Apart):
        taken = (*numbers.start_index_map, *numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
        if indices.factor != 1 or table.dim in taken or not _full(step, "slice_sizes", table.dim):
            return None
        dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
        kept = [d for d in range(len(sizes)) if d not in dropped]
        return [replace(table, dim=numbers.offset_dims[kept.index(table.dim)], constant=False, false=False)]
    if step.whole.params["slice_sizes"] != sizes or not isinstance(indices, Apart | Indices):
        return None
    if indices.dim == len(step.shape(1)) - 1:
        return None
    if isinstance(indices, Indices):  # each row's own entry, by the row's number
        own = isinstance(table, Apart) and table.layout == (indices.group, table.dim, 1, 1)
        if not own or numbers.start_index_map[indices.column] != table.dim or sizes[table.dim] != 1:
            return None
        return [replace(table, dim=batch[indices.dim], constant=False, false=False)]
    if isinstance(table, Alike):
        return [replace(indices, dim=batch[indices.dim], factor=table.factor, constant=False, false=False)]
    operand, starts = numbers.operand_batching_dims, numbers.start_indices_batching_dims
    if not isinstance(table, Apart) or _apart([replace(table, dim=0), replace(indices, dim=0)]) is None:
        return None
    if table.dim not in operand or indices.dim not in starts or operand.index(table.dim) != starts.index(indices.dim):
        return None
    return [replace(indices, dim=batch[indices.dim], constant=False, false=False)]


def _scatter(step: Step) -> list[Kind] | None:
    table, indices, updates = step.inputs
    numbers = step.params["dimension_numbers"]
    if _is_zero(table) and step.local.primitive.name == "scatter-add" and _apart([indices, updates]):
        return _scattered_sum(step)
    rows = _apart([table, updates])
    if rows is None or not isinstance(table, Apart) or not isinstance(updates, Apart | Alike):
        return None
    batching = numbers.operand_batching_dims
    if isinstance(indices, Apart) and isinstance(updates, Apart):
        starts = numbers.scatter_indices_batching_dims
        paired = (
            table.dim in batching and indices.dim in starts and batching.index(table.dim) == starts.index(indices.dim)
        )
        outer = [d for d in range(len(step.shape(2))) if d not in numbers.update_window_dims]
        fits = (indices.group, indices.before, indices.per) == (table.group, table.before, table.per)
        return [_plain(table)] if paired and fits and outer[indices.dim] == updates.dim else None
    return None


def _scatter_columns(step: Step) -> list[Kind] | None:
    """Of some columns of each row."""
    table, indices, updates = step.inputs
    numbers = step.params["dimension_numbers"]
    if not isinstance(table, Apart) or (indices != Alike() and not _is_zero(indices)) or not isinstance(updates, Apart):
        return _scatter(step)
    if table.factor != 1 or updates.factor != 1 or table.dim in numbers.scatter_dims_to_operand_dims:
        return None
    dropped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    kept = [d for d in range(len(step.shape(0))) if d not in dropped]
    if table.dim not in kept or numbers.update_window_dims[kept.index(table.dim)] != updates.dim:
        return None
    full = all(a[table.dim] == b[updates.dim] for a, b in zip(step.shapes(0), step.shapes(2), strict=True))
    return [_plain(table)] if full and replace(updates, dim=table.dim).layout == table.layout else None


def _scattered_sum(step: Step) -> list[Kind] | None:
    """Sums over the rows of each level of a code."""
    _, indices, updates = step.inputs
    outer = [d for d in range(len(step.shape(2))) if d not in step.params["dimension_numbers"].update_window_dims]
    if not isinstance(indices, Apart) or not isinstance(updates, Apart) or updates.group.padded:
        return None
    if indices.dim >= len(outer) or outer[indices.dim] != updates.dim or indices.dim == len(step.shape(1)) - 1:
        return None
    return [Partial(updates.group.axes, updates.factor)]


def _plain(kind: Apart) -> Apart:
    return replace(kind, constant=False, false=False)


def _leading(step: Step) -> list[Kind] | None:
    kind, core = _apart(step.inputs), LEADING[step.local.primitive.name]
    if kind is None or not all(isinstance(k, Apart) for k in step.inputs) or kind.dim >= len(step.shape(0)) - core:
        return None
    return step.all_outputs(_plain(kind))


def _triangular(step: Step) -> list[Kind] | None:
    matrix, right = step.inputs
    if isinstance(matrix, Alike) and isinstance(right, Apart) and matrix.factor == 1:
        columns = len(step.shape(1)) - (1 if step.params["left_side"] else 2)
        return [_plain(right)] if right.dim == columns else None
    kind = _apart(step.inputs)
    both = kind and isinstance(matrix, Apart) and isinstance(right, Apart)
    return [_plain(kind)] if both and kind and kind.dim < len(step.shape(0)) - 2 else None


def _householder(step: Step) -> list[Kind] | None:
    kind = _apart(step.inputs)
    both = kind and all(isinstance(k, Apart) for k in step.inputs)
    return [_plain(kind)] if both and kind and kind.dim < len(step.shape(0)) - 2 else None


def _tridiagonal_solve(step: Step) -> list[Kind] | None:
    kind = _apart(step.inputs)
    both = kind and all(isinstance(k, Apart) for k in step.inputs)
    return [_plain(kind)] if both and kind and kind.dim < len(step.shape(0)) - 1 else None


def _fft(step: Step) -> list[Kind] | None:
    kind = step.inputs[0]
    last = len(step.shape(0)) - len(step.params["fft_lengths"])
    return [_plain(kind)] if isinstance(kind, Apart) and kind.dim < last else None


def _convolution(step: Step) -> list[Kind] | None:
    images, filters = step.inputs
    numbers = step.params["dimension_numbers"]
    fits = isinstance(images, Apart) and images.dim == numbers.lhs_spec[0] and step.params["batch_group_count"] == 1
    if not fits or not isinstance(images, Apart) or not isinstance(filters, Alike):
        return None
    return [replace(_plain(images), dim=numbers.out_spec[0], factor=images.factor * filters.factor)]


def _window(step: Step) -> list[Kind] | None:
    kind = _apart(step.inputs)
    if kind is None:
        return None
    p = step.params
    one = p["window_dimensions"][kind.dim] == 1 == p["window_strides"][kind.dim]
    plain = tuple(p["padding"][kind.dim]) == (0, 0) and all(
        p[name][kind.dim] == 1 for name in ("base_dilation", "window_dilation") if p.get(name)
    )
    return step.all_outputs(_plain(kind)) if one and plain else None


def _collective(step: Step) -> list[Kind] | None:
    """The model's own sums over devices."""
    named = step.params.get("axes", ())
    over = {"psum": "sum", "psum_invariant": "sum", "pmax": "max", "pmin": "min"}[step.local.primitive.name]
    if step.params.get("axis_index_groups") or not all(isinstance(axis, str) for axis in named):
        return None
    return [_collected(kind, frozenset(named), over, step.proof.groups) for kind in step.inputs]


def _collected(kind: Kind, named: frozenset[str], over: str, groups: Any) -> Kind:
    named = named & groups.sizes.keys()
    others = groups.devices(named) if over == "sum" else 1
    if isinstance(kind, Alike):
        return Alike(kind.factor / others)
    if isinstance(kind, Partial) and kind.over == over and kind.axes <= named:
        return Alike(kind.factor / (groups.devices(named - kind.axes) if over == "sum" else 1))
    if isinstance(kind, Apart) and not kind.group.axes & named:
        return replace(_plain(kind), factor=kind.factor / others)
    return None


def _all_gather(step: Step) -> list[Kind] | None:
    kind, p = step.inputs[0], step.params
    named = p["axis_name"] if isinstance(p["axis_name"], tuple) else (p["axis_name"],)
    named = tuple(axis for axis in named if axis in step.proof.groups.sizes)
    order = tuple(axis for axis in step.proof.groups.sizes if axis in named)
    if not isinstance(kind, Apart) or kind.before != 1 or kind.group.padded or not p["tiled"] or named != order:
        return None
    whole = kind.group.axes == frozenset(named) and kind.dim == p["all_gather_dimension"]
    return [Alike(kind.factor)] if whole and not p["axis_index_groups"] else None


class _Rules(dict[str, Rule]):
    """Rules by primitive."""

    collectives = _words(
        """psum psum_invariant pmax pmin all_gather all_gather_invariant axis_index ppermute all_to_all reduce_scatter
        pbroadcast pvary"""
    )
    """What looks at other devices, or at which device this is."""


RULES = _Rules(
    {
        **dict.fromkeys(ELEMENTWISE, _elementwise),
        **dict.fromkeys(LEADING, _leading),
        **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or",
                         "reduce_xor", "argmax", "argmin"), _reduce),
        **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "split"), _along("axis")),
        **dict.fromkeys(("psum", "psum_invariant", "pmax", "pmin"), _collective),
        **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), _window),
        **dict.fromkeys(("scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter_mul", "scatter-min",
                         "scatter-max", "scatter_min", "scatter_max"), _scatter_columns),
        "convert_element_type": _convert, "lt": _less, "select_n": _select, "mul": _multiply, "div": _divide,
        "add": _add, "sub": _add, "add_any": _add, "broadcast_in_dim": _broadcast, "reshape": _reshape,
        "transpose": _transpose, "squeeze": _squeeze, "sort": _along("dimension"), "rev": _along("dimensions"),
        "top_k": _top_k, "concatenate": _concatenate, "slice": _slice, "dynamic_slice": _dynamic_slice,
        "dynamic_update_slice": _dynamic_update_slice, "pad": _pad, "iota": _iota, "dot_general": _dot,
        "gather": _gather, "triangular_solve": _triangular, "householder_product": _householder,
        "tridiagonal_solve": _tridiagonal_solve, "fft": _fft, "conv_general_dilated": _convolution,
        "all_gather": _all_gather,
    }
)  # fmt: skip
