"""Handlers: functions from program to program that record or change random variables."""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.typing import ArrayLike

from phalanx.errors.names import hint
from phalanx.inputs.arguments import check_program
from phalanx.language.messages import Forward, Tracer, keys_for_primitives
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program, tracing
from phalanx.mesh.devices import use_every_core
from phalanx.mesh.specs import PyTree

Tape = dict[str, RandomVariable]
"""Random variables by name, in the order in which the program ran."""


@contextmanager
def tape() -> Iterator[Tape]:
    """Record random variables by name, in order, for the length of a `with` block.

    Values are recorded after the tracers below: conditioned, substituted or drawn.

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
                f"Two variables are named {variable.name!r}. Inference distinguishes variables by their names: "
                f"rename one of them."
            )
        variables[variable.name] = variable  # claimed first: a tracer below may sample a variable of the same name
        variables[variable.name] = forward(variable)
        return variables[variable.name]

    with tracing(record):
        yield variables


def trace(program: Program) -> Callable[..., Tape]:
    """Return a function that runs `program` and returns its random variables by name, in order.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> phx.trace(phx.seed(lambda: phx.sample("x", dist.Normal(0.0, 1.0)), 0))()["x"].shape
        ()
    """

    @wraps(program)
    def traced(*args: PyTree, **kwargs: PyTree) -> Tape:
        with tape() as variables:
            program(*args, **kwargs)
        return variables

    return traced


def seed(program: Program, key: Array | int) -> Program:
    """Return `program` with a key to draw from: each variable without a value gets a key of its own.

    A variable's key depends on `key` and its name only, so its draw does not depend on values given for others.

    Args:
        program: any program.
        key: a JAX key, or a whole number to make one from.

    Raises:
        TypeError: when `key` is neither.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> draw = phx.seed(lambda: phx.sample("x", dist.Normal(0.0, 1.0)), 0)
        >>> bool(draw() == draw())
        True
    """
    base = _as_key(key)

    @wraps(program)
    def seeded(*args: PyTree, **kwargs: PyTree) -> PyTree:
        num_by_name: Counter[str] = Counter()

        def give_key(variable: RandomVariable, forward: Forward) -> RandomVariable:
            if variable.value is None and variable.key is None:
                variable = replace(variable, key=_key_of(base, variable.name, num_by_name[variable.name]))
            num_by_name[variable.name] += 1  # two variables may share a name unless a tape records them
            return forward(variable)

        with tracing(give_key), keys_for_primitives(_key_of(base, "", 0)):
            return program(*args, **kwargs)

    return seeded


def _as_key(key: Array | int) -> Array:
    use_every_core()  # a key is often the first array
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return random.key(int(key))
    if isinstance(key, np.ndarray | jax.Array):
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or (key.dtype == np.uint32 and key.shape == (2,)):
            return jnp.asarray(key)
        if not key.ndim and jnp.issubdtype(key.dtype, jnp.integer):
            return random.key(key)
    raise TypeError(f"phx.seed: key must be a whole number or a JAX key, as from jax.random.key(0); got {key!r}.")


def _key_of(base: Array, name: str, times: int) -> Array:
    """Return a key for a name, from 64 bits of its hash and the number of earlier variables of that name."""
    for word in np.frombuffer(hashlib.blake2b(name.encode(), digest_size=8).digest(), np.uint32):
        base = random.fold_in(base, word)
    return random.fold_in(base, times) if times else base


def condition(program: Program, values: Mapping[str, Any]) -> Program:
    """Return `program` with variables observed: their values are given, and they count in the log density as data.

    Raises:
        ValueError: when the program has no random variable of a name, or a value has the wrong shape.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))
        >>> phx.trace(phx.condition(model, {"x": 0.5}))()["x"].observed
        True
    """

    def observe(variable: RandomVariable, value: ArrayLike, forward: Forward) -> RandomVariable:
        if variable.natural is not None:  # `do` has set the value, which stays; the original variable is observed
            return forward(replace(variable.natural, value=value, observed=True, set_to=variable.set_to))
        if variable.parameter is not None:
            raise ValueError(
                f"phx.condition: {variable.name!r} is a parameter, which has no density; give its value with "
                f"phx.substitute."
            )
        if variable.distribution is None:
            raise ValueError(
                f"phx.condition: {variable.name!r} is a deterministic value, computed from others; observe those, or "
                f"give it with phx.do."
            )
        return forward(replace(variable, value=value, observed=True))

    return _by_name(program, values, "condition", observe)


def substitute(program: Program, values: Mapping[str, Any]) -> Program:
    """Return `program` with variables set to values, still latent, as a position or a guide's draw enters a model.

    Under inference they are fixed at these values: their densities count, and they are not inferred.

    Raises:
        ValueError: when the program has no variable of a name, or a value has the wrong shape.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))
        >>> phx.trace(phx.substitute(model, {"x": 0.5}))()["x"].observed
        False
    """

    def set_to(variable: RandomVariable, value: ArrayLike, forward: Forward) -> RandomVariable:
        return forward(variable if variable.observed else replace(variable, value=value, suggested=False))

    return _by_name(program, values, "substitute", set_to)


def do(program: Program, values: Mapping[str, Any]) -> Program:
    """Return `program` under an intervention: variables are replaced by values and cut from the density.

    An intervention splits a variable in two. The rest of the program sees the value that is set. The original variable
    influences no other, so its density is left out; unless it is observed, inside of `do` or outside: then its density
    counts, as evidence on the variables before it. So `do` and `condition` may come in either order, and a condition
    does not undo an intervention.

    Raises:
        ValueError: when the program has no variable of a name.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> def model():
        ...     dose = phx.sample("dose", dist.Normal(0.0, 1.0))
        ...     phx.sample("effect", dist.Normal(2.0 * dose, 1.0))
        >>> phx.trace(phx.seed(phx.do(model, {"dose": 3.0}), 0))()["effect"].distribution.loc.item()
        6.0

    Source:
        Pearl (2009), Causality; Richardson and Robins (2013), Single world intervention graphs.
    """

    def intervene(variable: RandomVariable, value: ArrayLike, forward: Forward) -> RandomVariable:
        answer = RandomVariable(variable.name, None, value, observed=True, natural=variable, set_to=value)
        evidence = variable.observed and variable.distribution is not None
        answered = forward(replace(variable, set_to=value) if evidence else answer)
        visible_value = value if answered.set_to is None else answered.set_to  # a tracer below may mark it
        return replace(answer, value=visible_value, set_to=variable.set_to).complete()

    return _by_name(program, values, "do", intervene)


def block(program: Program, names: Collection[str]) -> Program:
    """Return `program` with the named variables hidden from tracers outside; they are drawn or given inside.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> def model():
        ...     scale = phx.sample("scale", dist.HalfNormal(1.0))
        ...     phx.sample("x", dist.Normal(0.0, scale))
        >>> list(phx.trace(phx.block(phx.seed(model, 0), ["scale"]))())
        ['x']
    """

    def hide(variable: RandomVariable, forward: Forward) -> RandomVariable:
        return variable.complete() if variable.name in names else forward(variable)

    return under(program, hide)


def scale(program: Program, factor: ArrayLike) -> Program:
    """Return `program` with every term of its log density multiplied by `factor`, priors too: a tempered program.

    For a minibatch that stands for all data, scale only the terms that add up over rows: scale a program that contains
    the likelihood alone, and call it in the model with its parameters, which are drawn outside.

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
        natural = variable.natural and replace(variable.natural, scale=variable.natural.scale * factor)
        return forward(replace(variable, scale=variable.scale * factor, natural=natural))

    return under(program, multiply)


