"""Whether data are such as model and guide can take: of all rows, or of each batch as it comes.

What they pick by number must exist, and observed values must be such as their distributions can take. Both are looked
at as far as data alone decide, by a program that is compiled for all batches.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from phalanx.density.indices import IndexCheck
from phalanx.inputs.arguments import Arguments
from phalanx.learning.compiled import Compiled, Compiler
from phalanx.variational.guides.pair import Pair


class DataChecks:
    """Looks at one data set, or one batch, after the other.

    Args:
        pair: guide and model, with the first data.
        compiler: compiles what looks.
    """

    def __init__(self, pair: Pair, compiler: Compiler):
        self._shardings, self._compiler = pair.problem.arguments.shardings, compiler
        self._supports = supports = pair.problem.support_check
        self._indices = [IndexCheck(supports.program, supports.positions, supports.unknown)]
        if (of_guide := pair.guide_trace) is not None:
            self._indices.append(IndexCheck(of_guide, unknown=1))
        self._checks = [*self._indices, supports]
        self._identity = pair.key_of("data")
        self._compiled: Compiled | None = None

    def begin(self, arrays: Sequence[Any], once: bool = True) -> None:
        """Compile for such arrays, while the caller goes on: those on the devices, or of batches on the host.

        A batch is looked at on one device: a sum over devices could wait for one of the step that is under way.
        """
        if self._identity is not None or any(check.looks for check in self._checks):
            self._compiled = self._compiler(self._any_outside, list(arrays), rarely=once, identity=self._identity)

    def look(self, arrays: Sequence[Any]) -> Array | None:
        """Whether an index or a value of theirs cannot be, not waited for; `arrays` are as `begin` saw them."""
        return None if self._compiled is None else self._compiled(list(arrays))

    def check(self, arguments: Arguments, arrays: Sequence[Any]) -> None:
        """Refuse data with one.

        Raises:
            ValueError: naming the line and the index, or the variable and the value.
        """
        self.judge(arguments, self.look(arrays))

    def judge(self, arguments: Arguments, found: Array | None) -> None:
        """Refuse data of which a look has found that they may have one; what cannot be told is a warning."""
        if found is not None and bool(found):
            self.unseen(arguments)  # what it gives has been said of the first data
            _warn(self._supports.check(arguments))

    def unseen(self, arguments: Arguments) -> list[str]:
        """A sentence for each line that picks by what cannot be looked at before the run."""
        return [sentence for check in self._indices for sentence in check.check(arguments)]

    def check_now(self, arguments: Arguments) -> None:
        """Look one by one, nothing compiled: what could not be looked at is a warning."""
        _warn([*self.unseen(arguments), *self._supports.check(arguments)])

    def _any_outside(self, arrays: Sequence[Any]) -> Array:
        return jnp.any(jnp.stack([check.any_outside(arrays, self._shardings) for check in self._checks]))


def _warn(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        warnings.warn(sentence, stacklevel=4)
