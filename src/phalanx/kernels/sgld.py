"""Stochastic gradient Langevin dynamics: noisy climbing on gradients of a few rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from phalanx.kernels.protocol.kernel import Info, Kernel, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.kernels.protocol.minibatch import ended, falling, kernel_on_rows
from phalanx.mesh.random_numbers import Words


class Tuning(NamedTuple):
    """Hyperparameters: `num_steps` steps make a draw, the first of `step_size`, falling over a cycle."""

    step_size: Any
    num_steps: Any
    cycle: Any
    temperature: Any


def draw(key: Words, at: Point, target: LaneTarget, tuning: Tuning) -> tuple[Point, Info]:
    """Climb and shake, with new rows at every step."""

    def step(number: Array, at: Point) -> Point:
        size = tuning.step_size * falling(number, tuning.cycle)
        noise = jnp.sqrt(size * tuning.temperature) * target.normal(key, number)
        position = at.position + 0.5 * size * at.gradient + noise
        return Point(position, *target.estimate(position, key, number))

    return ended(at, lax.fori_loop(0, tuning.num_steps, step, at), target, tuning.num_steps)


def sgld(step_size: float, batch_size: int, *, cycle: int | None = None, temperature: float = 1.0) -> Kernel:
    r"""Stochastic gradient Langevin dynamics: steps along gradients of a few rows, with noise.

    $$x \leftarrow x + \tfrac\epsilon2\, \hat g(x) + \sqrt{\epsilon T}\, z, \quad z \sim N(0, I),$$

    where $\hat g$ is the gradient of the log density of $B$ of $N$ rows, whose terms count $N/B$ times: unbiased. A
    step costs a gradient of `batch_size` rows, however many there are.

    The draws are approximate. For a normal posterior of precision $k$ and a gradient with noise of variance $V$ they
    have variance $(1 + \epsilon V / 4) / (k - \epsilon k^2 / 4)$ in the place of $1/k$: a step size well below $1/k$
    and $1/V$ is what is needed. No diagnostic sees the bias, which the verdict says each time; halve the step size, and
    look what moves.

    Every chain draws rows of its own, with replacement, by a key of (seed, chain, draw): chains are independent given
    the data, and the same on any number of devices along `chain`. Data spread over `data` are drawn from on each device
    alone, so that other numbers of devices along that axis give other draws, of the same distribution. The log density
    of a draw, in `posterior.stats`, is an estimate, too.

    Args:
        step_size: $\epsilon$, in units of the squared unconstrained coordinates; at the beginning of a cycle.
        batch_size: rows of a step. All of them are taken once each, without noise.
        cycle: steps of a draw, over which the step size falls to nearly zero along half a cosine, to begin anew with
            the next: a draw is where a cycle ends, where steps are small, and the chain goes far while they are large.
            None means one step for each draw, all of one size; give `thin=` to keep fewer.
        temperature: $T$; 1 draws from the posterior, 0 climbs.

    Returns:
        A kernel for `phx.mcmc`. Warm-up tunes nothing: it is what chains have to find the posterior.

    Raises:
        ValueError: when a hyperparameter is out of range; when it is run, naming the variable, where there are fewer
            rows than a batch has, a variable has an element for each row, or a term of the log density neither adds up
            over rows nor is the same for any of them.

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
