"""A model whose parameters a fit learns, with its data on a mesh.

The model gets all rows, of all devices, without the padding: a step is one program over whole arrays, which
`placements.over_mesh` evaluates on each device's rows.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, random

from phalanx.density.finite_data import check_finite_data
from phalanx.density.labels import check_labels
from phalanx.density.minibatch import Minibatch
from phalanx.density.model_on_mesh import ModelOnMesh
from phalanx.density.site_shardings import WrongAxis, latent_shardings
from phalanx.inputs.arguments import Arguments
from phalanx.inputs.known_data import KnownData
from phalanx.inputs.needed_values import IN_BATCHES, trace_with_values
from phalanx.language.messages import Forward, Tracer
from phalanx.language.parameters import Parameter, at_initial_values, initialized, with_parameters
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program
from phalanx.mesh.agreement import check_same
from phalanx.mesh.row_sharding import GLOBAL
from phalanx.mesh.specs import PyTree
from phalanx.programs.closure_key import captured, captured_words, check_function, draws_key
from phalanx.programs.sites import Latent
from phalanx.programs.traced_program import TracedProgram
from phalanx.programs.unconstrained import Evaluation, run_program, run_unconstrained
from phalanx.run.compile.lru_cache import LRUCache
from phalanx.run.describe import call_words

Values = Mapping[str, Any]

CHECKED: LRUCache[bool] = LRUCache(256)
"""Keys of the traces of models that were traced twice with the same constants."""


@dataclass(eq=False)
class Problem(ModelOnMesh):
    """A model on a mesh whose own parameters a fit learns, perhaps from minibatches.

    Attributes:
        minibatch: rule for drawing the rows of a step; None for all rows.
    """

    minibatch: Minibatch | None = None

    @property
    def is_streamed(self) -> bool:
        """True if data come in batches, of which only the first is kept."""
        return self.minibatch is not None and self.minibatch.is_streamed

    def check_same(self, call: str, **others: Any) -> None:
        """Raise in all processes if they differ in the model, its data, or other values of the user's call."""
        check_same(call, lambda: call_words(self.program, self.arguments, mesh=dict(self.mesh.shape), **others))
        check_same(call, lambda: {"the model, or a value that it reads,": captured_words(self.whole)})

    @cached_property
    def known_data(self) -> KnownData:
        """Names and scalars of the data, with which other data must agree."""
        return KnownData.of(self.arguments)

    def step_data(self, arrays: Sequence[Array], key: Array) -> dict[str, Any]:
        """Return the keyword arguments of a step: the rows of a minibatch drawn with this key, or all rows."""
        if self.minibatch is None:
            return self.arguments.join(arrays)
        return self.arguments.layout.join(self.minibatch.draw(arrays, key, self.mesh))

    def at_position(self, params: Values, position: Values | None, data: Values) -> Evaluation:
        """Run the model at unconstrained values, or at zero for None, and at these values of its parameters."""
        return run_unconstrained(with_parameters(self.program, params), position, data)

    def at_values(self, params: Values, values: Values, data: Values) -> Evaluation:
        """Run the model at values of its latent variables and of its parameters."""
        return Evaluation(run_program(with_parameters(self.program, params), placed_at(values), data), {}, {})

    def check_finite(self) -> None:
        """Raise, before compiling, if NaN or infinite numbers of the data reach the log density."""
        check_finite_data(
            self.at_start,
            self.arguments,
            self.sizes,
            any_latent=True,
            minibatch=None if self.is_streamed else self.minibatch,
        )

    def check_function(self) -> None:
        """Raise if the model computes with other constants in each trace; its parameters may begin at any values."""
        key = captured(self.whole, differentiated=False)
        if CHECKED.look_up(key):
            return
        whole = self.whole
        if self.parameters:
            ones = jax.tree.map(lambda t: jnp.ones(t.shape, t.dtype), self.parameter_types)
            whole = replace(self, program=wraps(self.program)(with_parameters(self.program, ones))).whole
        check_function(whole)
        CHECKED.keep(key, True)

    def at_zero(self, params: Values, data: Values) -> Evaluation:
        """Run the model with its unconstrained values at zero, also if variables have no bijection."""
        return run_unconstrained(with_parameters(self.program, params), None, data, any_latent=True)

    @property
    def parameter_types(self) -> dict[str, Any]:
        """Shapes and types of the values of the model's own parameters."""
        return self._whole[2]

    @property
    def whole(self) -> TracedProgram:
        """The model's trace on all rows, its parameters at their initial values."""
        return self._whole[0]

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The model's own parameters."""
        return self._whole[1]

    def with_values(self) -> Problem:
        """Return the problem with arguments as constants if the model needs their values while JAX traces it."""

        def traced(arguments: Arguments) -> Problem:
            problem = self if arguments is self.arguments else replace(self, arguments=arguments)
            _ = problem.whole
            return problem

        return trace_with_values(self.arguments, traced, varies="" if self.minibatch is None else IN_BATCHES)[1]

    @cached_property
    def _whole(self) -> tuple[TracedProgram, dict[str, Parameter], dict[str, Any]]:
        initial_params: dict[str, tuple[Parameter, Any]] = {}

        @wraps(self.program)
        def started(**data: Any) -> PyTree:
            return initialized(self.program, random.key(0), initial_params)(**data)

        whole = TracedProgram.of_whole(started, self.arguments, self.sizes, checking=True)
        check_labels(whole, self.arguments)
        parameters = {name: parameter for name, (parameter, _) in initial_params.items()}
        types = {name: jax.tree.map(jax.typeof, value) for name, (_, value) in initial_params.items()}
        initial_params.clear()  # the program, which outlives its trace, would keep tracers
        return whole, parameters, types

    @cached_property
    def identity(self) -> Hashable | None:
        """Key of the computation; None if only the trace of a program determines it.

        The trace on all rows does not determine that on a minibatch, and a parameter's initial value does not determine
        how it is drawn with a key.
        """
        if self.minibatch is not None or self.parameters:
            return None
        form = captured(self.whole)
        arguments = self.arguments
        if form is None:
            return None
        rows = arguments.layout, arguments.shardings, arguments.local_shapes()
        return form, draws_key(self.whole), self.mesh, *rows

    @property
    def at_start(self) -> Program:
        """The model with its parameters at their initial values."""
        return at_initial_values(self.program)

    @cached_property
    def latents(self) -> tuple[Latent, ...]:
        """The model's latent variables, with the sharding of their rows if that is even.

        It affects the placement of their parameters, not their values; without it parameters are replicated.
        """
        latents = self.whole.latents()
        try:
            shardings = latent_shardings(self.arguments, self.sizes, self.whole)
        except WrongAxis:
            return latents
        devices = {name: math.prod(self.sizes[axis] for axis in s.axes) for name, s in shardings.items()}
        even = {name: s for name, s in shardings.items() if s.rows == s.local_rows * devices[name]}
        return tuple(replace(latent, sharding=even.get(latent.name, GLOBAL)) for latent in latents)


def placed_at(values: Values) -> Tracer:
    """Return a tracer that puts variables at these values."""

    def place(variable: RandomVariable, _: Forward) -> RandomVariable:
        value = variable.value if variable.is_given else values.get(variable.name, variable.value)
        return replace(variable, value=value).complete()

    return place
