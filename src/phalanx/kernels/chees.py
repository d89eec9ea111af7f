"""ChEES-HMC: all chains take trajectories of one length, which warm-up finds for all of them together.

Many chains need no U-turn checks: what a trajectory of a given length gains on average, they can measure. The change in
the estimator of the expected square (ChEES) is that of the squared distance from the mean between the two ends of a
trajectory; its square is made as large as possible, and no trajectory is made longer where the squared distance between
its ends does not grow faster than its length: on a curved posterior the first grows slowly for very long, or is nothing
but noise. All lanes make the same number of leapfrogs, so none waits.

Source: Hoffman, Radul, Sountsov (2021), An adaptive-MCMC scheme for setting trajectory lengths in Hamiltonian Monte
Carlo.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec

from phalanx.kernels.acceptance import DIVERGENCE_THRESHOLD, broken_down, metropolis
from phalanx.kernels.gradient_state import State, init
from phalanx.kernels.kernel import Ended, Kernel, Rest, Start, hyperparameter, one_of, positive, share, start_of, whole
from phalanx.kernels.lanes import Columns, Lanes, choose, groups_of
from phalanx.kernels.low_rank import KINDS, LaneMetric
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.keys import Keys
from phalanx.mesh.random_numbers import Words, key_words, threefry, uniforms_from
from phalanx.programs.target import Density, Target

DECIDES = 0xFFFFFFFF
"""The number under which the word that decides is made; coordinates have lower ones."""


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
    """What one draw did; see `phalanx.kernels.kernel.Info` for the first four.

    `trajectory_gradient` is how ChEES would change with the logarithm of the trajectory's length, and `jump_gradient`
    how the squared distance between its ends would, per unit of time; zero after warm-up.
    """

    acceptance_rate: Array
    diverging: Array
    num_steps: Array
    energy: Array
    trajectory_gradient: Array
    jump_gradient: Array


class Flight(NamedTuple):
    """Where every lane is, lanes last, and the number of its next draw."""

    draw: Any
    position: Any
    log_density: Any
    gradient: Any


class End(NamedTuple):
    """The end of a trajectory; `way` is what dynamics keep of the way there, where the momentum does not tell it."""

    position: Columns
    momentum: Columns
    log_density: Array
    gradient: Columns
    way: Any


class Dynamics(Protocol):
    """The equations of motion that a trajectory follows; compared by value.

    Attributes:
        least_coordinates: the fewest they make sense for.
    """

    least_coordinates: ClassVar[int]

    def begin(self, at: Flight, normals: Columns, lanes: Lanes, metric: LaneMetric) -> End:
        """Set out, with a momentum made of standard normals."""
        ...

    def leapfrog(self, now: End, lanes: Lanes, metric: LaneMetric, step_size: Array) -> End:
        """One step."""
        ...

    def velocity(self, end: End, lanes: Lanes, metric: LaneMetric) -> Columns:
        """How fast the position changes."""
        ...

    def kinetic(self, end: End, lanes: Lanes, metric: LaneMetric) -> Array:
        """Kinetic energy, up to a constant; asked for at both ends of a trajectory, and not at every leapfrog."""
        ...

    def retraceable(self, begin: End, end: End) -> Array:
        """Whether a trajectory from the end leads back to the start, as far as numbers resolve."""
        ...


@dataclass(frozen=True)
class Hamiltonian:
    """Hamilton's equations, with the metric's inverse as mass."""

    least_coordinates: ClassVar[int] = 1

    def begin(self, at: Flight, normals: Columns, lanes: Lanes, metric: LaneMetric) -> End:
        """Set out with a normal momentum."""
        return End(at.position, metric.momentum(normals), at.log_density, at.gradient, ())

    def leapfrog(self, now: End, lanes: Lanes, metric: LaneMetric, step_size: Array) -> End:
        """Half a kick, a drift, half a kick."""
        half = tuple(p + 0.5 * step_size * g for p, g in zip(now.momentum, now.gradient, strict=True))
        position = tuple(x + step_size * v for x, v in zip(now.position, metric.velocity(half), strict=True))
        log_density, gradient = lanes.value_and_grad(position)
        momentum = tuple(p + 0.5 * step_size * g for p, g in zip(half, gradient, strict=True))
        return End(position, momentum, log_density, gradient, ())

    def velocity(self, end: End, lanes: Lanes, metric: LaneMetric) -> Columns:
        """Momentum over mass."""
        return metric.velocity(end.momentum)

    def kinetic(self, end: End, lanes: Lanes, metric: LaneMetric) -> Array:
        """Half of momentum times velocity."""
        return 0.5 * lanes.inner_products((end.momentum, metric.velocity(end.momentum)))[0]

    def retraceable(self, begin: End, end: End) -> Array:
        """Always."""
        return jnp.ones_like(end.log_density, bool)


def fly(
    dynamics: Dynamics, at: Flight, lanes: Lanes, tuning: Tuning, key: Words, pooled: Callable[[Array], Array]
) -> tuple[Flight, Info]:
    """A draw of every lane: a trajectory, and whether to stay at its end; `pooled` averages over all lanes."""
    metric = LaneMetric.of(tuning.metric, lanes)
    # lengths spread evenly over (0, 1]: the same for all lanes, so that none waits
    part = 1 - radical_inverse(at.draw[0]).astype(lanes.dtype)
    time = part * tuning.trajectory_length
    steps = jnp.clip(jnp.ceil(time / tuning.step_size), 1, tuning.max_steps).astype(jnp.int32)
    begin = dynamics.begin(at, lanes.normals(key), lanes, metric)

    def on_the_way(_: Array, now: End) -> End:
        # what only the log density needs is left out by the compiler, but for the last leapfrog
        return dynamics.leapfrog(now, lanes, metric, tuning.step_size)._replace(log_density=now.log_density)

    last_but_one = lax.fori_loop(0, steps - 1, on_the_way, begin)
    end = dynamics.leapfrog(last_but_one, lanes, metric, tuning.step_size)

    before = dynamics.kinetic(begin, lanes, metric) - at.log_density
    error = dynamics.kinetic(end, lanes, metric) - end.log_density - before
    error = broken_down(jnp.where(dynamics.retraceable(begin, end), error, jnp.inf))
    uniform = uniforms_from((threefry(key, jnp.uint32(0), jnp.uint32(DECIDES))[0], jnp.zeros_like(key[0])), jnp.float32)
    accepted, rate = metropolis(uniform, -error)
    there = Flight(at.draw, end.position, end.log_density, end.gradient)
    new = choose(accepted, there, at)._replace(draw=at.draw + 1)

    def gradients() -> tuple[Array, Array]:
        velocity = dynamics.velocity(end, lanes, metric)
        times = time, steps * tuning.step_size
        return _gradients(at.position, end.position, velocity, metric.scale, times, rate, lanes, pooled)

    # warm-up alone asks for them, and chains on other devices with it
    gained, jumped = lax.cond(tuning.learns, gradients, lambda: (jnp.zeros_like(rate),) * 2)
    energy = before + jnp.where(accepted, error, 0.0)
    diverging = error > DIVERGENCE_THRESHOLD
    return new, Info(rate, diverging, jnp.full(lanes.count, steps), energy, gained, jumped)


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
    position: Columns, end: Columns, velocity: Columns, scale: Columns, times: tuple[Array, Array], rate: Array,
    lanes: Lanes, pooled: Callable[[Array], Array],
) -> tuple[Array, Array]:  # fmt: skip
    """Of ChEES and of the squared jump per unit of time, with the logarithm of the trajectory's length.

    Weighed by acceptance, and zero where a trajectory has broken down; coordinates are scaled as the metric does.
    `times` are the length asked for and that of whole steps: of a jump that is no shorter than a step, only the second
    tells whether a longer one would pay.
    """
    good = jnp.isfinite(rate) & (rate > 0)

    def away(columns: Columns) -> Columns:
        centre = tuple(pooled(jnp.where(good, part, 0.0)) / pooled(good.astype(part.dtype)[None]) for part in columns)
        return tuple((part - c) / s for part, c, s in zip(columns, centre, scale, strict=True))

    here, there = away(position), away(tuple(jnp.where(good, part, 0.0) for part in end))
    speed = tuple(part / s for part, s in zip(velocity, scale, strict=True))
    jump = tuple((b - a) / s for a, b, s in zip(position, end, scale, strict=True))
    far, near, along, apart, square = lanes.inner_products(
        (there, there), (here, here), (there, speed), (jump, speed), (jump, jump)
    )
    found = times[0] * rate * (far - near) * along, rate * (2 * times[1] * apart - square)
    good &= jnp.isfinite(found[0]) & jnp.isfinite(found[1])
    return jnp.where(good, found[0], 0.0), jnp.where(good, found[1], 0.0)


@dataclass(frozen=True)
class Flock:
    """Trajectories of one length as a machine; see `phalanx.kernels.kernel.Machine`. A tick is a draw of every lane."""

    dynamics: Dynamics
    skips: ClassVar[int] = 0

    def start(self, lanes: Lanes, start: Start, keys: Keys, draw: Array) -> Flight:
        """Lanes at rest at positions."""
        position, gradient = (tuple(part.T for part in lanes.flatten(x)) for x in (start.position, start.gradient))
        return Flight(jnp.broadcast_to(draw, (lanes.count,)), position, start.log_density, gradient)

    def tick(
        self, underway: Flight, active: Array, abandon: Array, lanes: Lanes, tuning: Any, keys: Keys
    ) -> tuple[Flight, Ended]:
        """One draw of every lane."""

        def pooled(part: Array) -> Array:
            return lax.pmean(part.mean(-1, keepdims=True), CHAIN)

        new, info = fly(self.dynamics, underway, lanes, tuning, keys.of_draw(underway.draw), pooled)
        done = jnp.ones(lanes.count, bool)
        position, gradient = (tuple(part.T for part in x) for x in (new.position, new.gradient))
        return new, Ended(done, position, gradient, new.log_density, info)

    def moved(self, underway: Flight, take: Callable[[Array, int], Array]) -> Flight:
        """Lanes that go on at others' positions."""
        position, gradient = (tuple(take(part, -1) for part in x) for x in (underway.position, underway.gradient))
        return Flight(underway.draw, position, take(underway.log_density, 0), gradient)

    def rest(self, lanes: Lanes, underway: Flight) -> Rest:
        """Where lanes are that are between two draws."""
        return Rest(underway.draw, start_of(lanes, underway.position, underway.log_density, underway.gradient))

    def resume(self, lanes: Lanes, rest: Rest, keys: Keys) -> Flight:
        """Lanes that make the very same draws."""
        return self.start(lanes, rest.state, keys, rest.draw)

    def layout(self, target: Target, underway: Callable[[], Any]) -> Flight:
        """How it is laid out over the mesh."""
        vectors = tuple(PartitionSpec(axes or None, CHAIN) for axes in groups_of(target.shares.latents))
        return Flight(PartitionSpec(CHAIN), vectors, PartitionSpec(CHAIN), vectors)


