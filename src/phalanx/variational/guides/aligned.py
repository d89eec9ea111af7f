"""Programs as guides, aligned with the model by the names of their random variables; and maximum likelihood."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from numpyro.distributions import Distribution, ExpandedDistribution, Independent, MaskedDistribution, constraints

from phalanx.diagnostics import Finding
from phalanx.distributions.supports import in_words, support_of
from phalanx.language.messages import Forward, Tracer, is_term
from phalanx.language.parameters import Parameter, initialized, with_parameters
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program
from phalanx.mesh.specs import PyTree
from phalanx.programs.unconstrained import run_program
from phalanx.variational.guides import coverage
from phalanx.variational.guides.coordinates import Latents
from phalanx.variational.guides.guide import Guide, Traits
from phalanx.variational.guides.learned import Params, begun_with
from phalanx.variational.guides.start import Beginning, ModelStart
from phalanx.variational.problem import Problem, Values, placed_at

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

TRIED = 16
"""Draws of the guide that must lie in the supports of the model's variables."""

Tape = dict[str, RandomVariable]


class Alignment(NamedTuple):
    """Facts that the traces of a guide and of its model show together.

    Attributes:
        parameters: those of the guide.
        scored: variables whose draws cannot be differentiated through.
        described: a line about each latent variable, in the order of the guide.
        left_out: a finding if the guide can never draw values that the model has.
    """

    parameters: Mapping[str, Parameter] = {}
    scored: Sequence[str] = ()
    described: Mapping[str, str] = {}
    left_out: Sequence[Finding] = ()


class Met(NamedTuple):
    """A guide's program and the model, run side by side: variables of both, and the parameters of each."""

    mine: Tape
    theirs: Tape
    of_guide: dict[str, tuple[Parameter, Any]]
    of_model: dict[str, tuple[Parameter, Any]]

    def alignment(self) -> Alignment:
        """Return the facts that both show together."""
        latent = {name: variable for name, variable in self.mine.items() if variable.is_latent}
        supports: dict[str, tuple[Any, Any]] = {
            name: (v.distribution, self.theirs[name].distribution) for name, v in latent.items()
        }
        return Alignment(
            parameters={name: parameter for name, (parameter, _) in self.of_guide.items()},
            scored=[name for name, v in latent.items() if not getattr(v.distribution, "has_rsample", False)],
            described={name: f"{in_words(support_of(model))} {model.shape()}" for name, (_, model) in supports.items()},
            left_out=coverage.findings(supports),
        )


UNKNOWN = Alignment()
PROGRAM = Traits()
LIKELIHOOD = Traits(has_draws=False)


def no_guide() -> None:
    """Sample no variables: a fit with this guide learns the model's parameters alone."""


