"""Adapter from BlackJAX sampling algorithms to kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from phalanx.density.density import Density
from phalanx.kernels.protocol.kernel import Info, Kernel
from phalanx.kernels.protocol.options import hyperparameter
from phalanx.kernels.protocol.per_chain import PerChain
from phalanx.mesh.position import ByVariable
from phalanx.mesh.specs import PyTree


class State(NamedTuple):
    """An algorithm's state, with the log density at its position."""

    inner: Any
    log_density: Array

    @property
    def position(self) -> ByVariable:
        """The unconstrained position."""
        return self.inner.position


class Tuning(NamedTuple):
    """Placeholder hyperparameters: the algorithm has its own."""

    step_size: Any = hyperparameter(float("nan"))


def from_blackjax(build: Callable[[Callable[[ByVariable], Array]], Any]) -> Kernel:
    """Return a BlackJAX sampling algorithm as a kernel, run through the same compiled blocks as the others.

    Args:
        build: a function from a log density to a BlackJAX `SamplingAlgorithm` with its hyperparameters set. Keep the
            kernel and pass it again to reuse the compiled program.

    Returns:
        A kernel for `phx.mcmc`. It moves global variables only: BlackJAX draws its momenta as for one device. Warm-up
        neither tunes it nor relocates chains.

    Example:
        >>> import blackjax, phalanx as phx
        >>> phx.from_blackjax(lambda log_density: blackjax.mala(log_density, 0.1)).name
        'from_blackjax(...)'
    """
    if not callable(build):
        raise TypeError(
            f"from_blackjax: expected a function from a log density to an algorithm, such as "
            f"lambda f: blackjax.mala(f, 0.1); got {type(build).__name__}."
        )

    def init(key: Array, position: ByVariable, density: Density) -> State:
        algorithm = build(density.log_density)
        takes_key = _check_algorithm(algorithm)
        inner = algorithm.init(position, key) if takes_key else algorithm.init(position)
        if jax.tree.structure(getattr(inner, "position", None)) != jax.tree.structure(position):
            raise ValueError(
                f"from_blackjax: the state of this algorithm, {type(inner).__name__}, does not hold the position of "
                f"one chain, as a Markov kernel's does. {_FITTING}"
            )
        return _state(inner, density)

    def step(key: Array, state: State, density: Density, tuning: Tuning) -> tuple[State, Info]:
        inner, info = build(density.log_density).step(key, state.inner)
        new = _state(inner, density)
        return new, _info(info, new)

    return Kernel("from_blackjax(...)", PerChain(init, step), Tuning(), relocates=False)


_FITTING = "Use an algorithm such as blackjax.mala, hmc, nuts, barker_proposal, mclmc or additive_step_random_walk."


def _check_algorithm(algorithm: object) -> bool:
    """Return whether its `init` takes a key; raise unless it is a Markov kernel of one chain."""
    init = getattr(algorithm, "init", None)
    step = getattr(algorithm, "step", None)
    if not callable(init) or not callable(step):
        raise TypeError(
            f"from_blackjax: the function must return a BlackJAX SamplingAlgorithm, with init and step; it returned "
            f"{algorithm!r}. {_FITTING}"
        )
    required_names = [p.name for p in inspect.signature(step).parameters.values() if p.default is p.empty]
    if len(required_names) > 2:
        raise ValueError(
            f"from_blackjax: step of this algorithm takes {', '.join(required_names)}; that of a Markov kernel takes a "
            f"key and a state. {_FITTING}"
        )
    return len(inspect.signature(init).parameters) > 1


def _state(inner: PyTree, density: Density) -> State:
    cached = getattr(inner, "logdensity", None)
    return State(inner, density.log_density(inner.position) if cached is None else cached)


def _info(info: PyTree, state: State) -> Info:
    """Return the statistics that an algorithm reports; BlackJAX's algorithms share no record of a step."""
    acceptance = getattr(info, "acceptance_rate", getattr(info, "is_accepted", float("nan")))
    return Info(
        jnp.asarray(acceptance, state.log_density.dtype),
        jnp.asarray(getattr(info, "is_divergent", False)),
        jnp.asarray(getattr(info, "num_integration_steps", 1), jnp.int32),
        jnp.asarray(getattr(info, "energy", -state.log_density), state.log_density.dtype),
    )
