"""Padded rows in the terms that a program sums over rows itself: masked if proved, corrected if tested, or refused.

A term with one entry for each row is masked when it is summed, so this module does not handle it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property

from phalanx.exactness.proof.proof import adds_up, has_rows, read_kinds
from phalanx.inputs.arguments import Arguments
from phalanx.jaxprs.dependence import uses_collective
from phalanx.jaxprs.row_masks import MaskPlan, Masks
from phalanx.jaxprs.sharding_state import Groups, Kind, Replicated
from phalanx.language.tracing import Program
from phalanx.mesh.space import RowSharding
from phalanx.programs.padded_terms import PaddedTerms, shapes_of_one_row
from phalanx.programs.shares import Term
from phalanx.programs.traced_program import TracedProgram


class Padding:
    """Padded rows of a program's data.

    Args:
        program: the program on a device.
        arguments: its data.
        sizes: devices along each mesh axis that has several.
        whole: the trace on the whole data.
        local: the trace on the rows of a device.

    Attributes:
        axes: mesh axes of devices that hold padded rows.
        by_number: terms that depend on the number of rows or devices alone, and do not add up over devices; Phalanx
            must prove that they equal the terms of the whole data.
    """

    def __init__(
        self, program: Program, arguments: Arguments, sizes: Mapping[str, int], whole: TracedProgram,
        local: TracedProgram,
    ):  # fmt: skip
        self._program, self._arguments, self._sizes, self._whole, self._local = program, arguments, sizes, whole, local
        self.axes = frozenset(axis for s in arguments.shardings if self.missing(s) for axis in s.axes)
        self.by_number: set[Term] = set()

    def missing(self, sharding: RowSharding) -> int:
        """Return the number of padded rows on all devices together."""
        return sharding.local_rows * math.prod(self._sizes[axis] for axis in sharding.axes) - sharding.rows

    @cached_property
    def adds(self) -> bool:
        """True if the program itself adds, gathers or compares values of devices that hold padded rows."""
        return any(uses_collective(self._local.jaxpr, axis) for axis in self.axes)

    @cached_property
    def rows(self) -> RowSharding | None:
        """The sharding of the padded rows; None if other rows are sharded over the same devices."""
        found = {sharding for sharding in self._arguments.shardings if self.axes & set(sharding.axes)}
        return found.pop() if len(found) == 1 else None

    @cached_property
    def on_one_row(self) -> TracedProgram | str:
        """The trace on a single row; or the reason why it cannot be made."""
        if self.rows is None:
            return "data of several numbers of rows are sharded over the same devices"
        shapes = shapes_of_one_row(self._local.shapes, self._has_rows)
        try:
            found = TracedProgram(self._program, self._arguments.layout, shapes, dict(self._local.axis_env))
        except Exception as error:  # a program that needs several rows
            return f"the model does not run on a single row: {(str(error).splitlines() or [repr(error)])[0][:200]}"
        same = found.terms.keys() == self._local.terms.keys() and found.position.keys() == self._local.position.keys()
        return found if same else "the model has other variables on a single row"

    @property
    def _has_rows(self) -> tuple[bool, ...]:
        return tuple(bool(sharding.axes) and sharding == self.rows for sharding in self._arguments.shardings)

    def of(
        self, terms: Mapping[Term, RowSharding], latents: Mapping[str, RowSharding], others: Mapping[str, RowSharding]
    ) -> tuple[Masks | None, PaddedTerms | None]:
        """Return the terms that the program sums over padded rows: those proved correct under masks, those corrected.

        Args:
            terms: the sharding of each term.
            latents: the sharding of each latent variable.
            others: the sharding of each deterministic value.

        Raises:
            ValueError: naming the variable, when padded rows can neither be masked nor corrected for.
        """
        jaxpr, outputs, adds = self._local.jaxpr, self._local.outputs, self.adds
        unfit = [t for t, s in terms.items() if t in self.by_number or (set(s.axes) & self.axes and not s.rows)]
        if not self.axes or not (unfit or adds):
            return None, None
        groups = Groups([*self._arguments.shardings, *latents.values()], self._sizes)
        inputs = [*(latents[name] for name in sorted(self._local.position)), *self._arguments.shardings]
        plan = MaskPlan()
        plain, masked = (
            dict(zip(outputs, read_kinds(self._whole.jaxpr, jaxpr, inputs, groups, masks), strict=True))
            for masks in (None, plan)
        )
        unfit = [t for t in terms if (t in unfit or adds) and not adds_up(plain[t], terms[t], groups)]
        of_group = {groups.of(sharding): sharding for sharding in inputs if sharding.axes}
        factors = {t: factor for t in unfit if (factor := _factor_to_whole(masked[t], terms[t])) is not None}
        proved = {t: outputs.index(t) for t in unfit if t in factors or adds_up(masked[t], terms[t], groups)}
        masks = Masks(jaxpr, plan, proved, factors, of_group)
        if not masks.is_supported:
            proved = {}
        left = tuple(term for term in unfit if term not in proved)
        if by_number := self.by_number.intersection(left):
            raise ValueError(depends_on_number(min(by_number), self._arguments))
        if left and (adds or isinstance(self.on_one_row, str)):
            raise ValueError(self._not_masked(left[0]))
        known = {**latents, **others}
        for name in known if adds else ():
            if not has_rows(plain[name], known[name], groups):
                raise ValueError(
                    f"The value of {name!r} depends, or may depend, on values that the model itself adds or gathers "
                    f"over devices, and the rows of the data do not divide evenly over them: padded rows would count. "
                    f"Give a number of rows that divides evenly."
                )
        return masks if proved else None, self._corrected(left, latents) if left else None

    def _corrected(self, terms: tuple[Term, ...], latents: Mapping[str, RowSharding]) -> PaddedTerms:
        assert self.rows is not None
        with_rows = frozenset(name for name, sharding in latents.items() if sharding == self.rows)
        return PaddedTerms(terms, self.rows, with_rows, self._has_rows)

    def _not_masked(self, term: Term) -> str:
        shape = self._whole.terms[term].shape
        devices = math.prod(self._sizes.values())
        if self.adds:
            why = (
                "the model adds or gathers over devices itself, in a way for which Phalanx cannot prove that padded "
                "rows can be masked. It can for jax.lax.psum of a sum over rows, for jax.lax.pmean of a mean, and for "
                "jax.lax.pmax of a maximum"
            )
        else:
            why = f"the model sums over rows itself, and {self.on_one_row}"
        return (
            f"Variable {term[0]!r}: the rows of the data do not divide evenly over {devices} devices, and {why} (its "
            f"log density has shape {shape} on the whole data). Keep one term per row (no to_event or sum over rows), "
            f"compute what needs all rows before the data are sharded, or give a number of rows divisible by {devices}."
        )


def depends_on_number(term: Term, arguments: Arguments) -> str:
    """Return the message about a term that depends on the number of rows on a device."""
    rows = max(sharding.rows for sharding in arguments.shardings)
    return (
        f"Variable {term[0]!r}: its log density depends on the number of rows on a device, and does not add up to "
        f"that of the whole data. Pass the number of rows as data, for instance "
        f"data={{'num_rows': {rows}, ...}}, and use it instead of x.shape[0]."
    )


def _factor_to_whole(kind: Kind, sharding: RowSharding) -> Fraction | None:
    """Return the factor from a replicated term to the term of the whole data; None for other terms."""
    return kind.factor if isinstance(kind, Replicated) and not sharding.axes else None
