"""The tracing core: random variables, and a stack of tracers that see them.

A program calls `sample`. The call becomes a `RandomVariable` and goes to the tracer on top of this thread's stack. A
tracer is a function `(variable, forward) -> variable`: it may change the variable, and forwards it to the tracer
below. Below the last tracer, the variable gets its value. Handlers, targets and adapters are tracers. NumPyro's
handlers and primitives take part: see `messages`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.extend.core import get_opaque_trace_state
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, Unit

from phalanx.distributions.blocked import Blocked
from phalanx.language import messages
from phalanx.language.messages import Forward, Tracer
from phalanx.language.random_variable import RandomVariable
from phalanx.mesh.compatibility.jax_internals import read_arrays_anew
from phalanx.mesh.compatibility.numpyro_internals import explain_assertion
from phalanx.mesh.devices import use_every_core

Program = Callable[..., Any]
"""A function that calls `sample`; its arguments are the data."""


class _Stack(threading.local):
    tracers: tuple[Tracer, ...] = ()


_stack = _Stack()


@contextmanager
def tracing(tracer: Tracer) -> Iterator[None]:
    """Put `tracer` on top of this thread's stack for the length of a `with` block, exceptions included.

    A tracer is a function `(variable, forward) -> variable`. It receives every random variable and parameter of the
    program, may change it (`dataclasses.replace`), and passes it to the tracers below with `forward`, which returns the
    variable with its value. Or the tracer completes the variable itself, with `variable.complete()`, and does not
    forward it.

    Args:
        tracer: the function.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> def show(variable, forward):
        ...     variable = forward(variable)
        ...     print(variable.name, variable.shape)
        ...     return variable
        >>> with phx.tracing(show):
        ...     x = phx.seed(lambda: phx.sample("x", dist.Normal(0.0, 1.0).expand([2])), 0)()
        x (2,)

    Source:
        Tran, Hoffman, Moore, Suter, Vasudevan, Radul (2018), Simple, distributed, and accelerated probabilistic
        programming.
    """
    use_every_core()  # a program makes arrays
    read_arrays_anew()
    below = _stack.tracers
    tracer = _not_within_transformations(tracer)
    _stack.tracers = (*below, tracer)
    try:
        with messages.installed(tracer):
            yield
    except AssertionError as error:
        explain_assertion(error)
        raise
    finally:
        _stack.tracers = below


def _not_within_transformations(tracer: Tracer) -> Tracer:
    """Return `tracer` with a check: it refuses variables in a part of the program that JAX traces separately."""
    entered = get_opaque_trace_state(convention="phalanx")

    def checked(variable: RandomVariable, forward: Forward) -> RandomVariable:
        if get_opaque_trace_state(convention="phalanx") != entered:
            raise ValueError(
                f"Variable {variable.name!r} is sampled inside of a function that JAX transforms within the program "
                f"(jax.vmap, jit, grad or checkpoint, lax.scan, map, cond or while_loop): it would be one variable "
                f"however often that function runs. Sample outside of it, all at once, as in "
                f"phx.sample({variable.name!r}, distribution.expand([n])), and pass the values in. In a chain in time, "
                f"whose distribution depends on the step before, sample what is new in each step, "
                f"z = phx.sample('{variable.name}_steps', dist.Normal(0.0, 1.0).expand([n])), and have jax.lax.scan "
                f"compute the steps from z: {variable.name} = mean + scale * z."
            )
        return tracer(variable, forward)

    return checked


def sample(
    name: str, distribution: Distribution, *, obs: ArrayLike | None = None, axis: str | Sequence[str] | None = None
) -> Array:
    """Sample a random variable: draw it, or take its value from data, a condition or the running inference.

    Args:
        name: the variable's name, unique in the program.
        distribution: any `numpyro.distributions.Distribution`.
        obs: its value when it is observed, of shape batch + event (or sample + batch + event).
        axis: mesh axis that its leading dimension is sharded over, as with `axis="model"` for the units of a large
            network. Not needed for a variable with as many rows as sharded data have. The program sees all rows, and
            draws are returned whole.

    Returns:
        The value, a plain array.

    Raises:
        TypeError: when `name` is not a string or `distribution` not a distribution.
        ValueError: when the value has the wrong shape, or the variable has neither a value nor a key.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> def coin():
        ...     p = phx.sample("p", dist.Beta(2.0, 2.0))
        ...     phx.sample("heads", dist.Binomial(10, p), obs=7)
        >>> list(phx.trace(phx.seed(coin, 0))())
        ['p', 'heads']
    """
    if not isinstance(name, str):
        raise TypeError(f"phx.sample: the first argument is the variable's name, a string; got {name!r}.")
    if isinstance(distribution, type):
        raise TypeError(
            f"Variable {name!r}: expected a distribution, got the class {distribution.__name__} itself; give it "
            f"parameters, as in {distribution.__name__}(...)."
        )
    if not isinstance(distribution, Distribution):
        raise TypeError(
            f"Variable {name!r}: expected a numpyro.distributions.Distribution, got {type(distribution).__name__}."
        )
    axes = () if axis is None else (axis,) if isinstance(axis, str) else tuple(axis)
    return send(RandomVariable(name, distribution, obs, observed=obs is not None, axes=axes)).value


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{what}: the first argument is its name, a string; got {name!r}.")


def deterministic(name: str, value: Any) -> Any:
    """Record a value computed from others under a name, and return it; `keep=[name]` stores it with the draws.

    It has no density. Its value may be any array.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> def model():
        ...     log_scale = phx.sample("log_scale", dist.Normal(0.0, 1.0))
        ...     phx.deterministic("scale", log_scale**2)
        >>> phx.trace(phx.substitute(model, {"log_scale": 3.0}))()["scale"].value.item()
        9.0
    """
    _check_name("phx.deterministic", name)
    return send(RandomVariable(name, None, value, observed=True)).value


def factor(name: str, log_density: ArrayLike | Blocked) -> None:
    """Add a term to the log density: a likelihood or a constraint that no distribution expresses.

    Args:
        name: the term's name, unique in the program.
        log_density: a scalar, or an array of terms to be added; or `phx.blocked(...)` of them. Over sharded data keep
            one term per row, so that padded rows can be left out.

    Example:
        >>> import phalanx as phx
        >>> model = lambda: phx.factor("penalty", -2.0)
        >>> phx.log_joint(model)({}).item()
        -2.0
    """
    _check_name("phx.factor", name)
    if isinstance(log_density, str | bytes) or log_density is None:
        raise TypeError(f"phx.factor: the log density of {name!r} must be a number or an array; got {log_density!r}.")
    distribution = log_density if isinstance(log_density, Blocked) else Unit(log_density)
    value = jnp.zeros((*distribution.batch_shape, 0))  # Unit's event is empty: it has a density and no value
    send(RandomVariable(name, distribution, value, observed=True))


def send(variable: RandomVariable) -> RandomVariable:
    """Send a variable or parameter of a program to the tracers, and return it with its value."""
    return _forward_below(_stack.tracers)(variable) if messages.bypasses_numpyro() else messages.send(variable)


def _forward_below(tracers: tuple[Tracer, ...]) -> Forward:
    if not tracers:
        return RandomVariable.complete
    *below, top = tracers

    def forward(variable: RandomVariable) -> RandomVariable:
        # A tracer that itself calls `sample` sends to the tracers below it, not to itself.
        above = _stack.tracers
        _stack.tracers = tuple(below)
        try:
            return top(variable, _forward_below(tuple(below)))
        finally:
            _stack.tracers = above

    return forward
