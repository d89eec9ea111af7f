"""Climbs to where a log density is high, by L-BFGS, and its curvature on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from phalanx.jaxprs.group_sums import with_group_sums
from phalanx.mesh.total import Total

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Integer

MEMORY = 8
"""Steps from which the curvature is estimated."""

HALVINGS, SHORTER = 12, 0.4
"""Times that a step which gains too little is shortened before it is given up, and the factor."""

ARMIJO = 1e-4
"""Fraction of the gain promised by the gradient that a step must make."""

OFF_ZERO = 1e-3
"""Greatest distance from zero at which coordinates at zero begin a climb."""

LANES = 8
"""Columns of a Hessian that are computed at once: as many as a fit has particles, so that memory suffices."""

EXACT = 256
"""Number of coordinates up to which the diagonal of the Hessian is computed; beyond, it is estimated."""

ASIDE = 0.1
"""Standard deviations of the density between a position and the gradients whose difference is a Hessian's product."""


class Effort(NamedTuple):
    """Effort of the search for a starting point.

    Attributes:
        looks: steps of a climb before each evaluation of a normal about the position.
        probes: random vectors that estimate the diagonal of a Hessian.
        draws: draws of a normal that estimate its bound.
    """

    looks: tuple[int, ...]
    probes: int
    draws: int


MANY = 2**14
"""Number of coordinates from which on `OF_MANY` applies."""

USUAL, OF_MANY = Effort((0, 5, 5, 10, 20, 40), 32, 16), Effort((20, 40), 4, 4)
"""With many coordinates an evaluation takes as long as a dozen steps of a fit, and sums over them have little noise."""


def _effort(size: int) -> Effort:
    return USUAL if size < MANY else OF_MANY


LogDensity = Callable[[Array], Array]
"""Log density: of a position `(coordinate,)` a scalar."""

Densities = Callable[[Array], list[Total]]
"""Terms of a log density: of a position `(coordinate,)` a scalar each."""


class Climb(NamedTuple):
    """State of a climb.

    Attributes:
        position, value, gradient: position, log density and gradient after the last step.
        steps, changes: the latest steps, and the changes of the gradient, oldest first.
        curved: True for steps along which the density curves downward, as at a mode.
        moved: True if the last step gained something.
        gradients: number of gradients that were computed.
    """

    position: Float[Array, "coordinate"]
    value: Float[Array, ""]
    gradient: Float[Array, "coordinate"]
    steps: Float[Array, "memory coordinate"]
    changes: Float[Array, "memory coordinate"]
    curved: Bool[Array, "memory"]
    moved: Bool[Array, ""]
    gradients: Integer[Array, ""] | np.int32 = np.int32(1)

    @classmethod
    def begin(cls, log_density: LogDensity, position: Float[Array, "coordinate"]) -> Climb:
        """Return the state before the first step, with coordinates at zero moved a little off it.

        At zero the gradient of a maximum is one of two, and that of a product of two coordinates vanishes.
        """
        off = random.uniform(random.key(0), position.shape, position.dtype, -OFF_ZERO, OFF_ZERO)
        position = jnp.where(position == 0.0, off, position)
        value, gradient = with_group_sums(jax.value_and_grad(log_density))(position)
        none = jnp.zeros((MEMORY, position.size), position.dtype)
        return cls(position, value, gradient, none, none, jnp.zeros(MEMORY, bool), jnp.bool_(True))


class Trial(NamedTuple):
    """Candidate for a step: its position, value and gradient there, and whether it gains enough."""

    position: Float[Array, "coordinate"]
    value: Float[Array, ""]
    gradient: Float[Array, "coordinate"]
    gains: Bool[Array, ""]


