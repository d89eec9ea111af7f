r"""Tree of a NUTS trajectory: subtrees of 1, 2, 4, ... leapfrogs, each appended to one end of the tree so far.

The trajectory ends where any part of it, with momenta $p_-$ and $p_+$ at its ends, makes a U-turn: it continues as long
as $p_-^\top M^{-1} \rho > 0$ and $p_+^\top M^{-1} \rho > 0$, where $\rho = \int p \, dt$. Under a metric that does not
depend on the position, $M^{-1} \rho$ is the displacement $x_+ - x_-$, to which leapfrogs add up exactly. Using the
positions saves the sum of momenta and any product with the metric.

A trajectory that completes a period shows no U-turn at its ends, which meet. Therefore, where two halves make a tree or
subtree of up to 16 points, the criterion is also checked from the start of the first half to the start of the second,
and from the end of the first half to the end of the second. Longer ones go round at so few step sizes that the checks
would cost more than they save. The checks depend on the size alone, since a trajectory must have the same trees from
each of its points.

The criterion is checked for every subtree of the doubling, in memory logarithmic in its length. When the leaf numbered
n (from 0) is odd, the subtrees that end there began at checkpoints that are still kept: one for each bit of n,
overwritten by the next checkpoint at the same level.

Source: Betancourt (2017), A conceptual introduction to Hamiltonian Monte Carlo, appendix A.4; Hoffman, Gelman (2014),
The No-U-Turn Sampler; Phan, Pradhan, Jankowiak (2019), Composable effects for flexible and accelerated probabilistic
programming in NumPyro, for the iterative form; Stan's pull request #2800 (2019), for the checks across halves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from phalanx.kernels.integrators.leapfrog import PhasePoint
from phalanx.kernels.protocol.kernel import Point
from phalanx.mesh.position import Vector, choose
from phalanx.mesh.random_numbers import uniforms_from
from phalanx.mesh.total import Total

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, UInt32


class Ends(NamedTuple):
    """Position and momentum of points of a trajectory, `(level, coordinate, lane)` or `(coordinate, lane)`."""

    position: Vector
    momentum: Vector

    def spans(self, end: PhasePoint) -> tuple[tuple[Vector, Vector], tuple[Vector, Vector]]:
        """Return the displacement from each point to a point of every lane, with the momentum at either end."""
        position = end.position
        momentum = end.momentum
        if self.position.parts[0].ndim > position.parts[0].ndim:
            position, momentum = (jax.tree.map(lambda part: part[None], x) for x in (position, momentum))
        span = position - self.position
        return (span, self.momentum), (span, momentum)

    def put(self, where: Bool[Array, "levels lanes"], end: PhasePoint) -> Ends:
        """Overwrite the points of some levels with a point of every lane."""

        def choose_new(now: Vector, old_points: Vector) -> Vector:
            return jax.tree.map(lambda x, old: jnp.where(where[:, None], x[None], old), now, old_points)

        return Ends(choose_new(end.position, self.position), choose_new(end.momentum, self.momentum))


CROSS_CHECK_LEVELS = 3
"""Sizes of trees and subtrees, 4, 8 and 16 points, that are also checked across their halves."""


class Checkpoints(NamedTuple):
    """Leaves of the subtree being built with which later leaves are checked for U-turns.

    Attributes:
        starts: the first leaves of subtrees within it that have not ended, by level.
        halves: the last leaf of the latest first half of 2, 4 and 8 leaves, by size.
    """

    starts: Ends
    halves: Ends

    @classmethod
    def none(cls, like: Vector, max_depth: int) -> Checkpoints:
        """Return room for the checkpoints of a tree of this depth."""
        levels = max(1, max_depth - 1)

        def empty(count: int) -> Vector:
            return jax.tree.map(lambda part: jnp.zeros((count, *part.shape), part.dtype), like)

        return cls(Ends(empty(levels), empty(levels)), Ends(empty(CROSS_CHECK_LEVELS), empty(CROSS_CHECK_LEVELS)))

    def with_leaf(self, leaf: Int[Array, "lanes"], end: PhasePoint) -> Checkpoints:
        """Keep the leaf: if even, as a start of subtrees; if odd, as the end of the largest half that ends here."""
        odd, last, num_ended = _slots(leaf)
        starts = ~odd & (_numbers(self.starts) == last)
        halves = _numbers(self.halves) == num_ended - 1
        return Checkpoints(self.starts.put(starts, end), self.halves.put(halves, end))

    def turning(
        self,
        starts: tuple[Float[Array, "levels lanes"], Float[Array, "levels lanes"]],
        halves: tuple[Float[Array, "sizes lanes"], Float[Array, "sizes lanes"]],
        leaf: Int[Array, "lanes"],
        direction: Float[Array, "lanes"],
    ) -> Bool[Array, "lanes"]:
        """Return whether there is a U-turn between this leaf and the checkpoints for which it is due.

        These are the start of each subtree that ends here, the start of the first half of a subtree whose second half
        starts here, and the end of the first half of a subtree that ends here. `starts` and `halves` are the inner
        products of the `spans` from the checkpoints to this leaf, before it is one.
        """
        odd, last, num_ended = _slots(leaf)
        level = _numbers(self.starts)
        ends = odd & (level <= last) & (level > last - num_ended)
        # an even leaf starts the second half of a subtree of up to 16 leaves if it is no multiple of 16
        joins = ~odd & (level == last - 1) & (leaf & (2 ** (CROSS_CHECK_LEVELS + 1) - 1) != 0)[None]
        second = num_ended >= _numbers(self.halves) + 2
        return ((ends | joins) & u_turn(*starts, direction[None])).any(0) | (
            second & u_turn(*halves, direction[None])
        ).any(0)


def _numbers(ends: Ends) -> Int[Array, "kept 1"]:
    """Return the numbers of the points that are kept."""
    return jnp.arange(ends.position.parts[0].shape[0])[:, None]


def _slots(leaf: Int[Array, "lanes"]) -> tuple[Bool[Array, "1 lanes"], Int[Array, "1 lanes"], Int[Array, "1 lanes"]]:
    """Return whether a leaf is odd, the level of the latest start up to it, and the number of subtrees that end at it.

    The level of a start is the number of ones in its number, which differs between starts that are needed together.
    """
    # an odd leaf ends as many subtrees as its number has trailing ones
    num_ended = lax.population_count((leaf ^ (leaf + 1)) >> 1)
    return (leaf & 1 == 1)[None], lax.population_count(leaf >> 1)[None], num_ended[None]


def u_turn(
    start: Float[Array, "*levels lanes"], end: Float[Array, "*levels lanes"], direction: Float[Array, "*#levels lanes"]
) -> Bool[Array, "*levels lanes"]:
    """Return whether either end moves against the displacement, given both inner products and time's direction."""
    return (direction * start <= 0) | (direction * end <= 0)


