"""Rules of the proof for primitives that rearrange values: reshapes, slices, concatenations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from phalanx.exactness.proof.equation_pair import EquationPair, Rule, aligned, along, has_all_rows, is_zero, plain
from phalanx.jaxprs.sharding_state import Indices, Kind, Numbers, Replicated, ShardedRows


def _broadcast(pair: EquationPair) -> list[Kind] | None:
    kind, into = pair.inputs[0], pair.params["broadcast_dimensions"]
    whole, local = pair.outs
    if isinstance(kind, Replicated):
        rows = pair.proof.groups.rows_of(whole, local)
        return [replace(rows, factor=kind.factor, constant=True)] if rows else None
    if not isinstance(kind, ShardedRows | Numbers):
        return None
    dim = into[kind.dim]
    same = whole[:dim] == local[:dim] and whole[dim + 1 :] == local[dim + 1 :]
    kept = (whole[dim], local[dim]) == tuple(shape[kind.dim] for shape in pair.shapes(0))
    return [replace(kind, dim=dim)] if same and kept else None


def _reshape(pair: EquationPair) -> list[Kind] | None:
    kind = pair.inputs[0]
    if pair.params.get("dimensions") is not None:
        return None
    if isinstance(kind, Numbers):
        found = _split(ShardedRows(kind.group, kind.dim), pair)
        return [Numbers(kind.group, found.dim)] if found and found.before == found.per == 1 else None
    return [_split(kind, pair)] if isinstance(kind, ShardedRows) else None


def _split(kind: ShardedRows, pair: EquationPair) -> ShardedRows | None:
    """Return the place of the rows after a reshape, which keeps the order of elements."""
    before = prod(pair.shape(0)[: kind.dim]) * kind.before
    behind = prod(pair.shape(0)[kind.dim + 1 :]) * kind.per
    found = []
    for dim in range(len(pair.out)):
        p, s = prod(pair.out[:dim]), prod(pair.out[dim + 1 :])
        if not p or not s or before % p or behind % s:
            continue
        each = (before // p) * (behind // s)
        sizes = tuple(shape[dim] for shape in pair.outs)
        whole = pair.outs[0]
        same = whole[:dim] == pair.out[:dim] and whole[dim + 1 :] == pair.out[dim + 1 :]
        if same and sizes == (each * kind.group.rows, each * kind.group.local_rows):
            found.append(replace(kind, dim=dim, before=before // p, per=behind // s))
    return min(found, key=lambda rows: rows.before * rows.per, default=None)


def _moved(kind: Kind, dim: int) -> list[Kind]:
    return [replace(kind, dim=dim)] if isinstance(kind, ShardedRows | Numbers | Indices) else [None]


def _transpose(pair: EquationPair) -> list[Kind] | None:
    kind = pair.inputs[0]
    return _moved(kind, pair.params["permutation"].index(kind.dim)) if isinstance(kind, ShardedRows | Numbers) else None


def _squeeze(pair: EquationPair) -> list[Kind] | None:
    kind, dims = pair.inputs[0], pair.params["dimensions"]
    if not isinstance(kind, ShardedRows | Numbers) or kind.dim in dims:
        return None
    return _moved(kind, kind.dim - sum(d < kind.dim for d in dims))


def _concatenate(pair: EquationPair) -> list[Kind] | None:
    dim, numbers = pair.params["dimension"], [k for k in pair.inputs if isinstance(k, Numbers)]
    if not numbers:
        return along("dimension")(pair)
    rows = ShardedRows(numbers[0].group, numbers[0].dim)
    others = [k for k in pair.inputs if not isinstance(k, Numbers)]
    aligned = all(isinstance(k, ShardedRows) and (k.layout, k.factor) == (rows.layout, 1) for k in others)
    if dim == rows.dim or len(numbers) > 1 or not aligned:
        return None
    column = sum(pair.shape(i)[dim] for i in range(pair.inputs.index(numbers[0])))
    return [Indices(rows.group, rows.dim, column)] if dim == len(pair.out) - 1 else None


def _slice(pair: EquationPair) -> list[Kind] | None:
    kind = pair.inputs[0]
    if not isinstance(kind, ShardedRows):
        return None
    (before, now), strides = pair.shapes(0), pair.params["strides"]
    for equation, shape in ((pair.whole, before), (pair.local, now)):
        starts, ends = equation.params["start_indices"], equation.params["limit_indices"]
        if starts[kind.dim] != 0 or ends[kind.dim] != shape[kind.dim] or (strides and strides[kind.dim] != 1):
            return None
    others = [d for d in range(len(now)) if d != kind.dim]
    names = ("start_indices", "limit_indices")
    same = all(pair.whole.params[n][d] == pair.params[n][d] for n in names for d in others)
    return [replace(kind, false=False)] if same else None


def _dynamic_slice(pair: EquationPair) -> list[Kind] | None:
    kind, *starts = pair.inputs
    if not isinstance(kind, ShardedRows) or not all(start == Replicated() or is_zero(start) for start in starts):
        return None
    return [replace(kind, false=False)] if has_all_rows(pair, "slice_sizes", kind.dim) else None


def _dynamic_update_slice(pair: EquationPair) -> list[Kind] | None:
    (kind, update), starts = pair.inputs[:2], pair.inputs[2:]
    rows = aligned([kind, update])
    if not isinstance(kind, ShardedRows) or not isinstance(update, ShardedRows) or rows is None:
        return None
    full = all(a[rows.dim] == b[rows.dim] for a, b in zip(pair.shapes(0), pair.shapes(1), strict=True))
    return [rows] if full and all(start == Replicated() or is_zero(start) for start in starts) else None


def _pad(pair: EquationPair) -> list[Kind] | None:
    kind, value = pair.inputs
    if not isinstance(kind, ShardedRows) or kind.factor != 1 or value not in (Replicated(), Replicated(zero=True)):
        return None
    return [plain(kind)] if pair.params["padding_config"][kind.dim] == (0, 0, 0) else None


def _iota(pair: EquationPair) -> list[Kind] | None:
    rows = pair.proof.groups.rows_of(*pair.outs)
    if rows is None or rows.per != 1:
        return None
    if pair.params["dimension"] != rows.dim:
        return [replace(rows, constant=True)]
    return [Numbers(rows.group, rows.dim)]


LAYOUT: Mapping[str, Rule] = {
    **dict.fromkeys(("rev",), along("dimensions")),
    "split": along("axis"),
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "concatenate": _concatenate,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "pad": _pad,
    "iota": _iota,
}
