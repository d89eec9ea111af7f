"""Markov moves of draws: a check for tails that a guide misses, which its importance weights cannot reveal.

Draws chosen by their importance weights are draws of the posterior if the weights are right. Hybrid Monte Carlo keeps
the posterior invariant, so that a few moves leave all averages as they are; if the guide misses a tail, the moves carry
draws into it, and averages drift. Draws of the guide itself drift towards the posterior.

Source:
    Gorham, Mackey (2017), Measuring sample quality with kernels, for the idea that a kernel with the target invariant
    measures a sample; Duane, Kennedy, Pendleton, Roweth (1987), Hybrid Monte Carlo, for the moves; Neal (2011),
    MCMC using Hamiltonian dynamics, for the random lengths of their steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from phalanx.jaxprs.group_sums import with_group_sums
from phalanx.learning.ascent import LogDensity
from phalanx.learning.compiled import Compiled
from phalanx.mesh.specs import PyTree
from phalanx.programs.unconstrained import Evaluation
from phalanx.variational.drawing import STREAM, Drawing, on_host
from phalanx.variational.guides.coordinates import flat
from phalanx.variational.guides.guide_and_model import key_of, log_weight, position_of
from phalanx.variational.guides.learned import Params

if TYPE_CHECKING:
    from jaxtyping import Float, UInt32

MOVES = 8
"""Moves of each draw."""

LEAPS = 4
"""Leapfrog steps of a move, each of which takes a gradient."""

ACCEPTED = 0.75
"""Acceptance rate that the step size is tuned to."""

GAIN = 1.0
"""Change of the logarithm of the step size per unit of the acceptance rate."""

MOVED = 0x6D6F7665
"""Distinguishes the keys of moves from those of draws."""

DENSE = 64
"""Coordinates up to which the metric is the covariance of the draws; beyond, their standard deviations."""

COUNTS = ((2**14, 4096), (2**18, 1024))
"""Cost of a log density, with the elements of a draw, and number of draws to move up to there."""

FEWEST_DRAWS = 512
"""Number of draws to move beyond the costs in `COUNTS`."""

FEW_NUMBERS = 2**16
"""Cost of a log density up to which gradients of `LANES_OF_FEW` draws are computed at once; beyond, of `LANES`."""

LANES_OF_FEW = 64
"""Draws whose gradients are computed at once if a log density is cheap."""

LANES = 8
"""Draws whose gradients are computed at once if a log density is expensive."""

T = TypeVar("T")


class Moved(NamedTuple):
    """Draws before and after the moves.

    Attributes:
        parents: index of the draw at which each started.
        draws: values of all draws by variable, `(draw, ...)`.
        after: values after the moves by variable, `(moved, ...)`.
        log_after: logarithms of the importance weights after the moves.
        acceptance: mean acceptance rate of the last moves.
    """

    parents: UInt32[np.ndarray, "moved"]
    draws: dict[str, np.ndarray]
    after: dict[str, np.ndarray]
    log_after: Float[np.ndarray, "moved"]
    acceptance: float

    def mean_and_error(
        self, changes: Float[np.ndarray, "moved ..."]
    ) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
        """Return the mean of `changes` and its standard error; changes from one parent count as one observation."""
        mean = changes.mean(0)
        sums = changes - mean
        order = np.argsort(self.parents, kind="stable")
        first = np.unique(self.parents[order], return_index=True)[1]
        if len(first) < len(order):
            sums = np.add.reduceat(sums[order], first, axis=0)
        return mean, np.sqrt((sums**2).sum(0)) / len(changes)


@dataclass(frozen=True)
class Mover:
    """Moves of a guide's draws by Hybrid Monte Carlo on the posterior."""

    drawing: Drawing

    @property
    def count(self) -> int:
        """Number of draws to move."""
        position = jax.tree.leaves(self.drawing.pair.problem.whole.position)
        cost = self.drawing.cost + sum(math.prod(leaf.shape) for leaf in position)
        return next((count for most, count in COUNTS if cost <= most), FEWEST_DRAWS)

    @cached_property
    def _compiled(self) -> Compiled:
        drawing = self.drawing
        arguments = drawing.free, np.uint32(0), np.uint32(0), np.zeros(self._batch, np.uint32), drawing.arrays
        return drawing.compiler(
            self._moved, *arguments, identity=key_of(drawing.pair, "moves", self.count), rarely=True
        )

    @property
    def _batch(self) -> int:
        return min(self.drawing.room, self.count)  # densities of a batch are evaluated in lanes

    def move(
        self,
        seed: int,
        values: dict[str, np.ndarray],
        log: Float[np.ndarray, "draw"],
        weights: Float[np.ndarray, "draw"],
    ) -> Moved:
        """Move draws chosen by weights from a guide's draws.

        Args:
            seed: seed of the draws.
            values: values of the draws, by variable.
            log: their log importance weights.
            weights: weights that they are chosen by; they add up to one.
        """
        # stratified: one point in each of `count` equal parts adds less noise than independent points
        points = (np.arange(self.count) + np.random.default_rng(STREAM).random(self.count)) / self.count
        parents = np.minimum(np.searchsorted(np.cumsum(weights), points), len(weights) - 1).astype(np.uint32)
        rates = []

        def batches() -> Iterator[tuple[tuple[dict[str, Array], Array], int]]:
            for first in range(0, len(parents), self._batch):
                part = parents[first : first + self._batch]
                full_batch = np.resize(part, self._batch)
                which = np.uint32(seed), np.uint32(first)
                after, logs, rate = self._compiled(self.drawing.free, *which, full_batch, self.drawing.arrays)
                rates.append(float(rate))
                yield (after, logs), len(part)

        after, logs = jax.tree.map(np.asarray, on_host(batches(), len(parents)))
        return Moved(parents, values, after, logs.astype(float), float(np.mean(rates)))

    def _moved(
        self, free: Params, seed: Array, first: Array, numbers: UInt32[Array, "moved"], arrays: Sequence[Array]
    ) -> tuple[dict[str, Array], Float[Array, "moved"], Float[Array, ""]]:
        pair = self.drawing.pair
        data = pair.problem.arguments.join(arrays)
        base = random.fold_in(random.key(seed), STREAM)

        def run() -> tuple[dict[str, Array], Array, Array]:
            params = pair.learned.constrain(free)

            def position(number: Array) -> dict[str, Array]:
                draw = pair.draw(params, pair.noise(random.fold_in(base, number)), data)
                return dict(position_of(pair, params, draw, data))

            positions = jax.vmap(position)(numbers)
            vectors = jax.vmap(lambda one: flat(one)[0])(positions)
            _, back = flat(jax.tree.map(lambda leaf: leaf[0], positions))

            def at(vector: Array) -> Evaluation:
                return pair.problem.at_position(params, back(vector), data)

            key = random.fold_in(random.fold_in(base, MOVED), first)
            new_vectors, rate = hybrid(lambda vector: at(vector).log_density(), vectors, key, self._lanes)

            def weighted(vector: Array) -> tuple[dict[str, Array], Array]:
                run = at(vector)
                return run.values(), log_weight(pair, params, run, data)

            return *in_lanes(weighted, new_vectors, self._lanes), rate

        return pair.problem.alone(run)

    @property
    def _lanes(self) -> int:
        return min(lanes_of(self.drawing), self._batch)


