"""Any BlackJAX sampling algorithm as a kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from phalanx.kernels.kernel import Info, Kernel, hyperparameter
from phalanx.mesh.space import Position
from phalanx.programs.target import Density


class State(NamedTuple):
    """An algorithm's state, with the log density at its position."""

    inner: Any
    log_density: Array

    @property
    def position(self) -> Position:
        """The unconstrained position."""
        return self.inner.position


class Tuning(NamedTuple):
    """No hyperparameters of ours: the algorithm has its own."""

    step_size: Any = hyperparameter(float("nan"))


def from_blackjax(build: Callable[[Callable[[Position], Array]], Any]) -> Kernel:
    """A BlackJAX sampling algorithm as a kernel, run through the same compiled blocks as the others.

    Args:
        build: a function from a log density to a BlackJAX `SamplingAlgorithm` with its hyperparameters set. Keep the
            kernel and pass it again to reuse what was compiled.

    Returns:
        A kernel for `phx.mcmc`. It moves global variables only: BlackJAX draws its momenta as for one device. It is run
        as it is: nothing is tuned, and no chain is moved.

    Example:
        >>> import blackjax, phalanx as phx
        >>> kernel = phx.from_blackjax(lambda log_density: blackjax.mala(log_density, 0.1))
    """
    if not callable(build):
        raise TypeError(
            f"from_blackjax: expected a function from a log density to an algorithm, such as "
            f"lambda f: blackjax.mala(f, 0.1); got {type(build).__name__}."
        )

    def init(key: Array, position: Position, density: Density) -> State:
        start = build(density.log_density).init
        takes_key = len(inspect.signature(start).parameters) > 1
        return _state(start(position, key) if takes_key else start(position), density)

    def step(key: Array, state: State, density: Density, tuning: Tuning) -> tuple[State, Info]:
        inner, info = build(density.log_density).step(key, state.inner)
        new = _state(inner, density)
        return new, _info(info, new)

    return Kernel("from_blackjax(...)", init, step, Tuning(), knows_mesh=False, relocates=False)


def _state(inner: Any, density: Density) -> State:
    cached = getattr(inner, "logdensity", None)
    return State(inner, density.log_density(inner.position) if cached is None else cached)


def _info(info: Any, state: State) -> Info:
    """BlackJAX's algorithms share no record of a step; what one does not report is not known, or one step."""
    acceptance = getattr(info, "acceptance_rate", getattr(info, "is_accepted", float("nan")))
    return Info(
        jnp.asarray(acceptance, state.log_density.dtype),
        jnp.asarray(getattr(info, "is_divergent", False)),
        jnp.asarray(getattr(info, "num_integration_steps", 1), jnp.int32),
        jnp.asarray(getattr(info, "energy", -state.log_density), state.log_density.dtype),
    )
