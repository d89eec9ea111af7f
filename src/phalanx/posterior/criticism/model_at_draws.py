"""Model with its data, evaluated at draws of its latent variables.

The program is compiled once for all devices and the whole data: rows stay where `phx.shard` put them, and the numbers
do not depend on the placement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from phalanx.density.data_check import DataCheck
from phalanx.density.given_entries import WHERE_MISSING, of_given_entries
from phalanx.density.given_names import GivenNames
from phalanx.density.imputation import impute
from phalanx.density.labels import any_labels_differ
from phalanx.density.missing_entries import missing_name
from phalanx.density.model_on_mesh import ModelOnMesh
from phalanx.density.naming import Naming
from phalanx.density.target import Target, choose_mesh
from phalanx.errors.model_errors import ModelError, asks_for_values, asks_for_whole_numbers, model_errors
from phalanx.inputs.arguments import Arguments, split_arguments
from phalanx.inputs.axis_names import AxisNames
from phalanx.inputs.dataframe_input import UserData
from phalanx.inputs.known_data import KnownData
from phalanx.inputs.needed_values import trace_with_values
from phalanx.jaxprs.costs import largest_of_draw
from phalanx.language.handlers import Tape, seed, trace, under
from phalanx.language.loops import AllSteps
from phalanx.language.messages import Forward, Tracer, has_key
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program
from phalanx.mesh.compatibility.numpyro_internals import unvalidated
from phalanx.mesh.devices import CHAIN
from phalanx.posterior.over_draws import OfDraw, key_of
from phalanx.posterior.record import RunRecord
from phalanx.programs.traced_program import TracedProgram
from phalanx.programs.unconstrained import refuse_parameter

BATCH_BYTES = 16 * 2**20
"""Bytes of device memory for the results of a batch of draws."""

MOST_DRAWS = 1000
"""Most draws of a batch."""

WITHIN = 2**26
"""Most numbers of an array that the model makes of the batch on the way."""


@dataclass(frozen=True)
class RunDraws:
    """Draws at which a model is evaluated, with the model, the data and the names of the run that made them.

    Attributes:
        target: the model and data of the run, if known.
        latents: names of the variables that the run inferred.
        draws: draws of variables, `(chain, draw, ...)` by name.
        sizes: chains, and draws of each that are used.
        data: names in the run's data, and arguments that fill in; None without a run.
        observed: names of the variables that the run observed; None if they are not known.
        axes: names of the axes of the run's variables and data.
    """

    target: Target | None = None
    latents: tuple[str, ...] = ()
    draws: Mapping[str, np.ndarray] = field(default_factory=dict)
    sizes: tuple[int, int] = (1, 0)
    data: KnownData | None = None
    observed: Sequence[str] | None = None
    axes: AxisNames = field(default_factory=AxisNames)

    def of_latents(self) -> dict[str, np.ndarray]:
        """Return the draws of the variables that the run inferred."""
        return {name: array for name, array in self.draws.items() if name in self.latents}


@dataclass(eq=False)
class ModelAtDraws(ModelOnMesh):
    """Program with its data, evaluated at one draw at a time.

    Attributes:
        asked: the method that evaluates it, which begins its messages.
        latents: names of the variables that take the values of the draw.
        observed: names of the variables that the run observed, if known.
    """

    asked: str
    latents: frozenset[str]
    observed: set[str] | None

    @classmethod
    def of(
        cls, caller: str, model: Program | None, data: UserData | None, run: RunDraws, at: Sequence[str]
    ) -> ModelAtDraws:
        """Put a model and its data together.

        Args:
            caller: the method that evaluates it.
            model: the program; None for that of the run.
            data: its keyword arguments; None for those of the run.
            run: the run, of which the draws do not matter.
            at: names of the inferred variables that take the values of the draw.
        """
        target = run.target
        program = _program(caller, model, target)
        arguments, mesh = _arguments(caller, program, data, target, run.data)
        observed = None if target is None else {name for name, _ in target.sites.terms} - set(run.latents)
        at_draws = cls(program, arguments, mesh, caller, frozenset(at), observed)
        if data is not None and any_labels_differ(arguments):
            at_draws.axis_names()  # raises if the program combines entries whose labels differ
        return at_draws

    def shapes(self, fn: OfDraw, draws: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """Return the shapes of what `fn` returns, and the size of the largest array that it makes for each draw.

        Indices in the data are checked to be within bounds.

        Args:
            fn: a function of the values of one draw, its key and the arrays, that runs the program.
            draws: arrays `(chain, draw, ...)` by name.
        """
        values = {name: jax.ShapeDtypeStruct(array.shape[2:], array.dtype) for name, array in draws.items()}
        program, shapes = jax.make_jaxpr(fn, return_shape=True)(values, key_of(0, 0, 0), self.arguments.whole_shapes())
        DataCheck(program, unknown=len(values) + 1).check_or_warn(self.arguments)
        of_draws = len(values) + 1
        return shapes, largest_of_draw(program, [n < of_draws for n in range(len(program.in_avals))])

    def batch_size(self, shapes: Mapping[str, Any], largest: int) -> int:
        """Return the number of draws that are evaluated at a time, given the results of `shapes`."""
        width = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in shapes.values())
        size = max(min(BATCH_BYTES // max(width, 1), WITHIN // max(largest, 1), MOST_DRAWS), 1)
        groups = self.mesh.shape[CHAIN]
        return max(size // groups, 1) * groups

    def axis_names(self) -> AxisNames:
        """Return the names that these data give to the axes of the model's variables."""
        whole = TracedProgram.of_whole(self.program, self.arguments, self.sizes, checking=True)
        naming = Naming.of(whole, self.arguments, GivenNames())
        return naming.names(self.arguments, naming.axes_of_data(self.arguments))

    def run(
        self, arrays: Sequence[Array], tracer: Tracer, of_variables: Callable[[Tape], Any], key: Array | None = None
    ) -> Any:
        """Run the program on its data under `tracer`, and return `of_variables` of its variables.

        With a key, variables without a value are drawn. Without one, log densities leave out missing entries.
        `of_variables` runs inside of mesh axes of size one, since a log density may add up over devices.
        """
        data = self.arguments.join(arrays)
        if not self.latents:  # from the prior, missing entries are those of the variable itself
            data.pop(WHERE_MISSING, None)

        def run() -> Any:
            with unvalidated(), model_errors(self.program, arguments=data):
                program = under(self.program, tracer)
                variables = trace(program if key is None else seed(program, key))(**data)
                self._check_met(variables)
                return of_variables(variables if key is not None else of_given_entries(variables, data))

        return self.alone(run)

    def at(self, variable: RandomVariable, values: Mapping[str, Array], forward: Forward) -> RandomVariable:
        """Return a variable of the draw with its value."""
        refuse_parameter(variable)
        steps = variable.distribution if isinstance(variable.distribution, AllSteps) and not variable.observed else None
        if steps is not None and steps.continues(values.get(variable.name)) and has_key():
            steps.loop.begin(values)
            return forward(variable)
        return forward(replace(variable, value=self._value(variable, values)))

    def _value(self, variable: RandomVariable, values: Mapping[str, Array]) -> Array:
        name = variable.name
        distribution = variable.distribution
        assert distribution is not None
        if variable.observed:
            raise ValueError(
                f"{self.asked}: variable {name!r} was inferred in the run, and these data observe it. Leave its data "
                f"out, or set it by intervention: {self.asked}(data, model=phx.do(model, {{{name!r}: value}}))."
            )
        if name not in values:
            raise ValueError(
                f"{self.asked}: the draws of variable {name!r} were not kept; they hold "
                f"{', '.join(map(repr, values)) or 'none'}. Run with keep=None, or name it in keep=."
            )
        event_shape = tuple(distribution.shape())
        value = values[name]
        if value.shape != event_shape:
            counted = "".join(
                f" If the model counts the groups in {argument!r}, which has fewer of them here, count them outside of "
                f"the model and give the number as data, which need not be given again."
                for argument in list(self.arguments.constants)[:1]
            )
            raise ValueError(
                f"{self.asked}: variable {name!r} was inferred with shape {value.shape}, and on these data it has "
                f"shape {event_shape}: it belongs to the rows or groups of the run's data.{counted} Give data of "
                f"these; or sample it anew with posterior.predict(fn) and fn(draw, key) as in docs/predictive.md."
            )
        return value

    def _check_met(self, variables: Mapping[str, RandomVariable]) -> None:
        """Raise if the program seems to have renamed a variable of the run: one is missing and another is new."""
        imputed = set(map(missing_name, variables))  # other data have other missing entries, or none
        absent = [name for name in self.latents - imputed if name not in variables]
        known_names = self.latents | (self.observed or set())
        new = [
            n for n, v in variables.items() if n not in known_names and v.distribution is not None and not v.observed
        ]
        if absent and (new or len(absent) == len(self.latents - imputed)):
            raise ValueError(
                f"{self.asked}: the model has no variable {', '.join(map(repr, sorted(absent)))}, which the run "
                f"inferred; it has {', '.join(map(repr, variables)) or 'none'}. Give the model of the run, or one with "
                f"the same names."
            )


