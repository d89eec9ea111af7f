"""Proof, from two traces of a program, that its shares add up.

The trace on the whole data and the trace on the rows of one device are followed side by side from their outputs,
equation by equation. If both equations do the same, and the kinds of their inputs are known (how the devices' values
make up the whole's), `RULES` give the kinds of the results. A number that differs between the traces, such as the
number of rows, is recognised. All else is not proved.

A rule is applied if the kinds of all inputs are known and both equations have the same parameters, except for those in
`MAY_DIFFER`, which the rule checks itself. It returns the kinds of the outputs, or None if the rows may be mixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jax.typing import ArrayLike

from phalanx.exactness.proof.algebra import ALGEBRA
from phalanx.exactness.proof.arithmetic import ARITHMETIC
from phalanx.exactness.proof.calls import FOLLOWED
from phalanx.exactness.proof.collectives import COLLECTIVES, OVER_DEVICES
from phalanx.exactness.proof.equation_pair import EquationPair, Rule, is_zero, keeps_factor
from phalanx.exactness.proof.layout import LAYOUT
from phalanx.exactness.proof.tables import TABLES
from phalanx.jaxprs.row_masks import MASKED, Change, MaskPlan
from phalanx.jaxprs.sharding_state import Groups, Kind, Partial, Replicated, ShardedRows, fits
from phalanx.jaxprs.walking import Atom, Program, aval_of, constants_within, inner_programs, opened, printed, words
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
"""Parameters that may depend on the number of rows."""


OPAQUE = words("pure_callback io_callback debug_callback custom_partitioning shard_map ffi_call")
"""Primitives that cannot be compared: two with equal parameters may compute different things."""

RULES: Mapping[str, Rule] = {**ARITHMETIC, **LAYOUT, **TABLES, **ALGEBRA, **OVER_DEVICES}


def read_kinds(
    whole: ClosedJaxpr, local: ClosedJaxpr, inputs: Sequence[RowSharding], groups: Groups, masks: MaskPlan | None = None
) -> list[Kind]:
    """Return the kind of each output.

    Args:
        whole: the program on all rows.
        local: the program on the rows of one device.
        inputs: the sharding of each input.
        groups: the groups of rows.
        masks: as for `read_kinds_of`.
    """
    given: list[Kind] = [ShardedRows(groups.of(sharding), 0) if sharding.axes else Replicated() for sharding in inputs]
    return read_kinds_of(whole, local, given, groups, masks)


def read_kinds_of(
    whole: ClosedJaxpr, local: ClosedJaxpr, inputs: Sequence[Kind], groups: Groups, masks: MaskPlan | None = None
) -> list[Kind]:
    """Return the kind of each output, given the kinds of the inputs.

    With `masks`, padded rows are assumed to be masked in reductions over rows, and numbers that depend on the number of
    rows or devices to be those of the whole where they are needed; both are recorded there.
    """
    return Proof(groups, masks=masks).run(whole, local, inputs)


def adds_up(kind: Kind, sharding: RowSharding, groups: Groups) -> bool:
    """Return whether values of this kind, summed over the devices of `sharding`, give the sum in the whole."""
    axes = frozenset(sharding.axes)
    if isinstance(kind, Replicated):  # equal values on n devices add up to n times one of them
        return kind.factor == groups.devices(axes) or kind.zero
    if isinstance(kind, Partial):
        return kind == Partial(axes)
    if not isinstance(kind, ShardedRows) or kind.group.axes != axes or kind.factor != 1:
        return False
    leads = kind.layout == ShardedRows(kind.group, 0).layout
    return not kind.group.padded or (leads and sharding.rows == kind.group.rows)


def has_rows(kind: Kind, sharding: RowSharding, groups: Groups) -> bool:
    """Return whether values of this kind equal the whole's: row by row, or entirely if they are replicated."""
    if not sharding.axes:
        return isinstance(kind, Replicated) and kind.factor == 1
    leads = ShardedRows(groups.of(sharding), 0).layout
    return isinstance(kind, ShardedRows) and kind.factor == 1 and kind.layout == leads


