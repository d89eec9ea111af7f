r"""Tree of a NUTS trajectory: subtrees of 1, 2, 4, ... leapfrogs, each appended to one end of the tree so far.

The trajectory ends where any part of it, with momenta $p_-$ and $p_+$ at its ends, makes a U-turn: it continues as long
as $p_-^\top M^{-1} \rho > 0$ and $p_+^\top M^{-1} \rho > 0$, where $\rho = \int p \, dt$. Under a metric that does not
depend on the position, $M^{-1} \rho$ is the displacement $x_+ - x_-$, to which leapfrogs add up exactly. Using the
positions saves the sum of momenta and any product with the metric.

The criterion is checked for every subtree of the doubling, in memory logarithmic in its length. When the leaf numbered
n (from 0) is odd, the subtrees that end there began at checkpoints that are still kept: one for each bit of n,
overwritten by the next checkpoint at the same level.

Source: Betancourt (2017), A conceptual introduction to Hamiltonian Monte Carlo, appendix A.4; Hoffman, Gelman (2014),
The No-U-Turn Sampler; Phan, Pradhan, Jankowiak (2019), Composable effects for flexible and accelerated probabilistic
programming in NumPyro, for the iterative form.
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


class Checkpoints(NamedTuple):
    """Position and momentum where subtrees of the subtree being built begin, `(level, coordinate, lane)`."""

    position: Vector
    momentum: Vector

    @classmethod
    def none(cls, like: Vector, max_depth: int) -> Checkpoints:
        """Return room for the checkpoints of a tree of this depth."""
        levels = max(1, max_depth - 1)
        empty = jax.tree.map(lambda part: jnp.zeros((levels, *part.shape), part.dtype), like)
        return cls(empty, empty)

    def with_leaf(self, leaf: Int[Array, "lanes"], end: PhasePoint) -> Checkpoints:
        """Keep the leaf if it is even: subtrees begin with it."""
        level = jnp.arange(self.position.parts[0].shape[0])[:, None]
        begins = (leaf & 1 == 0)[None] & (level == lax.population_count(leaf >> 1)[None])

        def put(now: Vector, kept: Vector) -> Vector:
            return jax.tree.map(lambda x, old: jnp.where(begins[:, None], x[None], old), now, kept)

        return Checkpoints(put(end.position, self.position), put(end.momentum, self.momentum))

    def spans(self, end: PhasePoint) -> list[tuple[Vector, Vector]]:
        """Return the displacement from each checkpoint to this leaf, with the momentum at either end."""
        position, momentum = (jax.tree.map(lambda part: part[None], x) for x in (end.position, end.momentum))
        span = position - self.position
        return [(span, self.momentum), (span, momentum)]

    def turning(
        self,
        start: Float[Array, "levels lanes"],
        end: Float[Array, "levels lanes"],
        leaf: Int[Array, "lanes"],
        direction: Float[Array, "lanes"],
    ) -> Bool[Array, "lanes"]:
        """Return whether a subtree that ends at this leaf has turned, given the inner products of `spans`."""
        level = jnp.arange(start.shape[0])[:, None]
        last = lax.population_count(leaf >> 1)
        # an odd leaf ends as many subtrees as its number has trailing ones
        trailing = lax.population_count((leaf ^ (leaf + 1)) >> 1)
        ends = (leaf & 1 == 1)[None] & (level <= last[None]) & (level > (last - trailing)[None])
        return (ends & u_turn(start, end, direction[None])).any(0)


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
        sample, sample_error: the draw so far, and its energy less that of the start. At depth 0 that is the start, and
            `sample` is not yet set.
        log_weight: log of the sum of exp(-error) over the tree.
        depth: doublings done.
        step_size: of this trajectory; one step size from its start to its end.
        direction: 1 or -1, the direction of time in the subtree being built.
        leaf: leapfrogs of the subtree done.
        candidate, candidate_error: the draw of the subtree, and its energy less that of the start.
        candidate_log_weight: log of the sum of exp(-error) over the subtree.
        checkpoints: the leaves at which subtrees within the subtree begin.
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

    @classmethod
    def none(cls, at: Point, max_depth: int) -> Tree:
        """Return room for trees that begin at a point."""
        zero = jnp.zeros_like(at.log_density.fine)
        count = jnp.zeros(zero.shape, jnp.int32)
        phase = PhasePoint(at.position, at.position, at.log_density, at.gradient)
        return cls(
            moving_end=phase, fixed_end=phase, energy=Total(zero, zero), sample=at, sample_error=zero, log_weight=zero,
            depth=count, step_size=zero + 1, direction=zero + 1, leaf=count, candidate=at, candidate_error=zero,
            candidate_log_weight=zero, checkpoints=Checkpoints.none(at.position, max_depth),
        )  # fmt: skip

    def begun(
        self, fresh: Bool[Array, "lanes"], at: Point, momentum: Vector, energy: Total,
        step_size: Float[Array, ""] | Float[Array, "lanes"],
    ) -> Tree:  # fmt: skip
        """Begin a new tree at a point in the lanes that are fresh."""
        start = PhasePoint(at.position, momentum, at.log_density, at.gradient)
        return self._replace(
            moving_end=choose(fresh, start, self.moving_end),
            fixed_end=choose(fresh, start, self.fixed_end),
            energy=choose(fresh, energy, self.energy),
            step_size=jnp.where(fresh, step_size, self.step_size),
        )

    def directed(self, word: UInt32[Array, "lanes"]) -> Tree:
        """At the first leaf of a subtree, choose the direction of time at random, and with it the end to extend."""
        # the lowest bit: the upper ones of this word make a uniform
        forward = jnp.where(word & 1 == 1, 1.0, -1.0).astype(self.direction.dtype)
        direction = jnp.where(self.leaf == 0, forward, self.direction)
        swap = direction != self.direction
        moving_end = choose(swap, self.fixed_end, self.moving_end)
        fixed_end = choose(swap, self.moving_end, self.fixed_end)
        return self._replace(moving_end=moving_end, fixed_end=fixed_end, direction=direction)

    def with_leaf(self, end: PhasePoint, error: Float[Array, "lanes"], word: UInt32[Array, "lanes"]) -> Tree:
        """Add a leaf to the subtree, which is its candidate with probability proportional to exp(-error)."""
        before = jnp.where(self.leaf == 0, -jnp.inf, self.candidate_log_weight)
        log_weight = jnp.logaddexp(before, -error)
        take = uniform_of(word, log_weight) < jnp.exp(-error - log_weight)
        leaf = Point(end.position, end.log_density, end.gradient)
        return self._replace(
            moving_end=end,
            candidate=choose(take, leaf, self.candidate),
            candidate_error=jnp.where(take, error, self.candidate_error),
            candidate_log_weight=log_weight,
        )

    def doubled(self, where: Bool[Array, "lanes"], start: Point, word: UInt32[Array, "lanes"]) -> Tree:
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
