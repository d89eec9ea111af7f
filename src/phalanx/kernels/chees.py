"""ChEES-HMC: all chains take trajectories of one length, which warm-up tunes for all of them together.

Many chains need no U-turn checks: they measure the mean gain of a trajectory of a given length. The change in the
estimator of the expected square (ChEES) is the difference in squared distance from the mean between the two ends of a
trajectory. Warm-up maximises its mean square, but lengthens trajectories only while the squared distance between their
ends grows faster than their length: on a curved posterior ChEES grows slowly for very long, or is mere noise. All
chains make the same number of leapfrogs, so that no chain waits.

Source: Hoffman, Radul, Sountsov (2021), An adaptive-MCMC scheme for setting trajectory lengths in Hamiltonian Monte
Carlo.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from phalanx.adaptation.metric import Metric
from phalanx.adaptation.step_size import StepSize
from phalanx.adaptation.trajectory import FixedLength, TrajectoryLength
from phalanx.kernels.integrators.leapfrog import PhasePoint
from phalanx.kernels.integrators.trajectory import Dynamics, Hamiltonian, draw_by_trajectory
from phalanx.kernels.protocol.kernel import Kernel, LaneState, Machine, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.kernels.protocol.options import (
    check_integer,
    check_metric,
    hyperparameter,
    positive,
    step_size_of,
    without_none,
)
from phalanx.mesh.position import Vector, choose
from phalanx.mesh.random_numbers import Keys
from phalanx.mesh.specs import PyTree
from phalanx.mesh.total import Total

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Integer


class Tuning(NamedTuple):
    """Hyperparameters: the step size, the longest trajectory in units of time, the most leapfrogs, and the metric.

    With `learns` the gradients of `Info` are computed: in warm-up, and at all temperatures of `phx.smc`. With
    `in_warm_up`, in warm-up alone, trajectories that end higher need not be reversible; see `draw_by_trajectory`.
    """

    step_size: Any
    trajectory_length: Any
    max_steps: Any
    metric: Any
    learns: Any
    in_warm_up: Any


class Info(NamedTuple):
    """Statistics of one draw; see `phalanx.kernels.protocol.kernel.Info` for the first four.

    `trajectory_gradient` is the derivative of ChEES by the logarithm of the trajectory's length, and `jump_gradient`
    that of the squared distance between its ends, per unit of time; zero after warm-up.
    """

    acceptance_rate: Array
    diverging: Array
    num_steps: Array
    energy: Total | Array
    trajectory_gradient: Array
    jump_gradient: Array


@dataclass(frozen=True)
class SharedLength(Machine):
    """Trajectories of one length for all chains as a `phalanx.kernels.protocol.kernel.Machine`."""

    dynamics: Dynamics

    @property
    def least_coordinates(self) -> int:
        """The fewest coordinates for which the dynamics are defined."""
        return self.dynamics.least_coordinates

    def step(
        self, now: LaneState, active: Bool[Array, "lanes"], keys: Keys, target: LaneTarget, tuning: Tuning
    ) -> tuple[LaneState, Bool[Array, "lanes"], Info]:
        """Make a draw of every lane."""
        time, steps = shared_length(now.draw[0], tuning, target.dtype)
        key = keys.of_draw(now.draw)
        new, info, end = draw_by_trajectory(
            self.dynamics, key, now.at, steps, tuning.step_size, target, tuning.metric, tuning.in_warm_up
        )

        def gradients() -> tuple[Array, Array]:
            velocity = self.dynamics.velocity(end, target, tuning.metric)
            times = time, steps * tuning.step_size
            return _gradients(now.at, end, velocity, tuning.metric.scale, times, info.acceptance_rate, target)

        # all devices take the same branch, which has a collective
        none = jnp.zeros_like(info.acceptance_rate)
        gained, jumped = lax.cond(tuning.learns, gradients, lambda: (none, none))
        return LaneState(now.draw + 1, new, ()), jnp.ones(target.count, bool), Info(*info, gained, jumped)


def shared_length(
    draw: Integer[Array, ""], tuning: PyTree, dtype: DTypeLike
) -> tuple[Float[Array, ""], Integer[Array, ""]]:
    """Return the length of a draw's trajectory, and its leapfrogs.

    Lengths are evenly spaced fractions in (0, 1] of the longest, the same for all lanes, so that no lane waits.
    """
    time = (1 - radical_inverse(draw).astype(dtype)) * tuning.trajectory_length
    return time, jnp.clip(jnp.ceil(time / tuning.step_size), 1, tuning.max_steps).astype(jnp.int32)


def radical_inverse(number: Integer[Array, ""]) -> Float[Array, ""]:
    """Return a whole number's bits reversed behind the binary point: any first numbers cover [0, 1) evenly.

    Source: van der Corput (1935), Verteilungsfunktionen.
    """
    bits = number.astype(jnp.uint32)
    for width, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
        low = np.uint32(mask)
        bits = ((bits >> np.uint32(width)) & low) | ((bits & low) << np.uint32(width))
    return bits.astype(jnp.float32) * np.float32(2**-32)


def _gradients(
    at: Point,
    end: PhasePoint,
    velocity: Vector,
    scale: Vector,
    times: tuple[Float[Array, ""], Float[Array, ""]],
    rate: Float[Array, "lanes"],
    target: LaneTarget,
) -> tuple[Float[Array, "lanes"], Float[Array, "lanes"]]:
    """Return the derivatives of ChEES and of the squared jump per unit of time by the log of the trajectory's length.

    Both are weighted by acceptance, and zero where a trajectory has broken down; coordinates are scaled by the metric.
    `times` are the requested length and that of whole steps. The second one decides whether a longer jump pays, since
    no jump is shorter than a step.
    """
    good = jnp.isfinite(rate) & (rate > 0)

    def only_good(vector: Vector) -> Vector:
        return choose(good, vector, jax.tree.map(jnp.zeros_like, vector))

    def centred(vector: Vector) -> Vector:
        centre = target.mean_over_chains(only_good(vector)) / target.mean_over_chains(good.astype(rate.dtype))
        return (vector - centre) / scale

    before = centred(at.position)
    after = centred(only_good(end.position))
    speed = velocity / scale
    jump = (end.position - at.position) / scale
    far, near, along, apart, square = target.inner_products(
        (after, after), (before, before), (after, speed), (jump, speed), (jump, jump)
    )
    gradients = times[0] * rate * (far - near) * along, rate * (2 * times[1] * apart - square)
    good &= jnp.isfinite(gradients[0]) & jnp.isfinite(gradients[1])
    return jnp.where(good, gradients[0], 0.0), jnp.where(good, gradients[1], 0.0)


def chees(
    step_size: float | None = None,
    *,
    trajectory_length: float | None = None,
    initial_step_size: float = 0.1,
    initial_trajectory_length: float = 1.0,
    target_acceptance: float = 0.7,
    max_steps: int = 1000,
    metric: str = "auto",
    relocate: bool = True,
) -> Kernel:
    r"""Return a ChEES-HMC kernel: Hamiltonian Monte Carlo with trajectories of one length, tuned for many chains.

    Each draw's trajectory has the length $u T$, with $u$ from an evenly spaced sequence in $(0, 1]$, the same for all
    chains. Warm-up maximises $E[(\lVert x' - \mu\rVert^2 - \lVert x - \mu\rVert^2)^2]$ over $\log T$ with Adam, on the
    gradient pooled over all chains, as long as a longer trajectory gains more squared distance per leapfrog. It needs
    two chains, and pays from about ten on.

    Args:
        step_size: length of a leapfrog; None tunes it in warm-up.
        trajectory_length: T, the longest integration time, step size times leapfrogs; None tunes it in warm-up.
        initial_step_size: the step size with which tuning starts.
        initial_trajectory_length: the length with which tuning starts.
        target_acceptance: the acceptance rate at which tuning aims. It is reached where energy errors are normal, as in
            many dimensions. Tuning takes a harmonic mean of rates, in which failing trajectories weigh more, so that
            stuck chains move again: errors with heavier tails lead to smaller steps and a higher rate.
        max_steps: the most leapfrogs of a trajectory.
        metric: the form of the covariance that warm-up learns: "diagonal", "dense" or "auto"; see `phx.nuts`.
        relocate: in warm-up, move a chain that is stuck in a region of negligible posterior mass to the position of
            another chain; the verdict reports each move.

    Returns:
        A kernel for `phx.mcmc`.

    Raises:
        ValueError: when a hyperparameter is out of range.

    Example:
        >>> import phalanx as phx
        >>> phx.chees(step_size=0.2).name
        'chees(step_size=0.2, trajectory_length=None)'

    Source:
        Hoffman, Radul, Sountsov (2021), An adaptive-MCMC scheme for setting trajectory lengths in Hamiltonian Monte
        Carlo.
    """
    return kernel_of(
        "chees",
        Hamiltonian(),
        step_size,
        trajectory_length,
        initial_step_size,
        initial_trajectory_length,
        target_acceptance,
        max_steps,
        metric,
        relocate,
    )


def kernel_of(
    name: str,
    dynamics: Dynamics,
    step_size: float | None,
    trajectory_length: float | None,
    first_step_size: float,
    first_length: float,
    target_acceptance: float,
    max_steps: int,
    metric: str,
    relocate: bool,
) -> Kernel:
    """Return a kernel whose trajectories have one length and follow these dynamics."""
    first_step = step_size_of(name, step_size, first_step_size, target_acceptance)
    positive(name, "initial_trajectory_length", first_length)
    if trajectory_length is not None:
        positive(name, "trajectory_length", trajectory_length)
    check_metric(name, metric)
    length = hyperparameter(float(first_length if trajectory_length is None else trajectory_length))
    most_steps = hyperparameter(check_integer(name, "max_steps", max_steps))
    step_size_tuner = StepSize(target_acceptance, "max_steps", frees_chains=True, ends_at_mean=False)
    return Kernel(
        name=f"{name}(step_size={step_size}, trajectory_length={trajectory_length})",
        machine=SharedLength(dynamics),
        tuning=Tuning(first_step, length, most_steps, None, np.bool_(False), np.bool_(False)),
        tuners=without_none(
            Metric(metric),
            TrajectoryLength() if trajectory_length is None else FixedLength(),
            step_size_tuner if step_size is None else None,
        ),
        statistics=Info._fields,
        relocates=relocate,
    )
