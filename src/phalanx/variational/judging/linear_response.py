"""Covariances by linear response: how the guide follows when the model is tilted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from phalanx.errors.names import hint
from phalanx.errors.words import element_names
from phalanx.variational.drawing import Drawing
from phalanx.variational.guides.pair import Pair
from phalanx.variational.methods.fixed_draws import FixedDraws

MOST = 4096
"""Parameters of which the Hessian is looked at."""

AT_ONCE, CHUNK = 16, 8
"""Rows of the Hessian that are computed at once, and draws."""


class Covariance(NamedTuple):
    """A covariance by linear response.

    Attributes:
        names: of the elements, such as `w[0]`.
        matrix: their covariance, `(element, element)`.
    """

    names: tuple[str, ...]
    matrix: np.ndarray

    @property
    def sd(self) -> np.ndarray:
        """Standard deviations of the elements."""
        return np.sqrt(np.diag(self.matrix))


def covariance_of(
    drawing: Drawing, names: str | Sequence[str] | None, latents: Sequence[str], num_draws: int, seed: int
) -> Covariance:
    """The covariance of variables; see `Fit.covariance`."""
    pair, free = drawing.pair, drawing.free
    _check_guide(pair)
    wanted = list(latents) if names is None else [names] if isinstance(names, str) else list(names)
    fixed = FixedDraws.of(pair, CHUNK)
    chunks = math.ceil(max(num_draws, fixed.enough) / fixed.chunk)
    given = free, np.uint32(seed), np.int32(chunks), drawing.arrays
    labels = _check_names(wanted, jax.eval_shape(lambda *given: _values(fixed, *given), *given))

    def look(*given: Any) -> tuple[Array, Array]:
        return _derivatives(fixed, wanted, *given)

    of_model = set(pair.model_parameters())
    paths = jax.tree_util.tree_leaves_with_path(dict(free))  # in the order of the vector of all
    mine = np.concatenate([np.full(leaf.size, path[0].key not in of_model) for path, leaf in paths])
    if (size := int(mine.sum())) > MOST:
        raise ValueError(
            f"covariance: the guide {pair.name} has {size:,} parameters; of more than {MOST:,} the Hessian is too "
            f"large. Use phx.guides.low_rank(), or phx.mcmc with init= this fit."
        )
    hessian, slopes = (np.asarray(part, np.float64)[mine] for part in drawing.compiler(look, *given)(*given))
    return Covariance(labels, _inverted(hessian[:, mine], slopes))


def _inverted(hessian: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """The slopes by the inverse of the negative Hessian."""
    values, vectors = np.linalg.eigh(-0.5 * (hessian + hessian.T))
    if not np.isfinite(values).all() or values[0] <= 1e-7 * values[-1]:
        raise ValueError(
            "covariance: the bound has no top where learning ended: it does not curve downward along every parameter "
            "of the guide. Go on with init= this fit, or use a guide with fewer parameters."
        )
    half = (vectors / np.sqrt(values)).T @ slopes
    return half.T @ half


def _derivatives(fixed: FixedDraws, names: Sequence[str], free: Any, seed: Array, chunks: Array, arrays: Any) -> Any:
    """Of every parameter, a row of the bound's Hessian, and what the means of the variables follow it by."""
    draws = fixed.hold(seed, jnp.uint32(0), chunks)
    zero = jnp.zeros_like(ravel_pytree(dict(free))[0])

    def gradient_and_means(change: Array) -> tuple[Array, Array]:
        means = fixed.means(change, free, draws, arrays)
        flat = jnp.concatenate([jnp.ravel(means[name]) for name in names])
        return fixed.look(change, free, draws, arrays).gradient, flat

    def along(i: Array) -> tuple[Array, Array]:
        return jax.jvp(gradient_and_means, (zero,), (jnp.zeros_like(zero).at[i].set(1.0),))[1]

    return lax.map(along, jnp.arange(zero.size), batch_size=AT_ONCE)


def _values(fixed: FixedDraws, free: Any, seed: Array, chunks: Array, arrays: Any) -> dict[str, Array]:
    params, data = fixed.pair.learned.constrain(free), fixed.pair.problem.data(arrays)
    draw = fixed.draw(params, jnp.uint32(0), fixed.hold(seed, jnp.uint32(0), chunks), data)
    return fixed.pair.problem.alone(lambda: fixed.pair.values(params, draw, data))


def _check_names(names: Sequence[str], shapes: Any) -> tuple[str, ...]:
    """The names of all elements of variables that are there, and real."""
    labels: list[str] = []
    for name in names:
        if name not in shapes:
            raise ValueError(
                f"covariance: the model has no variable {name!r}; it has {', '.join(map(repr, shapes))}."
                f"{hint(name, shapes)}"
            )
        if not jnp.issubdtype(shapes[name].dtype, jnp.floating):
            raise ValueError(f"covariance: variable {name!r} is not of real numbers; leave it out.")
        labels += element_names(name, shapes[name].shape)
    return tuple(labels)


def _check_guide(pair: Pair) -> None:
    advice = "Use a guide that is learned by the bound, such as phx.guides.mean_field()"
    if pair.guide.traits.is_solved:
        raise ValueError(f"covariance: the guide {pair.name} is learned by no steps, and its draws are spread as it is "
                         f"meant. {advice}.")  # fmt: skip
    if pair.scored:
        raise ValueError(
            f"covariance: variable {pair.scored[0]!r} cannot be differentiated through. Sum it out of the model."
        )
