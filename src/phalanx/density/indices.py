"""Check that indices which a model computes from its data are inside of the arrays that they index.

For an invalid index JAX reads another entry and drops updates: with codes 1 to 3 for three groups a model runs, and its
results are wrong. Therefore the part of the program that computes indices from data alone is evaluated once, before the
first draw. Calls in which the user gives `mode=` are not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Literal

from phalanx.inputs.arguments import Arguments
from phalanx.jaxprs.lookups import Known, KnownValue, Lookup, follow
from phalanx.jaxprs.source_lines import SourceLine, called, counts_from_zero, source_line_of
from phalanx.mesh.output import warn
from phalanx.mesh.space import RowSharding
from phalanx.programs.traced_program import TracedProgram


@dataclass(frozen=True)
class IndexCheck:
    """Check of the indices of a program, for any number of data sets.

    Attributes:
        program: the trace of the program on the whole data; its last inputs are the data's arrays.
        positions: number of leading outputs that are the position at which the program was traced.
        unknown: number of leading inputs that are not data.
    """

    program: ClosedJaxpr
    positions: int = 0
    unknown: int = 0

    @classmethod
    def of(cls, whole: TracedProgram) -> IndexCheck:
        """Return the check of a traced program."""
        return cls(whole.at_zero, len(whole.position))

    def check(self, arguments: Arguments) -> list[str]:
        """Raise if the data lead to an invalid index.

        Returns:
            A sentence for each line that could not be checked.

        Raises:
            ValueError: naming the line, the index, and the data that it comes from.
        """
        inputs = values_of(arguments.arrays, arguments.shardings)
        unseen: list[str] = []
        for lookup in self._follow(inputs)[0]:
            if (lookup.outside is not None and not bool(lookup.outside[0])) or _is_meant(lookup):
                continue
            if lookup.outside is None:
                unseen.append(f"The indices in {_line(lookup)} could not be checked against the data before the run.")
            else:
                _refuse(lookup, _line(lookup), arguments, inputs)
        return list(dict.fromkeys(unseen))

    def check_or_warn(self, arguments: Arguments) -> None:
        """Check the data; warn about each line that could not be checked."""
        for sentence in self.check(arguments):
            warn(sentence, stacklevel=3)

    @property
    def applies(self) -> bool:
        """True if data alone determine an index or a value to be checked."""
        shapes = self.program.in_avals[self.unknown :]
        return bool(jax.eval_shape(lambda *arrays: self._flags(values_of(arrays)), *shapes))

    def any_outside(self, arrays: Sequence[Array], shardings: Sequence[RowSharding]) -> Array:
        """Return whether data on devices lead to an invalid index or value. Call it inside a compiled function."""
        flags = self._flags(values_of(arrays, shardings))
        return jnp.any(jnp.stack(flags)) if flags else jnp.bool_(False)

    def _flags(self, inputs: Sequence[KnownValue]) -> list[Array]:
        """Return for each lookup that data alone determine whether an index is invalid."""
        return flags_of(self._follow(inputs)[0])

    def _follow(self, inputs: Sequence[KnownValue]) -> tuple[list[Lookup], list[Known]]:
        latent = {v for v in self.program.jaxpr.outvars[: self.positions] if not isinstance(v, Literal)}
        return follow(self.program, [*[None] * self.unknown, *inputs], latent)


def values_of(arrays: Sequence[Any], shardings: Sequence[RowSharding] | None = None) -> list[KnownValue]:
    """Return data, without the padded rows of shardings, as known values for `jaxprs.lookups.follow`."""
    rows = [None] * len(arrays) if shardings is None else [s.rows if s.axes else None for s in shardings]
    return [
        KnownValue(lambda a=a, n=n: jnp.asarray(a) if n is None else jnp.asarray(a)[:n], frozenset([number]))
        for number, (a, n) in enumerate(zip(arrays, rows, strict=True))
    ]


def flags_of(lookups: Sequence[Lookup]) -> list[Array]:
    """Return for each lookup whether an index is invalid, unless the user says what happens then."""
    return [lookup.outside[0] for lookup in lookups if lookup.outside is not None and not _is_meant(lookup)]


def _line(lookup: Lookup) -> SourceLine:
    line = source_line_of(lookup.within)
    assert line is not None, "every lookup has a line in the model"
    return line


def _is_meant(lookup: Lookup) -> bool:
    """Return whether the user gives `mode=` for invalid indices."""
    return lookup.silent and _line(lookup).has_mode()


def _refuse(lookup: Lookup, line: SourceLine, arguments: Arguments, inputs: Sequence[KnownValue]) -> None:
    assert lookup.outside is not None
    least, most = (int(x) for x in lookup.outside[1:])
    names = [arguments.names[number] for number in sorted(lookup.sources)]
    wrong, where = (most if most > lookup.last else least), f"it is computed from {', '.join(names)}"
    if len(names) == 1 and lookup.index is not None:
        values, flat = np.asarray(inputs[next(iter(lookup.sources))].get()), np.asarray(lookup.index).ravel()
        first = int(np.argmax((flat < 0) | (flat > lookup.last)))
        wrong = int(flat[first])
        if flat.size == values.size and int(given := values.ravel()[first]) in (wrong, wrong - lookup.size):
            wrong = int(given)
            at = ", ".join(str(int(i)) for i in np.unravel_index(first, values.shape))
            where = f"it is {names[0]}[{at}]" if at else f"it is {names[0]}"
        elif wrong < 0 and not counts_from_zero(called(lookup.equation)):
            wrong -= lookup.size  # JAX added the size of the axis, to count from the end
    habit = least == 1 and most == lookup.last + 1
    advice = (
        f"Entries are numbered from 0, and {names[0]} from 1: give {names[0]} - 1."
        if habit and len(names) == 1
        else "Check the numbering, which begins at 0, and the size of the indexed array; or choose the treatment of "
        "invalid indices with mode=, as in a.at[i].get(mode='clip')."
    )
    raise ValueError(
        f"{line.expression([name.partition('[')[0] for name in names])}: {wrong} is outside 0..{lookup.last}, "
        f"in {line}; {where}. JAX would read another entry, or drop an update, without a warning. {advice}"
    )
