"""What a kernel is: two pure functions and the hyperparameters to begin with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax import Array

from phalanx.mesh.space import Position
from phalanx.programs.target import Density


class State(Protocol):
    """Where a chain is. A state caches what the next step would otherwise compute again."""

    @property
    def position(self) -> Position:
        """The unconstrained position."""
        ...

    @property
    def log_density(self) -> Array:
        """Log density at the position."""
        ...


class Info(NamedTuple):
    """What one step did; scalars, equal on all devices of a chain.

    Attributes:
        acceptance_rate: probability with which the proposal was accepted, averaged where there were several.
        diverging: whether the integration broke down: a non-finite energy, or one off by more than 1,000.
        num_steps: evaluations of the log density (and of its gradient, where the kernel uses it).
        energy: the Hamiltonian at the draw; minus the log density for kernels without momentum.
    """

    acceptance_rate: Array
    diverging: Array
    num_steps: Array
    energy: Array


@dataclass(frozen=True)
class Kernel:
    """A Markov kernel that leaves the target invariant. Make one with `phx.hmc`, `phx.rwmh` or `phx.from_blackjax`.

    Two kernels with equal `init` and `step` compile to one program: hyperparameters are arguments, in `tuning`.

    Attributes:
        name: how the user wrote it.
        init: `init(key, position, density) -> state`.
        step: `step(key, state, density, tuning) -> (state, info)`.
        tuning: hyperparameters to begin with, a NamedTuple of arrays; `step_size` is the one adaptation may change.
        target_acceptance: the acceptance rate the step size is tuned to; None where it is given, or there is none.
        tuned_steps: warm-up iterations the step size is tuned in; None means all of them.
        uses_gradient: whether a step's evaluations are gradients.
        knows_mesh: whether it may move variables spread over devices; False for algorithms written for one device.
    """

    name: str = field(compare=False)
    init: Callable[[Array, Position, Density], Any]
    step: Callable[[Array, Any, Density, Any], tuple[Any, Info]]
    tuning: Any = field(compare=False)
    target_acceptance: float | None = None
    tuned_steps: int | None = field(default=None, compare=False)
    uses_gradient: bool = True
    knows_mesh: bool = True


def hyperparameter(value: float | int) -> Any:
    """A number as compiled code takes it: one of NumPy's, since a kernel may be made before JAX starts."""
    return np.asarray(value, np.int32 if isinstance(value, int) else jax.dtypes.canonicalize_dtype(float))


def positive(kernel: str, name: str, value: Any) -> None:
    """Refuse a hyperparameter that is not a positive number."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ValueError(f"{kernel}: {name} must be a positive number, got {value!r}.")


def whole(kernel: str, name: str, value: Any, least: int = 1) -> None:
    """Refuse a hyperparameter that is not a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{kernel}: {name} must be a whole number, at least {least}; got {value!r}.")
