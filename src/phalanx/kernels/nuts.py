"""The No-U-Turn sampler, as a state machine that moves every lane by one leapfrog per tick.

Other vectorised NUTS run all chains in lock-step: each draw takes as long as the longest trajectory of any chain. Here
a lane that ends a draw starts its next in the following tick, whatever the others do. What a lane does depends on its
own keys and position alone, so the draws are those of lock-step NUTS, bit for bit.

A trajectory is built as Hoffman and Gelman's iterative doubling: subtrees of 1, 2, 4, ... leapfrogs, each at one end of
what there is, until the two ends of it, or of a subtree within, have turned towards one another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from phalanx.kernels.acceptance import DIVERGENCE_THRESHOLD
from phalanx.kernels.kernel import Ended, Kernel, Start, hyperparameter, positive, whole
from phalanx.kernels.lanes import Columns, Lanes, groups_of
from phalanx.kernels.low_rank import LaneMetric, LowRank
from phalanx.kernels.u_turns import Corners, turning_ends, update_corners
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.keys import Keys
from phalanx.mesh.random_numbers import Words, key_words, threefry, uniforms_from
from phalanx.mesh.space import Position
from phalanx.programs.target import Density, Target


class Tuning(NamedTuple):
    """Hyperparameters: the step size, the deepest trajectory (2**max_depth - 1 leapfrogs), and the metric."""

    step_size: Any
    max_depth: Any
    metric: Any


class Info(NamedTuple):
    """What one draw did; see `phalanx.kernels.kernel.Info` for the first four."""

    acceptance_rate: Array
    diverging: Array
    num_steps: Array
    energy: Array
    tree_depth: Array
    reached_max_depth: Array


class Phase(NamedTuple):
    """One end of a trajectory."""

    position: Columns
    momentum: Columns
    gradient: Columns


class Point(NamedTuple):
    """A point that may become the draw; `error` is its energy less that of the trajectory's start."""

    position: Columns
    gradient: Columns
    log_density: Array
    error: Array


class Trip(NamedTuple):
    """Where every lane is in its trajectory: arrays with lanes last.

    Attributes:
        draw: number of the draw under way.
        key, next_key: the keys of this draw and of the next, as words.
        words: random words for the next leapfrog. Like `normals` they are made one tick ahead: what enters the next
            tick as an argument is computed once, and not again in every operation it is fused into.
        normals: standard normals for the momentum of the next draw to start.
        kinetic: half their sum of squares, the kinetic energy of that momentum.
        here, there: the end being extended, and the other.
        sample: the draw so far; at rest, where the next trajectory starts.
        candidate: the draw of the subtree being built.
        energy: at the start of the trajectory.
        log_weight, candidate_log_weight: log of the sum of exp(-error) over the trajectory and over the subtree.
        depth: doublings done.
        leaf: leapfrogs of the subtree done.
        way: 1 or -1, the direction of time in the subtree.
        num_steps: leapfrogs of the draw done; 0 for a lane whose draw is about to start.
        acceptance: sum of acceptance probabilities over them.
        step_size: of this trajectory; one step size from its start to its end.
        corners: where subtrees within the subtree began.
    """

    draw: Array
    key: Words
    next_key: Words
    words: Words
    normals: Columns
    kinetic: Array
    here: Phase
    there: Phase
    sample: Point
    candidate: Point
    energy: Array
    log_weight: Array
    candidate_log_weight: Array
    depth: Array
    leaf: Array
    way: Array
    num_steps: Array
    acceptance: Array
    step_size: Array
    corners: Corners


def rest(
    lanes: Lanes, position: Columns, log_density: Array, gradient: Columns, key: Words, next_key: Words, draw: Array,
    max_depth: int,
) -> Trip:  # fmt: skip
    """Lanes at rest at a position, about to start a draw. Its key need not be one of a run's."""
    zero = jnp.zeros_like(log_density)
    count = jnp.zeros(log_density.shape, jnp.int32)
    phase, point = Phase(position, position, gradient), Point(position, gradient, log_density, zero)
    normals = lanes.normals(key)
    (square,) = lanes.inner_products((normals, normals))
    corners = tuple(jnp.zeros((max(1, max_depth - 1), *part.shape), part.dtype) for part in position)
    return Trip(
        draw, key, next_key, _words(key, count), normals, 0.5 * square, phase, phase, point, point, zero, zero, zero,
        count, count, zero + 1, count, zero, zero + 1, Corners(corners, corners),
    )  # fmt: skip


