"""Program traced with shapes of data alone: its variables, and the terms of its log density."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, ShapeDtypeStruct
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr
from numpyro.distributions import Distribution
from numpyro.distributions.constraints import Constraint
from numpyro.distributions.transforms import Transform

from phalanx.distributions.supports import in_words, support_of
from phalanx.errors.model_errors import check_nothing_leaked
from phalanx.inputs.arguments import ArgumentLayout, Arguments
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program
from phalanx.mesh.row_sharding import GLOBAL
from phalanx.programs.sites import Latent, Sites, Term
from phalanx.programs.unconstrained import refuse_point, run_unconstrained
from phalanx.programs.validity import ValueChecks, value_checks_of


class TracedProgram:
    """A program traced abstractly with given shapes of data: its variables, and shapes of its terms.

    `at_zero` is the trace at the position of zeros, with all that a run uses except gradients. With `checking=True` its
    last outputs are `checks`, the values that may be invalid with a flag for each, and latent variables may be
    discrete, as in a guide.
    """

    variables: dict[str, RandomVariable]
    checks: ValueChecks
    without_bijection: tuple[str, ...]
    at_position: frozenset[str]
    observed: dict[str, RandomVariable]
    supports: dict[str, str]

    def __init__(
        self,
        program: Program,
        layout: ArgumentLayout,
        shapes: Sequence[ShapeDtypeStruct],
        sizes: Mapping[str, int],
        checking: bool = False,
    ):
        self.program = program
        self.layout = layout
        self.shapes = tuple(shapes)
        self.checking = checking
        self.axis_env = list(sizes.items())

        def at_zero(arrays):
            run = run_unconstrained(program, None, layout.join(arrays), any_latent=checking)
            self.variables = run.variables
            self.observed = run.observed
            # a bound that is computed from others exists only within the trace
            self.supports = {
                name: in_words(support_of(v.distribution)) for name, v in run.variables.items() if v.is_latent
            }
            self.checks = value_checks_of(run) if checking else {}
            self.at_position = run.at_position
            self.without_bijection = tuple(name for name in run.position if name not in run.log_dets)
            looked = [*self.checks.values()] if checking else run.in_support()
            return run.position, run.terms(), run.values(), looked

        self.at_zero, (self.position, self.terms, self.values, looked) = jax.make_jaxpr(
            at_zero, axis_env=self.axis_env, return_shape=True
        )(self.shapes)
        # only names, shapes and supports are used after the trace, whose values would stay alive
        self.variables = without_tracers(self.variables)
        self.observed = without_tracers(self.observed)
        self.checks = dict(zip(self.checks, looked, strict=True)) if checking else {}
        self.deterministic = {name: v for name, v in self.values.items() if name not in self.position}
        check_nothing_leaked(program, self.at_zero.consts)

    @property
    def start(self) -> Mapping[str, Any] | None:
        """Values at which the program starts chains, if it defines them."""
        return getattr(self.program, "start", None)

    def again(self) -> TracedProgram:
        """Return a second trace of the program."""
        return TracedProgram(self.program, self.layout, self.shapes, dict(self.axis_env), self.checking)

    @classmethod
    def of_whole(
        cls, program: Program, arguments: Arguments, sizes: Mapping[str, int], checking: bool = False
    ) -> TracedProgram:
        """Return the trace on the whole data, as on one device."""
        return cls(program, arguments.layout, arguments.whole_shapes(), dict.fromkeys(sizes, 1), checking)

    def latents(self) -> tuple[Latent, ...]:
        """Return the latent variables, assumed to be global."""
        return tuple(
            Latent(
                name,
                self.position[name].shape,
                self.position[name].dtype,
                shape=v.shape,
                support=self.supports[name],
            )
            for name, v in self.variables.items()
            if v.distribution is not None and v.is_latent
        )

    @property
    def observes(self) -> bool:
        """True if the log density has terms besides the priors."""
        return any(v.observed and v.distribution is not None for v in self.variables.values())

    def sites(self) -> Sites:
        """Return the sites on one device."""
        others = dict.fromkeys(self.deterministic, GLOBAL)
        return Sites(self.latents(), others, tuple(self.terms), (GLOBAL,) * len(self.shapes), {})

    def gradient(self) -> ClosedJaxpr:
        """Return the gradient of the log density as a function of position and data."""

        def total(position, arrays):
            terms = run_unconstrained(self.program, position, self.layout.join(arrays)).terms()
            return sum(map(jnp.sum, terms.values()))

        return jax.make_jaxpr(jax.grad(total), axis_env=self.axis_env)(self.position, self.shapes)

    @cached_property
    def jaxpr(self) -> ClosedJaxpr:
        """Terms, deterministic values and latent values as a function of position and data; see `outputs`."""

        def f(position, arrays):
            run = run_unconstrained(self.program, position, self.layout.join(arrays))
            computed = {name: v.value for name, v in run.variables.items() if v.is_computed}
            return run.terms(), computed, {name: run.variables[name].value for name in run.position}

        return jax.make_jaxpr(f, axis_env=self.axis_env)(self.position, self.shapes)

    @property
    def outputs(self) -> list[Any]:
        """Terms, then names of deterministic values and latent variables, in the order of the outputs of `jaxpr`."""
        return [*sorted(self.terms), *sorted(self.deterministic), *sorted(self.position)]

    def only(self, term: Term) -> Callable[..., Array]:
        """Return one term, summed, as a function of position and data."""
        return lambda position, arrays: jnp.sum(
            run_unconstrained(self.program, position, self.layout.join(arrays)).terms()[term]
        )

    def only_jaxpr(self, term: Term) -> ClosedJaxpr:
        """Return the jaxpr of one term, summed."""
        return jax.make_jaxpr(self.only(term), axis_env=self.axis_env)(self.position, self.shapes)


def check_latents(program: Program, whole: TracedProgram) -> None:
    """Raise if a program has no latent variable to infer."""
    if not whole.variables:
        raise ValueError(
            f"The model {getattr(program, '__name__', program)} has no random variables to infer. "
            f"Call phx.sample(name, distribution) in it."
        )
    if not any(variable.is_latent for variable in whole.variables.values()):
        raise ValueError(
            f"The model {getattr(program, '__name__', program)} has no latent variables to infer: all of "
            f"{', '.join(map(repr, whole.variables))} are observed or computed. phx.predictive(model, data) returns "
            f"their values without inference."
        )
    for variable in whole.variables.values():
        refuse_point(variable)
    if not any(math.prod(latent.unconstrained_shape) for latent in whole.latents()):
        shapes = ", ".join(f"{latent.name!r} {latent.shape}" for latent in whole.latents())
        raise ValueError(
            f"The model {getattr(program, '__name__', program)} has no coordinates to move: its latent variables have "
            f"shape {shapes}, and no element or one possible value each. phx.predictive(model, data) returns their "
            f"values without inference."
        )


def without_tracers(value: Any) -> Any:
    """Return a value with shapes in place of JAX's tracers, also within variables and distributions.

    A value without tracers is returned itself, since some constraints are compared by identity.
    """
    if isinstance(value, Tracer):
        return ShapeDtypeStruct(value.shape, value.dtype)
    if isinstance(value, tuple | list):
        items = [without_tracers(item) for item in value]
        if all(item is before for item, before in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    is_object = isinstance(value, RandomVariable | Distribution | Transform | Constraint)
    if not is_object and not isinstance(value, dict):
        return value
    before = vars(value) if is_object else value
    after = {name: without_tracers(item) for name, item in before.items()}
    if all(after[name] is item for name, item in before.items()):
        return value
    if not is_object:
        return after
    new = object.__new__(type(value))
    vars(new).update(after)
    return new