def under(program: Program, tracer: Tracer) -> Program:
    """Return `program`, run with `tracer` on the stack."""

    @wraps(program)
    def run(*args: PyTree, **kwargs: PyTree) -> PyTree:
        with tracing(tracer):
            return program(*args, **kwargs)

    return run


def with_keyword(program: Callable[..., Any], model: Program, name: str, **attributes: Any) -> Program:
    """Return `program`, which wraps `model` and takes an argument more, with its signature and these attributes."""
    parameters = list(inspect.signature(model).parameters.values())
    takes_any = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    more = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
    parameters.insert(len(parameters) - takes_any, more)
    vars(program).update(__signature__=inspect.Signature(parameters), **attributes)
    return program


def _by_name(
    program: Program,
    values: Mapping[str, Any],
    handler: str,
    change: Callable[[RandomVariable, Any, Forward], RandomVariable],
) -> Program:
    check_program(program, f"phx.{handler}: program")
    if not isinstance(values, Mapping):
        raise TypeError(
            f"phx.{handler}: expected a dict of values by variable, such as {{'mean': 0.0}}; got {values!r}."
        )

    @wraps(program)
    def changed(*args: PyTree, **kwargs: PyTree) -> PyTree:
        names: list[str] = []

        def tracer(variable: RandomVariable, forward: Forward) -> RandomVariable:
            names.append(variable.name)
            name = variable.name
            return change(variable, values[name], forward) if name in values else forward(variable)

        with tracing(tracer):
            out = program(*args, **kwargs)
        if unknown := [name for name in values if name not in names]:
            raise ValueError(
                f"phx.{handler}: the program has no variable {', '.join(map(repr, unknown))}; "
                f"its variables are {', '.join(map(repr, names)) or 'none at all'}.{hint(unknown, names)}"
            )
        return out

    return changed
