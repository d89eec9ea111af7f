r"""Search for initial positions: given values, or random ones near zero, until log density and gradient are finite.

Where data are in raw units, a random position near zero may have a log density of -1e12, which float32 resolves to 1e5.
Chains are then held by rounding: a draw is accepted by the noise of the log density, and the step size shrinks until
positions no longer change. So a chain first climbs from there by resilient propagation, which follows the signs of the
gradient alone and thus works in any units: each coordinate has a step of its own, which grows while the sign stays and
shrinks when it changes. The climb ends where it becomes slow. Given values are not changed. Few runs need a climb, so
it is a program of its own, which is compiled where a start is far.

Source: Igel, Hüsken (2003), Empirical evaluation of the improved Rprop learning algorithms (iRprop-).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from phalanx.density.density import INITIAL_RADIUS, Density
from phalanx.kernels.protocol.kernel import Point
from phalanx.mesh.position import ByVariable, Vector, inner_products
from phalanx.mesh.total import Total

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Key

NEARER_ATTEMPTS = 20
"""Attempts after the first one, nearer to zero each, if a position cannot be used."""

FARTHER_ATTEMPTS = 20
"""Attempts after these, farther from zero each, if a log density was finite and its gradient was not: the gradient of
sqrt(exp(-x)) is not finite near zero once the exponential underflows."""

LARGEST_RADIUS = 10.0
"""Radius of the last attempt."""

LARGEST_ROUNDING = 1.0
"""Largest rounding error of a starting log density, in nats, with which a chain draws without a climb."""

MOST_EVALUATIONS = 300
"""Most evaluations of a climb, which bounds its time; it ends earlier where it becomes slow."""

EVALUATIONS_PER_CHECK = 10
"""Evaluations of a climb after which its speed is checked."""

LEAST_PROGRESS = 0.1
"""Least rise of the log density between two checks, as a fraction of its distance from zero: slower climbs end."""

STEP_GROWTH = 1.5
"""Factor of a coordinate's step where the sign of its gradient stays."""

STEP_DECAY = 0.5
"""Factor of a coordinate's step where the sign of its gradient changes."""

FIRST_STEP = 0.1
"""First step of each coordinate."""

Misfits = dict[str, Array]
"""By variable, true if its given value has no unconstrained position."""

Attempt = tuple[Point, Array, Misfits]
"""A position, true if it can be used, and misfits."""

Carry = tuple[Array, Array, Attempt]
"""Attempts so far, true if a log density was finite, and the last attempt."""


class Given(NamedTuple):
    """Initial values.

    Attributes:
        values: values of every latent variable on the scale of the model, `(chain, ...)`.
        wanted: by variable, true to use its value, false to draw one.
    """

    values: ByVariable
    wanted: ByVariable


class RpropState(NamedTuple):
    """State of a climb by resilient propagation.

    Attributes:
        count: evaluations so far; `MOST_EVALUATIONS` once the climb has ended.
        position: the next position to evaluate.
        best: the highest position, its log density and gradient.
        gradient: the last gradient, zero where its sign had changed.
        steps: length of each coordinate's next step.
        last_height: log density of the best position at the last check of the speed.
    """

    count: Int[Array, ""]
    position: ByVariable
    best: tuple[ByVariable, Total, ByVariable]
    gradient: ByVariable
    steps: ByVariable
    last_height: Float[Array, ""]

    @classmethod
    def at(cls, position: ByVariable, total: Total, gradient: ByVariable) -> RpropState:
        """Begin at a position."""
        steps = jax.tree.map(lambda x: jnp.full_like(x, FIRST_STEP), position)
        zeros = jax.tree.map(jnp.zeros_like, position)
        return cls(jnp.int32(0), position, (position, total, gradient), zeros, steps, total.value)

    def after(self, total: Total, gradient: ByVariable, is_finite: Bool[Array, ""]) -> RpropState:
        """Return the state after an evaluation at `position`."""
        best = _choose(is_finite & (total - self.best[1] > 0), (self.position, total, gradient), self.best)
        turns = jax.tree.map(lambda g, before: jnp.sign(g) * jnp.sign(before), gradient, self.gradient)
        factors = jax.tree.map(
            lambda turn: jnp.where(turn > 0, STEP_GROWTH, jnp.where(turn < 0, STEP_DECAY, 1.0)), turns
        )
        followed = jax.tree.map(lambda g, turn: jnp.where(turn < 0, 0.0, g).astype(g.dtype), gradient, turns)
        # where the log density is not finite, go back and take shorter steps
        factors = jax.tree.map(lambda factor: jnp.where(is_finite, factor, STEP_DECAY**3), factors)
        begin, followed = _choose(is_finite, (self.position, followed), (best[0], best[2]))
        steps = jax.tree.map(lambda step, factor: (step * factor).astype(step.dtype), self.steps, factors)
        position = jax.tree.map(lambda x, g, step: x + jnp.sign(g) * step, begin, followed, steps)
        count = self.count + 1
        height = best[1].value
        is_due = count % EVALUATIONS_PER_CHECK == 0
        is_slow = is_due & (height - self.last_height < LEAST_PROGRESS * jnp.abs(height))
        count = jnp.where(is_slow, MOST_EVALUATIONS, count)
        last_height = jnp.where(is_due, height, self.last_height)
        return RpropState(count, position, best, followed, steps, last_height)


