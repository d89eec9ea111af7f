"""The state of kernels that follow the gradient."""

from __future__ import annotations

from typing import NamedTuple

from jax import Array

from phalanx.mesh.space import Position
from phalanx.programs.target import Density


class State(NamedTuple):
    """A position with its log density and gradient."""

    position: Position
    log_density: Array
    gradient: Position


def init(key: Array, position: Position, density: Density) -> State:
    """The state at a position."""
    return State(position, *density.value_and_grad(position))
