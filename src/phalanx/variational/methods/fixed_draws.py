r"""The bound with fixed draws: a function without noise, which a quasi-Newton method can maximise.

$\frac1N \sum_n \log p(x, z_\phi(\epsilon_n)) - \log q_\phi(z_\phi(\epsilon_n))$, where the $\epsilon_n$ are held.

Draws are made in chunks, in a loop whose length is an argument: any number of them is one program, in the memory of a
chunk. Those of Gaussian guides come in pairs $\pm\epsilon$ and are scaled to the second moments of a standard normal,
so that for a normal posterior their bound has its maximum at, or near, that of the exact bound.

Source:
    Giordano, Ingram, Broderick (2024), Black box variational inference with a deterministic objective: faster, more
    accurate, and even more black box; Burroni, Takatsu, Domke, Sheldon (2024), Sample average approximation for
    black-box variational inference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.flatten_util import ravel_pytree

from phalanx.jaxprs.group_sums import with_group_sums
from phalanx.learning.ascent import LogDensity
from phalanx.variational.guides.guide_and_model import Pair, init_parameters, moved, numbered, run_model
from phalanx.variational.guides.learned import Params
from phalanx.variational.problem import Values

if TYPE_CHECKING:
    from jaxtyping import Float, Int

STREAM = 0x66697864
"""Distinguishes the keys of fixed draws from those of other draws, which may have the same seed."""

MATCHED = 512
"""Numbers in a draw up to which all of their second moments are matched, given enough draws."""


ENOUGH = 3
"""Draws for each number in a draw from which all second moments are matched; half of the draws mirror the others."""


class HeldDraws(NamedTuple):
    """Fixed draws, as the arguments that make them.

    Attributes:
        key: the key of all draws.
        chunks: number of chunks.
        scaling: factor on the numbers: a matrix, or one for each; zero for guides whose noise is not standard normal.
    """

    key: Array
    chunks: Int[Array, ""]
    scaling: Float[Array, "..."]


class BoundEstimate(NamedTuple):
    """The bound, estimated from draws: its mean, its Monte-Carlo error, and the gradient of the mean."""

    bound: Float[Array, ""]
    error: Float[Array, ""]
    gradient: Float[Array, "parameter"]


@dataclass(frozen=True)
class FixedDraws:
    """The bound with fixed draws, as a function of a change of the parameters about an anchor.

    Attributes:
        pair: guide and model.
        chunk: draws that are evaluated at once.
    """

    pair: Pair
    chunk: int

    @classmethod
    def of(cls, pair: Pair, chunk: int) -> FixedDraws:
        """Return the bound with chunks of this size, or one draw more if they come in pairs."""
        fixed_draws = cls(pair, chunk)
        return cls(pair, chunk + chunk % 2) if fixed_draws.numbers else fixed_draws

    def hold(self, seed: Array, set_: Array, chunks: Array) -> HeldDraws:
        """Return chunks of draws; different sets share no draws."""
        key = random.fold_in(random.fold_in(random.key(seed), STREAM), set_)
        if not self.numbers:
            return HeldDraws(key, chunks, jnp.zeros(()))

        def add(number: Array, total: Array) -> Array:
            noise = jax.vmap(lambda i: self._raw(key, i)[0])(number * self.chunk + jnp.arange(self.chunk))
            return total + (noise.T @ noise if self._is_matched else jnp.sum(noise**2, 0))

        size = self.numbers
        total = lax.fori_loop(0, chunks, add, jnp.zeros((size, size) if self._is_matched else (size,)))
        moments = total / (chunks * self.chunk)
        if not self._is_matched:
            return HeldDraws(key, chunks, lax.rsqrt(moments))
        scale = jnp.diag(lax.rsqrt(jnp.diagonal(moments)))
        values, vectors = jnp.linalg.eigh(moments)
        whole = (vectors * lax.rsqrt(jnp.maximum(values, 1e-6))[None]) @ vectors.T
        return HeldDraws(key, chunks, jnp.where(chunks * self.chunk >= self.enough, whole, scale))

    def look(
        self, change: Float[Array, "parameter"], anchor: Params, draws: HeldDraws, arrays: Sequence[Array]
    ) -> BoundEstimate:
        """Return the bound of the held draws, and its gradient."""
        data = self.pair.problem.arguments.join(arrays)

        def bound(change: Array, number: Array) -> tuple[Array, Array]:
            gaps = self._gaps(self._params(change, anchor), number, draws, data)
            return jnp.mean(gaps), gaps

        def add(number: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            mean, square, gradient = carry
            (here, gaps), slope = with_group_sums(jax.value_and_grad(bound, has_aux=True))(change, number)
            part = 1.0 / (number + 1)
            off = here - mean
            square = square + jnp.sum((gaps - here) ** 2) + off**2 * gaps.size * (1.0 - part)
            return mean + part * off, square, gradient + part * (slope - gradient)

        zero = jnp.zeros((), change.dtype)
        bound_, square, gradient = lax.fori_loop(0, draws.chunks, add, (zero, zero, jnp.zeros_like(change)))
        count = draws.chunks * self._independent
        return BoundEstimate(bound_, jnp.sqrt(square / jnp.maximum(count - 1, 1) / count), gradient)

    def value(self, anchor: Params, draws: HeldDraws, arrays: Sequence[Array]) -> LogDensity:
        """Return the bound of the held draws as a differentiable function of the change."""
        data = self.pair.problem.arguments.join(arrays)

        def forward(change: Array) -> tuple[Array, Array]:
            estimate = self.look(change, anchor, draws, arrays)
            return estimate.bound, estimate.gradient

        @jax.custom_vjp
        def bound(change: Array) -> Array:
            params = self._params(change, anchor)

            def add(number: Array, mean: Array) -> Array:
                return mean + (jnp.mean(self._gaps(params, number, draws, data)) - mean) / (number + 1)

            return lax.fori_loop(0, draws.chunks, add, jnp.zeros((), change.dtype))

        bound.defvjp(forward, lambda gradient, along: (along * gradient,))
        return bound

    def means(
        self, change: Float[Array, "parameter"], anchor: Params, draws: HeldDraws, arrays: Sequence[Array]
    ) -> dict[str, Array]:
        """Return the means of the model's real variables over the held draws."""
        data = self.pair.problem.arguments.join(arrays)
        params = self._params(change, anchor)

        def one(i: Array) -> dict[str, Array]:
            values = run_model(self.pair, params, self.draw(params, i, draws, data), data).values()
            return {name: v for name, v in values.items() if jnp.issubdtype(v.dtype, jnp.floating)}

        def add(number: Array, mean: dict[str, Array]) -> dict[str, Array]:
            index = number.astype(jnp.uint32) * self.chunk + numbered(self.pair, self.chunk)
            here = self.pair.problem.alone(lambda: jax.vmap(one)(index))
            return jax.tree.map(lambda m, x: m + (jnp.mean(x, 0) - m) / (number + 1), mean, here)

        shapes = jax.eval_shape(lambda: self.pair.problem.alone(lambda: one(jnp.uint32(0))))
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return lax.fori_loop(0, draws.chunks, add, zero)

    def gain(
        self, old: Params, new: Params, draws: HeldDraws, arrays: Sequence[Array]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return the difference between the bounds of new and old parameters, and its standard error."""
        data = self.pair.problem.arguments.join(arrays)
        params = [self.pair.learned.constrain(free) for free in (old, new)]

        def add(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = (self._gaps(p, number, draws, data) for p in params)
            return carry[0] + jnp.sum(high - low), carry[1] + jnp.sum((high - low) ** 2)

        total, square = lax.fori_loop(0, draws.chunks, add, (jnp.zeros(()), jnp.zeros(())))
        count = draws.chunks * self._independent
        mean = total / count
        return mean, jnp.sqrt(jnp.maximum(square / count - mean**2, 0.0) / count)

    def moved(self, anchor: Params, change: Float[Array, "parameter"]) -> dict[str, Any]:
        """Return the parameters after a change, which is a vector."""
        return moved(self.pair, anchor, ravel_pytree(dict(anchor))[1](change))

    @cached_property
    def numbers(self) -> int:
        """Number of standard normals in the noise of a draw; 0 for guides that are not linear in them."""
        if not self.pair.guide.traits.is_linear:
            return 0
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self.pair.noise, random.key(0))))

    @cached_property
    def coordinates(self) -> int:
        """Number of coordinates of a draw."""
        pair = self.pair
        shapes = pair.problem.arguments.whole_shapes()

        def one(arrays: Sequence[Array]) -> dict[str, Array]:
            data = pair.problem.arguments.layout.join(arrays)
            values = init_parameters(pair, random.key(0), data, {}).values
            return pair.draw(values, pair.noise(random.key(0)), data)

        draw_shapes = jax.eval_shape(lambda arrays: pair.problem.alone(lambda: one(arrays)), shapes)
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(draw_shapes))

    @property
    def enough(self) -> int:
        """Number of draws from which all second moments are matched; 0 if they never are."""
        return ENOUGH * self.numbers if self._is_matched else 0

    @property
    def _is_matched(self) -> bool:
        return self.numbers <= MATCHED

    @property
    def _independent(self) -> int:
        """Number of independent estimates in a chunk: pairs, if draws come in pairs."""
        return self.chunk // 2 if self.numbers else self.chunk

    def _params(self, change: Array, anchor: Params) -> dict[str, Any]:
        return self.pair.learned.constrain(self.moved(anchor, change))

    def _raw(self, key: Array, number: Array) -> tuple[Float[Array, "number"], Callable[[Array], Any]]:
        """Return standard normals as a vector, and the function from such a vector to the guide's noise."""
        noise, back = ravel_pytree(self.pair.noise(random.fold_in(key, number // 2)))
        return jnp.where(number % 2 == 0, noise, -noise), back

    def draw(self, params: Params, number: Array, draws: HeldDraws, data: Values) -> dict[str, Array]:
        """Return one of the held draws."""
        if not self.numbers:
            return self.pair.draw(params, self.pair.noise(random.fold_in(draws.key, number)), data)
        (noise, back), scaling = self._raw(draws.key, number), draws.scaling
        return self.pair.draw(params, back(scaling @ noise if self._is_matched else scaling * noise), data)

    def _gaps(self, params: Params, number: Array, draws: HeldDraws, data: Values) -> Float[Array, "estimate"]:
        """Return the log weight of each draw of a chunk, or the mean of each pair."""

        def one(i: Array) -> Array:
            draw = self.draw(params, number.astype(jnp.uint32) * self.chunk + i, draws, data)
            log_p = jnp.asarray(sum(self.pair.log_model(params, draw, data).values()))
            return log_p - self.pair.log_guide(params, draw, data)

        gaps = self.pair.problem.alone(lambda: jax.vmap(one)(numbered(self.pair, self.chunk)))
        return jnp.mean(gaps.reshape(-1, 2), 1) if self.numbers else gaps
