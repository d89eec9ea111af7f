"""SWAG: a Gaussian over the weights of a network, from the mean and the spread of those that training passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, random

from phalanx.ensembles.learner import Learner, Trained
from phalanx.kernels.protocol.options import whole
from phalanx.mesh.specs import PyTree

if TYPE_CHECKING:
    from jaxtyping import Int


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
        whole("swag", name, value, least)
        for name, value, least in (("start", start, 0), ("every", every, 1), ("rank", rank, 2))
    )

    def init(key: Array) -> Averaged:
        trained, zero = learner.init(key), jnp.zeros((), jnp.int32)
        if not isinstance(trained, Trained):
            raise TypeError(
                f"swag: the learner must come from learner, nnx_learner or linen_learner of phx.ensembles; its init "
                f"made {type(trained).__name__}."
            )
        zeros = jax.tree.map(jnp.zeros_like, trained.params)
        deviations = jax.tree.map(lambda leaf: jnp.zeros((rank, *leaf.shape), leaf.dtype), trained.params)
        return Averaged(trained, zero, zero, zeros, zeros, deviations)

    def update(state: Averaged, batch: PyTree, key: Array) -> tuple[Averaged, dict[str, Array]]:
        trained, measured = learner.update(state.trained, batch, key)
        step = state.step + 1
        taken = (step > start) & ((step - start) % every == 0)
        count = state.count + taken

        def nearer(m: Array, w: Array) -> Array:
            return m + (taken / jnp.maximum(count, 1)).astype(m.dtype) * (w - m)

        mean = jax.tree.map(nearer, state.mean, trained.params)
        squares = jax.tree.map(
            lambda s, before, after, w: s + taken.astype(s.dtype) * (w - before) * (w - after),
            state.squares, state.mean, mean, trained.params,
        )  # fmt: skip
        slot = state.count % rank

        def put(rows: Array, w: Array, m: Array) -> Array:
            return rows.at[slot].set(jnp.where(taken, w - m, rows[slot]))

        deviations = jax.tree.map(put, state.deviations, trained.params, mean)
        return Averaged(trained, step, count, mean, squares, deviations), measured

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
        own = jnp.sqrt(variance / 2) * random.normal(key, mean.shape, mean.dtype)
        return mean + scale**0.5 * (own + jnp.tensordot(along.astype(mean.dtype), rows, axes=1))

    return state._replace(mean=jax.tree.map(draw, state.mean, state.squares, state.deviations, keys))
