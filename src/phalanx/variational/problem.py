"""A model and its data on a mesh, as a fit sees them: one global program, which XLA lays out over the devices.

A fit has no loops whose length depends on what is drawn, so nothing is gained by writing what each device does. The
model sees all rows, wherever they lie, and padded ones are cut off before it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any

import jax
from jax import Array, random
from jax.sharding import Mesh, NamedSharding

from phalanx.density.finite_data import check_finite_data
from phalanx.density.minibatch import Minibatch
from phalanx.density.supports import SupportCheck
from phalanx.errors.model_errors import model_errors
from phalanx.exactness.share_rule import read_shares
from phalanx.inputs.arguments import Arguments
from phalanx.inputs.known_data import KnownData
from phalanx.inputs.needed_values import trace_with_values
from phalanx.inputs.placement import partition_spec
from phalanx.language.handlers import tape
from phalanx.language.parameters import Parameter, given, meeting
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Forward, Program, Tracer, tracing
from phalanx.mesh.compatibility.numpyro_internals import unvalidated
from phalanx.mesh.devices import axes_but_chain
from phalanx.mesh.space import RowSharding
from phalanx.mesh.virtual_mesh import alone
from phalanx.programs.closure_key import captured
from phalanx.programs.shares import Latent
from phalanx.programs.traced_program import TracedProgram
from phalanx.programs.unconstrained import Evaluation, run_unconstrained
from phalanx.programs.validity import Doubt, doubts_of, improper_parameters, outputs_of, say_improper

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """What is fitted to: a model, its data, and where they lie."""

    model: Program
    arguments: Arguments
    mesh: Mesh
    minibatch: Minibatch | None = None

    def place_arrays(self) -> tuple[Array, ...]:
        """The data's arrays on the mesh: sharded ones where they are, others copied to every device."""
        return tuple(
            jax.device_put(array, NamedSharding(self.mesh, partition_spec(sharding)))
            for array, sharding in zip(self.arguments.arrays, self.arguments.shardings, strict=True)
        )

    @cached_property
    def known_data(self) -> KnownData:
        """The state of the data that other data must agree with: names, and arguments that fill in."""
        return KnownData.of(self.arguments)

    def data(self, arrays: Sequence[Array]) -> dict[str, Any]:
        """The model's keyword arguments, of all real rows."""
        whole = [a[: s.rows] if s.axes else a for a, s in zip(arrays, self.arguments.shardings, strict=True)]
        return self.arguments.layout.join(whole)

    def step_data(self, arrays: Sequence[Array], key: Array) -> dict[str, Any]:
        """What a step sees: the rows of a minibatch drawn with this key, or all rows."""
        if self.minibatch is None:
            return self.data(arrays)
        return self.arguments.layout.join(self.minibatch.draw(arrays, key, self.mesh))

    def at_position(self, params: Values, position: Values | None, data: Values) -> Evaluation:
        """Run the model on unconstrained values, or None for any, its parameters at these values."""
        return run_unconstrained(given(self.model, params), position, data)

    def at_values(self, params: Values, values: Values, data: Values) -> Evaluation:
        """Run the model on values of its latent variables, its parameters at these values."""
        return Evaluation(run_program(given(self.model, params), placed_at(values), data), {}, {})

    def improper(self, arrays: Sequence[Array], params: Values) -> str:
        """Return a sentence about a distribution whose parameter latent variables take out of bounds; or nothing.

        The model's own parameters are at these values.
        """
        described: dict[tuple[str, str], Doubt] = {}

        def look(arrays: Sequence[Array], params: Values) -> Any:
            data = self.step_data(arrays, random.key(0))

            def run(position: Values | None) -> Evaluation:
                return run_unconstrained(given(self.model, params), position, data, any_latent=True)

            return self.alone(lambda: improper_parameters(run, described))

        for (name, parameter), count in jax.jit(look)(list(arrays), dict(params)).items():
            if int(count):
                return say_improper(name, parameter, described[name, parameter])
        return ""

    def check_finite(self) -> None:
        """Refuse data whose NaN or infinite numbers reach the log density, before anything is compiled."""
        check_finite_data(
            self.at_start, self.arguments, axes_but_chain(self.mesh), any_latent=True,
            minibatch=self.minibatch if type(self.minibatch) is Minibatch else None,  # a batch of a stream is whole
        )  # fmt: skip

    def at_zero(self, params: Values, data: Values) -> Evaluation:
        """The model run with its unconstrained values at zero, whatever its latent variables."""
        return run_unconstrained(given(self.model, params), None, data, any_latent=True)

    @property
    def parameter_types(self) -> dict[str, Any]:
        """Shapes and types of the values of the model's own parameters."""
        return self._whole[2]

    def alone(self, f: Callable[[], Any]) -> Any:
        """What `f()` gives where a model may name the axes of the mesh: it sees all there is to add."""
        return alone(f, axes_but_chain(self.mesh))

    @property
    def whole(self) -> TracedProgram:
        """The model's trace on all rows, its parameters at their initial values."""
        return self._whole[0]

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The model's own."""
        return self._whole[1]

    def with_values(self) -> Problem:
        """Return the problem with those arguments compiled in whose values the model needs while it is traced."""

        def trace(arguments: Arguments) -> TracedProgram:
            return self.whole if arguments is self.arguments else replace(self, arguments=arguments).whole

        arguments, _ = trace_with_values(self.arguments, trace, fixed=self.minibatch is None)
        return self if arguments is self.arguments else replace(self, arguments=arguments)

    @cached_property
    def support_check(self) -> SupportCheck:
        """Looks at what is observed, whatever the values of the parameters."""
        if not self.parameters:
            return SupportCheck.of(self.whole)
        doubts: dict[tuple[str, str], Doubt] = {}

        def at_zero(params: Values, arrays: Sequence[Array]) -> Any:
            run = self.at_zero(params, self.arguments.layout.join(arrays))
            doubts.update(doubts_of(run))
            return run.position, outputs_of(doubts)

        params, axes = self._whole[2], dict.fromkeys(axes_but_chain(self.mesh), 1)
        trace = jax.make_jaxpr(at_zero, axis_env=list(axes.items()))(params, self.arguments.whole_shapes())
        return SupportCheck(trace, doubts, len(self.whole.position), len(jax.tree.leaves(params)))

    @cached_property
    def _whole(self) -> tuple[TracedProgram, dict[str, Parameter], dict[str, Any]]:
        met: dict[str, tuple[Parameter, Any]] = {}

        @wraps(self.model)
        def started(**data: Any) -> Any:
            return meeting(self.model, random.key(0), met)(**data)

        whole = TracedProgram.of_whole(started, self.arguments, axes_but_chain(self.mesh), closely=True)
        parameters = {name: parameter for name, (parameter, _) in met.items()}
        return whole, parameters, {name: jax.tree.map(jax.typeof, value) for name, (_, value) in met.items()}

    @cached_property
    def identity(self) -> Hashable | None:
        """What tells this from problems that compute anything else; None where that is not known.

        A model's trace on all rows says nothing of what it does with a few, and a parameter's says what it begins at
        but not how that follows from a key.
        """
        if self.minibatch is not None or self.parameters:
            return None
        found, arguments = captured(self.whole), self.arguments
        if found is None:
            return None
        return found, self.mesh, arguments.layout, arguments.shardings, arguments.local_shapes()

    @property
    def at_start(self) -> Program:
        """The model with its parameters at their initial values."""

        @wraps(self.model)
        def started(**data: Any) -> Any:
            return meeting(self.model, random.key(0), {})(**data)

        return started

    @cached_property
    def shardings(self) -> dict[str, RowSharding]:
        """Where the latent variables live that have one row for each row of sharded data.

        It decides where their parameters are kept, and no number: where it cannot be told, every device has them all.
        """
        try:
            shares, _ = read_shares(self.at_start, self.arguments, axes_but_chain(self.mesh), self.whole)
        except ValueError:
            return {}
        return {latent.name: latent.sharding for latent in shares.latents if self._is_even(latent.sharding)}

    @cached_property
    def latents(self) -> tuple[Latent, ...]:
        """The model's latent variables, and where their rows lie."""
        return tuple(replace(v, sharding=self.shardings.get(v.name, v.sharding)) for v in self.whole.latents())

    @property
    def start(self) -> Mapping[str, Any] | None:
        """Where the model says that inference starts, if it does."""
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
    """The variables that `program(**data)` meets under `tracer`."""
    with unvalidated(), tracing(tracer), tape() as variables, model_errors(program, variables, data):
        program(**data)
    return variables
