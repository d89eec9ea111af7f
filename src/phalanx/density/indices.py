"""Whether the indices that a model computes from its data point inside what they pick from.

JAX takes another entry where one is asked for that does not exist, and drops what is written there: codes 1 to 3 into
three groups run, and the answer is garbage. So the part of the program that computes indices from data alone is run
once, on the data, before the first draw. `mode=` in a call of the user's says what is meant, and is left alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Literal

from phalanx.inputs.arguments import Arguments
from phalanx.jaxprs.lookups import Lookup, Value, follow
from phalanx.jaxprs.source_lines import Place, called, counts_from_zero, place_of
from phalanx.mesh.space import RowSharding
from phalanx.programs.traced_program import TracedProgram


@dataclass(frozen=True)
class IndexCheck:
    """Looks at the indices of a program, with one data set after the other.

    Attributes:
        program: the trace of the program on the whole data; its last inputs are the data's arrays.
        positions: how many of its outputs, the first, are the position that it was traced at.
        unknown: how many of its inputs, the first, are not data.
    """

    program: ClosedJaxpr
    positions: int = 0
    unknown: int = 0

    @classmethod
    def of(cls, whole: TracedProgram) -> IndexCheck:
        """Of a model's trace."""
        return cls(whole.at_zero, len(whole.position))

    def check(self, arguments: Arguments) -> list[str]:
        """Refuse data with an index outside of what the model picks from.

        Returns:
            A sentence for each line that could not be looked at.

        Raises:
            ValueError: naming the line, the index, and the data that it comes from.
        """
        inputs = values_of(arguments.arrays, arguments.shardings)
        unseen: list[str] = []
        for lookup in self._lookups(inputs):
            if (lookup.outside is not None and not bool(lookup.outside[0])) or _is_meant(lookup):
                continue
            if lookup.outside is None:
                unseen.append(f"The indices in {_place(lookup)} could not be checked against the data before the run.")
            else:
                _refuse(lookup, _place(lookup), arguments, inputs)
        return list(dict.fromkeys(unseen))

    def check_or_warn(self, arguments: Arguments) -> None:
        """The same where there is no display: what could not be looked at is a warning."""
        for sentence in self.check(arguments):
            warnings.warn(sentence, stacklevel=3)

    @property
    def looks(self) -> bool:
        """Whether anything is picked by indices that follow from data."""
        inputs = [Value(None, frozenset([number])) for number in range(len(self.program.in_avals) - self.unknown)]
        return not all(map(_is_meant, self._lookups(inputs, dry=True)))

    def any_outside(self, arrays: Sequence[Array], shardings: Sequence[RowSharding]) -> Array:
        """Whether an index is outside, of data on devices: to be compiled."""
        inputs = values_of(arrays, shardings)
        found = [x.outside[0] for x in self._lookups(inputs) if x.outside is not None and not _is_meant(x)]
        return jnp.any(jnp.stack(found)) if found else jnp.bool_(False)

    def _lookups(self, inputs: Sequence[Value], dry: bool = False) -> list[Lookup]:
        latent = {v for v in self.program.jaxpr.outvars[: self.positions] if not isinstance(v, Literal)}
        return follow(self.program, [*[None] * self.unknown, *inputs], latent, dry)[0]


def values_of(arrays: Sequence[Any], shardings: Sequence[RowSharding]) -> list[Value]:
    """Data as what a program is followed with, without padded rows."""
    return [
        Value(lambda a=a, s=s: jnp.asarray(a)[: s.rows] if s.axes else jnp.asarray(a), frozenset([number]))
        for number, (a, s) in enumerate(zip(arrays, shardings, strict=True))
    ]


def _place(lookup: Lookup) -> Place:
    place = place_of(lookup.within)
    assert place is not None, "a lookup is one of the model's own"
    return place


def _is_meant(lookup: Lookup) -> bool:
    """Whether the user says what becomes of an index outside."""
    return lookup.silent and _place(lookup).says_mode()


def _refuse(lookup: Lookup, place: Place, arguments: Arguments, inputs: Sequence[Value]) -> None:
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
            wrong -= lookup.size  # the axis's size was added, to count from the end
    habit = least == 1 and most == lookup.last + 1
    advice = (
        f"Entries are numbered from 0, and {names[0]} from 1: give {names[0]} - 1."
        if habit and len(names) == 1
        else "Check the numbering, which begins at 0, and the size of what is picked from; or say what is meant with "
        "mode=, as in a.at[i].get(mode='clip')."
    )
    raise ValueError(
        f"{place.expression([name.partition('[')[0] for name in names])}: {wrong} is outside 0..{lookup.last}, "
        f"in {place}; {where}. JAX would pick another entry, or none, without a word. {advice}"
    )
