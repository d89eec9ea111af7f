"""Common parts of kernels that see some rows at a time: decreasing steps, checks of a draw, and the stated bias.

A draw is a number of steps, each with rows of its own. The gradient at the end of a step is the one with which the next
begins, so that the log density of a draw is an estimate too, from the rows of its last step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import Array

from phalanx.kernels.protocol.kernel import Info, Kernel, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.kernels.protocol.options import hyperparameter, is_number, positive, whole
from phalanx.kernels.protocol.whole_draw import Draw, WholeDraws
from phalanx.mesh.position import choose

if TYPE_CHECKING:
    from jaxtyping import Float, Integer


def falling(step: Integer[Array, ""], cycle: Float[Array, ""]) -> Float[Array, ""]:
    """Return half a cosine from one towards zero over the steps of a cycle; one if the cycle is infinite."""
    return 0.5 * (1 + jnp.cos(jnp.pi * step / cycle))


def ended(at: Point, end: Point, target: LaneTarget, num_steps: Integer[Array, ""]) -> tuple[Point, Info]:
    """Move to the end of a draw's steps; stay, and report a divergence, where the end is not finite."""
    size = target.inner_product(end.gradient, end.gradient)
    finite = jnp.isfinite(end.log_density.value) & jnp.isfinite(size)
    new = choose(finite, end, at)
    no_rate = jnp.full(target.count, jnp.nan, jnp.float32)  # there is no Metropolis decision
    return new, Info(no_rate, ~finite, num_steps, -new.log_density)


def kernel_on_rows(
    name: str, draw: Draw, tuning: Callable[..., Any], step_size: float, batch_size: int, num_steps: int,
    cycle: int | None, temperature: float, *more: float, words: str = "",
) -> Kernel:  # fmt: skip
    """Return a kernel that sees `batch_size` rows at a time, and check its options.

    `draw` makes `num_steps` steps, or a cycle of them. `tuning` is the class of hyperparameters: step size, steps,
    cycle, temperature, and `more`, the kernel's own. The kernel's name contains `words`.
    """
    positive(name, "step_size", step_size)
    batch_size = whole(name, "batch_size", batch_size)
    length = float("inf") if cycle is None else float(whole(name, "cycle", cycle))
    num_steps = whole(name, "num_steps", num_steps if cycle is None else cycle)
    if not is_number(temperature) or not 0 <= temperature < float("inf"):
        raise ValueError(f"{name}: temperature must be a number that is not negative, got {temperature!r}.")
    of_cycle = "" if cycle is None else f", cycle={cycle}"
    steps = f"the step size ({step_size}{'' if cycle is None else ' and less'})"
    tempered = "" if temperature == 1 else f" The temperature is {temperature}: the draws are not of the posterior."
    numbers = float(step_size), num_steps, length, float(temperature), *more
    return Kernel(
        name=f"{name}(step_size={step_size}, batch_size={batch_size}{words}{of_cycle})",
        machine=WholeDraws(draw),
        tuning=tuning(*map(hyperparameter, numbers)),
        relocates=False,
        batch_size=batch_size,
        bias=f"Without a Metropolis decision the draws are biased by {steps} and by the noise of batches of "
        f"{batch_size:,} rows. The diagnostics measure how well the chains have mixed, not that bias.{tempered}",
    )
