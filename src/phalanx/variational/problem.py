"""A model and its data on a mesh, as one global program, which XLA shards over the devices.

A fit has no loops whose length depends on draws, so a program for each device would gain no time. The model gets all
rows, of all devices, without the padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, random
from jax.sharding import Mesh, NamedSharding

from phalanx.density.finite_data import check_finite_data
from phalanx.density.labels import check_labels
from phalanx.density.minibatch import Minibatch
from phalanx.density.site_shardings import WrongAxis, latent_shardings
from phalanx.errors.model_errors import model_errors
from phalanx.inputs.arguments import Arguments
from phalanx.inputs.known_data import KnownData
from phalanx.inputs.needed_values import IN_BATCHES, trace_with_values
from phalanx.inputs.placement import partition_spec
from phalanx.language.handlers import tape
from phalanx.language.parameters import Parameter, at_initial_values, initialized, with_parameters
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Forward, Program, Tracer, tracing
from phalanx.mesh.agreement import check_same
from phalanx.mesh.compatibility.numpyro_internals import unvalidated
from phalanx.mesh.devices import axes_but_chain
from phalanx.mesh.processes import to_devices
from phalanx.mesh.space import RowSharding
from phalanx.mesh.specs import PyTree
from phalanx.mesh.virtual_mesh import alone
from phalanx.programs.closure_key import captured, captured_words, check_function, draws_key
from phalanx.programs.sites import Latent
from phalanx.programs.traced_program import TracedProgram
from phalanx.programs.unconstrained import Evaluation, run_unconstrained
from phalanx.run.compile.lru_cache import LRUCache
from phalanx.run.describe import call_words

Values = Mapping[str, Any]
T = TypeVar("T")

CHECKED: LRUCache[bool] = LRUCache(256)
"""Keys of the traces of models that were traced twice with the same constants."""


@dataclass(frozen=True)
class Problem:
    """A model, its data, and the mesh that they lie on."""

    model: Program
    arguments: Arguments
    mesh: Mesh
    minibatch: Minibatch | None = None

    @property
    def is_streamed(self) -> bool:
        """True if data come in batches, of which only the first is kept."""
        return self.minibatch is not None and self.minibatch.is_streamed

    def place_arrays(self) -> tuple[Array, ...]:
        """Return the data's arrays on the mesh: sharded ones as they are, others replicated."""
        return tuple(
            to_devices(array, NamedSharding(self.mesh, partition_spec(sharding)))
            for array, sharding in zip(self.arguments.arrays, self.arguments.shardings, strict=True)
        )

    def check_same(self, call: str, **others: Any) -> None:
        """Raise in all processes if they differ in the model, its data, or other values of the user's call."""
        check_same(call, lambda: call_words(self.model, self.arguments, mesh=dict(self.mesh.shape), **others))
        check_same(call, lambda: {"the model, or a value that it reads,": captured_words(self.whole)})

    @cached_property
    def known_data(self) -> KnownData:
        """Names and scalars of the data, with which other data must agree."""
        return KnownData.of(self.arguments)

    def data(self, arrays: Sequence[Array]) -> dict[str, Any]:
        """Return the model's keyword arguments, of all rows but padding."""
        whole = [a[: s.rows] if s.axes else a for a, s in zip(arrays, self.arguments.shardings, strict=True)]
        return self.arguments.layout.join(whole)

    def step_data(self, arrays: Sequence[Array], key: Array) -> dict[str, Any]:
        """Return the keyword arguments of a step: the rows of a minibatch drawn with this key, or all rows."""
        if self.minibatch is None:
            return self.data(arrays)
        return self.arguments.layout.join(self.minibatch.draw(arrays, key, self.mesh))

    def at_position(self, params: Values, position: Values | None, data: Values) -> Evaluation:
        """Run the model at unconstrained values, or at zero for None, and at these values of its parameters."""
        return run_unconstrained(with_parameters(self.model, params), position, data)

    def at_values(self, params: Values, values: Values, data: Values) -> Evaluation:
        """Run the model at values of its latent variables and of its parameters."""
        return Evaluation(run_program(with_parameters(self.model, params), placed_at(values), data), {}, {})

    def check_finite(self) -> None:
        """Raise, before compiling, if NaN or infinite numbers of the data reach the log density."""
        check_finite_data(
            self.at_start, self.arguments, axes_but_chain(self.mesh), any_latent=True,
            minibatch=None if self.is_streamed else self.minibatch,
        )  # fmt: skip

    def check_function(self) -> None:
        """Raise if the model computes with other constants in each trace; its parameters may begin at any values."""
        key = captured(self.whole, differentiated=False)
        if CHECKED.look_up(key):
            return
        whole = self.whole
        if self.parameters:
            ones = jax.tree.map(lambda t: jnp.ones(t.shape, t.dtype), self.parameter_types)
            fixed = wraps(self.model)(with_parameters(self.model, ones))
            whole = TracedProgram.of_whole(fixed, self.arguments, axes_but_chain(self.mesh), checking=True)
        check_function(whole)
        CHECKED.keep(key, True)

    def at_zero(self, params: Values, data: Values) -> Evaluation:
        """Run the model with its unconstrained values at zero, also if variables have no bijection."""
        return run_unconstrained(with_parameters(self.model, params), None, data, any_latent=True)

    @property
    def parameter_types(self) -> dict[str, Any]:
        """Shapes and types of the values of the model's own parameters."""
        return self._whole[2]

    def alone(self, f: Callable[[], T]) -> T:
        """Return `f()` with mesh axes of size one, along which a model's sums over devices return their operand."""
        return alone(f, axes_but_chain(self.mesh))

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

        def trace(arguments: Arguments) -> TracedProgram:
            return self.whole if arguments is self.arguments else replace(self, arguments=arguments).whole

        arguments, _ = trace_with_values(self.arguments, trace, varies="" if self.minibatch is None else IN_BATCHES)
        return self if arguments is self.arguments else replace(self, arguments=arguments)

    @cached_property
    def _whole(self) -> tuple[TracedProgram, dict[str, Parameter], dict[str, Any]]:
        met: dict[str, tuple[Parameter, Any]] = {}

        @wraps(self.model)
        def started(**data: Any) -> PyTree:
            return initialized(self.model, random.key(0), met)(**data)

        whole = TracedProgram.of_whole(started, self.arguments, axes_but_chain(self.mesh), checking=True)
        check_labels(whole, self.arguments)
        parameters = {name: parameter for name, (parameter, _) in met.items()}
        types = {name: jax.tree.map(jax.typeof, value) for name, (_, value) in met.items()}
        met.clear()  # the program, which outlives its trace, would keep tracers
        return whole, parameters, types

    @cached_property
    def identity(self) -> Hashable | None:
        """Key of the computation; None if only the trace of a program determines it.

        The trace on all rows does not determine that on a minibatch, and a parameter's initial value does not determine
        how it is drawn with a key.
        """
        if self.minibatch is not None or self.parameters:
            return None
        found, arguments = captured(self.whole), self.arguments
        if found is None:
            return None
        rows = arguments.layout, arguments.shardings, arguments.local_shapes()
        return found, draws_key(self.whole), self.mesh, *rows

    @property
    def at_start(self) -> Program:
        """The model with its parameters at their initial values."""
        return at_initial_values(self.model)

    @cached_property
    def _shardings(self) -> dict[str, RowSharding]:
        """Sharding of the latent variables that have one row for each row of sharded data.

        It affects the placement of their parameters, not their values; without it parameters are replicated.
        """
        try:
            shardings = latent_shardings(self.arguments, axes_but_chain(self.mesh), self.whole)
        except WrongAxis:
            return {}
        return {name: sharding for name, sharding in shardings.items() if self._is_even(sharding)}

    @cached_property
    def latents(self) -> tuple[Latent, ...]:
        """The model's latent variables, with the sharding of their rows."""
        return tuple(replace(v, sharding=self._shardings.get(v.name, v.sharding)) for v in self.whole.latents())

    @property
    def start(self) -> Mapping[str, Any] | None:
        """Values that the model starts from, if it has any."""
        return getattr(self.model, "start", None)

    def _is_even(self, sharding: RowSharding) -> bool:
        devices = math.prod(self.mesh.shape[axis] for axis in sharding.axes)
        return sharding.axes != () and sharding.rows == sharding.local_rows * devices


def placed_at(values: Values) -> Tracer:
    """Return a tracer that puts variables at these values."""

    def place(variable: RandomVariable, _: Forward) -> RandomVariable:
        value = variable.value if variable.is_given else values.get(variable.name, variable.value)
        return replace(variable, value=value).complete()

    return place


def run_program(program: Program, tracer: Tracer, data: Values) -> dict[str, RandomVariable]:
    """Return the variables of `program(**data)` under `tracer`."""
    with unvalidated(), tracing(tracer), tape() as variables, model_errors(program, variables, data):
        program(**data)
    return variables
