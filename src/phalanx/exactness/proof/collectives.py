"""Rules of the proof for sums and gathers over devices in the model itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from phalanx.exactness.proof.equation_pair import EquationPair, Rule, plain
from phalanx.jaxprs.sharding_state import Groups, Kind, Partial, Replicated, ShardedRows
from phalanx.jaxprs.walking import words

COLLECTIVES = words(
    """psum psum_invariant pmax pmin all_gather all_gather_invariant axis_index ppermute all_to_all reduce_scatter
    pbroadcast pvary"""
)
"""Primitives whose results depend on other devices, or on the index of this device."""


def _collective(pair: EquationPair) -> list[Kind] | None:
    """Return the kinds of the results of a sum, maximum or minimum over devices."""
    named = pair.params.get("axes", ())
    over = {"psum": "sum", "psum_invariant": "sum", "pmax": "max", "pmin": "min"}[pair.local.primitive.name]
    if pair.params.get("axis_index_groups") or not all(isinstance(axis, str) for axis in named):
        return None
    return [_collected(kind, frozenset(named), over, pair.proof.groups) for kind in pair.inputs]


def _collected(kind: Kind, named: frozenset[str], over: str, groups: Groups) -> Kind:
    named = named & groups.sizes.keys()
    others = groups.devices(named) if over == "sum" else 1
    if isinstance(kind, Replicated):
        return Replicated(kind.factor / others)
    if isinstance(kind, Partial) and kind.over == over and kind.axes <= named:
        return Replicated(kind.factor / (groups.devices(named - kind.axes) if over == "sum" else 1))
    if isinstance(kind, ShardedRows) and not kind.group.axes & named:
        return replace(plain(kind), factor=kind.factor / others)
    return None


def _all_gather(pair: EquationPair) -> list[Kind] | None:
    kind, p = pair.inputs[0], pair.params
    named = p["axis_name"] if isinstance(p["axis_name"], tuple) else (p["axis_name"],)
    named = tuple(axis for axis in named if axis in pair.proof.groups.sizes)
    order = tuple(axis for axis in pair.proof.groups.sizes if axis in named)
    if not isinstance(kind, ShardedRows) or kind.before != 1 or kind.group.padded or not p["tiled"] or named != order:
        return None
    whole = kind.group.axes == frozenset(named) and kind.dim == p["all_gather_dimension"]
    return [Replicated(kind.factor)] if whole and not p["axis_index_groups"] else None


OVER_DEVICES: Mapping[str, Rule] = {
    **dict.fromkeys(("psum", "psum_invariant", "pmax", "pmin"), _collective),
    "all_gather": _all_gather,
}
