"""Draws from a learned guide, batch by batch: their values, and their densities under guide and model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from phalanx.jaxprs.costs import largest_of_draw, matrix_work
from phalanx.jaxprs.walking import extent
from phalanx.learning.compiled import Compiled, Compiler
from phalanx.mesh.agreement import check_same
from phalanx.mesh.devices import CHAIN
from phalanx.placements import divide
from phalanx.programs.traced_program import TracedProgram
from phalanx.variational.guides.guide_and_model import Pair, key_of, run_model
from phalanx.variational.guides.learned import Params
from phalanx.variational.problem import Values

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped, UInt32

T = TypeVar("T")

STREAM = 0x67756964
"""Distinguishes the keys of draws from those of learning, which may have the same seed."""

MOST_DRAWS = 512
"""Most draws of a batch."""

MOST_ELEMENTS = 2**22
"""Most numbers in the results of a batch, unless eight draws have more."""

WITHIN = 2**26
"""Most numbers of an array that the density of a batch makes."""

SPREAD = 1.3489795
"""The interquartile range of a standard normal."""


class Drawn(NamedTuple):
    """Draws from a guide, each array with a leading dimension of draws."""

    values: dict[str, Any]
    log_p: Shaped[Array | np.ndarray, "draw"]
    log_q: Shaped[Array | np.ndarray, "draw"]


@dataclass(frozen=True)
class Drawing:
    """Draws from a guide at the learned parameters.

    Attributes:
        pair: guide and model.
        free: the parameters, on the real line.
        arrays: the data on the mesh.
        compiler: compiles the programs.
    """

    pair: Pair
    free: dict[str, Any]
    arrays: tuple[Array, ...]
    compiler: Compiler

    resampled: ClassVar[bool] = False
    """True if draws are chosen by their importance weights."""

    @property
    def names(self) -> list[str]:
        """Names of the values of a draw: the latent variables, and deterministic ones of the model."""
        return list(self.pair.problem.whole.values)

    @property
    def numbers(self) -> int:
        """Numbers in the values of a draw and in its two log densities."""
        return 2 + sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.pair.problem.whole.values))

    @property
    def room(self) -> int:
        """Draws with at most `MOST_ELEMENTS` numbers: a power of two from 8 to 512, the same on every mesh."""
        return _power_of_two(MOST_ELEMENTS / self.numbers)

    @cached_property
    def batch_size(self) -> int:
        """Draws whose density is evaluated at once: `room`, or fewer if an array on the way would be too large."""
        whole = self.pair.problem.whole
        if extent(whole.at_zero)[0] * self.room <= WITHIN:  # no need to trace the density
            return self.room
        return min(self.room, _power_of_two(WITHIN / max(_largest_of_draw(whole), 1)))

    @cached_property
    def cost(self) -> int:
        """Elements of the data, or multiplications of the log density's matrix operations if these are more."""
        return max(sum(math.prod(array.shape) for array in self.arrays), matrix_work(self.pair.problem.whole.at_zero))

    @cached_property
    def _compiled(self) -> Compiled:
        size = self.batch_size
        divides = size % self.pair.problem.mesh.shape[CHAIN] == 0

        def batch(free: Params, seed: Array, numbers: UInt32[Array, "draw"], arrays: Sequence[Array]) -> Drawn:
            return draws_of(self.pair, free, seed, divide(numbers, CHAIN) if divides else numbers, arrays)

        arguments = self.free, np.uint32(0), np.zeros(size, np.uint32), self.arrays
        return self.compiler(batch, *arguments, identity=key_of(self.pair, "draws"))

    def numbered(self, seed: int, numbers: np.ndarray) -> Iterator[tuple[Drawn, int]]:
        """Yield the draws of these numbers, in batches on the devices, and how many of each batch are wanted.

        The devices of several processes make them together.
        """
        check_same("fit.sample, .posterior, .evidence or .verdict")
        for first in range(0, len(numbers), self.batch_size):
            part = numbers[first : first + self.batch_size].astype(np.uint32)
            full_batch = np.pad(part, (0, self.batch_size - len(part)), mode="edge")
            yield self._compiled(self.free, np.uint32(seed), full_batch, self.arrays), len(part)

    def batches(self, seed: int, count: int) -> Iterator[tuple[Drawn, int]]:
        """Yield batches of draws, and how many of each are wanted. A draw depends on its seed and number alone."""
        return self.numbered(seed, np.arange(count))


def _power_of_two(draws: float) -> int:
    return int(2 ** max(3, min(math.log2(MOST_DRAWS), math.floor(math.log2(max(draws, 1))))))


