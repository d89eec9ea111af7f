"""Climbing to where a log density is high, by L-BFGS, with what its curvature says on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from phalanx.jaxprs.group_sums import with_group_sums

MEMORY = 8
"""Steps that the curvature is estimated from."""

HALVINGS, SHORTER = 12, 0.4
"""How often a step that gains too little is made shorter before it is given up, and by how much."""

ARMIJO = 1e-4
"""Of the gain that the gradient promises, the part that a step must make."""

OFF_ZERO = 1e-3
"""How far from zero coordinates at zero begin a climb at most."""

LANES = 8
"""Columns of a Hessian that are computed at once: as many as a fit has particles, for whose memory there must be room.
"""

EXACT = 256
"""Coordinates up to which the diagonal of the Hessian is computed; beyond, it is estimated."""


class Effort(NamedTuple):
    """What is spent on a good place.

    Attributes:
        looks: steps of a climb between two looks at how good a normal about the place would be.
        probes: random vectors that the diagonal of a Hessian is estimated with.
        draws: of a normal, that tell how good it is.
    """

    looks: tuple[int, ...]
    probes: int
    draws: int


MANY = 2**14
"""Coordinates that are many."""

USUAL, OF_MANY = Effort((0, 5, 5, 10, 20, 40), 32, 16), Effort((20, 40), 4, 4)
"""Of many coordinates a look takes as long as a dozen steps of a fit, and sums over them have little noise."""


def _effort(size: int) -> Effort:
    return USUAL if size < MANY else OF_MANY


LogDensity = Callable[[Array], Array]


class Climb(NamedTuple):
    """A climb under way.

    Attributes:
        position, value, gradient: of the log density, where the climb is.
        steps, changes: the latest steps, and the changes of the gradient, `(MEMORY, coordinate)`, oldest first.
        curved: which of them show a curvature that points downward, as at a mode.
        moved: whether the last step went anywhere.
        gradients: that were computed for it.
    """

    position: Array
    value: Array
    gradient: Array
    steps: Array
    changes: Array
    curved: Array
    moved: Array
    gradients: Array | np.int32 = np.int32(1)

    @classmethod
    def begin(cls, log_density: LogDensity, position: Array) -> Climb:
        """A climb that begins, a little off zero: there what is written with maxima may have a wrong gradient.

        Products of two have none there.
        """
        off = random.uniform(random.key(0), position.shape, position.dtype, -OFF_ZERO, OFF_ZERO)
        position = jnp.where(position == 0.0, off, position)
        value, gradient = with_group_sums(jax.value_and_grad(log_density))(position)
        none = jnp.zeros((MEMORY, position.size), position.dtype)
        return cls(position, value, gradient, none, none, jnp.zeros(MEMORY, bool), jnp.bool_(True))


class Trial(NamedTuple):
    """A step that is tried: where it leads, the log density there, and whether that gains enough."""

    position: Array
    value: Array
    gradient: Array
    gains: Array


def climb(log_density: LogDensity, state: Climb, count: Array | int) -> Climb:
    """At most `count` steps more.

    Source:
        Liu, Nocedal (1989), On the limited memory BFGS method for large scale optimization.
    """

    def go_on(carry: tuple[Array, Climb]) -> Array:
        return (carry[0] < count) & carry[1].moved

    def step(carry: tuple[Array, Climb]) -> tuple[Array, Climb]:
        return carry[0] + 1, _step(log_density, carry[1])

    return lax.while_loop(go_on, step, (jnp.int32(0), state))[1]


def _step(log_density: LogDensity, at: Climb) -> Climb:
    direction = inverse_times(at, at.gradient)
    slope = at.gradient @ direction
    uphill = jnp.isfinite(slope) & (slope > 0)
    direction = jnp.where(uphill, direction, at.gradient)
    slope = jnp.where(uphill, slope, at.gradient @ at.gradient)
    # before there is a curvature, a step of length one at most
    first = 1.0 / jnp.maximum(1.0, jnp.linalg.norm(direction))
    length = jnp.where(jnp.any(at.curved) & uphill, 1.0, first)

    def tried(length: Array) -> Trial:
        position = at.position + length * direction
        value, gradient = with_group_sums(jax.value_and_grad(log_density))(position)
        gains = jnp.isfinite(value) & (value >= at.value + ARMIJO * length * slope)
        return Trial(position, value, gradient, gains)

    def shorter(carry: tuple[Array, Trial]) -> tuple[Array, Trial]:
        # with the gradient, which the first try mostly needs: as a program of its own it would be compiled once more
        return carry[0] + 1, tried(length * SHORTER ** carry[0])

    untried = jnp.int32(0), Trial(at.position, at.value, at.gradient, jnp.bool_(False))
    tries, trial = lax.while_loop(lambda carry: (carry[0] <= HALVINGS) & ~carry[1].gains, shorter, untried)
    position, value, gradient = trial.position, trial.value, trial.gradient
    usable = trial.gains & jnp.all(jnp.isfinite(gradient))
    step, change = position - at.position, at.gradient - gradient
    curved = usable & (step @ change > 1e-10 * (step @ step))

    def roll(old: Array, new: Array) -> Array:
        return jnp.where(curved, jnp.concatenate([old[1:], new[None]]), old)

    moved = usable & (value - at.value > 1e-7 * (1.0 + jnp.abs(value)))
    gradients = at.gradients + tries
    there = Climb(
        position, value, gradient, roll(at.steps, step), roll(at.changes, change), roll(at.curved, curved), moved,
        gradients,
    )  # fmt: skip
    stayed = at._replace(moved=jnp.bool_(False), gradients=gradients)
    return jax.tree.map(lambda a, b: jnp.where(usable, a, b), there, stayed)


def inverse_times(at: Climb, vector: Array) -> Array:
    """The estimate of the inverse of the negative Hessian, times a vector (the two-loop recursion)."""
    safe = jnp.where(at.curved, jnp.sum(at.steps * at.changes, 1), 1.0)
    weight = jnp.where(at.curved, 1.0 / safe, 0.0)

    def back(q: Array, i: Array) -> tuple[Array, Array]:
        alpha = weight[i] * (at.steps[i] @ q)
        return q - alpha * at.changes[i], alpha

    newest_first = jnp.arange(MEMORY)[::-1]
    q, alphas = lax.scan(back, vector, newest_first)
    last = jnp.where(at.curved[-1], safe[-1] / jnp.maximum(at.changes[-1] @ at.changes[-1], 1e-30), 1.0)

    def forth(r: Array, given: tuple[Array, Array]) -> tuple[Array, None]:
        i, alpha = given
        return r + at.steps[i] * (alpha - weight[i] * (at.changes[i] @ r)), None

    return lax.scan(forth, last * q, (newest_first[::-1], alphas[::-1]))[0]


def curvature(log_density: LogDensity, position: Array, key: Array) -> Array:
    """The diagonal of the negative Hessian: exact for few coordinates, estimated for many.

    An estimate is no smaller than its own error: one that is small by chance would say that the density is flat.
    """
    gradient = with_group_sums(jax.grad(log_density))

    def times(vector: Array) -> Array:
        return -jax.jvp(gradient, (position,), (vector,))[1]

    size = position.size
    if size <= EXACT:
        return _in_lanes(lambda i: times(jnp.zeros(size, position.dtype).at[i].set(1.0))[i], size)

    def probe(key: Array) -> Array:
        signs = random.rademacher(key, (size,), position.dtype)
        return signs * times(signs)

    probes = _effort(size).probes
    found = lax.map(probe, random.split(key, probes))
    return jnp.maximum(jnp.abs(jnp.mean(found, 0)), jnp.sqrt(jnp.mean(found**2, 0) / probes))


def negative_hessian(log_density: LogDensity, position: Array) -> Array:
    """The whole of it."""
    gradient = with_group_sums(jax.grad(log_density))
    size = position.size

    def row(i: Array) -> Array:
        return -jax.jvp(gradient, (position,), (jnp.zeros(size, position.dtype).at[i].set(1.0),))[1]

    hessian = _in_lanes(row, size)
    return 0.5 * (hessian + hessian.T)


def _in_lanes(f: Callable[[Array], Array], count: int) -> Array:
    """`f` of 0, 1, ... up to `count`, some at once: of data that are read for one the others have them, too."""
    lanes = min(LANES, count)
    numbers = jnp.arange(-(-count // lanes) * lanes).reshape(-1, lanes)
    found = lax.map(jax.vmap(f), jnp.minimum(numbers, count - 1))
    return found.reshape(-1, *found.shape[2:])[:count]


class Top(NamedTuple):
    """The top of a climb.

    Attributes:
        position: where the density is highest.
        scale_tril: Cholesky factor of the inverse of the negative Hessian.
        reached: whether it is one: the gradient vanishes, and the density curves downward in every direction.
    """

    position: Array
    scale_tril: Array
    reached: Array


CLIMBED, POLISHED = 2000, 3
"""Steps of a climb at most, and Newton's after it."""

