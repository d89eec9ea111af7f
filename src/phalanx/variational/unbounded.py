"""Check, before compiling, of distributions whose scale or probability is itself learned on the whole real line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import jax
import numpy as np
from jax import Array, random
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint

from phalanx.distributions.constraint_text import kind_of
from phalanx.errors.model_errors import has_no_sampler
from phalanx.language.parameters import Parameter
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Forward
from phalanx.mesh.specs import PyTree
from phalanx.programs.unconstrained import Evaluation
from phalanx.programs.validity import Doubt, Unbounded, doubts_of, outputs_of, unbounded_parameters
from phalanx.variational.guides.pair import Pair
from phalanx.variational.problem import Problem, run_program

DRAWS, RARE = 100, 0.1
"""Draws from the prior of a latent variable, and the largest fraction of them that may be invalid."""

NAMES = {"positive": "positive", "zero or more": "nonnegative", "between 0 and 1": "unit_interval"}
"""Names of constraints, by their texts."""

TRANSFORM = "transform it: a scale by jnp.exp, a probability by jax.nn.sigmoid"


def check_bounded(pair: Pair) -> None:
    """Raise if a parameter of a distribution must be positive, say, and is a value that is learned on the real line.

    A latent variable is refused if a part of its prior is outside; a program as guide may draw it from inside.

    Raises:
        ValueError: naming the variable of the distribution, and the value.
    """
    problem, program = pair.problem, pair.program
    if program is None:
        if not pair.guide.traits.is_solved:
            _check_latents(problem)
    else:

        def of_guide(params: PyTree, data: PyTree) -> Evaluation:
            return Evaluation(replace(program, data=data).variables(params, random.key(0)), {}, {})

        _check_parameters(problem, program.alignment.parameters, of_guide, f" of the guide {program.name}")
    _check_parameters(problem, problem.parameters, problem.at_zero, "")


def _check_parameters(
    problem: Problem, parameters: Mapping[str, Parameter], run: Callable[[Any, Any], Evaluation], where: str
) -> None:
    real = {name for name, parameter in parameters.items() if _is_real(parameter.constraint)}
    if not real:
        return
    doubts: dict[tuple[str, str], Doubt] = {}

    def look(params: PyTree, arrays: PyTree) -> list[Array]:
        def outputs() -> list[Array]:
            doubts.update(doubts_of(run(params, problem.arguments.layout.join(arrays))))
            return outputs_of(doubts)

        return problem.alone(outputs)

    values = jax.eval_shape(lambda: {name: p.start(name, random.key(0)) for name, p in parameters.items()})
    traced = jax.make_jaxpr(look)(values, problem.arguments.whole_shapes())
    names = [name for name in sorted(values) for _ in jax.tree.leaves(values[name])]
    sources = {v: name for v, name in zip(traced.jaxpr.invars, names, strict=False) if name in real}
    for found in unbounded_parameters(traced, sources, doubts):
        constraint = NAMES.get(found.doubt.allowed, "interval")
        raise ValueError(
            f"{_sentence(found, where)} the parameter {found.source!r}, which has no constraint. Give it one, as in "
            f"phx.param({found.source!r}, ..., numpyro.distributions.constraints.{constraint}), or {TRANSFORM}."
        )


def _check_latents(problem: Problem) -> None:
    whole = problem.whole
    sources = dict(zip(whole.at_zero.jaxpr.outvars, sorted(whole.position), strict=False))
    for found in unbounded_parameters(whole.at_zero, sources, whole.doubts):
        if _invalid_in_prior(problem, found) > RARE:
            kind = kind_of(whole.variables[found.source].distribution)
            raise ValueError(
                f"{_sentence(found, '')} the variable {found.source!r}, whose {kind} has other values. Give it a prior "
                f"with the right support, such as HalfNormal or LogNormal for a scale and Beta for a probability, or "
                f"{TRANSFORM}."
            )


def _sentence(found: Unbounded, where: str) -> str:
    return (
        f"Variable {found.name!r}{where}: its {found.parameter} must be {found.doubt.allowed} for a "
        f"{found.doubt.distribution}, and is"
    )


def _invalid_in_prior(problem: Problem, found: Unbounded) -> float:
    """Return the fraction of draws from the prior in which a distribution's parameter is invalid; 0 if unknown."""
    data = problem.data(problem.arguments.arrays)

    def is_invalid(key: Array) -> Array:
        keys = (random.fold_in(key, number) for number in count())

        def draw(variable: RandomVariable, _: Forward) -> RandomVariable:
            return variable.complete() if variable.is_given else replace(variable, key=next(keys)).complete()

        variables = run_program(problem.at_start, draw, data)
        return doubts_of(Evaluation(variables, {}, {}))[found.name, found.parameter].bad.any()

    keys = random.split(random.key(0), DRAWS)
    try:
        return float(np.mean(problem.alone(lambda: jax.vmap(is_invalid)(keys))))
    except Exception as error:
        if has_no_sampler(error):
            return 0.0
        raise


def _is_real(constraint: Constraint) -> bool:
    while isinstance(constraint, constraints.independent):
        constraint = constraint.base_constraint
    return constraint in (constraints.real, constraints.real_vector)