def known_data(target: Target | None, record: RunRecord) -> KnownData:
    """Return the state of a run's data that new data must agree with."""
    if target is None:
        return KnownData.of_record(record.names, record.scalars)
    return KnownData.of(target.arguments, record.names)


def with_model(posterior: Any, model: Program, data: UserData) -> Any:
    """Return a posterior that was read from a file with the model and the data of its run.

    Raises:
        ValueError: when the model has other latent variables on these data than the run.
    """
    record = posterior.record
    if any(missing_name(name) in record.latents for name in record.observed or ()):
        model, data, _ = impute(model, data)
    arguments = known_data(None, record).split(model, data)
    target = Target.of(model, arguments, choose_mesh(arguments, None))
    here = {v.name: v.shape for v in target.sites.latents}
    of_run = {name: v.shape[2:] for name, v in posterior.draws.items() if name in record.latents}
    if set(here) != set(record.latents) or any(here[name] != shape for name, shape in of_run.items()):
        shapes = ", ".join(f"{name!r} {shape}" for name, shape in here.items())
        variables = ", ".join(f"{name!r} {of_run.get(name, '')}".strip() for name in record.latents)
        raise ValueError(
            f"The model {getattr(model, '__name__', model)} has the latent variables {shapes} on these data, and the "
            f"run has {variables}. Give the model and the data of the run."
        )
    return replace(posterior, target=target)


