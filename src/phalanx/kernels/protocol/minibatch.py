"""What kernels share that see some rows at a time: how steps fall, when a draw is none, and what they all get wrong.

A draw is as many steps as the kernel says, each with rows of its own. The gradient where one step ends is the one that
the next begins with, so that the log density of a draw is an estimate too, from the rows its last step has seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from phalanx.kernels.protocol.kernel import Info, Kernel, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.kernels.protocol.options import hyperparameter, is_number, positive, whole
from phalanx.kernels.protocol.whole_draw import Draw, LockStep
from phalanx.mesh.position import choose


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


def kernel_on_rows(
    name: str, draw: Draw, tuning: Callable[..., Any], step_size: float, batch_size: int, num_steps: int,
    cycle: int | None, temperature: float, *more: float, words: str = "",
) -> Kernel:  # fmt: skip
    """Return a kernel that sees `batch_size` rows at a time, and check its options.

    `draw` makes `num_steps` steps, or a cycle of them. `tuning` is the class of hyperparameters: step size, steps,
    cycle, temperature, and `more`, the kernel's own. The kernel's name shows `words`.
    """
    positive(name, "step_size", step_size)
    batch_size = whole(name, "batch_size", batch_size)
    length = float("inf") if cycle is None else float(whole(name, "cycle", cycle))
    num_steps = whole(name, "num_steps", num_steps if cycle is None else cycle)
    if not is_number(temperature) or not 0 <= temperature < float("inf"):
        raise ValueError(f"{name}: temperature must be a number that is not negative, got {temperature!r}.")
    of_cycle = "" if cycle is None else f", cycle={cycle}"
    steps = f"the step size ({step_size}{'' if cycle is None else ' and less'})"
    tempered = "" if temperature == 1 else f" The temperature is {temperature}: they are not of the posterior at all."
    numbers = float(step_size), num_steps, length, float(temperature), *more
    return Kernel(
        name=f"{name}(step_size={step_size}, batch_size={batch_size}{words}{of_cycle})",
        machine=LockStep(draw),
        tuning=tuning(*map(hyperparameter, numbers)),
        relocates=False,
        batch_size=batch_size,
        bias=f"No step is ever refused: the draws are biased by {steps} and by the noise of batches of {batch_size:,} "
        f"rows. The diagnostics tell how well the chains have mixed, and not how large that bias is.{tempered}",
    )
