"""Handlers: programs made from programs by watching or changing their random variables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import jax.numpy as jnp
from jax import Array, random

from phalanx.programs.random_variable import RandomVariable
from phalanx.programs.tracing import Forward, Program, Tracer, tracing

Tape = dict[str, RandomVariable]


@contextmanager
def tape() -> Iterator[Tape]:
    """Record name -> random variable, in order, for the length of a `with` block.

    What is recorded is what the tracers below returned: conditioned, substituted and drawn values.

    Raises:
        ValueError: when two variables have one name.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> with phx.tape() as variables:
        ...     x = phx.seed(lambda: phx.sample("x", dist.Normal(0.0, 1.0)), 0)()
        >>> variables["x"].value is x
        True
    """
    variables: Tape = {}

    def record(variable: RandomVariable, forward: Forward) -> RandomVariable:
        if variable.name in variables:
            raise ValueError(
                f"Two variables are named {variable.name!r}. Names are how inference tells variables apart: "
                f"rename one of them."
            )
        variables[variable.name] = variable  # claimed first: a name is taken even while a tracer below is at work
        variables[variable.name] = forward(variable)
        return variables[variable.name]

    with tracing(record):
        yield variables


def trace(program: Program) -> Callable[..., Tape]:
    """The function that runs `program` and returns its random variables by name, in order.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> phx.trace(phx.seed(lambda: phx.sample("x", dist.Normal(0.0, 1.0)), 0))()["x"].shape
        ()
    """

    @wraps(program)
    def traced(*args: Any, **kwargs: Any) -> Tape:
        with tape() as variables:
            program(*args, **kwargs)
        return variables

    return traced


def seed(program: Program, key: Array | int) -> Program:
    """`program` with a key to draw from: each variable without a value gets a key of its own.

    Args:
        program: any program.
        key: a JAX key, or a whole number to make one from.
    """

    @wraps(program)
    def seeded(*args: Any, **kwargs: Any) -> Any:
        base = random.key(key) if isinstance(key, int) else key
        count = 0

        def give_key(variable: RandomVariable, forward: Forward) -> RandomVariable:
            nonlocal count
            if variable.value is None and variable.key is None:
                variable = replace(variable, key=random.fold_in(base, count))
                count += 1
            return forward(variable)

        with tracing(give_key):
            return program(*args, **kwargs)

    return seeded


def condition(program: Program, values: Mapping[str, Any]) -> Program:
    """`program` with variables observed: their values are given, and they count in the log density as data.

    Raises:
        ValueError: when a name is no variable of the program, or a value has the wrong shape.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))
        >>> phx.trace(phx.condition(model, {"x": 0.5}))()["x"].observed
        True
    """
    return _by_name(program, values, "condition", lambda v, value: replace(v, value=value, observed=True))


def substitute(program: Program, values: Mapping[str, Any]) -> Program:
    """`program` with variables set to values, still latent: how a position or a guide's draw enters a model."""
    return _by_name(program, values, "substitute", lambda v, value: v if v.observed else replace(v, value=value))


def do(program: Program, values: Mapping[str, Any]) -> Program:
    """`program` under an intervention: variables are replaced by values and cut from the density (Pearl, 2009)."""
    return _by_name(
        program, values, "do", lambda v, value: replace(v, distribution=None, value=jnp.asarray(value), observed=True)
    )


def block(program: Program, names: Collection[str]) -> Program:
    """`program` with the named variables hidden from tracers outside: they are drawn or given inside, and not seen."""

    @wraps(program)
    def blocked(*args: Any, **kwargs: Any) -> Any:
        def hide(variable: RandomVariable, forward: Forward) -> RandomVariable:
            return variable.complete() if variable.name in names else forward(variable)

        with tracing(hide):
            return program(*args, **kwargs)

    return blocked


def scale(program: Program, factor: Any) -> Program:
    """`program` with every term of its log density multiplied by `factor`, priors too: a tempered program.

    For a minibatch that stands for all data only what adds up over rows may be scaled: scale a program that holds the
    likelihood alone, and call it in the model with its parameters, which are drawn outside.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions as dist, phalanx as phx
        >>> def rows(mean, y):
        ...     phx.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> def model(y, num_rows):
        ...     mean = phx.sample("mean", dist.Normal(0.0, 10.0))
        ...     phx.scale(rows, num_rows / y.shape[0])(mean, y)
        >>> found = phx.trace(phx.substitute(model, {"mean": 0.0}))(jnp.ones(5), 100)
        >>> found["mean"].scale, found["y"].scale
        (1.0, 20.0)
    """

    def multiply(variable: RandomVariable, forward: Forward) -> RandomVariable:
        return forward(replace(variable, scale=variable.scale * factor))

    return under(program, multiply)


def under(program: Program, tracer: Tracer) -> Program:
    """`program` run with `tracer` on the stack."""

    @wraps(program)
    def run(*args: Any, **kwargs: Any) -> Any:
        with tracing(tracer):
            return program(*args, **kwargs)

    return run


def _by_name(
    program: Program, values: Mapping[str, Any], handler: str, change: Callable[[RandomVariable, Any], RandomVariable]
) -> Program:
    @wraps(program)
    def changed(*args: Any, **kwargs: Any) -> Any:
        met: list[str] = []

        def tracer(variable: RandomVariable, forward: Forward) -> RandomVariable:
            met.append(variable.name)
            return forward(change(variable, values[variable.name]) if variable.name in values else variable)

        with tracing(tracer):
            out = program(*args, **kwargs)
        if unknown := [name for name in values if name not in met]:
            raise ValueError(
                f"phx.{handler}: the program has no variable {', '.join(map(repr, unknown))}; "
                f"its variables are {', '.join(map(repr, met)) or 'none at all'}."
            )
        return out

    return changed
