"""Kernel from a function that makes a draw of every lane: all lanes end their draws together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from phalanx.adaptation.metric import Metric
from phalanx.adaptation.step_size import StepSize
from phalanx.kernels.protocol.kernel import Kernel, LaneState, Machine, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.kernels.protocol.options import check_metric, step_size_of, without_none
from phalanx.mesh.random_numbers import Bits, Keys
from phalanx.mesh.specs import PyTree

if TYPE_CHECKING:
    from jaxtyping import Bool

Draw = Callable[[Bits, Point, LaneTarget, Any], tuple[Point, Any]]
"""`draw(key, at, target, tuning) -> (at, info)`: the next point of every lane, and statistics of the draw."""


class Tuning(NamedTuple):
    """Hyperparameters: the step size, and the `phalanx.kernels.metric.low_rank.LaneMetric` that warm-up learns."""

    step_size: Any
    metric: Any = None


@dataclass(frozen=True)
class WholeDraws(Machine):
    """Function of whole draws as a `phalanx.kernels.protocol.kernel.Machine`."""

    draw: Draw

    def step(
        self, now: LaneState, active: Bool[Array, "lanes"], keys: Keys, target: LaneTarget, tuning: PyTree
    ) -> tuple[LaneState, Bool[Array, "lanes"], PyTree]:
        """Make a draw of every lane."""
        at, info = self.draw(keys.of_draw(now.draw), now.at, target, tuning)
        return LaneState(now.draw + 1, at, now.kernel_state), jnp.ones(target.count, bool), info


def from_draw(
    draw: Draw,
    step_size: float | None = None,
    *,
    initial_step_size: float = 0.1,
    target_acceptance: float = 0.8,
    metric: str | None = "auto",
    relocate: bool = True,
) -> Kernel:
    r"""Return a kernel of your own, from a function that makes one draw of every chain.

    Write `draw(key, at, target, tuning)` on vectors, as if for one chain on one device. It must leave $\pi$ invariant
    for any step size and metric. Warm-up tunes both from the draws of all chains on all devices, and the chains run
    vectorised, on any mesh, also with sharded data and variables.

    Args:
        draw: a function of the draw's key, the last draw `at` (`position`, `log_density`, `gradient`), the target
            (`value_and_grad`, `inner_product`, `normal`, `uniform`) and the tuning (`step_size`, `metric`); it returns
            the next draw and an `Info`. See `phalanx.kernels.protocol`, `kernel.py` and `lane_target.py`.
        step_size: kept where it is given; None tunes it in warm-up.
        initial_step_size: the step size with which tuning starts.
        target_acceptance: the mean of the info's `acceptance_rate` at which tuning aims. With gradients it is reached
            where energy errors are normal; where they have heavier tails the rate is higher, see `phx.chees`.
        metric: the form of the covariance that warm-up learns: "diagonal", "dense", "auto" (see `phx.nuts`); None
            learns none.
        relocate: in warm-up, move a chain that is stuck in a region of negligible posterior mass to the position of
            another chain; the verdict reports each move.

    Returns:
        A kernel for `phx.mcmc`. Pass it again, or one of the same function, to reuse the compiled program.

    Raises:
        TypeError: when `draw` is not a function.
        ValueError: when an option is out of range.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> from phalanx.kernels import Point, decide
        >>> def walk(key, at, target, tuning):
        ...     position = at.position + tuning.step_size * target.normal(key)
        ...     there = Point(position, *target.value_and_grad(position))
        ...     return decide(target.uniform(key), at, there, -at.log_density, at.log_density - there.log_density, 1)
        >>> kernel = phx.from_draw(walk, target_acceptance=0.234, metric=None)
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))
        >>> phx.mcmc(model, kernel=kernel, num_warmup=50, num_samples=10, progress=False).draws["x"].shape
        (4, 10)
    """
    if not callable(draw):
        raise TypeError(
            f"from_draw: expected a function draw(key, at, target, tuning) -> (at, info); got {type(draw).__name__}."
        )
    first_step_size = step_size_of("from_draw", step_size, initial_step_size, target_acceptance)
    if metric is not None:
        check_metric("from_draw", metric)
    return Kernel(
        name=f"from_draw({getattr(draw, '__name__', '...')}, step_size={step_size})",
        machine=WholeDraws(draw),
        tuning=Tuning(first_step_size),
        tuners=without_none(
            None if metric is None else Metric(metric),
            StepSize(target_acceptance, frees_chains=True, ends_at_mean=False) if step_size is None else None,
        ),
        relocates=relocate,
    )
