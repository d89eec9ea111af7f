"""A proof, read off two traces of a program, that its shares add up.

The trace on the whole data and that on the rows of one device are followed side by side from their outputs, equation
by equation. Where both do the same to values of which it is known what the devices' are of the whole's, the rules of
`row_rules` say so of the result. A number that differs between the two traces (the count of rows, say) is seen as
such. Whatever is not known to be right is not proved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from phalanx.mesh.dependence import constants_within, inner_programs
from phalanx.mesh.space import RowSharding
from phalanx.programs.row_calls import CALLS
from phalanx.programs.row_collectives import COLLECTIVES
from phalanx.programs.row_masks import MASKED, Plan
from phalanx.programs.row_rules import MAY_DIFFER, OPAQUE, RULES
from phalanx.programs.row_step import Step, is_zero, keeps_factor
from phalanx.programs.row_values import Groups, Kind, Partial, Replicated, Sharded, fits


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
    return Proof(groups, masks=masks).closed(whole, local, inputs)


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

    @property
    def of_derivative(self) -> Proof:
        """What follows the program of a derivative."""
        return Proof(self.groups, once=False)

    def closed(self, whole: ClosedJaxpr, local: ClosedJaxpr, inputs: Sequence[Kind]) -> list[Kind]:
        """The kinds of the outputs of a pair of programs."""
        return self.open(whole.jaxpr, local.jaxpr, inputs, whole.consts, local.consts)

    def open(
        self,
        whole: Jaxpr,
        local: Jaxpr,
        inputs: Sequence[Kind],
        of_whole: Sequence[Any] = (),
        of_local: Sequence[Any] = (),
    ) -> list[Kind]:
        """The same of programs whose constants are given apart."""
        if not len(whole.invars) == len(local.invars) == len(inputs) or len(whole.outvars) != len(local.outvars):
            return [None] * len(local.outvars)
        pairing = _Pairing(self, whole, local, of_whole, of_local)
        pairing.known.update(zip(map(_key, whole.invars, local.invars), inputs, strict=True))
        return [pairing.kind(*pair) for pair in zip(whole.outvars, local.outvars, strict=True)]

    def equation(self, whole: Any, local: Any, inputs: Sequence[Kind], hosts: tuple[Jaxpr, Jaxpr]) -> list[Kind]:
        """The kinds of the results of a pair of equations."""
        kinds = self._results(Step(whole, local, inputs, self, hosts))
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
        if name in CALLS:
            return CALLS[name](step)
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

    def __init__(self, proof: Proof, whole: Jaxpr, local: Jaxpr, of_whole: Sequence[Any], of_local: Sequence[Any]):
        self._proof, self._hosts = proof, (whole, local)
        self.known: dict[tuple[int, int], Kind] = {}
        self._constants = [
            dict(zip(map(id, j.constvars), c, strict=False)) for j, c in ((whole, of_whole), (local, of_local))
        ]
        self._makers = [{id(v): (e, i) for e in j.eqns for i, v in enumerate(e.outvars)} for j in (whole, local)]

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
            kinds = self._proof.equation(whole_equation, local_equation, given, self._hosts)
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
    return _text(a) == _text(b)


def _text(value: Any) -> str:
    return re.sub(r"0x[0-9a-f]+", "", str(value))  # where a callable lives in memory is not part of the program