@dataclass(frozen=True)
class ProgramGuide(Guide):
    """A program as a guide, whose draws are values of the model's variables; or none, for maximum likelihood.

    Attributes:
        program: the program.
        alignment: facts that its trace and the model's show together.
        data: the model's arguments, of which it reads some.
        weights: factors on its terms, by variable; 1 if left out.
    """

    program: Program
    name: str
    traits: Traits = PROGRAM
    alignment: Alignment = UNKNOWN
    data: Values = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program | None, problem: Problem) -> ProgramGuide:
        """Return the guide of a model; without a program, that of maximum likelihood.

        Raises:
            ValueError: when program and model are not aligned.
        """
        if program is None:
            guide = cls(no_guide, "maximum likelihood", LIKELIHOOD)
        else:
            guide = cls(program, getattr(program, "__name__", type(program).__name__))
        arguments = problem.arguments
        alignments = []

        def meet(arrays: Sequence[Array]) -> None:
            alignments.append(guide._meet(random.key(0), problem, arguments.layout.join(arrays)).alignment())

        jax.eval_shape(lambda arrays: problem.alone(lambda: meet(arrays)), arguments.whole_shapes())
        return replace(guide, alignment=alignments[0])

    def check_rows(self, of_model: set[str], problem: Problem) -> None:
        """Raise unless the variables with a row for each row of the data, `of_model`, are those of the guide too."""
        minibatch = problem.minibatch
        assert minibatch is not None

        def guide(**data: Any) -> PyTree:
            return initialized(self.program, random.key(0), {})(**self.asked(data))

        of_guide = minibatch.terms_of_rows(guide, problem.arguments, "guide")
        local = {name for name, variable in problem.whole.variables.items() if variable.is_latent} & of_model
        if other := local ^ of_guide:
            raise ValueError(
                f"{minibatch.argument}: variable {min(other)!r} has an element for each row in either the model or "
                f"the guide, but not in both."
            )
        if scored := of_guide & set(self.alignment.scored):
            raise ValueError(
                f"{minibatch.argument}: variable {min(scored)!r} has an element for each row, and "
                f"its draws cannot be differentiated through. Sum it out of the model, or give all rows at once."
            )

    def parameters(self, problem: Problem) -> dict[str, Parameter]:
        """Return the parameters that the program names."""
        return dict(self.alignment.parameters)

    def begin(self, start: ModelStart) -> Beginning:
        """Return the initial values of the program's parameters, and of the model's."""
        meeting = self._meet(start.key, start.problem, start.data)
        values = begun_with(start.init, {name: v for name, (_, v) in {**meeting.of_guide, **meeting.of_model}.items()})
        misfits = replace(self, data=start.data)._misfits(values, start) if self.traits.has_draws else {}
        texts = {
            name: _other_support(name, meeting.mine[name].distribution, meeting.theirs[name].distribution)
            for name in misfits
        }
        return Beginning(values, {(name, texts[name]): bad for name, bad in misfits.items()})

    def noise(self, key: Array, latents: Latents) -> Array:
        """Return the key: the program determines the random numbers."""
        return key

    def draw(self, params: Params, noise: Array, latents: Latents) -> dict[str, Array]:
        """Return values of the latent variables."""
        return self._values_of(self.variables(params, noise))

    def draw_with_density(
        self, params: Params, noise: Array, latents: Latents, is_constant: bool
    ) -> tuple[dict[str, Array], Array]:
        """Return a draw and its log density, computed from the noise without inverting transforms of it."""
        if is_constant:
            return super().draw_with_density(params, noise, latents, is_constant)
        densities: dict[str, Array] = {}
        variables = self._run(with_parameters(self.program, params), _draw_with(noise, densities))
        draw = self._values_of(variables)
        totals = {
            name: densities[name] if name in densities else variables[name].total_log_prob().value for name in draw
        }
        return draw, self._sum(totals)

    def log_prob(self, params: Params, draw: Mapping[str, Array], latents: Latents) -> Array:
        """Return the log density of values."""
        variables = self._run(with_parameters(self.program, params), placed_at(draw))
        return self._sum({name: v.total_log_prob().value for name, v in variables.items() if v.is_latent})

    def log_score(self, params: Params, draw: Mapping[str, Array]) -> Float[Array, ""]:
        """Return the log density of the variables that cannot be differentiated through."""
        variables = self._run(with_parameters(self.program, params), placed_at(draw))
        return jnp.asarray(sum(variables[name].total_log_prob().value for name in self.alignment.scored))

    def variables(self, params: Params | None, key: Array) -> Tape:
        """Return its random variables, drawn with this key; `params=None` takes the initial parameters."""
        if params is None:
            return self._run(initialized(self.program, random.key(0), {}), _draw_with(key))
        return self._run(with_parameters(self.program, params), _draw_with(key))

    def _values_of(self, variables: Tape) -> dict[str, Any]:
        values = {name: variable.value for name, variable in variables.items() if variable.is_latent}
        return {name: lax.stop_gradient(v) if name in self.alignment.scored else v for name, v in values.items()}

    def _sum(self, totals: Mapping[str, Array]) -> Float[Array, ""]:
        return jnp.asarray(sum(self.weights.get(name, 1.0) * total for name, total in totals.items()))

    def _run(self, program: Program, tracer: Tracer) -> Tape:
        return run_program(program, tracer, self.asked(self.data))

    def _meet(self, key: Array, problem: Problem, data: Values) -> Met:
        """Run guide and model side by side, and check that the two are aligned."""
        of_guide: dict[str, tuple[Parameter, Any]] = {}
        of_model: dict[str, tuple[Parameter, Any]] = {}
        program = initialized(self.program, random.fold_in(key, 1), of_guide)
        mine = replace(self, data=data)._run(program, _draw_with(key))
        self._check_guide(mine)
        theirs = run_program(initialized(problem.program, random.fold_in(key, 2), of_model), self._beside(mine), data)
        model = getattr(problem.program, "__name__", "model")
        if self.traits.has_draws:
            self._check_aligned(model, mine, theirs)
        else:
            _check_likelihood(model, theirs)
        if clash := of_guide.keys() & of_model.keys():
            raise ValueError(f"Both guide and model have a parameter {min(clash)!r}: rename one of them.")
        return Met(mine, theirs, of_guide, of_model)

    def asked(self, data: Values) -> Values:
        """Return the model's arguments that the guide takes."""
        try:
            parameters = inspect.signature(self.program).parameters.values()
        except (TypeError, ValueError):
            return data
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            return data
        names = {p.name for p in parameters}
        missing = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
        if unknown := [name for name in missing if name not in data]:
            raise TypeError(
                f"The guide {self.name} takes {', '.join(map(repr, unknown))}, which the data do not have; they have "
                f"{', '.join(map(repr, data)) or 'nothing'}. A guide takes the model's arguments, or some of them."
            )
        return {name: value for name, value in data.items() if name in names}

    def _check_guide(self, mine: Tape) -> None:
        for name, variable in mine.items():
            if variable.is_latent and _is_weighted(variable):
                raise ValueError(
                    f"Variable {name!r} of the guide {self.name} is masked or scaled, so that its density is not that "
                    f"of its draws. Take the mask or the scale out of the guide; phx.fit itself weights the terms of "
                    f"rows, batch_size=."
                )
            if variable.distribution is not None and variable.observed:
                what = "is a factor" if is_term(variable.distribution) else "is observed"
                raise ValueError(
                    f"Variable {name!r} of the guide {self.name} {what}: a guide is a distribution of latent variables "
                    f"that can be drawn from. Take it out; observed variables belong to the model."
                )

    def _check_aligned(self, model: str, mine: Tape, theirs: Tape) -> None:
        latents = [name for name, v in mine.items() if v.is_latent]
        latent_names = [name for name, v in theirs.items() if v.is_latent]
        if not latent_names:
            raise ValueError(f"The model {model} has no latent variables to fit a guide to.")
        if missing := [name for name in latent_names if name not in latents]:
            raise ValueError(
                f"The guide {self.name} has no variable {', '.join(map(repr, missing))}, which is latent in the model "
                f"{model}; it has {', '.join(map(repr, latents)) or 'none'}. Sample it in the guide, or observe it in "
                f"the model."
            )
        if extra := [name for name in latents if name not in latent_names]:
            raise ValueError(
                f"The guide {self.name} samples {', '.join(map(repr, extra))}, which is not a latent variable of the "
                f"model {model}; those are {', '.join(map(repr, latent_names))}. Rename it, or take it out."
            )

    def _beside(self, mine: Tape) -> Tracer:
        """Return a tracer that puts the model's variables at the guide's draws, and checks that they fit."""

        def place(variable: RandomVariable, _: Forward) -> RandomVariable:
            name = variable.name
            guide_variable = mine.get(variable.name)
            if variable.is_given or variable.distribution is None:
                return variable.complete()
            if guide_variable is None or not guide_variable.is_latent:
                return replace(variable, value=_some_value(variable))  # the model runs on, so one error names them all
            self._check_variable(name, guide_variable, variable)
            return replace(variable, value=guide_variable.value).complete()

        return place

    def _check_variable(self, name: str, mine: RandomVariable, theirs: RandomVariable) -> None:
        shape_in_model = (*theirs.distribution.batch_shape, *theirs.distribution.event_shape)  # pyright: ignore
        if mine.shape != shape_in_model:
            raise ValueError(
                f"Variable {name!r} has shape {mine.shape} in the guide {self.name}, and {shape_in_model} in the "
                f"model. Give it that shape, as in .expand({list(shape_in_model)})."
            )
        anywhere = _is_real(mine.distribution) and not coverage.is_point(mine.distribution)  # a point may lie inside
        if anywhere and not _is_real(theirs.distribution):
            raise ValueError(_other_support(name, mine.distribution, theirs.distribution))

    def _misfits(self, params: Params, start: ModelStart) -> dict[str, Bool[Array, ""]]:
        """Return flags of the variables that are drawn outside of the model's supports."""

        def one(key: Array) -> dict[str, Array]:
            draw = self.draw(params, key, ())
            variables = start.problem.at_values(params, draw, start.data).variables
            supports = {name: getattr(variables[name].distribution, "support", None) for name in draw}
            return {
                name: ~jnp.all(support(draw[name])) if support is not None else jnp.bool_(False)
                for name, support in supports.items()
            }

        misfits = jax.vmap(one)(random.split(random.fold_in(start.key, 3), TRIED))
        return {name: jnp.any(flags) for name, flags in misfits.items()}