class Tree(NamedTuple):
    """Tree of every lane.

    Attributes:
        moving_end, fixed_end: the end being extended, and the other.
        energy: at the start of the trajectory.
        sample, sample_error: the draw so far, and its energy less that of the start. At depth 0 `sample` is that of an
            earlier trajectory, and `join_subtree` takes the start instead.
        log_weight: log of the sum of exp(-error) over the tree.
        depth: doublings done.
        step_size: of this trajectory; one step size from its start to its end.
        direction: 1 or -1, the direction of time in the subtree being built.
        leaf: leapfrogs of the subtree done.
        candidate, candidate_error: the draw of the subtree, and its energy less that of the start.
        candidate_log_weight: log of the sum of exp(-error) over the subtree.
        checkpoints: the leaves at which subtrees within the subtree, and their second halves, begin.
        joint: the end of the tree at which the subtree is attached.
        turning_at_join: whether there is a U-turn between the far end of the tree and the first leaf of the subtree.
    """

    moving_end: PhasePoint
    fixed_end: PhasePoint
    energy: Total
    sample: Point
    sample_error: Float[Array, "lanes"]
    log_weight: Float[Array, "lanes"]
    depth: Int[Array, "lanes"]
    step_size: Float[Array, "lanes"]
    direction: Float[Array, "lanes"]
    leaf: Int[Array, "lanes"]
    candidate: Point
    candidate_error: Float[Array, "lanes"]
    candidate_log_weight: Float[Array, "lanes"]
    checkpoints: Checkpoints
    joint: Ends
    turning_at_join: Bool[Array, "lanes"]

    @classmethod
    def none(cls, at: Point, max_depth: int) -> Tree:
        """Return room for trees that begin at a point."""
        zero = jnp.zeros_like(at.log_density.fine)
        count = jnp.zeros(zero.shape, jnp.int32)
        phase = PhasePoint(at.position, at.position, at.log_density, at.gradient)
        return cls(
            moving_end=phase,
            fixed_end=phase,
            energy=Total(zero, zero),
            sample=at,
            sample_error=zero,
            log_weight=zero,
            depth=count,
            step_size=zero + 1,
            direction=zero + 1,
            leaf=count,
            candidate=at,
            candidate_error=zero,
            candidate_log_weight=zero,
            checkpoints=Checkpoints.none(at.position, max_depth),
            joint=Ends(at.position, at.position),
            turning_at_join=count > 0,
        )

    def start(
        self,
        fresh: Bool[Array, "lanes"],
        at: Point,
        momentum: Vector,
        energy: Total,
        step_size: Float[Array, ""] | Float[Array, "lanes"],
    ) -> Tree:
        """Begin a new tree at a point in the lanes that are fresh."""
        start = PhasePoint(at.position, momentum, at.log_density, at.gradient)
        return self._replace(
            moving_end=choose(fresh, start, self.moving_end),
            fixed_end=choose(fresh, start, self.fixed_end),
            energy=choose(fresh, energy, self.energy),
            step_size=jnp.where(fresh, step_size, self.step_size),
        )

    def choose_direction(self, word: UInt32[Array, "lanes"]) -> Tree:
        """At the first leaf of a subtree, choose the direction of time at random, and with it the end to extend."""
        # the lowest bit: the upper ones of this word make a uniform
        forward = jnp.where(word & 1 == 1, 1.0, -1.0).astype(self.direction.dtype)
        direction = jnp.where(self.leaf == 0, forward, self.direction)
        swap = direction != self.direction
        moving_end = choose(swap, self.fixed_end, self.moving_end)
        fixed_end = choose(swap, self.moving_end, self.fixed_end)
        joint = choose(self.leaf == 0, Ends(moving_end.position, moving_end.momentum), self.joint)
        return self._replace(moving_end=moving_end, fixed_end=fixed_end, direction=direction, joint=joint)

    def with_leaf(self, end: PhasePoint, error: Float[Array, "lanes"], word: UInt32[Array, "lanes"]) -> Tree:
        """Add a leaf to the subtree, which is its candidate with probability proportional to exp(-error)."""
        before = jnp.where(self.leaf == 0, -jnp.inf, self.candidate_log_weight)
        log_weight = jnp.logaddexp(before, -error)
        take = uniform_of(word, log_weight) < jnp.exp(-error - log_weight)
        leaf = Point(end.position, end.log_density, end.gradient)
        return self._replace(
            moving_end=end,
            checkpoints=self.checkpoints.with_leaf(self.leaf, end),
            candidate=choose(take, leaf, self.candidate),
            candidate_error=jnp.where(take, error, self.candidate_error),
            candidate_log_weight=log_weight,
        )

    def join_subtree(self, where: Bool[Array, "lanes"], start: Point, word: UInt32[Array, "lanes"]) -> Tree:
        """Join the subtree to the tree in some lanes; its candidate is the draw with a preference for later doublings.

        The trajectory began at `start`.
        """
        odds = jnp.exp(self.candidate_log_weight - self.log_weight)
        take = where & (uniform_of(word, self.log_weight) < odds)
        together = jnp.logaddexp(self.log_weight, self.candidate_log_weight)
        return self._replace(
            sample=choose(take, self.candidate, choose(self.depth == 0, start, self.sample)),
            sample_error=jnp.where(take, self.candidate_error, self.sample_error),
            log_weight=jnp.where(where, together, self.log_weight),
            depth=self.depth + where,
        )

    def after(self, subtree_ended: Bool[Array, "lanes"], at_rest: Bool[Array, "lanes"]) -> Tree:
        """Return the tree with which the next tick begins."""

        def kept(value: Array) -> Array:
            return jnp.where(at_rest, jnp.zeros_like(value), value)

        return self._replace(
            sample_error=kept(self.sample_error),
            log_weight=kept(self.log_weight),
            depth=kept(self.depth),
            leaf=jnp.where(subtree_ended | at_rest, 0, self.leaf + 1),
        )


def uniform_of(word: UInt32[Array, "lanes"], like: Float[Array, "lanes"]) -> Float[Array, "lanes"]:
    """Return a uniform on [0, 1) made of a random word."""
    return uniforms_from((word, jnp.zeros_like(word)), like.dtype)
