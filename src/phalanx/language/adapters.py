"""Other forms of programs: functions of NumPyro, log densities, and joint distributions of variables by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, ImproperUniform, constraints

from phalanx.language.handlers import seed, substitute, tape, trace
from phalanx.language.messages import Forward
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program, factor, sample, tracing
from phalanx.mesh.compatibility.jax_release import check_jax
from phalanx.mesh.devices import use_every_core
from phalanx.mesh.specs import PyTree
from phalanx.mesh.total import Total

Spec = Mapping[str, Distribution | Callable[..., Distribution]] | Sequence[Distribution | Callable[..., Distribution]]

Parents = Callable[[str, Callable[..., Distribution], dict[str, Any]], list[Any]]
"""From an entry's name, its function, and the values before it, to the function's arguments."""


def from_numpyro(model: Callable[..., Any]) -> Program:
    """Return a NumPyro model as a program: the model itself, for Phalanx understands NumPyro's language.

    `numpyro.sample`, `plate`, `factor`, `deterministic` and the handlers of `numpyro.handlers` mean here what they mean
    there, around `phx.sample` too. A running program refuses the other primitives by name.

    Args:
        model: a NumPyro model.

    Returns:
        The model itself. Give the data as its keyword arguments.

    Raises:
        TypeError: when `model` is not a function.

    Example:
        >>> import numpyro, numpyro.distributions as dist, phalanx as phx
        >>> program = phx.from_numpyro(lambda: numpyro.sample("x", dist.Normal(0.0, 1.0)))
        >>> list(phx.trace(phx.seed(program, 0))())
        ['x']
    """
    if not callable(model):
        raise TypeError(f"from_numpyro: expected a model, a function that calls numpyro.sample; got {model!r}.")
    return model


def from_logdensity(log_density: Callable[..., Array], init: Mapping[str, ArrayLike] | ArrayLike) -> Program:
    """Return a plain log density as a program: flat priors on the real line, and the density as a factor.

    Args:
        log_density: `f(position, **data) -> scalar`, up to a constant; `position` is shaped like `init`.
        init: the position at which every chain starts: a dict of arrays, or one array, which is then called `x`.

    Returns:
        A program whose keyword arguments are the data of `log_density`.

    Example:
        >>> import jax.numpy as jnp, phalanx as phx
        >>> program = phx.from_logdensity(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(3))
        >>> phx.Target(program).log_density({"x": jnp.ones(3)}).item()
        -1.5
    """
    return _LogDensityProgram(log_density, init)


class _LogDensityProgram:
    def __init__(self, log_density: Callable[..., Array], init: Mapping[str, ArrayLike] | ArrayLike):
        self._log_density = log_density
        self._is_array = not isinstance(init, Mapping)
        positions = dict(init) if isinstance(init, Mapping) else {"x": init}
        if not positions:
            raise ValueError(
                "from_logdensity: init is empty; give the position to start from, a dict of arrays or one array."
            )
        self.start = {name: jnp.asarray(value, jnp.result_type(float)) for name, value in positions.items()}
        self.__name__ = getattr(log_density, "__name__", "log_density")

    def __call__(self, **data: Any) -> None:
        position = {
            name: sample(name, ImproperUniform(constraints.real, value.shape, ())) for name, value in self.start.items()
        }
        factor("log_density", self._log_density(position["x"] if self._is_array else position, **data))


def log_joint(program: Program) -> Callable[..., Array]:
    r"""Return the function $f(\text{values}, \dots) = \sum_i \log p(x_i \mid \text{parents}) + \sum_j \text{factor}_j$.

    The program itself is run with the values in place, so its control flow may depend on them.

    Args:
        program: a program; its observed variables count with their observed values.

    Returns:
        `f(values, *args, **kwargs) -> scalar`, where `values` maps the name of every variable without a value of its
        own to a value.

    Raises:
        ValueError: when a value is missing (it names the variable) or has the wrong shape.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> f = phx.log_joint(lambda: phx.sample("x", dist.Normal(0.0, 1.0)))
        >>> round(float(f({"x": 0.0})), 4)
        -0.9189
    """

    def density(values: Mapping[str, Any], *args: PyTree, **kwargs: PyTree) -> Array:
        def give(variable: RandomVariable, _: Forward) -> RandomVariable:
            if variable.value is None and variable.name not in values:
                raise ValueError(
                    f"log_joint: no value was given for variable {variable.name!r}; "
                    f"values were given for {', '.join(map(repr, values)) or 'none'}."
                )
            # a name in `values` that the program does not sample is accepted: control flow may depend on the values
            value = variable.value if variable.observed else values.get(variable.name, variable.value)
            return replace(variable, value=value).complete()  # not forwarded: outer tracers must not see a density

        use_every_core()
        check_jax()
        with tracing(give), tape() as variables:
            program(*args, **kwargs)
        return sum((v.total_log_prob() for v in variables.values()), start=Total.of(0.0)).value

    return density


class Joint:
    """Joint distribution of a program, or of a list or dict of distributions and functions that return distributions.

    In a dict, a function's argument names say which variables it depends on. In a list, a function of k arguments
    takes the k variables before it, the most recent first.

    Args:
        program: a program, or a mapping or sequence of distributions and functions that return distributions.

    Raises:
        TypeError: when an entry is neither a distribution nor a function.
        ValueError: when a function names a variable that does not come before it.

    Example:
        >>> import jax, numpyro.distributions as dist, phalanx as phx
        >>> joint = phx.Joint({"scale": dist.HalfNormal(1.0), "x": lambda scale: dist.Normal(0.0, scale)})
        >>> sorted(joint.sample(jax.random.key(0)))
        ['scale', 'x']
    """

    def __init__(self, program: Program | Spec):
        self._is_list = not callable(program) and not isinstance(program, Mapping)
        parents = _most_recent_first if self._is_list else _parents_by_name
        self.program = program if callable(program) else _program_of(_entries(program), parents)

    def sample(self, key: Array | int, *args: PyTree, values: Any = None, **kwargs: PyTree) -> Any:
        """Draw all latent variables, or those that `values` leaves out given the rest.

        Args:
            key: a JAX key or a whole number.
            *args: arguments of the program.
            values: values of some of the variables; the others are drawn given them.
            **kwargs: keyword arguments of the program.

        Returns:
            A dict from name to value; a list for a joint distribution made from a list.
        """
        program = substitute(self.program, self._by_name(values or {}))
        variables = trace(seed(program, key))(*args, **kwargs)
        draws = {name: v.value for name, v in variables.items() if v.is_latent}
        return list(draws.values()) if self._is_list else draws

    def log_prob(self, values: Any, *args: PyTree, **kwargs: PyTree) -> Array:
        """Return the log density, a scalar, of `values`: a dict, or a list for a joint made from a list."""
        return log_joint(self.program)(self._by_name(values), *args, **kwargs)

    def _by_name(self, values: Any) -> Mapping[str, Any]:
        return values if isinstance(values, Mapping) else {f"x{i}": v for i, v in enumerate(values) if v is not None}


def _entries(spec: Spec) -> dict[str, Distribution | Callable[..., Distribution]]:
    entries = dict(spec) if isinstance(spec, Mapping) else {f"x{i}": entry for i, entry in enumerate(spec)}
    for name, entry in entries.items():
        if not isinstance(entry, Distribution) and not callable(entry):
            raise TypeError(
                f"Joint: entry {name!r} must be a distribution or a function that returns one; got "
                f"{type(entry).__name__}."
            )
    return entries


def _program_of(entries: dict[str, Distribution | Callable[..., Distribution]], parents: Parents) -> Program:
    def program() -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, entry in entries.items():
            values[name] = sample(
                name, entry if isinstance(entry, Distribution) else entry(*parents(name, entry, values))
            )
        return values

    return program


def _parents_by_name(name: str, entry: Callable[..., Distribution], values: dict[str, Any]) -> list[Any]:
    arguments = inspect.signature(entry).parameters
    if missing := [argument for argument in arguments if argument not in values]:
        raise ValueError(
            f"Joint: {name!r} depends on {', '.join(map(repr, missing))}, which must come before it; "
            f"before it come {', '.join(map(repr, values)) or 'none'}."
        )
    return [values[argument] for argument in arguments]


def _most_recent_first(name: str, entry: Callable[..., Distribution], values: dict[str, Any]) -> list[Any]:
    count = len(inspect.signature(entry).parameters)
    if count > len(values):
        raise ValueError(f"Joint: entry {name!r} takes {count} arguments, but {len(values)} variables come before it.")
    return list(reversed(values.values()))[:count]
