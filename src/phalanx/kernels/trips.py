"""Where lanes are in their trajectories, and the tick that moves every one of them by a leapfrog.

A trajectory is built as Hoffman and Gelman's iterative doubling: subtrees of 1, 2, 4, ... leapfrogs, each at one end of
what there is, until the two ends of it, or of a subtree within, have turned towards one another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from phalanx.kernels.acceptance import DIVERGENCE_THRESHOLD, broken_down
from phalanx.kernels.lanes import Columns, Lanes, choose
from phalanx.kernels.low_rank import LaneMetric
from phalanx.kernels.u_turns import Corners, turning_ends, update_corners
from phalanx.mesh.random_numbers import Words, threefry, uniforms_from

FEW_NORMALS = 2048
"""Normals of all lanes that are rather made in every tick."""


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
    metric = LaneMetric.of(tuning.metric, lanes)
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
    error = broken_down(0.5 * inner[0] - log_density - trip.energy)
    diverging = error > DIVERGENCE_THRESHOLD
    acceptance = trip.acceptance + jnp.minimum(1.0, jnp.exp(-error))
    log_weight = jnp.logaddexp(jnp.where(first, -jnp.inf, trip.candidate_log_weight), -error)
    take = _uniform(trip.words[0], log_weight) < jnp.exp(-error - log_weight)
    candidate = choose(take, Point(end.position, end.gradient, log_density, error), trip.candidate)

    # the trajectory, where the subtree has ended
    turning = corners.turning(inner[2], inner[3], trip.leaf, trip.way)
    complete = trip.leaf + 1 == jnp.left_shift(1, trip.depth)
    ended = complete | turning | diverging
    doubled = complete & ~turning & ~diverging & active & ~abandon
    take = doubled & (_uniform(trip.words[1], log_weight) < jnp.exp(log_weight - trip.log_weight))
    sample = choose(take, candidate, trip.sample)
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


def _depart(trip: Trip, metric: LaneMetric, step_size: Array) -> Trip:
    """Start a draw where none is under way: a new momentum at the last draw."""
    fresh, sample = trip.num_steps == 0, trip.sample
    start = Phase(sample.position, metric.momentum(trip.normals), sample.gradient)
    return trip._replace(
        here=choose(fresh, start, trip.here),
        there=choose(fresh, start, trip.there),
        energy=jnp.where(fresh, trip.kinetic - sample.log_density, trip.energy),
        step_size=jnp.where(fresh, step_size, trip.step_size),
    )


def _turn(trip: Trip) -> Trip:
    """At the first leaf of a subtree, choose the direction of time at random, and with it the end to extend."""
    # the lowest bit: the upper ones of this word make a uniform
    forward = jnp.where(trip.words[1] & 1 == 1, 1.0, -1.0).astype(trip.way.dtype)
    way = jnp.where(trip.leaf == 0, forward, trip.way)
    turned = way != trip.way
    here, there = choose(turned, trip.there, trip.here), choose(turned, trip.here, trip.there)
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
        return choose(starts, lanes.normals(key), trip.normals)

    # few are made faster than it is asked whether any are due
    if sum(part.size for part in trip.normals) <= FEW_NORMALS:
        return make(trip.next_key)
    return lax.cond(starts.any(), make, lambda _: trip.normals, trip.next_key)


def _spans(there: Phase, end: Phase) -> list[tuple[Columns, Columns]]:
    """The way from end to end of the trajectory, with the momentum at either end."""
    span = tuple(a - b for a, b in zip(end.position, there.position, strict=True))
    return [(span, there.momentum), (span, end.momentum)]


def _words(key: Words, num_steps: Array) -> Words:
    """Random words for a leapfrog. The momentum's have a zero where these have a one."""
    number = num_steps.astype(jnp.uint32)
    return threefry(key, jnp.ones_like(number), number)


def _uniform(word: Array, like: Array) -> Array:
    return uniforms_from((word, jnp.zeros_like(word)), like.dtype)