def tick(
    trip: Trip, active: Array, abandon: Array, lanes: Lanes, tuning: Tuning, key_of: Callable[[Array], Words]
) -> tuple[Trip, Array, Info]:
    """One leapfrog of every lane: start a draw where none is under way, extend it, end it where that is due.

    Args:
        trip: where the lanes are.
        active: lanes that may end a draw; the others, at rest, stay so.
        abandon: lanes whose trajectory ends with this tick without a draw, because the tuning has changed.
        lanes: the target.
        tuning: hyperparameters.
        key_of: each lane's key for a draw, by number.

    Returns:
        Where they are then, which lanes have ended a draw (it is the position of `sample`), and what it did.
    """
    metric = _lane_metric(tuning.metric, lanes)
    trip = _turn(_depart(trip, metric, tuning.step_size))
    end, log_density = _leapfrog(lanes, metric, trip)
    first = trip.leaf == 0
    corners = update_corners(trip.corners, trip.leaf, end.position, end.momentum)
    normals = _next_normals(lanes, trip, active)
    inner = lanes.inner_products(
        (end.momentum, metric.velocity(end.momentum)), (normals, normals),
        *corners.spans(end.position, end.momentum),
        *_spans(trip.there, end),
    )  # fmt: skip

    # the subtree, one leaf larger
    error = 0.5 * inner[0] - log_density - trip.energy
    error = jnp.where(jnp.isnan(error), jnp.inf, error)
    diverging = error > DIVERGENCE_THRESHOLD
    acceptance = trip.acceptance + jnp.minimum(1.0, jnp.exp(-error))
    log_weight = jnp.logaddexp(jnp.where(first, -jnp.inf, trip.candidate_log_weight), -error)
    take = _uniform(trip.words[0], log_weight) < jnp.exp(-error - log_weight)
    candidate = _choose(take, Point(end.position, end.gradient, log_density, error), trip.candidate)

    # the trajectory, where the subtree has ended
    turning = corners.turning(inner[2], inner[3], trip.leaf, trip.way)
    complete = trip.leaf + 1 == jnp.left_shift(1, trip.depth)
    ended = complete | turning | diverging
    doubled = complete & ~turning & ~diverging & active & ~abandon
    take = doubled & (_uniform(trip.words[1], log_weight) < jnp.exp(log_weight - trip.log_weight))
    sample = _choose(take, candidate, trip.sample)
    depth = trip.depth + doubled
    full = depth >= tuning.max_depth
    turned = turning_ends(inner[4], inner[5], trip.way)
    done = (ended & (~doubled | turned | full) | abandon) & active
    num_steps = trip.num_steps + 1
    info = Info(
        acceptance / num_steps, diverging, num_steps, trip.energy + sample.error, depth, done & doubled & ~turned & full
    )

    # what the next tick begins with
    still = done | ~active
    draw = trip.draw + done
    key = jax.tree.map(partial(jnp.where, done), trip.next_key, trip.key)
    num_steps = jnp.where(still, 0, num_steps)
    new = Trip(
        draw, key, key_of(draw + 1), _words(key, num_steps), normals, 0.5 * inner[1], end, trip.there,
        sample._replace(error=jnp.where(still, 0.0, sample.error)), candidate, trip.energy,
        jnp.where(still, 0.0, jnp.where(doubled, jnp.logaddexp(trip.log_weight, log_weight), trip.log_weight)),
        log_weight, jnp.where(still, 0, depth), jnp.where(ended | still, 0, trip.leaf + 1), trip.way, num_steps,
        jnp.where(still, 0.0, acceptance), trip.step_size, corners,
    )  # fmt: skip
    return new, done & ~abandon, info


def _lane_metric(metric: LowRank | None, lanes: Lanes) -> LaneMetric:
    return metric.for_columns() if metric is not None else LaneMetric.identity(lanes.dtype, len(lanes.groups))


def _depart(trip: Trip, metric: LaneMetric, step_size: Array) -> Trip:
    """Start a draw where none is under way: a new momentum at the last draw."""
    fresh, sample = trip.num_steps == 0, trip.sample
    start = Phase(sample.position, metric.momentum(trip.normals), sample.gradient)
    return trip._replace(
        here=_choose(fresh, start, trip.here),
        there=_choose(fresh, start, trip.there),
        energy=jnp.where(fresh, trip.kinetic - sample.log_density, trip.energy),
        step_size=jnp.where(fresh, step_size, trip.step_size),
    )


def _turn(trip: Trip) -> Trip:
    """At the first leaf of a subtree, choose the direction of time at random, and with it the end to extend."""
    # the lowest bit: the upper ones of this word make a uniform
    forward = jnp.where(trip.words[1] & 1 == 1, 1.0, -1.0).astype(trip.way.dtype)
    way = jnp.where(trip.leaf == 0, forward, trip.way)
    turned = way != trip.way
    here, there = _choose(turned, trip.there, trip.here), _choose(turned, trip.here, trip.there)
    return trip._replace(here=here, there=there, way=way)


