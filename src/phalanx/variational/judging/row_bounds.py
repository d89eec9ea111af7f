"""Bounds of each row's log likelihood, for models whose latent variables have an entry for each row of data."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.nn import logsumexp
from jax.sharding import NamedSharding, PartitionSpec

from phalanx.density.minibatch import ROWS
from phalanx.inputs.arguments import Arguments
from phalanx.learning.compiled import Compiler
from phalanx.mesh.agreement import check_same
from phalanx.mesh.processes import to_devices, to_host
from phalanx.variational.data_checks import DataChecks
from phalanx.variational.guides.guide_and_model import Pair, for_steps
from phalanx.variational.guides.learned import Params
from phalanx.variational.problem import Values

if TYPE_CHECKING:
    from jaxtyping import Float, Float64

STREAM = 0x726F7773
"""Distinguishes the keys of these draws from those of others."""

DRAWS_OF_ROW = 50
"""Most draws of one row that are made at once."""

DRAWS_OF_ALL_ROWS = 512
"""Most draws that are made at once, of several rows together, unless one row has more."""


class RowBounds(NamedTuple):
    """Lower bounds of each row's log likelihood, in nats.

    Attributes:
        elbo: the mean of the log weights of the draws.
        importance_weighted: the logarithm of the mean weight: a higher bound, which more draws bring closer.
        num_draws: number of draws of each row.
    """

    elbo: Float64[np.ndarray, "row"]
    importance_weighted: Float64[np.ndarray, "row"]
    num_draws: int


def row_bounds(pair: Pair, free: Params, data: Values, num_draws: int, seed: int, matmul_precision: str) -> RowBounds:
    """Return the bounds of new rows, at parameters on the real line; see `Fit.row_bounds`."""
    check_same("fit.row_bounds")
    names = _terms_of_rows(pair)
    num_draws = num_draws if pair.guide.traits.has_draws else 1
    arguments = pair.problem.known_data.split(pair.problem.program, data)
    rows = _count(arguments)
    of_these = replace(pair, problem=replace(pair.problem, arguments=arguments))
    DataChecks(of_these, Compiler()).check_now(arguments)
    at_once = min(num_draws, DRAWS_OF_ROW)
    group = min(rows, max(1, DRAWS_OF_ALL_ROWS // at_once))
    layout = NamedSharding(
        pair.problem.mesh, PartitionSpec(ROWS if group % pair.problem.mesh.shape[ROWS] == 0 else None)
    )

    def of_row(free: Params, key: Array, arrays: tuple[Array, ...]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return the sum of the log weights of a row's draws, and the logarithm of the weights' sum."""
        params = pair.learned.constrain(free)
        single = arguments.layout.join([array[None] for array in arrays])

        def log_weight(number: Array) -> Array:
            draw, log_q = pair.draw_weighted(params, pair.noise(random.fold_in(key, number)), single)
            terms = (v for k, v in pair.log_model(params, draw, single).items() if k in names)
            return jnp.asarray(sum(terms, -log_q))

        def some(carry: tuple[Array, Array], first: Array) -> tuple[tuple[Array, Array], None]:
            numbers = first + jnp.arange(at_once)
            bounds = jnp.where(numbers < num_draws, jax.vmap(log_weight)(numbers), -jnp.inf)
            total = carry[0] + jnp.sum(jnp.where(numbers < num_draws, bounds, 0.0))
            return (total, jnp.logaddexp(carry[1], logsumexp(bounds))), None

        dtype = jax.eval_shape(log_weight, jnp.int32(0)).dtype
        zero = jnp.zeros((), dtype), jnp.full((), -jnp.inf, dtype)
        return lax.scan(some, zero, jnp.arange(0, num_draws, at_once))[0]

    def of_group(free: Params, seed: Array, numbers: Array, arrays: tuple[Array, ...]) -> tuple[Array, Array]:
        base = random.fold_in(random.key(seed), STREAM)
        keys = jax.vmap(lambda i: random.fold_in(base, i))(numbers)
        return pair.problem.alone(lambda: jax.vmap(lambda key, row: of_row(free, key, row))(keys, arrays))

    compiled = None
    bounds = []
    for first in range(0, rows, group):
        numbers = np.minimum(np.arange(first, first + group), rows - 1)
        row_arrays = [to_host(array)[numbers] for array in arguments.arrays]
        device_rows = jax.tree.map(
            lambda leaf: to_devices(leaf, layout), (numbers.astype(np.uint32), tuple(row_arrays))
        )
        compiled = compiled or Compiler(matmul_precision)(of_group, free, np.uint32(seed), *device_rows)
        bounds.append([np.asarray(part) for part in compiled(free, np.uint32(seed), *device_rows)])
    total, log_sum = (np.concatenate(parts)[:rows].astype(np.float64) for parts in zip(*bounds, strict=True))
    return RowBounds(total / num_draws, log_sum - np.log(num_draws), num_draws)


def _terms_of_rows(pair: Pair) -> set[str]:
    """Return the names of the terms that have an entry for each row; raise unless all latent variables have one."""
    if pair.program_guide is None or pair.problem.minibatch is None:
        raise ValueError(
            "row_bounds: it needs a fit to minibatches (phx.batches, batch_size=) whose guide is a program, or that "
            "has no guide: Phalanx checks only these for rows that mix."
        )
    names = set(for_steps(pair).weights)
    if other := [name for name, v in pair.problem.whole.variables.items() if v.is_latent and name not in names]:
        raise ValueError(
            f"row_bounds: variable {other[0]!r} belongs to all rows together, so single rows have no likelihood. Use "
            f"fit.evidence(), which is for all rows."
        )
    return names


def _count(arguments: Arguments) -> int:
    counts = {np.shape(array)[0] if np.ndim(array) else 0 for array in arguments.arrays}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(f"row_bounds: data must be arrays with one row for each example; got {sorted(counts)} rows.")
    return counts.pop()
