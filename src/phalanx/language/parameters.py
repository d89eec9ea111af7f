"""Parameters: named values that are learned and have no distribution, in guides and in models.

Outside of a fit a parameter is its initial value, or what is substituted for it. Learning substitutes values; sampling
refuses a program in which a parameter has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint

from phalanx.distributions.constraint_text import in_words, is_computed
from phalanx.language.handlers import under
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Forward, Program, send


@dataclass(frozen=True, eq=False)
class Parameter:
    """What a program says of a parameter.

    Attributes:
        init: the initial value: an array, or a pytree of arrays such as a network's weights; or a function of a key
            that makes one.
        constraint: where its values lie.
        spec: how it is laid out over a mesh: one for all of its arrays, a tree like it, or a rule by path; None for a
            copy on every device.
    """

    init: Any
    constraint: Constraint
    spec: Any = None

    def start(self, name: str, key: Array | None) -> Any:
        """The initial value, as arrays."""
        if not callable(self.init):
            return arrays_of(name, self.init)
        if key is None:
            raise ValueError(
                f"Parameter {name!r} is made by a function of a key, and there is none. Run the program under a seed, "
                f"phx.seed(program, 0)(...), or give the value with phx.substitute."
            )
        return arrays_of(name, self.init(key))


def param(
    name: str,
    init: Any,
    constraint: Constraint = constraints.real,
    spec: Any = None,
) -> Any:
    """A parameter: a named value that `phx.fit` learns, in a guide or in a model.

    Args:
        name: its name, unique in the program.
        init: its value before anything is learned: an array or number, or a pytree of arrays, such as the weights of a
            network; or a function of a key that makes one.
        constraint: where its values lie, one of `numpyro.distributions.constraints`; it is learned on the real line, by
            the bijection from there.
        spec: how it is laid out over a mesh: a `jax.sharding.PartitionSpec`, or the mesh axis of each dimension, such
            as `("model", None)`; or, of a pytree of arrays, a tree like it of `PartitionSpec`, or a function of an
            array's path, such as "layers.0.kernel", and its shape, that gives one. None keeps a copy on every device.

    Returns:
        The value: what was learned or substituted; the initial one where nothing was.

    Raises:
        TypeError: when `name` is no string, `constraint` no constraint, or `init` holds something other than numbers.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> def guide():
        ...     scale = phx.param("scale", 1.0, dist.constraints.positive)
        ...     phx.sample("x", dist.Normal(phx.param("loc", 0.0), scale))
        >>> list(phx.trace(phx.seed(guide, 0))())
        ['scale', 'loc', 'x']
    """
    if not isinstance(name, str):
        raise TypeError(f"phx.param: the first argument is the parameter's name, a string; got {name!r}.")
    if not isinstance(constraint, Constraint):
        raise TypeError(
            f"Parameter {name!r}: constraint must be one of numpyro.distributions.constraints, such as "
            f"constraints.positive; got {constraint!r}."
        )
    parameter = Parameter(init if callable(init) else arrays_of(name, init), constraint, _spec_of(spec))
    return send(RandomVariable(name, None, parameter=parameter)).value


def _spec_of(spec: Any) -> Any:
    """A spec, or a tree of them, where the user may have written the axes of one as a tuple."""
    is_tree = any(isinstance(leaf, PartitionSpec) for leaf in jax.tree.leaves(spec, is_leaf=_is_spec))
    return spec if spec is None or callable(spec) or is_tree else PartitionSpec(*spec)


def _is_spec(node: Any) -> bool:
    return isinstance(node, PartitionSpec)


def arrays_of(name: str, value: Any) -> Any:
    """A pytree of numbers as one of arrays of real numbers."""

    def array(leaf: Any) -> Array:
        if np.ma.is_masked(leaf):
            raise ValueError(
                f"init: some values of {name!r} are masked, and a mask has no meaning here. Give every value, as "
                f"value.filled(...) does."
            )
        try:
            found = jnp.asarray(leaf)
        except (TypeError, ValueError):
            raise TypeError(
                f"Parameter {name!r}: init must be an array, a pytree of arrays, or a function of a key that makes "
                f"one; got {type(leaf).__name__}."
            ) from None
        if not jnp.issubdtype(found.dtype, jnp.floating):
            found = found.astype(jnp.result_type(float))  # of a whole number there is no gradient
        return found

    if value is None or not jax.tree.leaves(value):
        raise TypeError(f"Parameter {name!r}: init holds no number to begin with; got {value!r}.")
    return jax.tree.map(array, value)


def given(program: Program, values: Mapping[str, Any]) -> Program:
    """`program` with its parameters at these values, and seen by no tracer outside: how a fit runs a program."""

    def give(variable: RandomVariable, forward: Forward) -> RandomVariable:
        if variable.parameter is None or variable.value is not None:
            return forward(variable)
        if variable.name not in values:
            raise ValueError(
                f"Parameter {variable.name!r} was not met when the program was first run, with "
                f"{', '.join(map(repr, values)) or 'none'}. Which parameters there are must follow from the data alone."
            )
        return RandomVariable(variable.name, None, values[variable.name], parameter=variable.parameter)

    return under(program, give)


def meeting(program: Program, key: Array, met: dict[str, tuple[Parameter, Any]]) -> Program:
    """`program` with its parameters at their initial values, noted in `met` with what the program says of them."""

    def note(variable: RandomVariable, forward: Forward) -> RandomVariable:
        parameter, name = variable.parameter, variable.name
        if parameter is None or variable.value is not None:
            return forward(variable)
        if name in met:
            raise ValueError(
                f"Two parameters are named {name!r}. Names are how values are told apart: rename one of them."
            )
        if is_computed(parameter.constraint):
            raise ValueError(
                f"Parameter {name!r}: a bound of its constraint {in_words(parameter.constraint)} is computed while "
                f"the program runs, of another parameter, a variable or the data, or by jax.numpy; where a "
                f"parameter may lie must be known before. Write bounds as numbers or by NumPy; or learn a share on "
                f"constraints.unit_interval, and multiply it by what is computed."
            )
        value = parameter.start(name, jax.random.fold_in(key, len(met)))
        met[name] = parameter, value
        return RandomVariable(name, None, value, parameter=parameter)

    return under(program, note)