def _leapfrog(lanes: Lanes, metric: LaneMetric, trip: Trip) -> tuple[Phase, Array]:
    """One leapfrog from here, forwards or backwards in time."""
    step = (trip.way * trip.step_size)[None]
    half = [p + 0.5 * step * g for p, g in zip(trip.here.momentum, trip.here.gradient, strict=True)]
    velocity = metric.velocity(tuple(half))
    position = tuple(x + step * v for x, v in zip(trip.here.position, velocity, strict=True))
    log_density, gradient = lanes.value_and_grad(position)
    momentum = tuple(p + 0.5 * step * g for p, g in zip(half, gradient, strict=True))
    return Phase(position, momentum, gradient), log_density


def _next_normals(lanes: Lanes, trip: Trip, active: Array) -> Columns:
    """Normals for each lane's next draw: new ones where this draw starts in this tick."""
    starts = active & (trip.num_steps == 0)

    def make(key: Words) -> Columns:
        return _choose(starts, lanes.normals(key), trip.normals)

    # few are made faster than it is asked whether any are due
    if sum(part.size for part in trip.normals) <= FEW_NORMALS:
        return make(trip.next_key)
    return lax.cond(starts.any(), make, lambda _: trip.normals, trip.next_key)


def _spans(there: Phase, end: Phase) -> list[tuple[Columns, Columns]]:
    """The way from end to end of the trajectory, with the momentum at either end."""
    span = tuple(a - b for a, b in zip(end.position, there.position, strict=True))
    return [(span, there.momentum), (span, end.momentum)]


def _choose(condition: Array, a: Any, b: Any) -> Any:
    """`a` in the lanes where `condition` holds, else `b`."""
    return jax.tree.map(lambda x, y: jnp.where(condition.reshape((1,) * (x.ndim - 1) + condition.shape), x, y), a, b)


def _words(key: Words, num_steps: Array) -> Words:
    """Random words for a leapfrog. The momentum's have a zero where these have a one."""
    number = num_steps.astype(jnp.uint32)
    return threefry(key, jnp.ones_like(number), number)


def _uniform(word: Array, like: Array) -> Array:
    return uniforms_from((word, jnp.zeros_like(word)), like.dtype)


@dataclass(frozen=True)
class Nuts:
    """NUTS as a machine; see `phalanx.kernels.kernel.Machine`. `max_depth` bounds the tuning's, and the memory."""

    max_depth: int

    def start(self, lanes: Lanes, start: Start, keys: Keys, draw: Array) -> Trip:
        """Lanes at rest at positions."""
        position, gradient = (tuple(part.T for part in lanes.flatten(x)) for x in (start.position, start.gradient))
        draws = jnp.broadcast_to(draw, (lanes.count,))
        now, then = keys.of_draw(draws), keys.of_draw(draws + 1)
        return rest(lanes, position, start.log_density, gradient, now, then, draws, self.max_depth)

    def tick(
        self, underway: Trip, active: Array, abandon: Array, lanes: Lanes, tuning: Tuning, keys: Keys
    ) -> tuple[Trip, Ended]:
        """One leapfrog of every lane."""
        trip, done, info = tick(underway, active, abandon, lanes, tuning, keys.of_draw)
        position, gradient = (tuple(part.T for part in x) for x in (trip.sample.position, trip.sample.gradient))
        return trip, Ended(done, position, gradient, trip.sample.log_density, info)

    def moved(self, underway: Trip, take: Callable[[Array, int], Array]) -> Trip:
        """Lanes that go on at others' draws."""
        return underway._replace(sample=jax.tree.map(lambda leaf: take(leaf, -1), underway.sample))

    def layout(self, target: Target, underway: Callable[[], Any]) -> Trip:
        """How a trip is laid out over the mesh: lanes come last."""
        groups = groups_of(target.shares.latents)
        # the same records hold arrays and how they are laid out
        lane: Any = PartitionSpec(CHAIN)
        vector: Any = tuple(PartitionSpec(axes or None, CHAIN) for axes in groups)
        levels: Any = tuple(PartitionSpec(None, axes or None, CHAIN) for axes in groups)
        words, phase, point = (lane, lane), Phase(vector, vector, vector), Point(vector, vector, lane, lane)
        return Trip(
            lane, words, words, words, vector, lane, phase, phase, point, point, lane, lane, lane, lane, lane, lane,
            lane, lane, lane, Corners(levels, levels),
        )  # fmt: skip


class State(NamedTuple):
    """A position with its log density and gradient."""

    position: Position
    log_density: Array
    gradient: Position