def lanes_of(drawing: Drawing) -> int:
    """Return the number of draws whose gradients are computed at once."""
    return LANES_OF_FEW if drawing.cost <= FEW_NUMBERS else LANES


def in_lanes(f: Callable[..., T], rows: PyTree, lanes: int) -> T:
    """Map `f` over rows, `lanes` at once."""
    parted = jax.tree.map(lambda leaf: leaf.reshape(-1, lanes, *leaf.shape[1:]), rows)
    results = lax.map(jax.vmap(f), parted)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), results)


def hybrid(
    log_density: LogDensity, vectors: Float[Array, "draw coordinate"], key: Array, lanes: int
) -> tuple[Float[Array, "draw coordinate"], Float[Array, ""]]:
    """Return vectors after `MOVES` moves each, and the acceptance rate of the last moves.

    All draws share a metric, their covariance (beyond `DENSE` coordinates their variances), and a step size, which is
    tuned as they move.
    """
    count, size = vectors.shape
    deviations = vectors - jnp.mean(vectors, 0, keepdims=True)
    variance = jnp.mean(deviations**2, 0)
    variance = jnp.where(variance > 0, variance, 1.0)
    unit = jnp.sqrt(variance)
    root = None
    if size <= DENSE:
        part = count / (count + 5.0)  # shrinks correlations, which are noise in few draws
        standard = deviations / unit[None]
        correlation = standard.T @ standard / count
        root = jnp.linalg.cholesky(part * correlation + (1.0 - part) * jnp.eye(size, dtype=vectors.dtype))

    def wide(standard: Array) -> Array:
        return unit * (standard if root is None else root @ standard)

    def back(gradient: Array) -> Array:
        return unit * gradient if root is None else root.T @ (unit * gradient)

    def slope(vector: Array) -> tuple[Array, Array]:
        value, gradient = with_group_sums(jax.value_and_grad(log_density))(vector)
        return value, back(gradient)

    def one(row: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        key, step, at, value, pull = row
        of_momentum, of_step, of_choice = random.split(key, 3)
        momentum = random.normal(of_momentum, (size,), at.dtype)
        step = step * random.uniform(of_step, (), at.dtype, 0.5, 1.5)

        def leap(_: Array, state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            there, momentum, _, pull = state
            momentum = momentum + 0.5 * step * pull
            there = there + step * wide(momentum)
            height, pull = slope(there)
            return there, momentum + 0.5 * step * pull, height, pull

        there, end_momentum, height, new_pull = lax.fori_loop(0, LEAPS, leap, (at, momentum, value, pull))
        gained = height - value - 0.5 * (jnp.sum(end_momentum**2) - jnp.sum(momentum**2))
        chance = jnp.where(jnp.isfinite(gained), jnp.exp(jnp.minimum(gained, 0.0)), 0.0)
        is_accepted = (random.uniform(of_choice, (), at.dtype) < chance) & jnp.all(jnp.isfinite(new_pull))
        new_state = jax.tree.map(
            lambda a, b: jnp.where(is_accepted, a, b), (there, height, new_pull), (at, value, pull)
        )
        return *new_state, chance

    def move(carry: tuple[Array, tuple[Array, ...]], key: Array) -> tuple[tuple[Array, tuple[Array, ...]], Array]:
        step, rows = carry
        keys = random.split(key, count)
        steps = jnp.full(count, step)
        *rows, chances = in_lanes(one, (keys, steps, *rows), lanes)
        rate = jnp.mean(chances)
        return (step * jnp.exp(GAIN * (rate - ACCEPTED)), tuple(rows)), rate

    first = jnp.asarray(size**-0.25, vectors.dtype)
    first_state = vectors, *in_lanes(slope, vectors, lanes)
    (_, rows), rates = lax.scan(move, (first, first_state), random.split(key, MOVES))
    return rows[0], jnp.mean(rates[MOVES // 2 :])