AT_TOP = 1e-2
"""What a step of Newton's may still promise at a top, in nats: a tenth of a standard deviation away."""


def climb_to_top(log_density: LogDensity, position: Array) -> Top:
    """Climb as far as it goes, and look at the curvature there."""

    def covariance(position: Array) -> tuple[Array, Array]:
        hessian = negative_hessian(log_density, position)
        unit = lax.rsqrt(jnp.maximum(jnp.abs(jnp.diagonal(hessian)), 1e-30))
        values, vectors = jnp.linalg.eigh(
            unit[:, None] * hessian * unit[None]
        )  # of order one: no digits are lost to units
        inverse = (vectors / jnp.maximum(values, 1e-7)[None]) @ vectors.T
        return unit[:, None] * inverse * unit[None], values[0] > 1e-6

    def polish(position: Array, _: Any) -> tuple[Array, None]:
        there = position + covariance(position)[0] @ with_group_sums(jax.grad(log_density))(position)
        return jnp.where(log_density(there) >= log_density(position), there, position), None

    position = climb(log_density, Climb.begin(log_density, position), CLIMBED).position
    position = lax.scan(polish, position, None, POLISHED)[0]
    found, downward = covariance(position)
    gradient = with_group_sums(jax.grad(log_density))(position)
    promised = gradient @ found @ gradient
    return Top(position, jnp.linalg.cholesky(found), downward & (promised < AT_TOP))


