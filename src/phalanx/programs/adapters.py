"""Models written for others: NumPyro's, and plain log densities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array
from numpyro.distributions import ImproperUniform, constraints
from numpyro.primitives import Messenger

from phalanx.programs.handlers import scale
from phalanx.programs.tracing import Program, deterministic, factor, sample


def from_numpyro(model: Callable[..., Any]) -> Program:
    """A NumPyro model as a program: `numpyro.sample`, `plate`, `factor` and `deterministic` mean what they mean there.

    Args:
        model: a NumPyro model.

    Raises:
        ValueError: while the program runs, when the model uses a NumPyro primitive that has no counterpart, such as
            `param`.

    Example:
        >>> import numpyro, numpyro.distributions as dist, phalanx as phx
        >>> program = phx.from_numpyro(lambda: numpyro.sample("x", dist.Normal(0.0, 1.0)))
        >>> list(phx.trace(phx.seed(program, 0))())
        ['x']
    """

    def program(*args: Any, **kwargs: Any) -> Any:
        with _Bridge():
            return model(*args, **kwargs)

    program.__wrapped__ = model  # pyright: ignore[reportFunctionMemberAccess]  # its signature and source are the model's
    program.__name__ = getattr(model, "__name__", "model")
    return program


class _Bridge(Messenger):
    """Hands NumPyro's sites to ours. It is the outermost handler, so plates have done their work when it is asked."""

    def __init__(self) -> None:
        super().__init__(fn=None)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample":
            given = msg["value"] if msg["is_observed"] else None

            def draw():
                return sample(msg["name"], msg["fn"], obs=given)

            factor_ = msg["scale"]
            msg["value"] = draw() if factor_ is None else scale(draw, factor_)()
        elif msg["type"] == "deterministic":
            msg["value"] = deterministic(msg["name"], msg["value"])
        elif msg["type"] not in ("plate", "control_flow"):
            raise ValueError(
                f"from_numpyro: site {msg.get('name')!r} is a numpyro.{msg['type']}, which has no counterpart here. "
                f"Make it a numpyro.sample with a prior, or an argument of the model."
            )


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