def _check_likelihood(model: str, variables: Tape) -> None:
    """Raise if a model for maximum likelihood has latent variables, or lacks a likelihood."""
    if latent := [name for name, v in variables.items() if v.is_latent]:
        raise ValueError(
            f"guide=None learns by maximum likelihood, but {', '.join(map(repr, latent))} of the model {model} has "
            f"no value. Observe it, sum it out, or give a guide for it, such as phx.guides.mean_field()."
        )
    if not any(v.distribution is not None for v in variables.values()):
        raise ValueError(
            f"guide=None learns by maximum likelihood, but the model {model} has no likelihood: no observed variable "
            f"and no phx.factor. Observe the data, phx.sample(..., obs=...)."
        )


def _draw_with(key: Array, densities: dict[str, Array] | None = None) -> Tracer:
    """Return a tracer that draws every variable without a value, and notes densities that drawing gives."""
    numbers = count()

    def draw(variable: RandomVariable, _: Forward) -> RandomVariable:
        number = next(numbers)
        if variable.value is None and variable.parameter is None:
            variable = replace(variable, key=random.fold_in(key, number))
            if densities is not None and variable.distribution is not None:
                value, between = variable.distribution.sample_with_intermediates(variable.key)
                if between:
                    log_prob = jnp.asarray(variable.distribution.log_prob(value, between))
                    densities[variable.name] = jnp.sum(variable.scale * log_prob)
                variable = replace(variable, value=value)
        return variable.complete()

    return draw