class Place(NamedTuple):
    """A place to begin at: a position, and standard deviations there."""

    position: Array
    scale: Array


WIDEST = 10.0
"""The standard deviation where the log density does not curve downward, and the most there is."""


def good_place(log_density: LogDensity, position: Array, key: Array) -> Place:
    """The place of a climb about which a normal of independent coordinates comes closest to the density.

    It is not the top: where a density has no mode, as the joint density of a hierarchy, the climb goes on into a spike
    that holds no mass, and the bound is lower there than it was on the way. All places are judged with the same draws.
    """

    def look(carry: tuple[Climb, Array, Place], count: Array) -> tuple[Any, None]:
        state, best, place = carry
        state = climb(log_density, state, count)
        curved = curvature(log_density, state.position, key)
        scale = widths(curved)
        value = _bound(log_density, Place(state.position, scale), key)
        better = jnp.isfinite(value) & (value > best)
        place = jax.tree.map(lambda a, b: jnp.where(better, a, b), Place(state.position, scale), place)
        return (state, jnp.where(better, value, best), place), None

    begun = Climb.begin(log_density, position)
    # of a place where no normal is any good, narrow scales are all that is safe
    first = Place(position, jnp.full_like(position, 0.1))
    looks = jnp.array(_effort(position.size).looks)
    return lax.scan(look, (begun, jnp.float32(-jnp.inf).astype(begun.value.dtype), first), looks)[0][2]


def widths(curvature: Array) -> Array:
    """Standard deviations of the coordinates where the log density curves so."""
    scale = jnp.where(curvature > WIDEST**-2, lax.rsqrt(jnp.maximum(curvature, WIDEST**-2)), WIDEST)
    return jnp.where(jnp.isfinite(scale), scale, 1.0)


def _bound(log_density: LogDensity, place: Place, key: Array) -> Array:
    """The bound of a normal about a place, but for a constant."""
    draws = _effort(place.position.size).draws
    noise = random.normal(key, (draws // 2, place.position.size), place.position.dtype)
    noise = jnp.concatenate([noise, -noise])

    def draw(number: Array | int) -> Array:
        return place.position + place.scale * noise[number]

    def add(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        # a draw is carried, not made where it is used: the compiler would fuse it with a loop over all data
        total, drawn = carry
        return total + log_density(drawn), draw((number + 1) % draws)

    total, _ = lax.fori_loop(0, draws, add, (jnp.zeros((), place.position.dtype), draw(0)))
    return total / draws + jnp.sum(jnp.log(place.scale))