def finite_start(density: Density, needs_gradient: bool, key: Key[Array, ""], start_values: Given) -> Attempt:
    """Return a position with finite log density and gradient, true if the search succeeded, and misfits by variable.

    Without `needs_gradient` only the log density must be finite, and the gradient is empty.
    """
    layout = density.sites.layout
    zeros = density.sites.layout.zeros()

    def missed(carry: Carry) -> Bool[Array, ""]:
        attempt, was_finite, (_, good, _) = carry
        return ~good & (attempt <= NEARER_ATTEMPTS + jnp.where(was_finite, FARTHER_ATTEMPTS, 0))

    def again(carry: Carry) -> Carry:
        attempt, was_finite, _ = carry
        # The radius shrinks from 2 towards 0, where every constrained value is moderate, and then grows from 2.
        grown = INITIAL_RADIUS + (LARGEST_RADIUS - INITIAL_RADIUS) * (attempt - NEARER_ATTEMPTS) / FARTHER_ATTEMPTS
        radius = jnp.where(attempt <= NEARER_ATTEMPTS, INITIAL_RADIUS * (1 - attempt / NEARER_ATTEMPTS), grown)
        position = density.initial_position(random.fold_in(key, attempt), radius)
        last = _evaluate_at(density, needs_gradient, position, start_values)
        return attempt + 1, was_finite | jnp.isfinite(last[0].log_density.value), last

    # the first attempt is made in the loop, too, so that the model is compiled once
    height = jnp.zeros((), jnp.result_type(*zeros.values()))
    no = jnp.zeros((), bool)
    slopes = layout.vector(zeros if needs_gradient else {})
    none = Point(layout.vector(zeros), Total(height, height), slopes), no, dict.fromkeys(zeros, no)
    return lax.while_loop(missed, again, (jnp.int32(0), no, none))[2]


def is_far(log_density: Float[Array, "lanes"]) -> Bool[Array, "lanes"]:
    """Return true for starts whose log density has such rounding errors that its chain could not move."""
    return jnp.abs(log_density) > LARGEST_ROUNDING / jnp.finfo(log_density.dtype).eps


def climbed(density: Density, start: Point, far: Bool[Array, ""], start_values: Given) -> Point:
    """Return the highest position of a climb from a start that is far, or the start."""
    layout = density.sites.layout
    first = RpropState.at(start.position.by_variable(), start.log_density, start.gradient.by_variable())
    first = first.after(start.log_density, start.gradient.by_variable(), jnp.ones((), bool))
    first = first._replace(count=jnp.where(far, first.count, MOST_EVALUATIONS))

    def step(state: RpropState) -> RpropState:
        at, is_finite, _ = _evaluate_at(density, True, state.position, start_values)
        state = state._replace(position=at.position.by_variable())
        return state.after(at.log_density, at.gradient.by_variable(), is_finite)

    position, total, gradient = lax.while_loop(lambda state: state.count < MOST_EVALUATIONS, step, first).best
    return Point(layout.vector(position), total, layout.vector(gradient))


def _evaluate_at(density: Density, needs_gradient: bool, position: ByVariable, start_values: Given) -> Attempt:
    """Return a position with the given values in it, true if it can be used, and misfits."""
    layout = density.sites.layout
    position, misfits = density.at_values(position, start_values.values, start_values.wanted)
    fits = ~jnp.stack([jnp.any(misfit) for misfit in misfits.values()]).any()
    if not needs_gradient:
        total = density.total(position)
        at = Point(layout.vector(position), total, Vector((), layout))
        return at, jnp.isfinite(total.value) & fits, misfits
    total, gradient = density.value_and_grad(position)
    at = Point(layout.vector(position), total, layout.vector(gradient))
    one_lane = jax.tree.map(lambda part: part[:, None], at.gradient)
    (square,) = inner_products(layout.groups, (one_lane, one_lane))
    return at, jnp.isfinite(total.value) & jnp.isfinite(square[0]) & fits, misfits


def _choose(condition: Bool[Array, ""], a: Any, b: Any) -> Any:
    """Return the tree `a` where the condition holds, else `b`."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)
