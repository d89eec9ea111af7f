r"""Likelihoods of many rows, evaluated block by block: value and gradient in one pass over the data.

To differentiate $\ell = \sum_i \log p(y_i \mid x_i, \theta)$, JAX computes the values of all rows, keeps intermediate
results of all rows, and passes over all rows again. Here each block of rows gives its value and its gradient while it
is in the cache; both are added up, and the block's intermediate results are dropped. Data keep the type they are stored
in; the function that reads them widens them block by block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, Unit
from numpyro.distributions.constraints import Constraint

from phalanx.distributions.precise import precise
from phalanx.distributions.row_blocks import sum_over_rows
from phalanx.distributions.row_sums import total_of
from phalanx.distributions.supports import support_of, within_support, zero_outside
from phalanx.mesh.compatibility.numpyro_internals import unvalidated
from phalanx.mesh.space import only_rows
from phalanx.mesh.total import Total

Rows = Any
"""A pytree of arrays whose leading dimension is that of the rows."""


class Blocked(Distribution):
    """Distribution of many independent rows, whose log density is added up block by block; see `blocked`.

    Attributes:
        fn: from rows to their distribution, or to their log densities.
        rows: arguments of `fn`.
        block: number of rows in a block; None chooses it.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}  # pyright: ignore[reportIncompatibleVariableOverride]
    pytree_aux_fields = ("fn", "block")
    pytree_data_fields = ("rows",)

    def __init__(self, fn: Callable[..., Any], rows: tuple[Rows, ...], block: int | None = None):
        self.fn, self.rows, self.block = fn, rows, block
        count = _count_rows(rows)
        shapes: list[tuple[int, ...]] = []

        def note_shapes(*rows: Rows) -> None:
            found = self._of(rows)
            shapes.extend((tuple(found.batch_shape), tuple(found.event_shape)))

        jax.eval_shape(note_shapes, *rows)
        batch_shape, event_shape = shapes
        if batch_shape[:1] != (count,):
            raise ValueError(
                f"phx.blocked: the function was given {count} rows and returned a distribution of batch shape "
                f"{batch_shape}; the first dimension must be that of the rows. Write it for any number of rows, with "
                f"one entry for each."
            )
        super().__init__(batch_shape, event_shape, validate_args=False)

    @property
    def count(self) -> int:
        """Number of rows, from the rows themselves: only they survive a JAX transformation."""
        return len(jax.tree.leaves(self.rows)[0])

    @property
    def is_term(self) -> bool:
        """True if `fn` returns log densities: a term of the density, and no variable."""
        return self.event_shape == (0,)  # that of NumPyro's Unit; known without evaluating rows

    @cached_property
    def whole(self) -> Distribution:
        """Distribution of all rows at once."""
        return self._of(self.rows)

    @property
    def support(self) -> Constraint | None:
        """Support of the rows' values."""
        return support_of(self.whole)

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw all rows."""
        return jnp.asarray(self.whole.sample(key, sample_shape))

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Array:
        """Return the log densities, row by row."""
        return jnp.asarray(precise(within_support(self.whole)).log_prob(value))

    def total(self, value: Array, lanes: int = 1, scale: Any = 1.0) -> Total:
        """Return the sum of the rows' log densities.

        Args:
            value: values of all rows.
            lanes: chains that the device advances together, which share the cache.
            scale: factor on each log density.
        """
        if jnp.shape(value)[:1] != (self.count,):  # with sample dimensions in front, as only a user's own call has
            return total_of(scale * self.log_prob(value))
        leaves, tree = jax.tree.flatten((jnp.asarray(value), self.rows))

        def of_block(real: Array | None, leaves: list[Array]) -> Total:
            value, rows = jax.tree.unflatten(tree, leaves)
            distribution = self._of(rows)
            log_prob = within_support(distribution).log_prob(value)
            log_prob = zero_outside(distribution, value, jnp.asarray(log_prob))
            log_prob = log_prob if isinstance(scale, float) and scale == 1.0 else scale * log_prob
            return total_of(log_prob if real is None else only_rows(real, log_prob))

        return sum_over_rows(of_block, self.block, leaves, lanes)

    def _of(self, rows: tuple[Rows, ...]) -> Distribution:
        with unvalidated():  # NumPyro cannot check traced values
            found = self.fn(*rows)
        return precise(found) if isinstance(found, Distribution) else Unit(found)


def blocked(fn: Callable[..., Any], *rows: Rows, block: int | None = None) -> Blocked:
    r"""Return the distribution of many independent rows, evaluated block by block, so that memory stays small.

    $\sum_i \log p(y_i \mid x_i, \theta)$ and its gradient are added up over blocks of rows in one pass, without an
    array as long as the data. The model needs no other change, on one device or many.

    Args:
        fn: from a block of `rows` to the distribution of their values, whose first dimension is that of the rows, or
            to an array of log densities (for `phx.factor`). It may use any other variables of the program. Data may
            have a narrow type (`uint8` pixels, `bfloat16`), which `fn` widens.
        *rows: arguments of `fn`, cut into blocks: arrays, or trees of arrays, with one leading row for each value; data
            or latent variables.
        block: number of rows in a block; None fits a block into a core's cache. (Under `.mask`, `.to_event` or a scale
            for every row the distribution is evaluated in one piece.)

    Returns:
        A distribution, for `phx.sample(name, ..., obs=...)`; or for `phx.factor(name, ...)`.

    Raises:
        ValueError: when `rows` differ in length or are empty, or `fn` has not one entry for each. (A function that
            mixes rows, by their mean for instance, is not detected: compute such values of all rows outside of `fn`.)

    Example:
        >>> import jax.numpy as jnp, numpy as np, numpyro.distributions as dist, phalanx as phx
        >>> def model(pixels, label):
        ...     w = phx.sample("w", dist.Normal(0.0, 1.0).expand([4]))
        ...     rows = lambda pixels: dist.Bernoulli(logits=pixels.astype(jnp.float32) / 255 @ w)
        ...     phx.sample("label", phx.blocked(rows, pixels), obs=label)
        >>> pixels = np.arange(400, dtype=np.uint8).reshape(100, 4)
        >>> data = {"pixels": pixels, "label": np.arange(100) % 2}
        >>> posterior = phx.mcmc(model, data, num_warmup=100, num_samples=100, progress=False)
        >>> posterior.draws["w"].shape
        (4, 100, 4)
    """
    if block is not None and (not isinstance(block, int) or isinstance(block, bool) or block < 1):
        raise ValueError(f"phx.blocked: block must be a whole number of at least 1; got {block!r}. None chooses one.")
    if not callable(fn) or isinstance(fn, Distribution):
        raise TypeError(f"phx.blocked: the first argument must be a function of rows, got {type(fn).__name__}.")
    return Blocked(fn, rows, block)


def _count_rows(rows: tuple[Rows, ...]) -> int:
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(rows)]
    counts = {shape[0] if shape else None for shape in shapes}
    if len(counts) != 1 or None in counts or 0 in counts:
        raise ValueError(
            f"phx.blocked: the rows must be arrays of one length, at least 1; got shapes "
            f"{', '.join(map(str, shapes)) or 'none'}."
        )
    return counts.pop()  # pyright: ignore[reportReturnType]  # None has just been refused