def _program(caller: str, model: Program | None, target: Target | None) -> Program:
    if model is None and target is None:
        raise ValueError(
            f"{caller}: a posterior that was read from a file or a pickle, or assembled by hand, has no model. Pass "
            f"one: posterior.{caller}(data, model=model)."
        )
    if model is not None and not callable(model):
        raise TypeError(f"{caller}: model must be a function; got {type(model).__name__}.")
    if model is None:
        assert target is not None  # checked above
        return target.program
    return model


def _arguments(
    caller: str, program: Program, data: UserData | None, target: Target | None, of_run: KnownData | None
) -> tuple[Arguments, Mesh]:
    if data is None and target is not None:
        return target.arguments, target.mesh
    data = {} if data is None else data
    arguments = split_arguments(program, data) if of_run is None else of_run.split(program, data)
    if target is not None:
        arguments = arguments.with_compiled_in([*target.arguments.constants])
    is_sharded = any(sharding.axes for sharding in arguments.shardings)
    mesh = choose_mesh(arguments, None if is_sharded or target is None else target.mesh)
    return _with_values(caller, program, arguments, mesh), mesh


def _with_values(caller: str, program: Program, arguments: Arguments, mesh: Mesh) -> Arguments:
    """Return the arguments with those compiled in whose values the program needs while it is traced."""

    def drawn_anew(arguments_at_draws: Arguments) -> None:
        anew = ModelAtDraws(program, arguments_at_draws, mesh, caller, frozenset(), None)
        run = partial(
            anew.run, tracer=lambda variable, forward: forward(variable), of_variables=len, key=key_of(0, 0, 0)
        )
        try:
            jax.eval_shape(run, arguments_at_draws.whole_shapes())
        except ModelError as error:
            if asks_for_values(error) or asks_for_whole_numbers(error):
                raise
        except Exception as error:  # the evaluation itself reports others in its own words
            if asks_for_whole_numbers(error):
                raise

    return trace_with_values(arguments, drawn_anew)[0]
