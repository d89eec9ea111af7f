"""Adapters: NumPyro models and plain log densities as programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import ImproperUniform, constraints

from phalanx.language.tracing import Program, factor, sample


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
        named = dict(init) if isinstance(init, Mapping) else {"x": init}
        if not named:
            raise ValueError(
                "from_logdensity: init is empty; give the position to start from, a dict of arrays or one array."
            )
        self.start = {name: jnp.asarray(value, jnp.result_type(float)) for name, value in named.items()}
        self.__name__ = getattr(log_density, "__name__", "log_density")

    def __call__(self, **data: Any) -> None:
        position = {
            name: sample(name, ImproperUniform(constraints.real, value.shape, ())) for name, value in self.start.items()
        }
        factor("log_density", self._log_density(position["x"] if self._is_array else position, **data))