class Proof:
    """Proof about pairs of programs; with `once`, also about derivatives that functions define (not about theirs)."""

    def __init__(self, groups: Groups, once: bool = True, masks: MaskPlan | None = None):
        self.groups, self.once, self.masks = groups, once, masks

    def run(self, whole: Program, local: Program, inputs: Sequence[Kind]) -> list[Kind]:
        """Return the kinds of the outputs of a pair of programs."""
        (a, of_a), (b, of_b) = opened(whole), opened(local)
        if not len(a.invars) == len(b.invars) == len(inputs) or len(a.outvars) != len(b.outvars):
            return [None] * len(b.outvars)
        pairing = _Pairing(self, (a, b), (of_a, of_b))
        pairing.known.update(zip(map(_key, a.invars, b.invars), inputs, strict=True))
        return [pairing.kind(*pair) for pair in zip(a.outvars, b.outvars, strict=True)]

    def equation(self, whole: JaxprEqn, local: JaxprEqn, inputs: Sequence[Kind]) -> list[Kind]:
        """Return the kinds of the results of a pair of equations."""
        kinds = self._results(EquationPair(whole, local, inputs, self))
        if self.masks is not None:
            kinds = self._masked(whole, local, inputs, kinds)
        if kinds is None:
            return [None] * len(local.outvars)
        # operations broadcast dimensions of size one implicitly, so that the shapes may contradict the kinds
        shapes = [(aval_of(a).shape, aval_of(b).shape) for a, b in zip(whole.outvars, local.outvars, strict=True)]
        return [kind if fits(kind, *pair) else None for kind, pair in zip(kinds, shapes, strict=True)]

    def _masked(
        self, whole: JaxprEqn, local: JaxprEqn, inputs: Sequence[Kind], kinds: list[Kind] | None
    ) -> list[Kind] | None:
        """Return the kinds of the results, and record which operands are masked, or scaled to those of the whole."""
        assert self.masks is not None
        name = local.primitive.name
        changes: list[Change] = [None] * len(inputs)
        if name not in FOLLOWED and (kinds is None or None in kinds):
            changes = [_factor_to_whole(*each) for each in zip(local.invars, inputs, strict=True)]
            if any(changes):
                inputs = [Replicated() if factor else kind for kind, factor in zip(inputs, changes, strict=True)]
                kinds = self._results(EquationPair(whole, local, inputs, self))
        if name in MASKED and kinds is not None and any(isinstance(kind, Partial) for kind in kinds):
            rows = [kind if isinstance(kind, ShardedRows) else None for kind in inputs]
            changes = [row or change for row, change in zip(rows, changes, strict=True)]
        if name in MASKED or any(changes):
            self.masks.note(local, changes)
        return kinds

    def _results(self, pair: EquationPair) -> list[Kind] | None:
        name, inputs = pair.local.primitive.name, pair.inputs
        if name in FOLLOWED:
            return FOLLOWED[name](pair)
        if name in OPAQUE or (None in inputs and name != "select_n"):
            return None
        if not _same_params(pair.whole, pair.local, MAY_DIFFER.get(name, ())):
            return None
        if name not in COLLECTIVES and pair.same_shapes and _same_params(pair.whole, pair.local, ()):
            if all(isinstance(kind, Replicated) and kind.factor == 1 for kind in inputs):
                zero = keeps_factor(pair) and is_zero(inputs[0])
                return pair.all_outputs(Replicated(zero=zero))
            if keeps_factor(pair):
                return pair.all_outputs(inputs[0])
        rule = RULES.get(name)
        return rule(pair) if rule else None


class _Pairing:
    """Pairs of values of two programs, followed back from the outputs as far as needed."""

    def __init__(
        self, proof: Proof, pair: tuple[Jaxpr, Jaxpr], constants: tuple[Sequence[ArrayLike], Sequence[ArrayLike]]
    ):
        self._proof = proof
        self.known: dict[tuple[int, int], Kind] = {}
        self._constants = [
            dict(zip(map(id, j.constvars), c, strict=False)) for j, c in zip(pair, constants, strict=True)
        ]
        self._makers = [{id(v): (e, i) for e in j.eqns for i, v in enumerate(e.outvars)} for j in pair]

    def kind(self, whole: Atom, local: Atom) -> Kind:
        """Return the kind of a pair of values."""
        waiting = [(whole, local)]
        while waiting:
            pair = waiting[-1]
            if self._is_known(*pair):
                waiting.pop()
                continue
            made, made_here = (makers.get(id(atom)) for makers, atom in zip(self._makers, pair, strict=True))
            if made is None or made_here is None or not _same_form(made, made_here):
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

    def _is_known(self, whole: Atom, local: Atom) -> bool:
        if _key(whole, local) in self.known:
            return True
        of_whole, of_local = (self._value(atom, side) for side, atom in enumerate((whole, local)))
        if of_whole is None or of_local is None:
            return False
        self.known[_key(whole, local)] = self._proof.groups.compare(of_whole[0], of_local[0])
        return True

    def _value(self, atom: Atom, side: int) -> tuple[ArrayLike] | None:
        """Return the value of a literal or constant, in a tuple; None for other atoms."""
        if isinstance(atom, Literal):
            return (atom.val,)
        constants = self._constants[side]
        return (constants[id(atom)],) if id(atom) in constants else None


def _factor_to_whole(atom: Atom, kind: Kind) -> Fraction | None:
    """Return the factor that makes a replicated number that of the whole, if it is another one."""
    if not isinstance(kind, Replicated) or kind.factor == 1 or not jnp.issubdtype(aval_of(atom).dtype, jnp.inexact):
        return None
    return kind.factor


def _key(whole: Atom, local: Atom) -> tuple[int, int]:
    return id(whole), id(local)


def _same_form(whole: tuple[JaxprEqn, int], local: tuple[JaxprEqn, int]) -> bool:
    (a, i), (b, j) = whole, local
    return i == j and a.primitive is b.primitive and len(a.invars) == len(b.invars) and len(a.outvars) == len(b.outvars)


def _same_params(whole: JaxprEqn, local: JaxprEqn, may_differ: Sequence[str]) -> bool:
    """Return whether two equations have the same parameters, except for those that `may_differ`."""
    if any(constants_within(program) for equation in (whole, local) for program in inner_programs(equation)):
        return False  # the text of a program does not contain its constants
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
    except Exception:  # arrays, and other values whose comparison is not a single bool
        pass
    return printed(a) == printed(b)