def init(key: Array, position: Position, density: Density) -> State:
    """The state at a position."""
    return State(position, *density.value_and_grad(position))


@dataclass(frozen=True)
class Step:
    """One draw of one lane from start to end: NUTS as one usually has it, where each draw waits for all lanes.

    It is the reference for the machine, and what code that steps a kernel by itself calls.
    """

    max_depth: int

    def __call__(self, key: Array, state: State, density: Density, tuning: Tuning) -> tuple[State, Info]:
        """A draw."""
        lanes, (first, second) = Lanes(density, 1), key_words(key)
        words = first[None], second[None]
        position, gradient = (
            tuple(part[:, None] for part in lanes.flatten(x)) for x in (state.position, state.gradient)
        )
        always = jnp.ones(1, bool)

        def on(carry: tuple[Trip, Array, Info]) -> tuple[Trip, Array, Info]:
            return tick(carry[0], always, ~always, lanes, tuning, lambda _: words)

        draw = jnp.zeros(1, jnp.int32)
        trip = rest(lanes, position, state.log_density[None], gradient, words, words, draw, self.max_depth)
        begun = on((trip, ~always, Info(*(always,) * len(Info._fields))))
        trip, _, info = lax.while_loop(lambda carry: ~carry[1][0], on, begun)
        position, gradient = (
            lanes.unflatten(tuple(part[:, 0] for part in x)) for x in (trip.sample.position, trip.sample.gradient)
        )
        state = State(position, trip.sample.log_density[0], gradient)
        return state, jax.tree.map(lambda value: value[0], info)


def nuts(
    max_depth: int = 10,
    step_size: float | None = None,
    *,
    initial_step_size: float = 0.1,
    target_acceptance: float = 0.8,
    metric: str = "auto",
) -> Kernel:
    r"""The No-U-Turn sampler.

    A momentum $p \sim N(0, M)$ is drawn and the trajectory of $H(x, p) = -\log\pi(x) + \tfrac12 p^\top M^{-1} p$
    doubled, forwards or backwards in time at random, until it turns back on itself. The draw is one of its points, with
    probability proportional to $e^{-H}$ and a preference for the later doublings. No chain waits for another: each
    moves by one leapfrog at a time and starts its next draw when it has ended one.

    Args:
        max_depth: doublings at most; a trajectory has up to `2**max_depth - 1` leapfrogs.
        step_size: length of a leapfrog; None tunes it in warm-up, pooled over all chains.
        initial_step_size: where tuning starts.
        target_acceptance: the acceptance rate tuning aims at. A larger one makes smaller steps, which helps where
            trajectories diverge.
        metric: what warm-up learns of the posterior's covariance, pooled over all chains: "diagonal", a variance for
            every coordinate; "dense", correlations too; "auto", correlations where the draws show that they pay.
            With many coordinates correlations are learned along the few directions that matter most.

    Returns:
        A kernel for `phx.mcmc`.

    Raises:
        ValueError: when a hyperparameter is out of range.

    Example:
        >>> import phalanx as phx
        >>> kernel = phx.nuts(max_depth=8, target_acceptance=0.9)

    Source:
        Hoffman, Gelman (2014), The No-U-Turn Sampler; Betancourt (2017), A conceptual introduction to Hamiltonian Monte
        Carlo; Dance, Glaser, Orbanz, Adams (2025), Efficiently vectorized MCMC on modern accelerators, for the machine.
    """
    whole("nuts", "max_depth", max_depth)
    if max_depth > DEEPEST:
        raise ValueError(
            f"nuts: max_depth must be at most {DEEPEST}, got {max_depth}: 2**{max_depth} leapfrogs a draw."
        )
    positive("nuts", "initial_step_size", initial_step_size)
    if step_size is not None:
        positive("nuts", "step_size", step_size)
    if not 0 < target_acceptance < 1:
        raise ValueError(f"nuts: target_acceptance must lie between 0 and 1, got {target_acceptance!r}.")
    if metric not in METRICS:
        raise ValueError(f"nuts: metric must be one of {', '.join(map(repr, METRICS))}; got {metric!r}.")
    first = float(initial_step_size if step_size is None else step_size)
    return Kernel(
        name=f"nuts(max_depth={max_depth}, step_size={step_size})",
        init=init,
        step=Step(max_depth),
        machine=Nuts(max_depth),
        metric=metric,
        statistics=Info._fields,
        tuning=Tuning(hyperparameter(first), hyperparameter(max_depth), None),
        target_acceptance=target_acceptance if step_size is None else None,
    )


FEW_NORMALS = 2048
"""Normals of all lanes that are rather made in every tick."""

DEEPEST = 20
"""Doublings beyond which a trajectory is surely a mistake."""

METRICS = ("auto", "diagonal", "dense")
