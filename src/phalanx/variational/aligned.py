"""Guides written by hand: programs, aligned with the model by the names of their random variables."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.extend.core import ClosedJaxpr
from numpyro.distributions import ExpandedDistribution, Independent, MaskedDistribution, constraints

from phalanx.diagnostics import Finding
from phalanx.programs import refusals
from phalanx.programs.bounds import in_words
from phalanx.programs.parameters import Parameter, given, meeting
from phalanx.programs.random_variable import RandomVariable
from phalanx.programs.tracing import Forward, Program, Tracer
from phalanx.programs.unconstrained import Evaluation, to_unconstrained
from phalanx.programs.validity import VALUE, Doubt, doubts_of
from phalanx.variational import coverage
from phalanx.variational.learned import Learned, Params, begun_with
from phalanx.variational.pair import Beginning
from phalanx.variational.problem import Problem, Values, run_program

TRIED = 16
"""Draws of the guide that must lie in the supports of the model's variables."""

Tape = dict[str, RandomVariable]


@dataclass(frozen=True)
class ProgramPair:
    """A program and the model that it is a guide for."""

    problem: Problem
    guide: Program
    weights: Mapping[str, float] = field(default_factory=dict)
    guide_weights: Mapping[str, float] = field(default_factory=dict)
    _met: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        """What the guide is called."""
        return getattr(self.guide, "__name__", type(self.guide).__name__)

    @property
    def identity(self) -> None:
        """A guide is a function that may read anything."""

    @property
    def learned(self) -> Learned:
        """The parameters of both, known once the two have been traced."""
        if "parameters" not in self._met:
            problem = self.problem
            shapes = problem.arguments.whole_shapes()
            jax.eval_shape(
                lambda arrays: problem.alone(
                    lambda: self.begin(random.key(0), problem.arguments.layout.join(arrays), {})
                ),
                shapes,
            )
        return Learned(self._met["parameters"])

    @property
    def guide_trace(self) -> ClosedJaxpr:
        """The guide's draw as a function of a key and of the data on all rows, its parameters at initial values."""
        arguments = self.problem.arguments

        def draw(key: Array, arrays: Any) -> Any:
            data = self._asked(arguments.layout.join(arrays))
            variables = self._run(meeting(self.guide, random.key(0), {}), _draw_with(key), data)
            return [variable.value for variable in variables.values()]

        return jax.make_jaxpr(lambda key, arrays: self.problem.alone(lambda: draw(key, arrays)))(
            random.key(0), arguments.whole_shapes()
        )

    def for_steps(self) -> ProgramPair:
        """The pair as steps see it: where they see minibatches, terms of rows count for all rows."""
        minibatch, arguments = self.problem.minibatch, self.problem.arguments
        if minibatch is None:
            return self

        def guide(**data: Any) -> Any:
            return meeting(self.guide, random.key(0), {})(**self._asked(data))

        of_model = minibatch.terms_of_rows(self.problem.at_start, arguments, "model")
        of_guide = minibatch.terms_of_rows(guide, arguments, "guide")
        local = {name for name, variable in self.problem.whole.variables.items() if variable.is_latent} & of_model
        if other := local ^ of_guide:
            raise ValueError(
                f"{minibatch.argument}: variable {min(other)!r} has an element for each row in one of model and "
                f"guide, and not in the other."
            )
        if self.scored and of_guide & set(self.scored):
            raise ValueError(
                f"{minibatch.argument}: variable {min(of_guide & set(self.scored))!r} has an element for each row, and "
                f"its draws cannot be differentiated through. Sum it out of the model, or give all rows at once."
            )
        weight = minibatch.weight
        return replace(self, weights=dict.fromkeys(of_model, weight), guide_weights=dict.fromkeys(of_guide, weight))

    def moved(self, free: Params, change: Params) -> dict[str, Any]:
        """The parameters after a change."""
        return jax.tree.map(jnp.add, dict(free), dict(change))

    def values_moved(self, free: Params, change: Params) -> dict[str, Any]:
        """The values that they have there."""
        return self.learned.constrain(self.moved(free, change))

    def begin(self, key: Array, data: Values, init: Mapping[str, Any]) -> Beginning:
        """Initial values as the programs say, after looking at whether the two are aligned."""
        of_guide: dict[str, tuple[Parameter, Any]] = {}
        of_model: dict[str, tuple[Parameter, Any]] = {}
        mine = self._run(meeting(self.guide, random.fold_in(key, 1), of_guide), _draw_with(key), self._asked(data))
        self._check_guide(mine)
        theirs = self._run(meeting(self.problem.model, random.fold_in(key, 2), of_model), self._beside(mine), data)
        self._check_aligned(mine, theirs)
        if clash := of_guide.keys() & of_model.keys():
            raise ValueError(f"Both guide and model have a parameter {min(clash)!r}: rename one of them.")
        met = {**of_guide, **of_model}
        self._met["parameters"] = {name: parameter for name, (parameter, _) in met.items()}
        self._met["scored"] = [
            name for name, v in mine.items() if v.is_latent and not getattr(v.distribution, "has_rsample", False)
        ]
        self._met["of_model"] = list(of_model)
        self._met["supports"] = {
            name: (mine[name].distribution, theirs[name].distribution) for name in mine if mine[name].is_latent
        }
        values = begun_with(init, {name: value for name, (_, value) in met.items()})
        return Beginning(values, self._misfits(values, random.fold_in(key, 3), data))

    def misfit(self, name: str) -> str:
        """What does not fit of a variable."""
        guide, model = self._met["supports"][name]
        return _other_support(name, guide, model)

    def noise(self, key: Array) -> Array:
        """The key itself: how a program makes its draws it does not say."""
        return key

    def draw(self, params: Params, noise: Array, data: Values) -> dict[str, Array]:
        """Values of the latent variables."""
        variables = self._run(given(self.guide, params), _draw_with(noise), self._asked(data))
        values = {name: variable.value for name, variable in variables.items() if variable.is_latent}
        return {name: lax.stop_gradient(v) if name in self.scored else v for name, v in values.items()}

    def draw_weighed(self, params: Params, noise: Array, data: Values) -> tuple[dict[str, Array], Array]:
        """Values of the latent variables, and their log density: of transforms, on the way that they were drawn."""
        densities: dict[str, Array] = {}
        variables = self._run(given(self.guide, params), _draw_with(noise, densities), self._asked(data))
        draw = {name: v.value for name, v in variables.items() if v.is_latent}
        draw = {name: lax.stop_gradient(v) if name in self.scored else v for name, v in draw.items()}
        totals = {
            name: densities[name] if name in densities else variables[name].total_log_prob().value for name in draw
        }
        return draw, jnp.asarray(sum(self.guide_weights.get(name, 1.0) * total for name, total in totals.items()))

    def draw_along(self, params: Params, noise: Array, data: Values) -> tuple[dict[str, Array], Array]:
        """Values of the latent variables, and their log density at parameters that are held."""
        draw = self.draw(params, noise, data)
        return draw, self.log_guide(lax.stop_gradient(params), draw, data)

    def improper(self, params: Params, key: Array, data: Values) -> dict[tuple[str, str], Doubt]:
        """Return the parameters of the guide's distributions, with which of them these cannot have."""
        variables = self._run(given(self.guide, params), _draw_with(key), self._asked(data))
        return {key: doubt for key, doubt in doubts_of(Evaluation(variables, {}, {})).items() if key[1] != VALUE}

    def log_guide(self, params: Params, draw: Any, data: Values) -> Array:
        """Its log density under the guide."""
        variables = self._run(given(self.guide, params), _at(draw), self._asked(data))
        totals = {name: v.total_log_prob().value for name, v in variables.items() if v.is_latent}
        return jnp.asarray(sum(self.guide_weights.get(name, 1.0) * total for name, total in totals.items()))

    def log_score(self, params: Params, draw: Any, data: Values) -> Array | None:
        """Of that, what belongs to variables that cannot be differentiated through; None where there are none."""
        if not self.scored:
            return None
        variables = self._run(given(self.guide, params), _at(draw), self._asked(data))
        return jnp.asarray(sum(variables[name].total_log_prob().value for name in self.scored))

    @property
    def scored(self) -> list[str]:
        """The variables that cannot be differentiated through."""
        return self._met["scored"]

    @property
    def is_antithetic(self) -> bool:
        """No: a program's noise may be anything, and has no opposite."""
        return False

    def log_model(self, params: Params, draw: Any, data: Values) -> dict[str, Array]:
        """Its log density, with the data, under the model: what each variable adds."""
        variables = self._run(given(self.problem.model, params), _at(draw), data)
        totals = {name: v.total_log_prob().value for name, v in variables.items() if v.distribution is not None}
        return {name: self.weights.get(name, 1.0) * total for name, total in totals.items()}

    def values(self, params: Params, draw: Any, data: Values) -> dict[str, Array]:
        """The latent variables, and the model's deterministic values, at a draw."""
        variables = self._run(given(self.problem.model, params), _at(draw), data)
        return {name: v.value for name, v in variables.items() if v.is_latent or v.is_computed}

    def coordinates(self, draw: Any) -> dict[str, Array]:
        """Its values."""
        return draw

    def model_parameters(self) -> list[str]:
        """Names of the parameters that are the model's own."""
        return self._met["of_model"]

    def described(self) -> dict[str, str]:
        """A line about each latent variable."""
        supports = self._met["supports"].items()
        return {name: f"{in_words(model.support)} {model.shape()}" for name, (_, model) in supports}

    def _run(self, program: Program, tracer: Any, data: Values) -> Tape:
        return run_program(program, tracer, data)

    def _asked(self, data: Values) -> Values:
        """Those of the model's arguments that the guide takes."""
        try:
            parameters = inspect.signature(self.guide).parameters.values()
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

    def position(self, params: Params, draw: Any, data: Values) -> dict[str, Array]:
        """Return the unconstrained values of a draw's latent variables."""
        return to_unconstrained(given(self.problem.model, params), draw, data)

    def log_weight(self, params: Params, run: Evaluation, data: Values) -> Array:
        """Return the log importance weight at the position of a run of the model."""
        draw = {name: v.value for name, v in run.variables.items() if v.is_latent}
        return run.log_density(jacobian=False) - self.log_guide(params, draw, data)

    @property
    def left_out(self) -> list[Finding]:
        """That there is what the guide can never draw and the model has."""
        return coverage.findings(self._met["supports"])

    def _check_guide(self, mine: Tape) -> None:
        for name, variable in mine.items():
            if variable.is_latent and _is_weighted(variable):
                raise ValueError(
                    f"Variable {name!r} of the guide {self.name} is masked or scaled: the density of its draws is then "
                    f"not what they are drawn by. Take the mask or the scale out of the guide; terms of rows are "
                    f"weighted by phx.fit itself, batch_size=."
                )
            if variable.distribution is not None and variable.observed:
                what = "is a factor" if refusals.is_term(variable.distribution) else "is observed"
                raise ValueError(
                    f"Variable {name!r} of the guide {self.name} {what}: a guide is a distribution of latent variables "
                    f"that can be drawn from. Take it out; what is observed belongs to the model."
                )

    def _check_aligned(self, mine: Tape, theirs: Tape) -> None:
        model = getattr(self.problem.model, "__name__", "model")
        known = [name for name, v in mine.items() if v.is_latent]
        wanted = [name for name, v in theirs.items() if v.is_latent]
        if not wanted:
            raise ValueError(f"The model {model} has no latent variables: there is nothing to fit a guide to.")
        if missing := [name for name in wanted if name not in known]:
            raise ValueError(
                f"The guide {self.name} has no variable {', '.join(map(repr, missing))}, which is latent in the model "
                f"{model}; it has {', '.join(map(repr, known)) or 'none'}. Sample it in the guide, or observe it in "
                f"the model."
            )
        if extra := [name for name in known if name not in wanted]:
            raise ValueError(
                f"The guide {self.name} samples {', '.join(map(repr, extra))}, which is no latent variable of the "
                f"model {model}; those are {', '.join(map(repr, wanted))}. Rename it, or take it out."
            )

    def _beside(self, mine: Tape) -> Tracer:
        """A tracer that puts the model's variables at the guide's draws, after looking at whether they fit."""

        def place(variable: RandomVariable, _: Forward) -> RandomVariable:
            name, known = variable.name, mine.get(variable.name)
            if variable.is_given or variable.distribution is None:
                return variable.complete()
            if known is None or not known.is_latent:
                return replace(variable, value=_some_value(variable))  # the model runs on, and all is told at once
            self._check_variable(name, known, variable)
            return replace(variable, value=known.value).complete()

        return place

    def _check_variable(self, name: str, mine: RandomVariable, theirs: RandomVariable) -> None:
        expected = (*theirs.distribution.batch_shape, *theirs.distribution.event_shape)  # pyright: ignore
        if mine.shape != expected:
            raise ValueError(
                f"Variable {name!r} has shape {mine.shape} in the guide {self.name}, and {expected} in the model. "
                f"Give it that shape, as in .expand({list(expected)})."
            )
        anywhere = _is_real(mine.distribution) and not coverage.is_point(mine.distribution)  # a point is where it is
        if anywhere and not _is_real(theirs.distribution):
            raise ValueError(_other_support(name, mine.distribution, theirs.distribution))

    def _misfits(self, params: Params, key: Array, data: Values) -> dict[str, Array]:
        """Which variables are drawn outside of the model's supports."""

        def one(key: Array) -> dict[str, Array]:
            draw = self.draw(params, self.noise(key), data)
            variables = self._run(given(self.problem.model, params), _at(draw), data)
            supports = {name: getattr(variables[name].distribution, "support", None) for name in draw}
            return {
                name: ~jnp.all(support(draw[name])) if support is not None else jnp.bool_(False)
                for name, support in supports.items()
            }

        found = jax.vmap(one)(random.split(key, TRIED))
        return {name: jnp.any(flags) for name, flags in found.items()}


