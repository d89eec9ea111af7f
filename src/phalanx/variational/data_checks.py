"""Checks that model and guide accept the data: all rows, or each batch as it comes.

Rows that are picked by number must exist, and observed values must lie in the supports of their distributions: the
density of a value outside may be finite, such as that of 2 under a Bernoulli distribution. One program, compiled for
all batches, checks both as far as the data alone determine them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.extend.core import ClosedJaxpr

from phalanx.density.data_check import DataCheck
from phalanx.inputs.arguments import Arguments
from phalanx.learning.compiled import Compiled, Compiler
from phalanx.mesh.output import warn
from phalanx.programs.validity import value_checks_of
from phalanx.variational.guides.guide_and_model import Pair, key_of
from phalanx.variational.problem import Problem, Values

Rows = Sequence[Array] | Sequence[np.ndarray]
"""Arrays of data, on the devices or on the host."""


class DataChecks:
    """Checks of data sets, or batches, one after the other.

    Args:
        pair: guide and model, with the first data.
        compiler: compiles the check.
    """

    def __init__(self, pair: Pair, compiler: Compiler):
        self._shardings = pair.problem.arguments.shardings
        self._compiler = compiler
        self._of_model = _model_check(pair.problem)
        of_guide = [DataCheck(_trace_of_draws(pair), unknown=1)] if pair.program_guide else []
        self._checks: list[DataCheck] = [self._of_model, *of_guide]
        self._identity = key_of(pair, "data")
        self._compiled: Compiled | None = None

    def compile_for(self, arrays: Rows, once: bool = True) -> None:
        """Start to compile the check of such arrays, in the background; until this is called `look` returns None.

        Arrays of all rows are on the devices. A batch is on the host, and is checked on one device: a sum over devices
        could deadlock with a sum of the step that is running.
        """
        if self._identity is not None or self.apply:
            self._compiled = self._compiler(self.any_outside, list(arrays), rarely=once, identity=self._identity)

    def look(self, arrays: Rows) -> Array | None:
        """Return a flag that is true if an index or a value is out of range, without waiting; see `compile_for`."""
        return None if self._compiled is None else self._compiled(list(arrays))

    def check(self, arguments: Arguments, arrays: Rows) -> None:
        """Raise if an index or a value is out of range.

        Raises:
            ValueError: naming the line and the index, or the variable and the value.
        """
        self.judge(arguments, self.look(arrays))

    def judge(self, arguments: Arguments, flags: Array | None) -> None:
        """Raise if the flag of `look` is true and names an index or a value; warn of those that cannot be checked."""
        if flags is not None and bool(flags):
            self.unseen(arguments)  # its sentences were shown for the first data
            _warn(self._of_model.check_values(arguments))

    def unseen(self, arguments: Arguments) -> list[str]:
        """Return a sentence for each line that picks by numbers that cannot be checked before the run."""
        return [sentence for check in self._checks for sentence in check.check_indices(arguments)]

    def check_now(self, arguments: Arguments) -> None:
        """Check without compiling; warn of indices and values that cannot be checked."""
        _warn([*self.unseen(arguments), *self._of_model.check_values(arguments)])

    @property
    def apply(self) -> bool:
        """True if data alone determine an index or a value to be checked."""
        return any(check.applies for check in self._checks)

    def any_outside(self, arrays: Sequence[Array]) -> Array:
        """Return whether an index or a value may be out of range. Call it inside a compiled function."""
        return jnp.any(jnp.stack([check.any_outside(arrays, self._shardings) for check in self._checks]))


def _model_check(problem: Problem) -> DataCheck:
    """Return the check of observed values, at any values of the model's parameters."""
    if not problem.parameters:
        return DataCheck.of(problem.whole)

    def at_zero(params: Values, arrays: Sequence[Array]) -> Any:
        run = problem.at_zero(params, problem.arguments.layout.join(arrays))
        return run.position, value_checks_of(run)

    params = problem.parameter_types
    axes = dict.fromkeys(problem.sizes, 1)
    trace, (_, checks) = jax.make_jaxpr(at_zero, axis_env=list(axes.items()), return_shape=True)(
        params, problem.arguments.whole_shapes()
    )
    return DataCheck(trace, len(problem.whole.position), len(jax.tree.leaves(params)), checks)


def _trace_of_draws(pair: Pair) -> ClosedJaxpr:
    """Return the draw of a program as a function of a key and all rows, at initial parameters."""
    program = pair.program_guide
    arguments = pair.problem.arguments
    assert program is not None

    def draw(key: Array, arrays: Sequence[Array]) -> list[Array]:
        at_data = replace(program, data=arguments.layout.join(arrays))
        return [variable.value for variable in at_data.variables(None, key).values()]

    return jax.make_jaxpr(lambda key, arrays: pair.problem.alone(lambda: draw(key, arrays)))(
        random.key(0), arguments.whole_shapes()
    )


def _warn(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        warn(sentence, stacklevel=4)
