"""Check that data give a model valid indices, observed values and parameters, as far as data alone determine them.

For an invalid index JAX reads another entry and drops updates: with codes 1 to 3 for three groups a model runs, and its
results are invalid. The density of a value outside of the support may be finite, such as that of 2 under a Bernoulli
distribution. Therefore the part of the program that computes indices and values from data alone is evaluated once,
before the first draw. Calls in which the user gives `mode=` are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Literal

from phalanx.inputs.arguments import Arguments
from phalanx.jaxprs.lookups import KnownValue, Lookup, MaybeKnown, follow
from phalanx.jaxprs.source_lines import SourceLine, called, counts_from_zero, source_line_of
from phalanx.mesh.output import warn
from phalanx.mesh.row_sharding import RowSharding
from phalanx.programs.traced_program import TracedProgram
from phalanx.programs.validity import InvalidValues, ValueChecks, first_of, nan_hint


@dataclass(frozen=True)
class DataCheck:
    """Check of the indices, observed values and parameters of a program, for any number of data sets.

    Attributes:
        program: the trace of the program on the whole data; its last inputs are the data's arrays.
        positions: number of leading outputs that are the position at which the program was traced.
        unknown: number of leading inputs that are not data.
        checks: values that may be invalid, see `phalanx.programs.validity`: the last outputs of the program.
    """

    program: ClosedJaxpr
    positions: int = 0
    unknown: int = 0
    checks: ValueChecks = field(default_factory=dict)

    @classmethod
    def of(cls, whole: TracedProgram) -> DataCheck:
        """Return the check of a traced program: of its indices, and with `checking=True` of its values, too."""
        return cls(whole.at_zero, len(whole.position), checks=whole.checks)

    def check_indices(self, arguments: Arguments) -> list[str]:
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

    def check_values(self, arguments: Arguments) -> list[str]:
        """Raise if the data have an invalid value. Values that depend on latent variables are not checked.

        Returns:
            A sentence for each variable that could not be checked.

        Raises:
            ValueError: naming the variable, the value, and the allowed values.
        """
        unseen: list[str] = []
        outputs = self._follow(values_of(arguments.arrays, arguments.shardings))[1]
        for key, values, bad in self._known(outputs):
            if (flags := bad.get_if_possible()) is None:
                unseen.append(f"The values of variable {key[0]!r} could not be checked before the run.")
            elif np.asarray(flags).any():
                check = replace(self.checks[key], values=jnp.asarray(values.get()), bad=jnp.asarray(flags))
                invalid = InvalidValues.of(check, first_of(check))
                raise ValueError(invalid.said(*key, nan_hint(arguments.names, arguments.arrays)))
        return list(dict.fromkeys(unseen))

    def check_or_warn(self, arguments: Arguments) -> None:
        """Check the data; warn about each line and variable that could not be checked."""
        for sentence in [*self.check_indices(arguments), *self.check_values(arguments)]:
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
        """Return for each lookup and check that data alone determine whether an index or a value may be invalid."""
        lookups, outputs = self._follow(inputs)
        outside = [lookup.outside[0] for lookup in lookups if lookup.outside is not None and not _is_meant(lookup)]
        flags_of_outputs = [bad.get_if_possible() for _, _, bad in self._known(outputs)]
        return [
            *outside,
            *(jnp.bool_(True) if flags is None else jnp.any(jnp.asarray(flags)) for flags in flags_of_outputs),
        ]

    def _known(self, outputs: Sequence[MaybeKnown]) -> Iterator[tuple[tuple[str, str], KnownValue, KnownValue]]:
        """Yield the checks that data alone determine: values, and whether each is invalid."""
        last = outputs[len(outputs) - 2 * len(self.checks) :]
        for key, values, bad in zip(self.checks, last[::2], last[1::2], strict=True):
            if values is not None and bad is not None:
                yield key, values, bad

    def _follow(self, inputs: Sequence[KnownValue]) -> tuple[list[Lookup], list[MaybeKnown]]:
        latent = {v for v in self.program.jaxpr.outvars[: self.positions] if not isinstance(v, Literal)}
        return follow(self.program, [*[None] * self.unknown, *inputs], latent)


def values_of(arrays: Sequence[Any], shardings: Sequence[RowSharding] | None = None) -> list[KnownValue]:
    """Return data, without the padded rows of shardings, as known values for `jaxprs.lookups.follow`."""
    rows = [None] * len(arrays) if shardings is None else [s.rows if s.axes else None for s in shardings]
    return [
        KnownValue(lambda a=a, n=n: jnp.asarray(a) if n is None else jnp.asarray(a)[:n], frozenset([number]))
        for number, (a, n) in enumerate(zip(arrays, rows, strict=True))
    ]


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
    invalid = most if most > lookup.last else least
    where = f"it is computed from {', '.join(names)}"
    if len(names) == 1 and lookup.index is not None:
        values = np.asarray(inputs[next(iter(lookup.sources))].get())
        flat = np.asarray(lookup.index).ravel()
        first = int(np.argmax((flat < 0) | (flat > lookup.last)))
        invalid = int(flat[first])
        if flat.size == values.size and int(entry := values.ravel()[first]) in (invalid, invalid - lookup.size):
            invalid = int(entry)
            at = ", ".join(str(int(i)) for i in np.unravel_index(first, values.shape))
            where = f"it is {names[0]}[{at}]" if at else f"it is {names[0]}"
        elif invalid < 0 and not counts_from_zero(called(lookup.equation)):
            invalid -= lookup.size  # JAX added the size of the axis, to count from the end
    habit = least == 1 and most == lookup.last + 1
    advice = (
        f"Entries are numbered from 0, and {names[0]} from 1: give {names[0]} - 1."
        if habit and len(names) == 1
        else "Check the numbering, which begins at 0, and the size of the indexed array; or choose the treatment of "
        "invalid indices with mode=, as in a.at[i].get(mode='clip')."
    )
    raise ValueError(
        f"{line.expression([name.partition('[')[0] for name in names])}: {invalid} is outside 0..{lookup.last}, "
        f"in {line}; {where}. JAX would read another entry, or drop an update, without a warning. {advice}"
    )
