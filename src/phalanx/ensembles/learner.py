"""From a network, a loss and an optimiser to what an ensemble trains: `init` and `update` of one network."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from phalanx.extras import require

Loss = Callable[..., Any]
"""`loss(outputs, targets)`: a scalar, or a scalar and a dict of other scalars to be told."""


class Trained(NamedTuple):
    """The state of one network: what is differentiated, what is not (statistics of batches, say), the optimiser's."""

    params: Any
    rest: Any
    optimizer: Any


class Learner(NamedTuple):
    """What trains one network.

    Attributes:
        init: `init(key)`, its state.
        update: `update(state, (inputs, targets), key)`, the state after a step, and what it measured.
        apply: `apply(state, inputs)`, its outputs when nothing is trained.
    """

    init: Callable[[Array], Any]
    update: Callable[[Any, Any, Array], tuple[Any, dict[str, Array]]]
    apply: Callable[[Any, Any], Any]


def learner(init: Callable[[Array], Any], apply: Callable[..., Any], loss: Loss, optimizer: Any) -> Learner:
    """A network given as two functions.

    Args:
        init: `init(key)` makes its parameters, a tree of arrays: of a Linen module `lambda key: module.init(key,
            example)`, of an Equinox module the arrays that `eqx.partition` gives.
        apply: `apply(params, inputs)`, its outputs; or with a third argument `key`, for dropout: None when nothing is
            trained.
        loss: `loss(outputs, targets)`, a scalar, or a scalar and a dict of others to be told.
        optimizer: of optax.

    Returns:
        `init`, `update` and `apply` for `phx.ensemble(*learner[:2], num_members)` and `ensemble.predict`.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, optax, phalanx as phx
        >>> init = lambda key: jax.random.normal(key, (4, 3))
        >>> loss = lambda logits, y: optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        >>> network = phx.ensembles.learner(init, lambda w, x: x @ w, loss, optax.sgd(0.1))
        >>> ensemble = phx.ensemble(network.init, network.update, num_members=3)
        >>> x, y = np.ones((10, 4), np.float32), np.zeros(10, np.int32)
        >>> measured = list(ensemble.train((x, y), batch_size=5))
        >>> ensemble.predict(network.apply, x).mean.shape
        (10, 3)
    """
    with_key = "key" in inspect.signature(apply).parameters

    def begin(key: Array) -> Trained:
        params = init(key)
        return Trained(params, (), optimizer.init(params))

    def forward(params: Any, rest: Any, inputs: Any, key: Array | None) -> tuple[Any, Any]:
        return (apply(params, inputs, key=key) if with_key else apply(params, inputs)), rest

    def predict(state: Trained, inputs: Any) -> Any:
        return forward(state.params, state.rest, inputs, None)[0]

    return Learner(begin, _update(forward, loss, optimizer), predict)


def nnx_learner(make: Callable[[Any], Any], loss: Loss, optimizer: Any) -> Learner:
    """A network of Flax NNX.

    Args:
        make: `make(rngs)` makes the module, from `nnx.Rngs`. It is called with the inputs; layers that train otherwise
            than they predict (dropout, batch normalisation) are put in the right mode.
        loss: `loss(outputs, targets)`, a scalar, or a scalar and a dict of others to be told.
        optimizer: of optax.

    Returns:
        `init`, `update` and `apply`, as `learner` does.

    Raises:
        ImportError: when Flax is not installed.

    Example:
        >>> import jax.numpy as jnp, optax, phalanx as phx
        >>> from flax import nnx
        >>> loss = lambda logits, y: optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        >>> network = phx.ensembles.nnx_learner(lambda rngs: nnx.Linear(4, 3, rngs=rngs), loss, optax.sgd(0.1))
        >>> phx.ensemble(network.init, network.update, num_members=2).num_members
        2
    """
    nnx = require("flax.nnx", "ensembles")

    def split(key: Array) -> tuple[Any, Any, Any]:
        return nnx.split(make(nnx.Rngs(key)), nnx.Param, ...)

    graph = nnx.split(nnx.eval_shape(lambda: make(nnx.Rngs(0))), nnx.Param, ...)[0]

    def begin(key: Array) -> Trained:
        _, params, rest = split(key)
        return Trained(params, rest, optimizer.init(params))

    def forward(params: Any, rest: Any, inputs: Any, key: Array) -> tuple[Any, Any]:
        model = nnx.merge(graph, params, rest, copy=True)
        model.train()
        outputs = model(inputs)
        return outputs, nnx.split(model, nnx.Param, ...)[2]

    def predict(state: Trained, inputs: Any) -> Any:
        model = nnx.merge(graph, state.params, state.rest)
        model.eval()
        return model(inputs)

    return Learner(begin, _update(forward, loss, optimizer), predict)


def _update(forward: Callable[..., Any], loss: Loss, optimizer: Any) -> Callable[..., Any]:
    optax = require("optax", "ensembles")

    def update(state: Trained, batch: Any, key: Array) -> tuple[Trained, dict[str, Array]]:
        inputs, targets = batch

        def of(params: Any) -> tuple[Array, Any]:
            outputs, rest = forward(params, state.rest, inputs, key)
            found = loss(outputs, targets)
            value, others = found if isinstance(found, tuple) else (found, {})
            return value, (rest, others)

        (value, (rest, others)), gradient = jax.value_and_grad(of, has_aux=True)(state.params)
        change, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
        params = optax.apply_updates(state.params, change)
        return Trained(params, rest, optimizer_state), {"loss": value, **others}

    return update


def classification_loss(logits: Array, labels: Array) -> tuple[Array, dict[str, Array]]:
    """Cross-entropy of classes, and the accuracy: the loss of a classifier."""
    optax = require("optax", "ensembles")
    value = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return value, {"accuracy": jnp.mean(logits.argmax(-1) == labels)}
