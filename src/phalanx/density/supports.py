"""Whether what is observed can be, and the parameters that data give to distributions, as far as data alone decide.

The density of a value that a distribution cannot take may still look like one: that of 2 under a Bernoulli is finite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Literal

from phalanx.density.indices import values_of
from phalanx.inputs.arguments import Arguments
from phalanx.jaxprs.lookups import Value, follow
from phalanx.mesh.space import RowSharding
from phalanx.programs.traced_program import TracedProgram
from phalanx.programs.validity import Doubt, Wrong, nan_hint


@dataclass(frozen=True)
class SupportCheck:
    """Looks at the observed values and parameters of a program, with one data set after the other.

    Attributes:
        program: the trace of the program; its last inputs are the data's arrays, and its last outputs those of doubts.
        doubts: what may be wrong, by variable and parameter, as `phalanx.programs.validity` finds it.
        positions: how many of the trace's outputs, the first, are the position that it was traced at.
        unknown: how many of its inputs, the first, are not data.
    """

    program: ClosedJaxpr
    doubts: Mapping[tuple[str, str], Doubt]
    positions: int = 0
    unknown: int = 0

    @classmethod
    def of(cls, whole: TracedProgram) -> SupportCheck:
        """Of a model's trace that looks closely."""
        return cls(whole.at_zero, whole.doubts, len(whole.position))

    def check(self, arguments: Arguments) -> list[str]:
        """Refuse data with a value that cannot be.

        What latent variables have a say in is for the log density to tell.

        Returns:
            A sentence for each variable that could not be looked at.

        Raises:
            ValueError: naming the variable, the value, and what it can be.
        """
        unseen: list[str] = []
        for key, (values, bad) in self._known(values_of(arguments.arrays, arguments.shardings)).items():
            if (flags := _computed(bad)) is None:
                unseen.append(f"The values of variable {key[0]!r} could not be checked before the run.")
            elif np.asarray(flags).any():
                wrong = _first(np.asarray(values.get()), np.asarray(flags), self.doubts[key])
                raise ValueError(wrong.said(*key, nan_hint(arguments.names, arguments.arrays)))
        return list(dict.fromkeys(unseen))

    @property
    def looks(self) -> bool:
        """Whether there is anything to look at."""
        inputs = [Value(None, frozenset([number])) for number in range(len(self.program.in_avals) - self.unknown)]
        return bool(self._known(inputs, dry=True))

    def any_outside(self, arrays: Sequence[Array], shardings: Sequence[RowSharding]) -> Array:
        """Whether there is such a value, or there may be, of data on devices: to be compiled."""
        known = [_computed(bad) for _, bad in self._known(values_of(arrays, shardings)).values()]
        bad = [jnp.bool_(True) if flags is None else jnp.any(jnp.asarray(flags)) for flags in known]
        return jnp.any(jnp.stack(bad)) if bad else jnp.bool_(False)

    def _known(self, inputs: Sequence[Value], dry: bool = False) -> dict[tuple[str, str], tuple[Value, Value]]:
        """The doubts that data alone decide: values, and which are wrong."""
        latent = {v for v in self.program.jaxpr.outvars[: self.positions] if not isinstance(v, Literal)}
        outputs = follow(self.program, [*[None] * self.unknown, *inputs], latent, dry)[1]
        found: dict[tuple[str, str], tuple[Value, Value]] = {}
        last = outputs[len(outputs) - 2 * len(self.doubts) :]
        for key, values, bad in zip(self.doubts, last[::2], last[1::2], strict=True):
            if values is not None and bad is not None:
                found[key] = values, bad
        return found


def _computed(value: Value) -> Any:
    """A value; None where it follows from an operation that runs within a compiled program only."""
    try:
        return value.get()
    except Exception:
        return None


def _first(values: np.ndarray, bad: np.ndarray, doubt: Doubt) -> Wrong:
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
    whole: Any = np.broadcast_to(values, (*bad.shape, *values.shape[bad.ndim :]))
    return Wrong(int(bad.sum()), index, whole[index], doubt.allowed, doubt.distribution)
