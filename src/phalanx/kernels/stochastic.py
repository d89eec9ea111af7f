"""What kernels share that see some rows at a time: how steps fall, when a draw is none, and what they all get wrong.

A draw is as many steps as the kernel says, each with rows of its own. The gradient where one step ends is the one that
the next begins with, so that the log density of a draw is an estimate too, from the rows its last step has seen.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from phalanx.kernels.kernel import Info, Point
from phalanx.kernels.lane_target import LaneTarget
from phalanx.kernels.lanes import choose
from phalanx.kernels.options import hyperparameter, whole


def falling(step: Array, cycle: Array) -> Array:
    """Half a cosine from one towards zero over the steps of a cycle; one where the cycle is without end."""
    return 0.5 * (1 + jnp.cos(jnp.pi * step / cycle))


def ended(at: Point, end: Point, target: LaneTarget, num_steps: Array) -> tuple[Point, Info]:
    """Go on at the end of a draw's steps; where they have led beyond all bounds stay, and say so."""
    size = target.inner_product(end.gradient, end.gradient)
    finite = jnp.isfinite(end.log_density.value) & jnp.isfinite(size)
    new = choose(finite, end, at)
    nothing = jnp.full(target.count, jnp.nan, jnp.float32)  # no step is ever refused
    return new, Info(nothing, ~finite, num_steps, -new.log_density)


def cycle_of(kernel: str, cycle: Any) -> Any:
    """The length of a cycle; without end where there is none."""
    return hyperparameter(float("inf") if cycle is None else float(whole(kernel, "cycle", cycle)))


def temperature_of(kernel: str, temperature: Any) -> Any:
    """The temperature; refuse what is none."""
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not is_number or not 0 <= temperature < float("inf"):
        raise ValueError(f"{kernel}: temperature must be a number that is not negative, got {temperature!r}.")
    return hyperparameter(float(temperature))


def bias_of(step_size: float, batch_size: int, cycle: int | None, temperature: float) -> str:
    """What is wrong with the draws, whatever diagnostics say."""
    steps = f"the step size ({step_size}{'' if cycle is None else ' and less'})"
    tempered = "" if temperature == 1 else f" The temperature is {temperature}: they are not of the posterior at all."
    return (
        f"No step is ever refused: the draws are biased by {steps} and by the noise of batches of {batch_size:,} rows. "
        f"The diagnostics tell how well the chains have mixed, and not how large that bias is.{tempered}"
    )
