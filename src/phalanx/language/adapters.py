"""Models written for others: NumPyro's, and plain log densities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array
from numpyro.distributions import ImproperUniform, constraints

from phalanx.language.tracing import Program, factor, sample


def from_numpyro(model: Callable[..., Any]) -> Program:
    """A NumPyro model as a program, which it is as it stands: Phalanx understands NumPyro's language.

    `numpyro.sample`, `plate`, `factor`, `deterministic` and the handlers of `numpyro.handlers` mean here what they mean
    there, around `phx.sample` too. What can have no meaning here is refused by name while the program runs.

    Args:
        model: a NumPyro model.

    Returns:
        The model itself. Give the data as its keyword arguments.

    Raises:
        TypeError: when `model` is no function.

    Example:
        >>> import numpyro, numpyro.distributions as dist, phalanx as phx
        >>> program = phx.from_numpyro(lambda: numpyro.sample("x", dist.Normal(0.0, 1.0)))
        >>> list(phx.trace(phx.seed(program, 0))())
        ['x']
    """
    if not callable(model):
        raise TypeError(f"from_numpyro: expected a model, a function that calls numpyro.sample; got {model!r}.")
    return model


def from_logdensity(log_density: Callable[..., Array], init: Mapping[str, Any] | Any) -> Program:
    """A plain log density as a program: flat priors on the real line, and the density as a factor.

    Args:
        log_density: `f(position, **data) -> scalar`, up to a constant; `position` is shaped like `init`.
        init: where every chain starts: a dict of arrays, or one array, which is then called `x`.

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
    def __init__(self, log_density: Callable[..., Array], init: Any):
        self._log_density = log_density
        self._is_array = not isinstance(init, Mapping)
        named = {"x": init} if self._is_array else dict(init)
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