def climb(log_density: LogDensity, state: Climb, count: Integer[Array, ""] | int) -> Climb:
    """Make at most `count` steps more.

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
    # without an estimate of the curvature, a step of length one at most
    first = 1.0 / jnp.maximum(1.0, jnp.linalg.norm(direction))
    length = jnp.where(jnp.any(at.curved) & uphill, 1.0, first)

    def tried(length: Array) -> Trial:
        position = at.position + length * direction
        value, gradient = with_group_sums(jax.value_and_grad(log_density))(position)
        gains = jnp.isfinite(value) & (value >= at.value + ARMIJO * length * slope)
        return Trial(position, value, gradient, gains)

    def shorter(carry: tuple[Array, Trial]) -> tuple[Array, Trial]:
        # with the gradient, which the first trial mostly needs: by itself it would be compiled once more
        return carry[0] + 1, tried(length * SHORTER ** carry[0])

    untried = jnp.int32(0), Trial(at.position, at.value, at.gradient, jnp.bool_(False))
    tries, trial = lax.while_loop(lambda carry: (carry[0] <= HALVINGS) & ~carry[1].gains, shorter, untried)
    position = trial.position
    value = trial.value
    gradient = trial.gradient
    usable = trial.gains & jnp.all(jnp.isfinite(gradient))
    step = position - at.position
    change = at.gradient - gradient
    curved = usable & (step @ change > 1e-10 * (step @ step))

    def roll(old: Array, new: Array) -> Array:
        return jnp.where(curved, jnp.concatenate([old[1:], new[None]]), old)

    has_moved = usable & (value - at.value > 1e-7 * (1.0 + jnp.abs(value)))
    gradients = at.gradients + tries
    there = Climb(
        position,
        value,
        gradient,
        roll(at.steps, step),
        roll(at.changes, change),
        roll(at.curved, curved),
        has_moved,
        gradients,
    )
    stayed = at._replace(moved=jnp.bool_(False), gradients=gradients)
    return jax.tree.map(lambda a, b: jnp.where(usable, a, b), there, stayed)


def inverse_times(at: Climb, vector: Float[Array, "coordinate"]) -> Float[Array, "coordinate"]:
    """Return the estimate of the inverse of the negative Hessian, times a vector (the two-loop recursion)."""
    safe = jnp.where(at.curved, jnp.sum(at.steps * at.changes, 1), 1.0)
    weight = jnp.where(at.curved, 1.0 / safe, 0.0)

    def back(q: Array, i: Array) -> tuple[Array, Array]:
        alpha = weight[i] * (at.steps[i] @ q)
        return q - alpha * at.changes[i], alpha

    newest_first = jnp.arange(MEMORY)[::-1]
    q, alphas = lax.scan(back, vector, newest_first)
    last = jnp.where(at.curved[-1], safe[-1] / jnp.maximum(at.changes[-1] @ at.changes[-1], 1e-30), 1.0)

    def forth(r: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
        i, alpha = pair
        return r + at.steps[i] * (alpha - weight[i] * (at.changes[i] @ r)), None

    return lax.scan(forth, last * q, (newest_first[::-1], alphas[::-1]))[0]


def curvature(log_density: LogDensity, position: Float[Array, "coordinate"], key: Array) -> Float[Array, "coordinate"]:
    """Return the diagonal of the negative Hessian: exact for few coordinates, estimated for many.

    An estimate is no smaller than its own error: one that is small by chance would suggest that the density is flat.
    """
    times = hessian_at(log_density, position)
    size = position.size
    if size <= EXACT:
        return _in_lanes(lambda i: -times(jnp.zeros(size, position.dtype).at[i].set(1.0))[i], size)

    def probe(key: Array) -> Array:
        signs = random.rademacher(key, (size,), position.dtype)
        return signs * -times(signs)

    probes = _effort(size).probes
    curvatures = lax.map(probe, random.split(key, probes))
    return jnp.maximum(jnp.abs(jnp.mean(curvatures, 0)), jnp.sqrt(jnp.mean(curvatures**2, 0) / probes))


def hessian_at(log_density: LogDensity, position: Float[Array, "coordinate"]) -> Callable[[Array], Array]:
    """Return the product of the Hessian at a position with a vector, as a function of the vector."""
    return derivative_at(with_group_sums(jax.grad(log_density)), position)


def derivative_at(
    gradient: Callable[[Array], Float[Array, "value"]], position: Float[Array, "coordinate"]
) -> Callable[[Float[Array, "coordinate"]], Float[Array, "value"]]:
    """Return the derivative of a gradient at a position along a vector, as a function of the vector.

    Code with a derivative rule of its own may have no forward mode: ODE solvers whose gradient is another solve, or
    callbacks. Central differences of its gradients then replace it.

    Args:
        gradient: function that returns the gradient of a log density, and possibly other values after it.
        position: point at which the derivative is computed.
    """

    def times(vector: Array) -> Array:
        try:
            return jax.jvp(gradient, (position,), (vector,))[1]
        except (TypeError, ValueError, NotImplementedError):  # if the gradient fails too, its own error follows
            return _difference(gradient, position, vector)

    return times


def _difference(
    gradient: Callable[[Array], Array], position: Float[Array, "coordinate"], vector: Float[Array, "coordinate"]
) -> Float[Array, "value"]:
    """Return the derivative of a gradient along a vector by central differences.

    The first difference shows the curvature, from which the second takes its step: a fraction of the standard deviation
    along the vector.

    Source:
        Gill, Murray, Saunders, Wright (1983), Computing forward-difference intervals for numerical optimization.
    """
    eps = jnp.finfo(position.dtype).eps
    length = jnp.linalg.norm(vector)
    unit = vector / jnp.where(length > 0, length, 1.0)
    size = jnp.abs(unit) @ jnp.abs(position)
    sides = jnp.array([1.0, -1.0], position.dtype)

    def refine(step: Array, _: None) -> tuple[Array, Array]:
        high, low = jax.vmap(gradient)(position[None] + step * sides[:, None] * unit[None])
        slope = (high - low) / (2.0 * step)
        curvature = jnp.abs(unit @ slope[: position.size])
        best_step = ASIDE * lax.rsqrt(jnp.maximum(curvature, WIDEST**-2))
        best_step = jnp.where(jnp.isfinite(curvature), best_step, ASIDE * step)
        return jnp.maximum(best_step, 100.0 * eps * size), slope

    first = eps ** (1.0 / 3.0) * jnp.maximum(1.0, size)
    _, slopes = lax.scan(refine, first.astype(position.dtype), None, 2)
    return length * slopes[-1]


def negative_hessian(
    log_density: LogDensity, position: Float[Array, "coordinate"]
) -> Float[Array, "coordinate coordinate"]:
    """Return the negative Hessian."""
    times = hessian_at(log_density, position)
    size = position.size
    hessian = _in_lanes(lambda i: -times(jnp.zeros(size, position.dtype).at[i].set(1.0)), size)
    return 0.5 * (hessian + hessian.T)


def _in_lanes(f: Callable[[Array], Array], count: int) -> Array:
    """Return `f` of 0, 1, ... up to `count`, several at once: one pass over the data serves them all."""
    lanes = min(LANES, count)
    numbers = jnp.arange(-(-count // lanes) * lanes).reshape(-1, lanes)
    results = lax.map(jax.vmap(f), jnp.minimum(numbers, count - 1))
    return results.reshape(-1, *results.shape[2:])[:count]


class Top(NamedTuple):
    """Top of a climb.

    Attributes:
        position: position of the highest density.
        scale_tril: Cholesky factor of the inverse of the negative Hessian.
        reached: True at a maximum: the gradient vanishes, and the density curves downward in every direction.
    """

    position: Float[Array, "coordinate"]
    scale_tril: Float[Array, "coordinate coordinate"]
    reached: Bool[Array, ""]


CLIMBED, POLISHED = 2000, 3
"""Steps of a climb at most, and Newton steps after it."""

AT_TOP = 1e-2
"""Gain in nats that a Newton step may still promise at a top: a tenth of a standard deviation away."""


def climb_to_top(log_density: LogDensity, position: Float[Array, "coordinate"]) -> Top:
    """Climb as far as it goes, and compute the Hessian there."""

    def covariance(position: Array) -> tuple[Array, Array]:
        hessian = negative_hessian(log_density, position)
        unit = lax.rsqrt(jnp.maximum(jnp.abs(jnp.diagonal(hessian)), 1e-30))
        # of order one, so that no digits are lost to units
        values, vectors = jnp.linalg.eigh(unit[:, None] * hessian * unit[None])
        inverse = (vectors / jnp.maximum(values, 1e-7)[None]) @ vectors.T
        return unit[:, None] * inverse * unit[None], values[0] > 1e-6

    def polish(position: Array, _: None) -> tuple[Array, None]:
        there = position + covariance(position)[0] @ with_group_sums(jax.grad(log_density))(position)
        return jnp.where(log_density(there) >= log_density(position), there, position), None

    position = climb(log_density, Climb.begin(log_density, position), CLIMBED).position
    position = lax.scan(polish, position, None, POLISHED)[0]
    matrix, downward = covariance(position)
    gradient = with_group_sums(jax.grad(log_density))(position)
    predicted_gain = gradient @ matrix @ gradient
    return Top(position, jnp.linalg.cholesky(matrix), downward & (predicted_gain < AT_TOP))


class StartingPoint(NamedTuple):
    """Position to begin at, with standard deviations of the coordinates there."""

    position: Float[Array, "coordinate"]
    scale: Float[Array, "coordinate"]


WIDEST = 10.0
"""The greatest standard deviation, used where the log density does not curve downward."""


def find_starting_point(log_density: LogDensity, position: Float[Array, "coordinate"], key: Array) -> StartingPoint:
    """Return the position of a climb about which a normal of independent coordinates has the greatest bound.

    It is not the top: where a density has no mode, as the joint density of a hierarchy, the climb continues into a
    spike that holds no mass, and the bound falls. All positions are judged with the same draws.
    """

    def look(carry: tuple[Climb, Array, StartingPoint], count: Array) -> tuple[Any, None]:
        state, best, point = carry
        state = climb(log_density, state, count)
        curved = curvature(log_density, state.position, key)
        scale = widths(curved)
        value = _bound(log_density, StartingPoint(state.position, scale), key)
        better = jnp.isfinite(value) & (value > best)
        point = jax.tree.map(lambda a, b: jnp.where(better, a, b), StartingPoint(state.position, scale), point)
        return (state, jnp.where(better, value, best), point), None

    first_climb = Climb.begin(log_density, position)
    # narrow scales are safe where no normal fits
    first = StartingPoint(position, jnp.full_like(position, 0.1))
    looks = jnp.array(_effort(position.size).looks)
    return lax.scan(look, (first_climb, jnp.float32(-jnp.inf).astype(first_climb.value.dtype), first), looks)[0][2]


def widths(curvature: Float[Array, "coordinate"]) -> Float[Array, "coordinate"]:
    """Return the standard deviations of the coordinates of a log density with this curvature."""
    scale = jnp.where(curvature > WIDEST**-2, lax.rsqrt(jnp.maximum(curvature, WIDEST**-2)), WIDEST)
    return jnp.where(jnp.isfinite(scale), scale, 1.0)


def _bound(log_density: LogDensity, point: StartingPoint, key: Array) -> Array:
    """Return the bound of a normal about a point, up to a constant."""
    draws = _effort(point.position.size).draws
    noise = random.normal(key, (draws // 2, point.position.size), point.position.dtype)
    noise = jnp.concatenate([noise, -noise])

    def draw(number: Array | int) -> Array:
        return point.position + point.scale * noise[number]

    def add(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        # a draw is carried: XLA would fuse its computation with a loop over all data
        total, draw_here = carry
        return total + log_density(draw_here), draw((number + 1) % draws)

    total, _ = lax.fori_loop(0, draws, add, (jnp.zeros((), point.position.dtype), draw(0)))
    return total / draws + jnp.sum(jnp.log(point.scale))
