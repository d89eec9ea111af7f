"""Approximate posteriors of trained networks: a Laplace approximation of the last layer, and SWAG."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from phalanx.ensembles.learner import Learner, Trained
from phalanx.kernels.protocol.options import check_integer
from phalanx.mesh.specs import PyTree

if TYPE_CHECKING:
    from jaxtyping import Float, Int

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
    features = features.astype(dtype)
    weights = weights.astype(dtype)
    size, classes = weights.shape
    rows = -(-len(features) // BLOCK) * BLOCK
    full_features = jnp.pad(features, ((0, rows - len(features)), (0, 0)))  # a row of zeros adds no curvature

    def add(total: Array, block: Array) -> tuple[Array, None]:
        p = jax.nn.softmax(block @ weights)
        middle = p[:, :, None] * (jnp.eye(classes)[None] - p[:, None, :])
        return total + jnp.einsum("ncd,ni,nj->cidj", middle, block, block), None

    zero = jnp.zeros((classes, size, classes, size), weights.dtype)
    curvature, _ = lax.scan(add, zero, full_features.reshape(-1, BLOCK, size))
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
    draws = check_integer("last_layer_probabilities", "draws", draws)
    size, classes = fitted.mean.shape
    normals = random.normal(key, (classes * size, draws), fitted.mean.dtype)
    away = jax.scipy.linalg.solve_triangular(fitted.factor.T, normals, lower=False)
    weights = fitted.mean[None] + away.T.reshape(draws, classes, size).swapaxes(1, 2)
    return lax.map(lambda w: jax.nn.softmax(features @ w), weights).mean(0)


class Averaged(NamedTuple):
    """State of a network in training, with moments of the weights that it has passed.

    Attributes:
        trained: the network.
        step: updates made.
        count: number of weights that the moments are of.
        mean: mean of these weights.
        squares: sum of their squared deviations from the mean.
        deviations: the last of them less their mean, `(rank, ...)`; the newest replaces the oldest.
    """

    trained: Trained
    step: Int[Array, ""]
    count: Int[Array, ""]
    mean: Any
    squares: Any
    deviations: Any


def swag(learner: Learner, *, start: int, every: int, rank: int = 20) -> Learner:
    r"""Collect a Gaussian while a network is trained: $N(\bar w, \tfrac12(\Sigma_{diag} + \tfrac{1}{K-1} D D^\top))$.

    Args:
        learner: learner of the network; from `start` on its steps should be large enough to explore.
        start: number of updates before the first weights are averaged.
        every: number of updates between averaged weights; the first are those after `start + every` updates.
        rank: $K$, columns of the low-rank part.

    Returns:
        `init`, `update` and `apply`; predictions are at the mean. `swag_draw(state, key)` draws weights. Other arrays,
        such as the statistics of batch normalisation, are those of the last network: a network that has them should see
        the data once more with the weights drawn before it predicts.

    Raises:
        TypeError: when the learner is not one that `phx.ensembles` makes of a network.
        ValueError: when a number is out of range.

    Example:
        >>> import jax, numpy as np, optax, phalanx as phx
        >>> loss = lambda logits, y: optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        >>> init = lambda key: jax.random.normal(key, (4, 3))
        >>> one = phx.ensembles.learner(init, lambda w, x: x @ w, loss, optax.sgd(0.1))
        >>> averaged = phx.ensembles.swag(one, start=5, every=1, rank=3)
        >>> ensemble = phx.ensemble(averaged.init, averaged.update, num_members=2)
        >>> x, y = np.ones((40, 4), np.float32), np.zeros(40, np.int32)
        >>> measured = list(ensemble.train((x, y), batch_size=4))
        >>> ensemble.members.count.tolist()
        [5, 5]

    Source:
        Maddox, Garipov, Izmailov, Vetrov, Wilson (2019), A simple baseline for Bayesian uncertainty in deep learning.
    """
    start, every, rank = (
        check_integer("swag", name, value, least)
        for name, value, least in (("start", start, 0), ("every", every, 1), ("rank", rank, 2))
    )

    def init(key: Array) -> Averaged:
        trained = learner.init(key)
        zero = jnp.zeros((), jnp.int32)
        if not isinstance(trained, Trained):
            raise TypeError(
                f"swag: the learner must come from learner, nnx_learner or linen_learner of phx.ensembles; its init "
                f"made {type(trained).__name__}."
            )
        zeros = jax.tree.map(jnp.zeros_like, trained.params)
        deviations = jax.tree.map(lambda leaf: jnp.zeros((rank, *leaf.shape), leaf.dtype), trained.params)
        return Averaged(trained, zero, zero, zeros, zeros, deviations)

    def update(state: Averaged, batch: PyTree, key: Array) -> tuple[Averaged, dict[str, Array]]:
        trained, losses = learner.update(state.trained, batch, key)
        step = state.step + 1
        is_collected = (step > start) & ((step - start) % every == 0)
        count = state.count + is_collected

        def nearer(m: Array, w: Array) -> Array:
            return m + (is_collected / jnp.maximum(count, 1)).astype(m.dtype) * (w - m)

        mean = jax.tree.map(nearer, state.mean, trained.params)
        squares = jax.tree.map(
            lambda s, before, after, w: s + is_collected.astype(s.dtype) * (w - before) * (w - after),
            state.squares,
            state.mean,
            mean,
            trained.params,
        )
        slot = state.count % rank

        def put(rows: Array, w: Array, m: Array) -> Array:
            return rows.at[slot].set(jnp.where(is_collected, w - m, rows[slot]))

        deviations = jax.tree.map(put, state.deviations, trained.params, mean)
        return Averaged(trained, step, count, mean, squares, deviations), losses

    def apply(state: Averaged, inputs: PyTree) -> PyTree:
        # before the first weights are averaged their mean is zero, and the network's own weights predict
        params = jax.tree.map(lambda m, w: jnp.where(state.count > 0, m, w), state.mean, state.trained.params)
        return learner.apply(state.trained._replace(params=params), inputs)

    return Learner(init, update, apply)


def swag_draw(state: Averaged, key: Array, scale: float = 1.0) -> Averaged:
    """Return the state with weights drawn from the Gaussian in place of the mean; `scale` multiplies its covariance.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, optax, phalanx as phx
        >>> loss = lambda out, y: jnp.mean((out - y) ** 2)
        >>> one = phx.ensembles.learner(lambda key: jnp.zeros(2), lambda w, x: x @ w, loss, optax.sgd(0.1))
        >>> averaged = phx.ensembles.swag(one, start=0, every=1, rank=2)
        >>> state, (x, y) = averaged.init(jax.random.key(0)), (np.eye(2), np.ones(2))
        >>> for step in range(3):
        ...     state, measured = averaged.update(state, (x, y), jax.random.key(step))
        >>> phx.ensembles.swag_draw(state, jax.random.key(1)).mean.shape
        (2,)
    """
    rank = jax.tree.leaves(state.deviations)[0].shape[0]
    columns = jnp.minimum(state.count, rank)
    key_low, key_diagonal = random.split(key)
    along = random.normal(key_low, (rank,)) / jnp.sqrt(2 * jnp.maximum(columns - 1, 1))
    leaves, tree = jax.tree.flatten(state.mean)
    keys = tree.unflatten(list(random.split(key_diagonal, len(leaves))))

    def draw(mean: Array, squares: Array, rows: Array, key: Array) -> Array:
        variance = squares / jnp.maximum(state.count, 1).astype(squares.dtype)
        diagonal = jnp.sqrt(variance / 2) * random.normal(key, mean.shape, mean.dtype)
        return mean + scale**0.5 * (diagonal + jnp.tensordot(along.astype(mean.dtype), rows, axes=1))

    return state._replace(mean=jax.tree.map(draw, state.mean, state.squares, state.deviations, keys))