def _some_value(variable: RandomVariable) -> Array:
    """Return a value of a variable that the guide does not have."""
    distribution = variable.distribution
    assert distribution is not None
    zeros = jnp.zeros((*distribution.batch_shape, *distribution.event_shape))
    try:
        return support_of(distribution).feasible_like(zeros)  # pyright: ignore[reportOptionalMemberAccess]
    except (NotImplementedError, AttributeError):
        return zeros


def _is_real(distribution: Distribution | None) -> bool:
    support = getattr(distribution, "support", None)
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support in (constraints.real, constraints.real_vector)


def _is_weighted(variable: RandomVariable) -> bool:
    """Return whether a variable's density is masked or scaled."""
    distribution: Any = variable.distribution
    while isinstance(distribution, Independent | ExpandedDistribution):
        distribution = distribution.base_dist
    return isinstance(distribution, MaskedDistribution) or not (
        isinstance(variable.scale, float | int) and variable.scale == 1
    )


def _other_support(name: str, guide: Distribution | None, model: Distribution | None) -> str:
    return (
        f"Variable {name!r}: the guide's {type(guide).__name__} has draws outside of the support of the model's "
        f"{type(model).__name__}, {in_words(getattr(model, 'support', None))}, where the model has no density. Give "
        f"the guide a distribution on that support, such as LogNormal for positive values, or a "
        f"TransformedDistribution by numpyro.distributions.biject_to."
    )
