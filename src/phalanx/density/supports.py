"""Check of observed values and parameters of distributions against their supports, as far as data alone determine them.

The density of a value outside of a support may be finite, such as that of 2 under a Bernoulli distribution.
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
from phalanx.jaxprs.lookups import KnownValue, follow
from phalanx.mesh.space import RowSharding
from phalanx.programs.traced_program import TracedProgram
from phalanx.programs.validity import Doubt, Wrong, nan_hint


@dataclass(frozen=True)
class SupportCheck:
    """Check of the observed values and parameters of a program, for any number of data sets.

    Attributes:
        program: the trace of the program; its last inputs are the data's arrays, its last outputs those of `doubts`.
        doubts: values that may be invalid, by variable and parameter, see `phalanx.programs.validity`.
        positions: number of leading outputs that are the position at which the program was traced.
        unknown: number of leading inputs that are not data.
    """

    program: ClosedJaxpr
    doubts: Mapping[tuple[str, str], Doubt]
    positions: int = 0
    unknown: int = 0

    @classmethod
    def of(cls, whole: TracedProgram) -> SupportCheck:
        """Return the check of a program traced with `checking=True`."""
        return cls(whole.at_zero, whole.doubts, len(whole.position))

    def check(self, arguments: Arguments) -> list[str]:
        """Raise if the data have an invalid value. Values that depend on latent variables are not checked.

        Returns:
            A sentence for each variable that could not be checked.

        Raises:
            ValueError: naming the variable, the value, and the allowed values.
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
    def applies(self) -> bool:
        """True if data alone determine some value to be checked."""
        inputs = [KnownValue(None, frozenset([number])) for number in range(len(self.program.in_avals) - self.unknown)]
        return bool(self._known(inputs, dry=True))

    def any_outside(self, arrays: Sequence[Array], shardings: Sequence[RowSharding]) -> Array:
        """Return whether an invalid value may exist in data on devices. Call it inside a compiled function."""
        known = [_computed(bad) for _, bad in self._known(values_of(arrays, shardings)).values()]
        bad = [jnp.bool_(True) if flags is None else jnp.any(jnp.asarray(flags)) for flags in known]
        return jnp.any(jnp.stack(bad)) if bad else jnp.bool_(False)

    def _known(
        self, inputs: Sequence[KnownValue], dry: bool = False
    ) -> dict[tuple[str, str], tuple[KnownValue, KnownValue]]:
        """Return the doubts that data alone determine: values, and whether each is invalid."""
        latent = {v for v in self.program.jaxpr.outvars[: self.positions] if not isinstance(v, Literal)}
        outputs = follow(self.program, [*[None] * self.unknown, *inputs], latent, dry)[1]
        found: dict[tuple[str, str], tuple[KnownValue, KnownValue]] = {}
        last = outputs[len(outputs) - 2 * len(self.doubts) :]
        for key, values, bad in zip(self.doubts, last[::2], last[1::2], strict=True):
            if values is not None and bad is not None:
                found[key] = values, bad
        return found


def _computed(value: KnownValue) -> Any:
    """Return a value; None if computing it fails, as an operation does that runs only inside a compiled program."""
    try:
        return value.get()
    except Exception:
        return None


def _first(values: np.ndarray, bad: np.ndarray, doubt: Doubt) -> Wrong:
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
    whole: Any = np.broadcast_to(values, (*bad.shape, *values.shape[bad.ndim :]))
    return Wrong(int(bad.sum()), index, whole[index], doubt.allowed, doubt.distribution)
