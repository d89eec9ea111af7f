"""Parameters: named values that are learned and have no distribution, in guides and in models.

Outside of a fit a parameter is its initial value, or the value substituted for it. A fit substitutes learned values;
sampling refuses a program in which a parameter has no substituted value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint

from phalanx.distributions.supports import in_words, is_computed
from phalanx.language.handlers import under
from phalanx.language.messages import Forward
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program, send
from phalanx.mesh.specs import PyTree, Spec, is_spec, layout_of, one_spec


@dataclass(frozen=True, eq=False)
class Parameter:
    """Declaration of a parameter in a program.

    Attributes:
        init: the initial value: an array, or a pytree of arrays such as a network's weights; or a function of a key
            that makes one.
        constraint: the set that its values lie in.
        spec: its layout over a mesh: one for all of its arrays, a tree like it, or a rule by path; None for a copy on
            every device.
    """

    init: Any
    constraint: Constraint
    spec: Any = None

    def start(self, name: str, key: Array | None) -> PyTree:
        """Return the initial value, as arrays."""
        if not callable(self.init):
            return self._laid_out(name, arrays_of(name, self.init))
        if key is None:
            raise ValueError(
                f"Parameter {name!r} is made by a function of a key, and there is no key. Run the program under a "
                f"seed, phx.seed(program, 0)(...), or give the value with phx.substitute."
            )
        return self._laid_out(name, arrays_of(name, self.init(key)))

    def _laid_out(self, name: str, value: PyTree) -> PyTree:
        """Return the initial value, if its layout is one of such arrays."""
        layout_of(value, self.spec, f"Parameter {name!r}")
        return value


def param(
    name: str,
    init: PyTree | Callable[[Array], PyTree],
    constraint: Constraint = constraints.real,
    spec: Spec = None,
) -> PyTree:
    """Declare a parameter, a named value that `phx.fit` learns in a guide or in a model, and return its value.

    Args:
        name: its name, unique in the program.
        init: its value before the fit: an array or number, or a pytree of arrays, such as the weights of a network; or
            a function of a key that makes one.
        constraint: the set that its values lie in, one of `numpyro.distributions.constraints`; the fit moves it on the
            real line, and a bijection maps it from there.
        spec: its layout over a mesh: a `jax.sharding.PartitionSpec`, or the mesh axis of each dimension, such as
            `("model", None)`; or, for a pytree of arrays, a tree like it of `PartitionSpec`, or a function of an
            array's path, such as "layers.0.kernel", and its shape, that gives one. None keeps a copy on every device.

    Returns:
        The learned or substituted value, else the initial one.

    Raises:
        TypeError: when `name` is not a string, `constraint` not a constraint, `init` holds something other than
            numbers, or `spec` is no layout.
        ValueError: when `spec` does not fit the arrays.

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
    parameter = Parameter(init if callable(init) else arrays_of(name, init), constraint, _spec_of(name, spec))
    return send(RandomVariable(name, None, parameter=parameter)).value


def _spec_of(name: str, spec: Spec) -> PyTree:
    """Return a spec or a tree of specs; the user may have written a single spec as a tuple of axes."""
    is_tree = any(map(is_spec, jax.tree.leaves(spec, is_leaf=is_spec)))
    keep = spec is None or callable(spec) or (is_tree and not is_spec(spec))
    return spec if keep else one_spec(spec, f"Parameter {name!r}")


def arrays_of(name: str, value: PyTree) -> PyTree:
    """Return a pytree of numbers as a pytree of floating-point arrays."""

    def array(leaf: ArrayLike) -> Array:
        if np.ma.is_masked(leaf):
            raise ValueError(
                f"init: some values of {name!r} are masked, and a mask has no meaning here. Give every value, as "
                f"value.filled(...) does."
            )
        try:
            parameter = jnp.asarray(leaf)
        except (TypeError, ValueError):
            raise TypeError(
                f"Parameter {name!r}: init must be an array, a pytree of arrays, or a function of a key that makes "
                f"one; got {type(leaf).__name__}."
            ) from None
        if not jnp.issubdtype(parameter.dtype, jnp.floating):
            parameter = parameter.astype(jnp.result_type(float))  # JAX does not differentiate with respect to integers
        return parameter

    if value is None or not jax.tree.leaves(value):
        raise TypeError(f"Parameter {name!r}: init holds no number to start from; got {value!r}.")
    return jax.tree.map(array, value)


def with_parameters(program: Program, values: Mapping[str, Any]) -> Program:
    """Return `program` with its parameters at these values and hidden from outer tracers, as a fit runs it."""

    def give(variable: RandomVariable, forward: Forward) -> RandomVariable:
        if variable.parameter is None or variable.value is not None:
            return forward(variable)
        if variable.name not in values:
            raise ValueError(
                f"Parameter {variable.name!r} was missing when the program first ran; its parameters then were "
                f"{', '.join(map(repr, values)) or 'none'}. Parameters must depend on the data alone."
            )
        return RandomVariable(variable.name, None, values[variable.name], parameter=variable.parameter)

    return under(program, give)


def at_initial_values(program: Program) -> Program:
    """Return `program` with its parameters at their initial values, of one key, in every call."""

    @wraps(program)
    def begun(**data: Any) -> PyTree:
        return initialized(program, random.key(0), {})(**data)

    return begun


def initialized(program: Program, key: Array, record: dict[str, tuple[Parameter, Any]]) -> Program:
    """Return `program` with its parameters at their initial values, which are recorded in `record` by name."""

    def note(variable: RandomVariable, forward: Forward) -> RandomVariable:
        parameter = variable.parameter
        name = variable.name
        if parameter is None or variable.value is not None:
            return forward(variable)
        if name in record:
            raise ValueError(
                f"Two parameters are named {name!r}. Values are distinguished by their names: rename one of them."
            )
        if is_computed(parameter.constraint):
            raise ValueError(
                f"Parameter {name!r}: a bound of its constraint {in_words(parameter.constraint)} is computed while "
                f"the program runs, from another parameter, a variable or the data, or by jax.numpy; bounds must be "
                f"known before the program runs. Write bounds as numbers or by NumPy; or learn a fraction on "
                f"constraints.unit_interval, and multiply it by the computed bound."
            )
        value = parameter.start(name, jax.random.fold_in(key, len(record)))
        record[name] = parameter, value
        return RandomVariable(name, None, value, parameter=parameter)

    return under(program, note)
