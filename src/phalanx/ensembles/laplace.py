r"""Laplace approximation of a classifier's last layer: a Gaussian over its weights, the rest of the network fixed.

With features $\phi$, a constant one among them, and $p$ the classes' probabilities, the posterior of the weights is
$N(\hat W, H^{-1})$, $H = \sum_i (\mathrm{diag}(p_i) - p_i p_i^\top) \otimes \phi_i \phi_i^\top + \lambda I$.
"""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from phalanx.kernels.protocol.options import whole

if TYPE_CHECKING:
    from jaxtyping import Float

BLOCK = 256
"""Rows whose curvature is summed at once."""


class LastLayer(NamedTuple):
    """Gaussian over a last layer's weights: its mean, and the Cholesky factor of its precision, classes first."""

    mean: Float[Array, "features classes"]
    factor: Float[Array, "weights weights"]


def last_layer_laplace(features: Array, weights: Array, prior_precision: float) -> LastLayer:
    """Fit the Gaussian about the weights that training has found.

    Args:
        features: inputs of the last layer, `(rows, features)`; with a column of ones where it has a bias.
        weights: weights of the last layer, `(features, classes)`; the biases are the row of the ones.
        prior_precision: precision of the weights' normal prior, which corresponds to weight decay.

    Returns:
        The Gaussian. For an ensemble call it by `jax.vmap` or `ensemble.map`.

    Raises:
        ValueError: when shapes do not match, or the precision is not positive.

    Example:
        >>> import jax.numpy as jnp, phalanx as phx
        >>> fitted = phx.ensembles.last_layer_laplace(jnp.ones((20, 3)), jnp.zeros((3, 2)), 1.0)
        >>> fitted.factor.shape
        (6, 6)

    Source:
        Daxberger et al. (2021), Laplace redux: effortless Bayesian deep learning.
    """
    features, weights = (_numbers(name, x) for name, x in (("features", features), ("weights", weights)))
    if features.ndim != 2 or weights.ndim != 2 or features.shape[1] != weights.shape[0]:
        raise ValueError(
            f"last_layer_laplace: features (rows, features) and weights (features, classes) are needed; got "
            f"{features.shape} and {weights.shape}."
        )
    if not isinstance(prior_precision, Array) and not (isinstance(prior_precision, Real) and prior_precision > 0):
        raise ValueError(f"last_layer_laplace: prior_precision must be a positive number, got {prior_precision!r}.")
    dtype = jnp.promote_types(jnp.result_type(features, weights), jnp.float32)
    features, weights = features.astype(dtype), weights.astype(dtype)
    size, classes = weights.shape
    rows = -(-len(features) // BLOCK) * BLOCK
    padded = jnp.pad(features, ((0, rows - len(features)), (0, 0)))  # a row of zeros adds no curvature

    def add(total: Array, block: Array) -> tuple[Array, None]:
        p = jax.nn.softmax(block @ weights)
        middle = p[:, :, None] * (jnp.eye(classes)[None] - p[:, None, :])
        return total + jnp.einsum("ncd,ni,nj->cidj", middle, block, block), None

    zero = jnp.zeros((classes, size, classes, size), weights.dtype)
    curvature, _ = lax.scan(add, zero, padded.reshape(-1, BLOCK, size))
    whole = curvature.reshape(classes * size, classes * size) + prior_precision * jnp.eye(classes * size)
    return LastLayer(weights, jnp.linalg.cholesky(whole))


def _numbers(name: str, values: object) -> Array:
    """Return an argument as an array, or raise unless it consists of numbers."""
    try:
        return jnp.asarray(values)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"last_layer_laplace: {name} must be an array of numbers; got {values!r:.60}. Give the arrays themselves, "
            f'such as params["last"]["kernel"], and not their names or the tree of all weights.'
        ) from error


def last_layer_probabilities(
    fitted: LastLayer, features: Float[Array, "rows features"], key: Array, draws: int = 100
) -> Float[Array, "rows classes"]:
    """Return the mean probabilities of rows over draws of the last layer's weights.

    Example:
        >>> import jax, jax.numpy as jnp, phalanx as phx
        >>> fitted = phx.ensembles.last_layer_laplace(jnp.ones((20, 3)), jnp.zeros((3, 2)), 1.0)
        >>> phx.ensembles.last_layer_probabilities(fitted, jnp.ones((4, 3)), jax.random.key(0)).shape
        (4, 2)
    """
    draws = whole("last_layer_probabilities", "draws", draws)
    size, classes = fitted.mean.shape
    normals = random.normal(key, (classes * size, draws), fitted.mean.dtype)
    away = jax.scipy.linalg.solve_triangular(fitted.factor.T, normals, lower=False)
    weights = fitted.mean[None] + away.T.reshape(draws, classes, size).swapaxes(1, 2)
    return lax.map(lambda w: jax.nn.softmax(features @ w), weights).mean(0)
