"""Rules of the proof for primitives that combine entries: reductions, sorts, linear algebra, transforms, filters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from phalanx.exactness.proof.equation_pair import EquationPair, Rule, aligned, along, plain, product
from phalanx.jaxprs.sharding_state import Kind, Partial, Replicated, ShardedRows

LEADING = {
    "cholesky": 2, "lu": 2, "qr": 2, "eigh": 2, "eig": 2, "svd": 2, "schur": 2, "geqrf": 2, "hessenberg": 2,
    "tridiagonal": 2, "lu_pivots_to_permutation": 1, "householder_product": 2, "tridiagonal_solve": 1,
    "triangular_solve": 2,
}  # fmt: skip
"""Primitives that are batched over leading dimensions, with the number of dimensions that follow the batch."""


def _reduce(pair: EquationPair) -> list[Kind] | None:
    axes, name = pair.params["axes"], pair.local.primitive.name
    over = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min"}.get(name)
    kind = pair.inputs[0] if len(pair.inputs) == 1 else aligned(pair.inputs)
    if not isinstance(kind, ShardedRows):
        return None
    if kind.dim not in axes:
        if kind.factor != 1 and over != "sum":
            return None
        return pair.all_outputs(replace(kind, dim=kind.dim - sum(d < kind.dim for d in axes), false=False))
    padded, masks = kind.group.padded, pair.proof.masks is not None
    if kind.constant and over == "sum" and not (padded and masks):
        return [Replicated(kind.factor * Fraction(kind.group.rows, kind.group.local_rows))]
    if (padded and not masks) or over is None or (over != "sum" and kind.factor != 1):
        return None
    return [Partial(kind.group.axes, kind.factor, over)]


def _top_k(pair: EquationPair) -> list[Kind] | None:
    kind, dim = aligned(pair.inputs), pair.params.get("axis", len(pair.shape(0)) - 1)
    return pair.all_outputs(kind) if kind and kind.dim != dim else None


def _dot(pair: EquationPair) -> list[Kind] | None:
    a, b = pair.inputs
    (over_a, over_b), (batch_a, batch_b) = pair.params["dimension_numbers"]
    if not isinstance(a, Replicated | ShardedRows | Partial) or not isinstance(b, Replicated | ShardedRows | Partial):
        return None
    factor = a.factor * b.factor
    if isinstance(a, Partial) or isinstance(b, Partial):
        return [product(a, b, factor)]
    if isinstance(a, ShardedRows) and isinstance(b, ShardedRows):
        if (a.group, a.before, a.per) != (b.group, b.before, b.per):
            return None
        if a.dim in over_a and b.dim in over_b and over_a.index(a.dim) == over_b.index(b.dim):
            padded = a.group.padded and pair.proof.masks is None
            return None if padded else [Partial(a.group.axes, factor)]
        if a.dim in batch_a and b.dim in batch_b and batch_a.index(a.dim) == batch_b.index(b.dim):
            return [replace(plain(a), dim=batch_a.index(a.dim), factor=factor)]
        return None
    if isinstance(a, ShardedRows):
        rows, number, over, batch = a, 0, over_a, batch_a
    elif isinstance(b, ShardedRows):
        rows, number, over, batch = b, 1, over_b, batch_b
    else:
        return [Replicated(factor)]
    if rows.dim in over or rows.dim in batch:
        return None
    free = [[d for d in range(len(pair.shape(i))) if d not in (*o, *s)] for i, (o, s) in enumerate(
        ((over_a, batch_a), (over_b, batch_b)))]  # fmt: skip
    dim = len(batch) + free[number].index(rows.dim) + (len(free[0]) if number else 0)
    return [replace(plain(rows), dim=dim, factor=factor)]


def _leading(pair: EquationPair) -> list[Kind] | None:
    kind, leading = aligned(pair.inputs), len(pair.shape(0)) - LEADING[pair.local.primitive.name]
    if kind is None or not all(isinstance(k, ShardedRows) for k in pair.inputs) or kind.dim >= leading:
        return None
    return pair.all_outputs(plain(kind))


def _triangular(pair: EquationPair) -> list[Kind] | None:
    matrix, right = pair.inputs
    if isinstance(matrix, Replicated) and isinstance(right, ShardedRows) and matrix.factor == 1:
        columns = len(pair.shape(1)) - (1 if pair.params["left_side"] else 2)
        return [plain(right)] if right.dim == columns else None
    return _leading(pair)


def _fft(pair: EquationPair) -> list[Kind] | None:
    kind = pair.inputs[0]
    last = len(pair.shape(0)) - len(pair.params["fft_lengths"])
    return [plain(kind)] if isinstance(kind, ShardedRows) and kind.dim < last else None


def _convolution(pair: EquationPair) -> list[Kind] | None:
    images, filters = pair.inputs
    numbers = pair.params["dimension_numbers"]
    if not isinstance(images, ShardedRows) or not isinstance(filters, Replicated):
        return None
    if images.dim != numbers.lhs_spec[0] or pair.params["batch_group_count"] != 1:
        return None
    return [replace(plain(images), dim=numbers.out_spec[0], factor=images.factor * filters.factor)]


def _window(pair: EquationPair) -> list[Kind] | None:
    kind = aligned(pair.inputs)
    if kind is None:
        return None
    p = pair.params
    one = p["window_dimensions"][kind.dim] == 1 == p["window_strides"][kind.dim]
    narrow = tuple(p["padding"][kind.dim]) == (0, 0) and all(
        p[name][kind.dim] == 1 for name in ("base_dilation", "window_dilation") if p.get(name)
    )
    return pair.all_outputs(plain(kind)) if one and narrow else None


ALGEBRA: Mapping[str, Rule] = {
    **dict.fromkeys(LEADING, _leading),
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor",
                     "argmax", "argmin"), _reduce),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), along("axis")),
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), _window),
    "sort": along("dimension"),
    "top_k": _top_k,
    "dot_general": _dot,
    "triangular_solve": _triangular,
    "fft": _fft,
    "conv_general_dilated": _convolution,
}  # fmt: skip
