"""Check, before compiling, of distributions whose scale or probability is itself learned on the whole real line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint

from phalanx.distributions.supports import kind_of
from phalanx.errors.model_errors import has_no_sampler
from phalanx.jaxprs.dependence import NOWHERE, Axes
from phalanx.jaxprs.walking import Atom, Interpreter, aval_of, words
from phalanx.language.messages import Forward
from phalanx.language.parameters import Parameter
from phalanx.language.random_variable import RandomVariable
from phalanx.mesh.specs import PyTree
from phalanx.programs.unconstrained import Evaluation, run_program
from phalanx.programs.validity import VALUE, ValueCheck, ValueChecks, value_checks_of
from phalanx.variational.guides.guide_and_model import Pair
from phalanx.variational.problem import Problem

DRAWS = 100
"""Draws from the prior of a latent variable."""

RARE = 0.1
"""Largest fraction of draws from the prior that may be invalid."""

NAMES = {"positive": "positive", "zero or more": "nonnegative", "between 0 and 1": "unit_interval"}
"""Names of constraints that a real number satisfies or not, whatever the other parameters are, by their texts."""

TRANSFORM = "transform it: a scale by jnp.exp, a probability by jax.nn.sigmoid"


MOVES = words(
    """reshape broadcast_in_dim squeeze expand_dims transpose slice dynamic_slice gather rev copy copy_p neg
    convert_element_type reduce_precision split"""
)
"""Primitives whose results contain entries of the first operand, and the negative of one takes all values too."""


def check_bounded(pair: Pair) -> None:
    """Raise if a parameter of a distribution must be positive, say, and is a value that is learned on the real line.

    A latent variable is refused if a part of its prior is outside; a program as guide may draw it from inside.

    Raises:
        ValueError: naming the variable of the distribution, and the value.
    """
    problem = pair.problem
    program = pair.program_guide
    if program is None:
        if not pair.guide.traits.is_solved:
            _check_latents(problem)
    else:

        def of_guide(params: PyTree, data: PyTree) -> Evaluation:
            return Evaluation(replace(program, data=data).variables(params, random.key(0)), {}, {})

        _check_parameters(problem, program.alignment.parameters, of_guide, f" of the guide {program.name}")
    _check_parameters(problem, problem.parameters, problem.at_zero, "")


class _Unbounded(NamedTuple):
    """A distribution's parameter that is a value on the real line, and must be in a part of it.

    Attributes:
        name, parameter: the variable of the distribution, and its parameter.
        source: the name of the value.
        check: the allowed values and the distribution, as text.
    """

    name: str
    parameter: str
    source: str
    check: ValueCheck


def _find_unbounded(program: ClosedJaxpr, sources: Mapping[Var, str], checks: ValueChecks) -> Iterator[_Unbounded]:
    """Yield the parameters that are a value on the real line itself, up to a constant factor.

    Args:
        program: a trace whose last outputs are the arrays of `checks`.
        sources: names of its variables that take all real values.
        checks: the checks, by variable and parameter.
    """
    copied = _Copies(sources).run(program, [NOWHERE] * len(program.jaxpr.invars))
    values = copied[len(copied) - 2 * len(checks) :: 2]
    for ((name, parameter), check), names in zip(checks.items(), values, strict=True):
        is_bounded = check.allowed in NAMES or check.allowed.startswith("between")
        if names and parameter != VALUE and is_bounded:
            yield _Unbounded(name, parameter, min(names), check)


class _Copies(Interpreter[Axes]):
    """Analysis of a program: the sources that some entries of a value are copies of, up to a constant factor.

    Functions that the program calls are followed; loops and branches are not.
    """

    def __init__(self, sources: Mapping[Var, str]):
        self._sources = sources

    def constant(self, value: ArrayLike) -> Axes:
        return NOWHERE

    def named(self, variable: Var, value: Axes) -> Axes:
        return value | {self._sources[variable]} if variable in self._sources else value

    def primitive(self, equation: JaxprEqn, inputs: list[Axes]) -> list[Axes]:
        name = equation.primitive.name
        if name == "optimization_barrier":
            return inputs
        if name in MOVES and all(jnp.issubdtype(aval_of(v).dtype, jnp.inexact) for v in equation.outvars):
            return [inputs[0]] * len(equation.outvars)
        if name == "concatenate":
            return [NOWHERE.union(*inputs)]
        if name in ("mul", "div") and _is_factor(equation.invars[1]):
            return [inputs[0]]
        return [inputs[1]] if name == "mul" and _is_factor(equation.invars[0]) else [NOWHERE] * len(equation.outvars)


def _is_factor(atom: Atom) -> bool:
    """Return whether an operand is a number other than zero."""
    return isinstance(atom, Literal) and np.ndim(atom.val) == 0 and bool(np.isfinite(atom.val) and atom.val != 0)


def _check_parameters(
    problem: Problem, parameters: Mapping[str, Parameter], run: Callable[[Any, Any], Evaluation], where: str
) -> None:
    real = {name for name, parameter in parameters.items() if _is_real(parameter.constraint)}
    if not real:
        return

    def look(params: PyTree, arrays: PyTree) -> ValueChecks:
        return problem.alone(lambda: value_checks_of(run(params, problem.arguments.layout.join(arrays))))

    values = jax.eval_shape(lambda: {name: p.start(name, random.key(0)) for name, p in parameters.items()})
    program, checks = jax.make_jaxpr(look, return_shape=True)(values, problem.arguments.whole_shapes())
    names = [name for name in sorted(values) for _ in jax.tree.leaves(values[name])]
    sources = {v: name for v, name in zip(program.jaxpr.invars, names, strict=False) if name in real}
    for scale in _find_unbounded(program, sources, checks):
        constraint = NAMES.get(scale.check.allowed, "interval")
        raise ValueError(
            f"{_sentence(scale, where)} the parameter {scale.source!r}, which has no constraint. Give it one, as in "
            f"phx.param({scale.source!r}, ..., numpyro.distributions.constraints.{constraint}), or {TRANSFORM}."
        )


def _check_latents(problem: Problem) -> None:
    whole = problem.whole
    sources = dict(zip(whole.at_zero.jaxpr.outvars, sorted(whole.position), strict=False))
    for scale in _find_unbounded(whole.at_zero, sources, whole.checks):
        if _invalid_in_prior(problem, scale) > RARE:
            kind = kind_of(whole.variables[scale.source].distribution)
            raise ValueError(
                f"{_sentence(scale, '')} the variable {scale.source!r}, whose {kind} has other values. Give it a prior "
                f"with the right support, such as HalfNormal or LogNormal for a scale and Beta for a probability, or "
                f"{TRANSFORM}."
            )


def _sentence(scale: _Unbounded, where: str) -> str:
    return (
        f"Variable {scale.name!r}{where}: its {scale.parameter} must be {scale.check.allowed} for a "
        f"{scale.check.distribution}, and is"
    )


def _invalid_in_prior(problem: Problem, scale: _Unbounded) -> float:
    """Return the fraction of draws from the prior in which a distribution's parameter is invalid; 0 if unknown."""
    data = problem.arguments.join(problem.arguments.arrays)

    def is_invalid(key: Array) -> Array:
        keys = (random.fold_in(key, number) for number in count())

        def draw(variable: RandomVariable, _: Forward) -> RandomVariable:
            return variable.complete() if variable.is_given else replace(variable, key=next(keys)).complete()

        variables = run_program(problem.at_start, draw, data)
        return value_checks_of(Evaluation(variables, {}, {}))[scale.name, scale.parameter].bad.any()

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