def _draw_with(key: Array, densities: dict[str, Array] | None = None) -> Tracer:
    """A tracer that draws every variable without a value, and notes densities that are known from the drawing."""
    met = count()

    def draw(variable: RandomVariable, _: Forward) -> RandomVariable:
        number = next(met)
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


def _at(values: Mapping[str, Any]) -> Tracer:
    """A tracer that puts variables at these values."""

    def place(variable: RandomVariable, _: Forward) -> RandomVariable:
        value = variable.value if variable.is_given else values.get(variable.name, variable.value)
        return replace(variable, value=value).complete()

    return place


def _some_value(variable: RandomVariable) -> Array:
    """A value of a variable that the guide does not have."""
    distribution = variable.distribution
    assert distribution is not None
    zeros = jnp.zeros((*distribution.batch_shape, *distribution.event_shape))
    try:
        return distribution.support.feasible_like(zeros)  # pyright: ignore[reportOptionalMemberAccess]
    except (NotImplementedError, AttributeError):
        return zeros


def _is_real(distribution: Any) -> bool:
    support = getattr(distribution, "support", None)
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support in (constraints.real, constraints.real_vector)


def _is_weighted(variable: RandomVariable) -> bool:
    """Whether its density counts for less or more than it is."""
    distribution: Any = variable.distribution
    while isinstance(distribution, Independent | ExpandedDistribution):
        distribution = distribution.base_dist
    return isinstance(distribution, MaskedDistribution) or not (
        isinstance(variable.scale, float | int) and variable.scale == 1
    )


def _other_support(name: str, guide: Any, model: Any) -> str:
    return (
        f"Variable {name!r}: the guide's {type(guide).__name__} has draws outside of the support of the model's "
        f"{type(model).__name__}, {in_words(model.support)}, where the model has no density. Give the guide a "
        f"distribution on that support, as LogNormal for what is positive, or a TransformedDistribution by "
        f"numpyro.distributions.biject_to."
    )
