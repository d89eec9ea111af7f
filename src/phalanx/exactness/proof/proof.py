"""A proof, read off two traces of a program, that its shares add up.

The trace on the whole data and that on the rows of one device are followed side by side from their outputs, equation
by equation. Where both do the same to values of which it is known what the devices' are of the whole's, `RULES` say
so of the result. A number that differs between the two traces (the count of rows, say) is seen as such. Whatever is not
known to be right is not proved.

A rule is asked when it is known of all inputs what they are of the whole's, and when both equations have the same
parameters (but for those that `MAY_DIFFER` names, which it looks at itself). It gives the kinds of the outputs, or None
where the rows may be mixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from phalanx.exactness.proof.algebra import ALGEBRA
from phalanx.exactness.proof.arithmetic import ARITHMETIC
from phalanx.exactness.proof.calls import FOLLOWED
from phalanx.exactness.proof.collectives import COLLECTIVES, OVER_DEVICES
from phalanx.exactness.proof.layout import LAYOUT
from phalanx.exactness.proof.step import Rule, Step, is_zero, keeps_factor
from phalanx.exactness.proof.tables import TABLES
from phalanx.jaxprs.row_masks import MASKED, Plan
from phalanx.jaxprs.sharding_state import Groups, Kind, Partial, Replicated, Sharded, fits
from phalanx.jaxprs.walking import Program, constants_within, inner_programs, opened, printed, words
from phalanx.mesh.space import RowSharding

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


OPAQUE = words("pure_callback io_callback debug_callback custom_partitioning shard_map ffi_call")
"""What cannot be compared: two that look the same may do different things."""

RULES: Mapping[str, Rule] = {**ARITHMETIC, **LAYOUT, **TABLES, **ALGEBRA, **OVER_DEVICES}


def read_kinds(
    whole: ClosedJaxpr, local: ClosedJaxpr, inputs: Sequence[RowSharding], groups: Groups, masks: Plan | None = None
) -> list[Kind]:
    """What each output on a device is of that of the whole.

    Args:
        whole: the program on all rows.
        local: the program on the rows of one device.
        inputs: where each input lives.
        groups: the groups of rows.
        masks: as for `read_kinds_of`.
    """
    given: list[Kind] = [Sharded(groups.of(sharding), 0) if sharding.axes else Replicated() for sharding in inputs]
    return read_kinds_of(whole, local, given, groups, masks)


def read_kinds_of(
    whole: ClosedJaxpr, local: ClosedJaxpr, inputs: Sequence[Kind], groups: Groups, masks: Plan | None = None
) -> list[Kind]:
    """Return what each output on a device is of that of the whole, given the same of the inputs.

    With `masks`, padded rows are taken to be left out of what adds up rows, which is noted there.
    """
    return Proof(groups, masks=masks).run(whole, local, inputs)


def adds_up(kind: Kind, sharding: RowSharding, groups: Groups) -> bool:
    """Whether values of this kind, added over devices' rows and weighed as `sharding` says, give the whole's sum."""
    axes = frozenset(sharding.axes)
    if isinstance(kind, Replicated):  # n devices that are alike add up to n times what one has
        return kind.factor == groups.devices(axes) or kind.zero
    if isinstance(kind, Partial):
        return kind == Partial(axes)
    if not isinstance(kind, Sharded) or kind.group.axes != axes or kind.factor != 1:
        return False
    leads = kind.layout == Sharded(kind.group, 0).layout
    return not kind.group.padded or (leads and sharding.rows == kind.group.rows)


def has_rows(kind: Kind, sharding: RowSharding, groups: Groups) -> bool:
    """Whether values of this kind are, row by row or as one, those of the whole."""
    if not sharding.axes:
        return isinstance(kind, Replicated) and kind.factor == 1
    return isinstance(kind, Sharded) and kind.factor == 1 and kind.layout == Sharded(groups.of(sharding), 0).layout


class Proof:
    """Follows pairs of programs. `once`: with the derivatives that functions bring along, which need none of theirs."""

    def __init__(self, groups: Groups, once: bool = True, masks: Plan | None = None):
        self.groups, self.once, self.masks = groups, once, masks

    def run(self, whole: Program, local: Program, inputs: Sequence[Kind]) -> list[Kind]:
        """The kinds of the outputs of a pair of programs."""
        (a, of_a), (b, of_b) = opened(whole), opened(local)
        if not len(a.invars) == len(b.invars) == len(inputs) or len(a.outvars) != len(b.outvars):
            return [None] * len(b.outvars)
        pairing = _Pairing(self, (a, b), (of_a, of_b))
        pairing.known.update(zip(map(_key, a.invars, b.invars), inputs, strict=True))
        return [pairing.kind(*pair) for pair in zip(a.outvars, b.outvars, strict=True)]

    def equation(self, whole: Any, local: Any, inputs: Sequence[Kind]) -> list[Kind]:
        """The kinds of the results of a pair of equations."""
        kinds = self._results(Step(whole, local, inputs, self))
        if self.masks is not None and local.primitive.name in MASKED:
            added_up = kinds is not None and any(isinstance(kind, Partial) for kind in kinds)
            reduced = [kind if added_up and isinstance(kind, Sharded) else None for kind in inputs]
            self.masks.note(local, reduced)
        if kinds is None:
            return [None] * len(local.outvars)
        # a last look at the shapes: where sizes are one, operations widen without being asked
        shapes = [(a.aval.shape, b.aval.shape) for a, b in zip(whole.outvars, local.outvars, strict=True)]
        return [kind if fits(kind, *pair) else None for kind, pair in zip(kinds, shapes, strict=True)]

    def _results(self, step: Step) -> list[Kind] | None:
        name, inputs = step.local.primitive.name, step.inputs
        if name in FOLLOWED:
            return FOLLOWED[name](step)
        if name in OPAQUE or (None in inputs and name != "select_n"):
            return None
        if not _same_params(step.whole, step.local, MAY_DIFFER.get(name, ())):
            return None
        if name not in COLLECTIVES and step.same_shapes and _same_params(step.whole, step.local, ()):
            if all(isinstance(kind, Replicated) and kind.factor == 1 for kind in inputs):
                zero = keeps_factor(step) and is_zero(inputs[0])
                return step.all_outputs(Replicated(zero=zero))
            if keeps_factor(step):
                return step.all_outputs(inputs[0])
        rule = RULES.get(name)
        return rule(step) if rule else None


class _Pairing:
    """Pairs of values of two programs, followed back from the outputs as far as is needed."""

    def __init__(self, proof: Proof, pair: tuple[Jaxpr, Jaxpr], constants: tuple[Sequence[Any], Sequence[Any]]):
        self._proof = proof
        self.known: dict[tuple[int, int], Kind] = {}
        self._constants = [
            dict(zip(map(id, j.constvars), c, strict=False)) for j, c in zip(pair, constants, strict=True)
        ]
        self._makers = [{id(v): (e, i) for e in j.eqns for i, v in enumerate(e.outvars)} for j in pair]

    def kind(self, whole: Any, local: Any) -> Kind:
        """The kind of a pair of values."""
        waiting = [(whole, local)]
        while waiting:
            pair = waiting[-1]
            if self._is_known(*pair):
                waiting.pop()
                continue
            made, made_here = (makers.get(id(atom)) for makers, atom in zip(self._makers, pair, strict=True))
            if made is None or made_here is None or not _alike(made, made_here):
                self.known[_key(*pair)] = None
                continue
            (whole_equation, _), (local_equation, _) = made, made_here
            inputs = list(zip(whole_equation.invars, local_equation.invars, strict=True))
            if missing := [atoms for atoms in inputs if not self._is_known(*atoms)]:
                waiting.extend(missing)
                continue
            given = [self.known[_key(*atoms)] for atoms in inputs]
            kinds = self._proof.equation(whole_equation, local_equation, given)
            outputs = zip(whole_equation.outvars, local_equation.outvars, strict=True)
            self.known.update({_key(*atoms): kind for atoms, kind in zip(outputs, kinds, strict=True)})
        return self.known[_key(whole, local)]

    def _is_known(self, whole: Any, local: Any) -> bool:
        if _key(whole, local) in self.known:
            return True
        of_whole, of_local = (self._value(atom, side) for side, atom in enumerate((whole, local)))
        if of_whole is None or of_local is None:
            return False
        self.known[_key(whole, local)] = self._proof.groups.compare(of_whole[0], of_local[0])
        return True

    def _value(self, atom: Any, side: int) -> tuple[Any] | None:
        """The number or array that an atom stands for, in a tuple."""
        if isinstance(atom, Literal):
            return (atom.val,)
        constants = self._constants[side]
        return (constants[id(atom)],) if id(atom) in constants else None


def _key(whole: Any, local: Any) -> tuple[int, int]:
    return id(whole), id(local)


def _alike(whole: Any, local: Any) -> bool:
    (a, i), (b, j) = whole, local
    return i == j and a.primitive is b.primitive and len(a.invars) == len(b.invars) and len(a.outvars) == len(b.outvars)


def _same_params(whole: Any, local: Any, may_differ: Sequence[str]) -> bool:
    """Whether two equations do the same, but for what `may_differ`."""
    if any(constants_within(program) for equation in (whole, local) for program in inner_programs(equation)):
        return False  # a program's text does not say what it closes over
    return whole.params.keys() == local.params.keys() and all(
        _same(value, local.params[name]) for name, value in whole.params.items() if name not in may_differ
    )


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    try:
        if bool(a == b):
            return True
    except Exception:  # arrays, and whatever else has no single answer
        pass
    return printed(a) == printed(b)
