"""Whether what model and guide pick by number from the data exists: of all rows, or of each batch as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.programs.arguments import Arguments
from phalanx.programs.indices import IndexCheck
from phalanx.variational.aligned import ProgramPair
from phalanx.variational.compiled import Compiler
from phalanx.variational.pair import Pair


@dataclass(frozen=True)
class Indices:
    """The indices of model and guide.

    Attributes:
        checks: of each of the two that is a program.
    """

    checks: tuple[IndexCheck, ...]

    @classmethod
    def of(cls, pair: Pair) -> Indices:
        """Of a pair, traced with the data it has."""
        model = IndexCheck.of(pair.problem.whole)
        return cls((model, IndexCheck(pair.guide_trace, unknown=1)) if isinstance(pair, ProgramPair) else (model,))

    def check(self, arguments: Arguments) -> list[str]:
        """Refuse data with an index outside; a sentence for each line that could not be looked at.

        Raises:
            ValueError: naming the line, the index, and the data that it comes from.
        """
        return [sentence for check in self.checks for sentence in check.check(arguments)]

    def check_or_warn(self, arguments: Arguments) -> None:
        """The same where there is no display: what could not be looked at is a warning."""
        for check in self.checks:
            check.check_or_warn(arguments)


class BatchIndices:
    """The same for one batch after the other, by a program that is compiled when there is anything to look at."""

    def __init__(self, pair: Pair, compiler: Compiler):
        self._indices, self._compiler, self._compiled = Indices.of(pair), compiler, None

    @cached_property
    def _looks_up(self) -> bool:
        return any(check.looks_up for check in self._indices.checks)

    def first(self, arguments: Arguments) -> list[str]:
        """Look at the first batch; a sentence for each line that could not be looked at."""
        return self._indices.check(arguments)

    def check(self, arguments: Arguments) -> None:
        """Refuse a batch with an index outside."""
        if not self._looks_up:
            return
        # on one device, whatever the mesh: a sum over devices could wait for one of the step that is under way
        arrays = [np.asarray(array) for array in arguments.arrays]
        self._compiled = self._compiled or self._compiler(self._any_outside, arrays, rarely=True)
        if bool(self._compiled(arrays)):
            self._indices.check(arguments)

    def _any_outside(self, arrays: Sequence[Any]) -> Array:
        return jnp.any(jnp.stack([check.any_outside(arrays) for check in self._indices.checks]))
