"""ChEES-HMC: all chains take trajectories of one length, which warm-up finds for all of them together.

Many chains need no U-turn checks: what a trajectory of a given length gains on average, they can measure. The change in
the estimator of the expected square (ChEES) is that of the squared distance from the mean between the two ends of a
trajectory; its square is made as large as possible, and no trajectory is made longer where the squared distance between
its ends does not grow faster than its length: on a curved posterior the first grows slowly for very long, or is nothing
but noise. All chains make the same number of leapfrogs, so none waits.

Source: Hoffman, Radul, Sountsov (2021), An adaptive-MCMC scheme for setting trajectory lengths in Hamiltonian Monte
Carlo.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from phalanx.adaptation.metric import Metric
from phalanx.adaptation.step_size import StepSize
from phalanx.adaptation.trajectory import TrajectoryLength
from phalanx.kernels.integrators.hamiltonian import Hamiltonian
from phalanx.kernels.integrators.leapfrog import Phase
from phalanx.kernels.integrators.trajectory import Dynamics, draw_by_trajectory
from phalanx.kernels.protocol.kernel import Kernel, LaneState, Machine, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.kernels.protocol.options import check_metric, hyperparameter, listed, positive, step_size_of, whole
from phalanx.mesh.keys import Keys
from phalanx.mesh.position import Vector, choose
from phalanx.mesh.total import Total


class Tuning(NamedTuple):
    """Hyperparameters: the step size, the longest trajectory in units of time, the most leapfrogs, and the metric.

    `learns` says whether the gradient of ChEES is asked for.
    """

    step_size: Any
    trajectory_length: Any
    max_steps: Any
    metric: Any
    learns: Any


class Info(NamedTuple):
    """What one draw did; see `phalanx.kernels.protocol.kernel.Info` for the first four.

    `trajectory_gradient` is how ChEES would change with the logarithm of the trajectory's length, and `jump_gradient`
    how the squared distance between its ends would, per unit of time; zero after warm-up.
    """

    acceptance_rate: Array
    diverging: Array
    num_steps: Array
    energy: Total | Array
    trajectory_gradient: Array
    jump_gradient: Array


@dataclass(frozen=True)
class SharedLength(Machine):
    """Trajectories of one length for all chains, which warm-up finds; see `phalanx.kernels.protocol.kernel.Machine`."""

    dynamics: Dynamics

    @property
    def least_coordinates(self) -> int:
        """The fewest that the dynamics make sense for."""
        return self.dynamics.least_coordinates

    def tick(
        self, now: LaneState, active: Array, keys: Keys, target: LaneTarget, tuning: Tuning
    ) -> tuple[LaneState, Array, Info]:
        """A draw of every lane."""
        # lengths spread evenly over (0, 1]: the same for all lanes, so that none waits
        share = 1 - radical_inverse(now.draw[0]).astype(target.dtype)
        time = share * tuning.trajectory_length
        steps = jnp.clip(jnp.ceil(time / tuning.step_size), 1, tuning.max_steps).astype(jnp.int32)
        key = keys.of_draw(now.draw)
        new, info, end = draw_by_trajectory(self.dynamics, key, now.at, steps, tuning.step_size, target, tuning.metric)

        def gradients() -> tuple[Array, Array]:
            velocity = self.dynamics.velocity(end, target, tuning.metric)
            times = time, steps * tuning.step_size
            return _gradients(now.at, end, velocity, tuning.metric.scale, times, info.acceptance_rate, target)

        # warm-up alone asks for them, and chains on other devices with it
        none = jnp.zeros_like(info.acceptance_rate)
        gained, jumped = lax.cond(tuning.learns, gradients, lambda: (none, none))
        return LaneState(now.draw + 1, new, ()), jnp.ones(target.count, bool), Info(*info, gained, jumped)


def radical_inverse(number: Array) -> Array:
    """A whole number's bits behind the binary point in reverse: evenly spread in [0, 1) from the first to any other.

    Source: van der Corput (1935), Verteilungsfunktionen.
    """
    bits = number.astype(jnp.uint32)
    for width, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
        low = np.uint32(mask)
        bits = ((bits >> np.uint32(width)) & low) | ((bits & low) << np.uint32(width))
    return bits.astype(jnp.float32) * np.float32(2**-32)


def _gradients(
    at: Point, end: Phase, velocity: Vector, scale: Vector, times: tuple[Array, Array], rate: Array, target: LaneTarget
) -> tuple[Array, Array]:
    """Of ChEES and of the squared jump per unit of time, with the logarithm of the trajectory's length.

    Weighed by acceptance, and zero where a trajectory has broken down; coordinates are scaled as the metric does.
    `times` are the length asked for and that of whole steps: of a jump that is no shorter than a step, only the second
    tells whether a longer one would pay.
    """
    good = jnp.isfinite(rate) & (rate > 0)

    def only_good(vector: Vector) -> Vector:
        return choose(good, vector, jax.tree.map(jnp.zeros_like, vector))

    def centred(vector: Vector) -> Vector:
        centre = target.mean_over_chains(only_good(vector)) / target.mean_over_chains(good.astype(rate.dtype))
        return (vector - centre) / scale

    before, after = centred(at.position), centred(only_good(end.position))
    speed, jump = velocity / scale, (end.position - at.position) / scale
    far, near, along, apart, square = target.inner_products(
        (after, after), (before, before), (after, speed), (jump, speed), (jump, jump)
    )
    found = times[0] * rate * (far - near) * along, rate * (2 * times[1] * apart - square)
    good &= jnp.isfinite(found[0]) & jnp.isfinite(found[1])
    return jnp.where(good, found[0], 0.0), jnp.where(good, found[1], 0.0)


def chees(
    step_size: float | None = None,
    trajectory_length: float | None = None,
    *,
    initial_step_size: float = 0.1,
    initial_trajectory_length: float = 1.0,
    target_acceptance: float = 0.7,
    max_steps: int = 1000,
    metric: str = "auto",
    relocate: bool = True,
) -> Kernel:
    r"""ChEES-HMC: Hamiltonian Monte Carlo whose trajectories have the length that serves many chains best.

    Each draw's trajectory has the length $u T$, with $u$ from an evenly spread sequence in $(0, 1]$, the same for all
    chains. Warm-up makes $E[(\lVert x' - \mu\rVert^2 - \lVert x - \mu\rVert^2)^2]$ as large as it can by moving
    $\log T$ with Adam, on the gradient pooled over all chains, as long as a longer trajectory gains more squared
    distance per leapfrog. It takes two chains at least, and pays from some ten on.

    Args:
        step_size: length of a leapfrog; None tunes it in warm-up.
        trajectory_length: T, in the units of the step size; None tunes it in warm-up.
        initial_step_size: where tuning starts.
        initial_trajectory_length: where tuning starts.
        target_acceptance: the acceptance rate tuning aims at, reached where energy errors are normal, as in many
            dimensions. Trajectories that fail count for more than others (tuning takes a harmonic mean, so that chains
            that are stuck move again): where errors have heavier tails the steps are smaller, and the rate is higher.
        max_steps: leapfrogs of a trajectory at most.
        metric: what warm-up learns of the posterior's covariance: "diagonal", "dense" or "auto"; see `phx.nuts`.
        relocate: whether a chain that has settled where the posterior has next to no mass goes on beside another,
            in warm-up; the verdict says when it has happened.

    Returns:
        A kernel for `phx.mcmc`.

    Raises:
        ValueError: when a hyperparameter is out of range.

    Example:
        >>> import phalanx as phx
        >>> kernel = phx.chees()

    Source:
        Hoffman, Radul, Sountsov (2021), An adaptive-MCMC scheme for setting trajectory lengths in Hamiltonian Monte
        Carlo.
    """
    return kernel_of(
        "chees", Hamiltonian(), step_size, trajectory_length, initial_step_size, initial_trajectory_length,
        target_acceptance, max_steps, metric, relocate,
    )  # fmt: skip


def kernel_of(
    name: str, dynamics: Dynamics, step_size: float | None, trajectory_length: float | None, first_step_size: float,
    first_length: float, target_acceptance: float, max_steps: int, metric: str, relocate: bool,
) -> Kernel:  # fmt: skip
    """A kernel whose trajectories have one length, by some dynamics."""
    first_step = step_size_of(name, step_size, first_step_size, target_acceptance)
    positive(name, "initial_trajectory_length", first_length)
    if trajectory_length is not None:
        positive(name, "trajectory_length", trajectory_length)
    check_metric(name, metric)
    length = hyperparameter(float(first_length if trajectory_length is None else trajectory_length))
    return Kernel(
        name=f"{name}(step_size={step_size}, trajectory_length={trajectory_length})",
        machine=SharedLength(dynamics),
        tuning=Tuning(first_step, length, hyperparameter(whole(name, "max_steps", max_steps)), None, np.bool_(False)),
        tuners=listed(
            Metric(metric),
            TrajectoryLength() if trajectory_length is None else None,
            StepSize(target_acceptance, "max_steps", of_trajectories=True) if step_size is None else None,
        ),
        statistics=Info._fields,
        relocates=relocate,
    )
