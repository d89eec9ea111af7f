"""Covariances by linear response: the change of the guide's means when the model is tilted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, ShapeDtypeStruct, lax
from jax.flatten_util import ravel_pytree

from phalanx.diagnostics.elements import Names, element_names
from phalanx.errors.names import hint
from phalanx.learning.ascent import derivative_at
from phalanx.mesh.agreement import check_same
from phalanx.variational.drawing import Drawing
from phalanx.variational.guides.guide_and_model import Pair, alignment_of, run_model
from phalanx.variational.guides.learned import Params
from phalanx.variational.methods.fixed_draws import FixedDraws

if TYPE_CHECKING:
    from jaxtyping import Float, Float64

MOST_PARAMETERS = 4096
"""Most parameters whose Hessian is computed."""

AT_ONCE = 16
"""Rows of the Hessian that are computed at once."""

CHUNK = 8
"""Draws that are evaluated at once."""


class LinearResponse(NamedTuple):
    """A covariance by linear response.

    Attributes:
        names: names of the elements, such as `w[0]`.
        matrix: the covariance of the elements.
    """

    names: tuple[str, ...]
    matrix: Float64[np.ndarray, "element element"]

    @property
    def sd(self) -> Float64[np.ndarray, "element"]:
        """Standard deviations of the elements."""
        return np.sqrt(np.diag(self.matrix))


def covariance_of(
    drawing: Drawing,
    names: str | Sequence[str] | None,
    latents: Sequence[str],
    num_draws: int,
    seed: int,
    labels: Names | None = None,
) -> LinearResponse:
    """Return the covariance of variables, whose entries have these labels; see `Fit.covariance`."""
    check_same("fit.covariance")
    pair = drawing.pair
    free = drawing.free
    _check_guide(pair)
    variables = list(latents) if names is None else [names] if isinstance(names, str) else list(names)
    fixed_draws = FixedDraws.of(pair, CHUNK)
    chunks = math.ceil(max(num_draws, fixed_draws.enough) / fixed_draws.chunk)
    inputs = free, np.uint32(seed), np.int32(chunks), drawing.arrays
    elements = _check_names(variables, jax.eval_shape(lambda *inputs: _values(fixed_draws, *inputs), *inputs), labels)

    def look(free: Params, seed: Array, chunks: Array, arrays: Sequence[Array]) -> tuple[Array, Array]:
        return _derivatives(fixed_draws, variables, free, seed, chunks, arrays)

    of_model = pair.problem.parameters
    paths = jax.tree_util.tree_leaves_with_path(dict(free))  # in the order of the vector of all
    mine = np.concatenate([np.full(leaf.size, path[0].key not in of_model) for path, leaf in paths])
    if (size := int(mine.sum())) > MOST_PARAMETERS:
        raise ValueError(
            f"covariance: the guide {pair.guide.name} has {size:,} parameters; with more than {MOST_PARAMETERS:,} "
            f"the Hessian is too large. Use phx.guides.low_rank(), or phx.mcmc with init= this fit."
        )
    hessian, slopes = (np.asarray(part, np.float64)[mine] for part in drawing.compiler(look, *inputs)(*inputs))
    return LinearResponse(elements, _sandwich(hessian[:, mine], slopes))


def _sandwich(
    hessian: Float64[np.ndarray, "parameter parameter"], slopes: Float64[np.ndarray, "parameter element"]
) -> Float64[np.ndarray, "element element"]:
    """Return the product of slopes, inverse of the negative Hessian, and slopes."""
    values, vectors = np.linalg.eigh(-0.5 * (hessian + hessian.T))
    if not np.isfinite(values).all() or values[0] <= 1e-7 * values[-1]:
        raise ValueError(
            "covariance: the bound has no maximum where learning ended: it does not curve downward along every "
            "parameter of the guide. Continue with init= this fit, or use a guide with fewer parameters."
        )
    half = (vectors / np.sqrt(values)).T @ slopes
    return half.T @ half


def _derivatives(
    fixed_draws: FixedDraws, names: Sequence[str], free: Params, seed: Array, chunks: Array, arrays: Sequence[Array]
) -> tuple[Float[Array, "parameter parameter"], Float[Array, "parameter element"]]:
    """Return the bound's Hessian, and the derivatives of the variables' means by each parameter."""
    draws = fixed_draws.hold(seed, jnp.uint32(0), chunks)
    zero = jnp.zeros_like(ravel_pytree(dict(free))[0])

    def gradient_and_means(change: Array) -> Array:
        means = fixed_draws.means(change, free, draws, arrays)
        flat = [jnp.ravel(means[name]) for name in names]
        return jnp.concatenate([fixed_draws.look(change, free, draws, arrays).gradient, *flat])

    derivative = derivative_at(gradient_and_means, zero)

    def along(i: Array) -> tuple[Array, Array]:
        slopes = derivative(jnp.zeros_like(zero).at[i].set(1.0))
        return slopes[: zero.size], slopes[zero.size :]

    return lax.map(along, jnp.arange(zero.size), batch_size=AT_ONCE)


def _values(
    fixed_draws: FixedDraws, free: Params, seed: Array, chunks: Array, arrays: Sequence[Array]
) -> dict[str, Array]:
    params = fixed_draws.pair.learned.constrain(free)
    data = fixed_draws.pair.problem.arguments.join(arrays)
    draw = fixed_draws.draw(params, jnp.uint32(0), fixed_draws.hold(seed, jnp.uint32(0), chunks), data)
    return fixed_draws.pair.problem.alone(lambda: run_model(fixed_draws.pair, params, draw, data).values())


def _check_names(names: Sequence[str], shapes: Mapping[str, ShapeDtypeStruct], labels: Names | None) -> tuple[str, ...]:
    """Return the names of all elements, or raise unless the variables exist and are real."""
    elements: list[str] = []
    for name in names:
        if name not in shapes:
            raise ValueError(
                f"covariance: the model has no variable {name!r}; it has {', '.join(map(repr, shapes))}."
                f"{hint(name, shapes)}"
            )
        if not jnp.issubdtype(shapes[name].dtype, jnp.floating):
            raise ValueError(f"covariance: variable {name!r} is not of real numbers; leave it out.")
        elements += element_names(name, shapes[name].shape, labels)
    return tuple(elements)


def _check_guide(pair: Pair) -> None:
    advice = "or use a guide that is learned by the bound, such as phx.guides.mean_field()"
    if pair.guide.traits.is_solved:
        raise ValueError(
            f"covariance: the guide {pair.guide.name} is computed without steps: take the covariance of its draws, "
            f"{advice}."
        )
    if scored := alignment_of(pair).scored:
        raise ValueError(
            f"covariance: variable {scored[0]!r} cannot be differentiated through. Sum it out of the model."
        )