@dataclass(frozen=True)
class Step:
    """One draw of one lane, for code that steps a kernel by itself."""

    dynamics: Dynamics

    def __call__(self, key: Array, state: State, density: Density, tuning: Tuning) -> tuple[State, Info]:
        """A draw."""
        lanes, (first, second) = Lanes(density, 1), key_words(key)
        position, gradient = (
            tuple(part[:, None] for part in lanes.flatten(x)) for x in (state.position, state.gradient)
        )
        at = Flight(jnp.zeros(1, jnp.int32), position, state.log_density[None], gradient)
        words = first[None], second[None]
        new, info = fly(self.dynamics, at, lanes, tuning, words, lambda part: part.mean(-1, keepdims=True))
        position, gradient = (lanes.unflatten(tuple(part[:, 0] for part in x)) for x in (new.position, new.gradient))
        return State(position, new.log_density[0], gradient), jax.tree.map(lambda value: value[0], info)


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
        target_acceptance: the acceptance rate tuning aims at.
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
    one_of("chees", "metric", metric, KINDS)
    return flock_kernel(
        "chees", Hamiltonian(), step_size, trajectory_length, initial_step_size, initial_trajectory_length,
        target_acceptance, max_steps, metric, relocate,
    )  # fmt: skip


def flock_kernel(
    name: str, dynamics: Dynamics, step_size: float | None, trajectory_length: float | None, first_step_size: float,
    first_length: float, target_acceptance: float, max_steps: int, metric: str, relocate: bool,
) -> Kernel:  # fmt: skip
    """A kernel whose trajectories have one length, by some dynamics."""
    given = {"step_size": step_size, "trajectory_length": trajectory_length}
    first = {"initial_step_size": first_step_size, "initial_trajectory_length": first_length}
    for option, value in (given | first).items():
        if value is not None:
            positive(name, option, value)
    whole(name, "max_steps", max_steps)
    share(name, "target_acceptance", target_acceptance)
    return Kernel(
        name=f"{name}(step_size={step_size}, trajectory_length={trajectory_length})",
        init=init,
        step=Step(dynamics),
        machine=Flock(dynamics),
        metric=metric,
        statistics=Info._fields,
        tuning=Tuning(
            hyperparameter(float(first_step_size if step_size is None else step_size)),
            hyperparameter(float(first_length if trajectory_length is None else trajectory_length)),
            hyperparameter(max_steps),
            None,
            np.bool_(False),
        ),
        target_acceptance=target_acceptance if step_size is None else None,
        tunes_trajectory=trajectory_length is None,
        least_coordinates=dynamics.least_coordinates,
        relocates=relocate,
    )
