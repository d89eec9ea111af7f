"""Stochastic gradient Langevin dynamics, and the common parts of kernels that see a few rows at a time.

A draw is a number of steps, each with rows of its own. The gradient at the end of a step is the one with which the next
begins, so that the log density of a draw is an estimate too, from the rows of its last step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from phalanx.kernels.protocol.kernel import Info, Kernel, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.kernels.protocol.options import check_integer, hyperparameter, is_number, positive
from phalanx.kernels.protocol.whole_draw import Draw, WholeDraws
from phalanx.mesh.position import choose
from phalanx.mesh.random_numbers import Bits

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
    name: str,
    draw: Draw,
    tuning: Callable[..., Any],
    step_size: float,
    batch_size: int,
    num_steps: int,
    cycle: int | None,
    temperature: float,
    *more: float,
    text: str = "",
) -> Kernel:
    """Return a kernel that sees `batch_size` rows at a time, and check its options.

    `draw` makes `num_steps` steps, or a cycle of them. `tuning` is the class of hyperparameters: step size, steps,
    cycle, temperature, and `more`, the kernel's own. The kernel's name contains `text`.
    """
    positive(name, "step_size", step_size)
    batch_size = check_integer(name, "batch_size", batch_size)
    length = float("inf") if cycle is None else float(check_integer(name, "cycle", cycle))
    num_steps = check_integer(name, "num_steps", num_steps if cycle is None else cycle)
    if not is_number(temperature) or not 0 <= temperature < float("inf"):
        raise ValueError(f"{name}: temperature must be a number that is not negative, got {temperature!r}.")
    of_cycle = "" if cycle is None else f", cycle={cycle}"
    steps = f"the step size ({step_size}{'' if cycle is None else ' and less'})"
    tempered = "" if temperature == 1 else f" The temperature is {temperature}: the draws are not of the posterior."
    numbers = float(step_size), num_steps, length, float(temperature), *more
    return Kernel(
        name=f"{name}(step_size={step_size}, batch_size={batch_size}{text}{of_cycle})",
        machine=WholeDraws(draw),
        tuning=tuning(*map(hyperparameter, numbers)),
        relocates=False,
        batch_size=batch_size,
        bias=f"Without a Metropolis decision the draws are biased by {steps} and by the noise of batches of "
        f"{batch_size:,} rows. The diagnostics measure how well the chains have mixed, not that bias.{tempered}",
    )


class Tuning(NamedTuple):
    """Hyperparameters: `num_steps` steps make a draw, the first of `step_size`, falling over a cycle."""

    step_size: Any
    num_steps: Any
    cycle: Any
    temperature: Any


def draw(key: Bits, at: Point, target: LaneTarget, tuning: Tuning) -> tuple[Point, Info]:
    """Make gradient steps with noise, with new rows at every step."""

    def step(number: Array, at: Point) -> Point:
        size = tuning.step_size * falling(number, tuning.cycle)
        noise = jnp.sqrt(size * tuning.temperature) * target.normal(key, number)
        position = at.position + 0.5 * size * at.gradient + noise
        return Point(position, *target.estimate(position, key, number))

    return ended(at, lax.fori_loop(0, tuning.num_steps, step, at), target, tuning.num_steps)


def sgld(step_size: float, batch_size: int, *, cycle: int | None = None, temperature: float = 1.0) -> Kernel:
    r"""Return a kernel of stochastic gradient Langevin dynamics: noisy steps along gradients of a few rows.

    $$x \leftarrow x + \tfrac\epsilon2\, \hat g(x) + \sqrt{\epsilon T}\, z, \quad z \sim N(0, I),$$

    where $\hat g$ is the gradient of the log density of $B$ of $N$ rows, whose terms count $N/B$ times: unbiased. A
    step costs a gradient of `batch_size` rows, however many there are.

    The draws are approximate. For a normal posterior of precision $k$ and a gradient with noise of variance $V$ they
    have variance $(1 + \epsilon V / 4) / (k - \epsilon k^2 / 4)$ in the place of $1/k$: choose a step size well below
    $1/k$ and $1/V$. Diagnostics do not see this bias, as every verdict repeats; halve the step size, and check which
    estimates move.

    Every chain draws rows of its own, with replacement, by a key of (seed, chain, draw): chains are independent given
    the data, and the same on any number of devices along `chain`. Each device along `data` draws from its own shard, so
    that another number of devices along that axis gives other draws, of the same distribution. The log density of a
    draw, in `posterior.stats`, is an estimate, too.

    Args:
        step_size: $\epsilon$, in units of the squared unconstrained coordinates; at the beginning of a cycle.
        batch_size: rows of a step. If it is the number of all rows, each is used once, without noise.
        cycle: steps of a draw, over which the step size falls to nearly zero along half a cosine before the next cycle
            begins: large steps carry the chain far, and the draw follows the small ones at the end. None means one step
            for each draw, all of one size; pass `thin=` to keep fewer.
        temperature: $T$; 1 draws from the posterior, 0 climbs to a mode.

    Returns:
        A kernel for `phx.mcmc`. Warm-up does not tune it, but gives chains time to find the posterior.

    Raises:
        ValueError: when a hyperparameter is out of range. The run raises it, naming the variable, where there are fewer
            rows than a batch has, a variable has an element for each row, or a term of the log density is neither a sum
            over rows nor independent of them.

    Example:
        >>> import numpy as np, numpyro.distributions as dist, phalanx as phx
        >>> def model(y):
        ...     mean = phx.sample("mean", dist.Normal(0.0, 1.0))
        ...     phx.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> data = {"y": np.ones(1000, np.float32)}
        >>> kernel = phx.sgld(step_size=1e-4, batch_size=50)
        >>> run = phx.mcmc(model, data, kernel=kernel, num_warmup=100, num_samples=200, progress=False)
        >>> run.draws["mean"].shape, run.verdict().findings[0].topic
        ((4, 200), 'approximate kernel')

    Source:
        Welling, Teh (2011), Bayesian learning via stochastic gradient Langevin dynamics; Zhang, Li, Zhang, Chen, Wilson
        (2020), Cyclical stochastic gradient MCMC for Bayesian deep learning.
    """
    return kernel_on_rows("sgld", draw, Tuning, step_size, batch_size, 1, cycle, temperature)