def _largest_of_draw(whole: TracedProgram) -> int:
    """Return the size of the largest array that a density makes for each draw."""
    if whole.without_bijection:
        return extent(whole.at_zero)[0]
    varies = [True] * len(jax.tree.leaves(whole.position)) + [False] * len(whole.shapes)
    return largest_of_draw(whole.jaxpr, varies)


def on_host(batches: Iterator[tuple[T, int]], count: int) -> T:
    """Return `count` rows as arrays on the host, given batches on the devices and how many of each are wanted."""
    rows = None
    first = 0
    for batch, size in batches:
        if rows is None:
            rows = jax.tree.map(lambda leaf: np.empty((count, *leaf.shape[1:]), leaf.dtype), batch)
        for whole, leaf in zip(jax.tree.leaves(rows), jax.tree.leaves(batch), strict=True):
            whole[first : first + size] = np.asarray(leaf)[:size]
        first += size
    return cast("T", rows)


def only(names: Sequence[str], batches: Iterator[tuple[Drawn, int]]) -> Iterator[tuple[Drawn, int]]:
    """Yield batches of draws with the values of the named variables alone."""
    for batch, size in batches:
        yield batch._replace(values={name: v for name, v in batch.values.items() if name in names}), size


def stream_key(seed: Array) -> Array:
    """Return the key of all draws with a seed."""
    return random.fold_in(random.key(seed), STREAM)


def draws_of(pair: Pair, free: Params, seed: Array, numbers: UInt32[Array, "draw"], arrays: Sequence[Array]) -> Drawn:
    """Return the draws of these numbers from a guide, arrays `(draw, ...)`."""
    data = pair.problem.arguments.join(arrays)
    base = stream_key(seed)
    each = jax.vmap(lambda number: one_draw(pair, free, random.fold_in(base, number), data))
    return pair.problem.alone(lambda: each(numbers))


def one_draw(pair: Pair, free: Params, key: Array, data: Values) -> Drawn:
    """Return one draw: all its values, and its log densities under model and guide."""
    params = pair.learned.constrain(free)
    draw = pair.draw(params, pair.noise(key), data)
    log_p = jnp.asarray(sum(pair.log_model(params, draw, data).values()))
    return Drawn(run_model(pair, params, draw, data).values(), log_p, pair.log_guide(params, draw, data))


def _quartiles(draws: Shaped[Array, "draw coordinate"]) -> Float[Array, "3 coordinate"]:
    """Return the quartiles of each coordinate; of whole numbers, which jump, those of a normal of sd 1."""
    if jnp.issubdtype(draws.dtype, jnp.floating):
        return jnp.quantile(draws, jnp.array([0.25, 0.5, 0.75]), axis=0)
    mean = jnp.mean(draws.astype(jnp.float32), axis=0)
    return jnp.stack([mean - 0.5 * SPREAD, mean, mean + 0.5 * SPREAD])


def quartiles_of(pair: Pair, count: int) -> Callable[[Params, Array, Sequence[Array]], Array]:
    """Return the function from parameters, a seed and data to quartiles of the guide's draws, `(3, coordinate)`.

    All parameters get the same random numbers.
    """

    def quartiles(free: Params, seed: Array, arrays: Sequence[Array]) -> Float[Array, "3 coordinate"]:
        data = pair.problem.step_data(arrays, random.key(seed))  # one key: the same minibatch each time
        keys = jax.vmap(lambda i: random.fold_in(stream_key(seed), i))(jnp.arange(count))

        def coordinates() -> Array:
            params = pair.learned.constrain(free)
            draws = jax.vmap(lambda key: pair.draw(params, pair.noise(key), data))(keys)
            return jnp.concatenate([_quartiles(leaf.reshape(count, -1)) for leaf in jax.tree.leaves(draws)], axis=1)

        return pair.problem.alone(coordinates)

    return quartiles


def change_between(
    a: Float[np.ndarray, "*guides 3 coordinate"], b: Float[np.ndarray, "*guides 3 coordinate"]
) -> Float[np.ndarray, "*guides"]:
    """Return the distance between guides with these quartiles: the largest of all coordinates.

    It is the difference of medians in standard deviations, or of widths in parts of themselves.
    """
    with np.errstate(all="ignore"):  # a value that is not finite counts as a change
        middles, widths = zip(*((q[..., 1, :], (q[..., 2, :] - q[..., 0, :]) / SPREAD) for q in (a, b)), strict=True)
        floor = 1e-4 * (1e-4 + np.abs(middles[1]))  # of a guide that draws one value
        width = np.maximum(np.minimum(*widths), floor)
        distances = np.maximum(np.abs(middles[0] - middles[1]), np.abs(widths[0] - widths[1])) / width
    return np.asarray(np.max(distances, axis=-1))
