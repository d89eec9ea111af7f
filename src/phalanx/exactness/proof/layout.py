"""Rules of the proof for what lays values out anew: new shapes, parts, and several in one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from phalanx.exactness.proof.step import Rule, Step, along, apart, full, is_zero
from phalanx.jaxprs.sharding_state import Indices, Kind, Numbers, Replicated, Sharded


def _broadcast(step: Step) -> list[Kind] | None:
    kind, into = step.inputs[0], step.params["broadcast_dimensions"]
    whole, local = step.outs
    if isinstance(kind, Replicated):
        rows = step.proof.groups.rows_of(whole, local)
        return [replace(rows, factor=kind.factor, constant=True)] if rows else None
    if not isinstance(kind, Sharded | Numbers):
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
        found = _split(Sharded(kind.group, kind.dim), step)
        return [Numbers(kind.group, found.dim)] if found and found.before == found.per == 1 else None
    return [_split(kind, step)] if isinstance(kind, Sharded) else None


def _split(kind: Sharded, step: Step) -> Sharded | None:
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
    return [replace(kind, dim=dim)] if isinstance(kind, Sharded | Numbers | Indices) else [None]


def _transpose(step: Step) -> list[Kind] | None:
    kind = step.inputs[0]
    return _moved(kind, step.params["permutation"].index(kind.dim)) if isinstance(kind, Sharded | Numbers) else None


def _squeeze(step: Step) -> list[Kind] | None:
    kind, dims = step.inputs[0], step.params["dimensions"]
    if not isinstance(kind, Sharded | Numbers) or kind.dim in dims:
        return None
    return _moved(kind, kind.dim - sum(d < kind.dim for d in dims))


def _concatenate(step: Step) -> list[Kind] | None:
    dim, numbers = step.params["dimension"], [k for k in step.inputs if isinstance(k, Numbers)]
    if not numbers:
        return along("dimension")(step)
    rows = Sharded(numbers[0].group, numbers[0].dim)
    others = [k for k in step.inputs if not isinstance(k, Numbers)]
    aligned = all(isinstance(k, Sharded) and (k.layout, k.factor) == (rows.layout, 1) for k in others)
    if dim == rows.dim or len(numbers) > 1 or not aligned:
        return None
    column = sum(step.shape(i)[dim] for i in range(step.inputs.index(numbers[0])))
    return [Indices(rows.group, rows.dim, column)] if dim == len(step.out) - 1 else None


def _slice(step: Step) -> list[Kind] | None:
    kind = step.inputs[0]
    if not isinstance(kind, Sharded):
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
    if not isinstance(kind, Sharded) or not all(start == Replicated() or is_zero(start) for start in starts):
        return None
    return [replace(kind, false=False)] if full(step, "slice_sizes", kind.dim) else None


def _dynamic_update_slice(step: Step) -> list[Kind] | None:
    (kind, update), starts = step.inputs[:2], step.inputs[2:]
    rows = apart([kind, update])
    if not isinstance(kind, Sharded) or not isinstance(update, Sharded) or rows is None:
        return None
    full = all(a[rows.dim] == b[rows.dim] for a, b in zip(step.shapes(0), step.shapes(1), strict=True))
    return [rows] if full and all(start == Replicated() or is_zero(start) for start in starts) else None


def _pad(step: Step) -> list[Kind] | None:
    kind = step.inputs[0]
    if not isinstance(kind, Sharded) or kind.factor != 1 or step.inputs[1] not in (Replicated(), Replicated(zero=True)):
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
