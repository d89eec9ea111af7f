"""Held-out evaluation of a fit: the bound on rows that it does not learn from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, random

from phalanx.language.messages import is_term
from phalanx.learning.batches import Batches, batches
from phalanx.learning.compiled import Compiler
from phalanx.variational.data_checks import DataChecks
from phalanx.variational.guides.guide_and_model import Pair
from phalanx.variational.guides.learned import Params
from phalanx.variational.methods.step import Steps
from phalanx.variational.monitoring.stream import on_host, place_rows, streamed_rows
from phalanx.variational.objective import log_weights, particles
from phalanx.variational.problem import Problem, Values

STREAM = 0x68656C64
"""Number that the key of evaluations is folded with, so that it differs from those of steps."""


@dataclass(frozen=True)
class HeldOut:
    """Held-out rows on the devices, in batches, and the compiled bound of a batch.

    Attributes:
        stands_for: number of rows that a bound represents.
    """

    steps: Steps
    seed: np.uint32
    batches: list[tuple[Array, ...]]
    stands_for: int
    compiled: Any

    @classmethod
    def of(cls, steps: Steps, data: Values | Batches, seed: np.uint32, free: Params, compiler: Compiler) -> HeldOut:
        """Place the rows, and compile.

        Raises:
            ValueError: when the guide is made from the model, or there are fewer rows than a batch.
        """
        pair = steps.pair
        if pair.program_guide is None:
            raise ValueError(
                f"training: held_out= needs a guide that is a program and takes other rows, or none; "
                f"{pair.guide.name} was made from the model with its data. Leave it out, or write the guide."
            )
        size = _batch_size(pair, data)
        source = data if isinstance(data, Batches) else batches(data, size)
        of_fit = pair.problem.known_data
        first = of_fit.split(pair.problem.program, next(source.in_order()))
        problem = replace(pair.problem, arguments=first, minibatch=streamed_rows(first, size))
        of_rows = replace(steps, pair=replace(pair, problem=problem))
        checks = DataChecks(of_rows.pair, compiler)
        parts = []
        checks.compile_for(on_host(first))
        for batch in source.in_order():
            arguments = of_fit.split(problem.program, batch)
            checks.check(arguments, on_host(arguments))
            parts.append(place_rows(problem, arguments))
        stands_for = size if pair.problem.minibatch is None else pair.problem.minibatch.total
        held_out = cls(of_rows, seed, parts, stands_for, None)
        compiled = compiler(held_out._bound, free, seed, np.uint32(0), parts[0])
        return replace(held_out, compiled=compiled)

    def loss(self, free: Params) -> float:
        """Return the negative bound, in nats per row."""
        # one after the other: sums over devices of programs that run at once may deadlock
        losses = [float(self.compiled(free, self.seed, np.uint32(i), batch)) for i, batch in enumerate(self.batches)]
        return -float(np.mean(losses, dtype=np.float64)) / self.stands_for

    def _bound(self, free: Params, seed: Array, number: Array, arrays: tuple[Array, ...]) -> Array:
        key = random.fold_in(random.fold_in(random.key(seed), STREAM), number)
        pair = self.steps.pair
        steps = self.steps
        params = pair.learned.constrain(free)
        parts = particles(pair, params, steps.noise(key), pair.problem.arguments.join(arrays), steps.objective.parts)
        return jnp.mean(steps.objective.bound(log_weights(parts)))


def _batch_size(pair: Pair, data: Values | Batches) -> int:
    """Return the rows of a batch: those of the fit's batches, or all for a fit to all rows at once."""
    rows = data.num_rows if isinstance(data, Batches) else len(next(iter(data.values())))
    minibatch = pair.problem.minibatch
    size = rows if minibatch is None else minibatch.size
    if isinstance(data, Batches) and data.batch_size != size:
        raise ValueError(f"training: held_out= has batches of {data.batch_size} rows, and the fit of {size}.")
    if rows < size:
        raise ValueError(f"training: held_out= has {rows} rows, fewer than a batch of {size}.")
    return size


@dataclass(frozen=True)
class Scale:
    """Scale of a bound.

    Attributes:
        rows: number of rows that a bound represents.
        numbers: number of observed values in all of them.
    """

    rows: int
    numbers: float

    @classmethod
    def of(cls, problem: Problem) -> Scale:
        """Return the scale of the bound that steps compute."""
        minibatch = problem.minibatch
        observed_variables = [v for v in problem.whole.variables.values() if v.observed]
        numbers = sum(math.prod(v.shape) for v in observed_variables if v.distribution and not is_term(v.distribution))
        if minibatch is None:
            shapes = problem.arguments.whole_shapes()
            return cls(max((s.shape[0] for s in shapes if s.shape), default=1), numbers)
        return cls(minibatch.total, numbers * (minibatch.weight if minibatch.is_streamed else 1.0))

    def loss(self, bound: float) -> float:
        """Return the negative bound in nats per row."""
        return -bound / self.rows

    def bits(self, loss: float) -> float:
        """Return bits per observed value from nats per row; NaN where only terms are observed."""
        return loss * self.rows / (self.numbers * math.log(2.0)) if self.numbers else math.nan
