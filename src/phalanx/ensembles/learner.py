"""Learners: `init`, `update` and `apply` of one network, made from a network, a loss and an optimiser of optax."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from phalanx.extras import require
from phalanx.mesh.specs import PyTree
from phalanx.networks.frameworks import linen_module, nnx_module
from phalanx.networks.network import Module, Network

if TYPE_CHECKING:
    import optax
    from flax import linen as nn
    from jaxtyping import Float, Integer

Loss = Callable[..., Any]
"""`loss(outputs, targets)`: a scalar, or a scalar and a dict of other scalars to report."""


class Trained(NamedTuple):
    """State of one network.

    Attributes:
        params: parameters, which are differentiated.
        rest: other arrays, such as statistics of batches.
        optimizer: state of the optimiser.
    """

    params: Any
    rest: Any
    optimizer: Any


class Learner(NamedTuple):
    """Functions that train one network.

    Attributes:
        init: `init(key)`, its first state.
        update: `update(state, (inputs, targets), key)`, the state after a step, and the scalars that it measured.
        apply: `apply(state, inputs)`, its outputs when it predicts.

    Example:
        >>> import jax, jax.numpy as jnp, optax, phalanx as phx
        >>> init = lambda key: jax.random.normal(key, (4, 2))
        >>> loss = lambda outputs, y: jnp.mean((outputs - y) ** 2)
        >>> learner = phx.ensembles.learner(init, lambda w, x: x @ w, loss, optax.sgd(0.1))
        >>> learner.apply(learner.init(jax.random.key(0)), jnp.ones((3, 4))).shape
        (3, 2)
    """

    init: Callable[[Array], Any]
    update: Callable[[Any, Any, Array], tuple[Any, dict[str, Array]]]
    apply: Callable[[Any, Any], Any]


def learner(
    network: Network | Callable[[Array], Any],
    apply: Any = None,
    loss: Any = None,
    optimizer: Any = None,
) -> Learner:
    """Make a learner of a network, `learner(network, loss, optimizer)`, or of functions, `learner(init, apply, ...)`.

    Args:
        network: a network from `phx.networks.from_nnx`, `from_linen` or `from_equinox`; or a function of a key that
            makes parameters, a tree of arrays. For modules with statistics of batches or dropout there are
            `nnx_learner` and `linen_learner`.
        apply: with such a function, `apply(params, inputs)`, the outputs; or with a third argument `key`, for dropout,
            which is None when it predicts.
        loss: `loss(outputs, targets)`, a scalar, or a scalar and a dict of other scalars to report.
        optimizer: an optimiser of optax.

    Returns:
        `init`, `update` and `apply` for `phx.ensemble(*learner[:2], num_members)` and `ensemble.predict`.

    Raises:
        TypeError: when the optimiser is not one of optax's.
        ValueError: when `init` makes collections of Flax that are not all parameters.

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
    if isinstance(network, Network):
        parts = [each for each in (apply, loss, optimizer) if each is not None]  # the first or the last is left out
        if len(parts) != 2:
            raise TypeError("learner: give a network with a loss and an optimizer, learner(network, loss, optimizer).")
        return _learner(_of_functions(network.init, network.apply), *parts)
    return _learner(_of_functions(network, apply), loss, optimizer)


def _of_functions(init: Callable[[Array], Any], apply: Callable[..., Any]) -> Module:
    with_key = "key" in inspect.signature(apply).parameters

    def begin(key: Array) -> tuple[PyTree, tuple[()]]:
        params = init(key)
        if isinstance(params, Mapping) and "params" in params and len(params) > 1:
            others = ", ".join(repr(name) for name in params if name != "params")
            raise ValueError(
                f"learner: init makes, besides parameters, the collections {others}, which would be trained like "
                f"parameters. Use phx.ensembles.linen_learner(module, example, loss, optimizer)."
            )
        return params, ()

    def train(params: PyTree, rest: PyTree, key: Array | None, inputs: PyTree) -> tuple[PyTree, PyTree]:
        return (apply(params, inputs, key=key) if with_key else apply(params, inputs)), rest

    return Module(begin, train, lambda params, rest, inputs: train(params, rest, None, inputs)[0])


def nnx_learner(make: Callable[[Any], Any], loss: Loss, optimizer: optax.GradientTransformation) -> Learner:
    """Make a learner of a network of Flax NNX.

    Args:
        make: `make(rngs)` makes the module, from `nnx.Rngs`. The module is called with the inputs; layers that differ
            between training and prediction (dropout, batch normalisation) are put in the right mode.
        loss: `loss(outputs, targets)`, a scalar, or a scalar and a dict of other scalars to report.
        optimizer: an optimiser of optax.

    Returns:
        `init`, `update` and `apply`, as those of `learner`.

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
    return _learner(nnx_module(make), loss, optimizer)


def linen_learner(
    module: nn.Module,
    example: PyTree,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    *,
    train: Mapping[str, Any] | None = None,
    predict: Mapping[str, Any] | None = None,
) -> Learner:
    """Make a learner of a network of Flax Linen.

    Args:
        module: the module. It is called with the inputs; collections other than its parameters (statistics of batches)
            are kept in the state without a gradient, and dropout is given random numbers.
        example: inputs, of which the shapes matter only.
        loss: `loss(outputs, targets)`, a scalar, or a scalar and a dict of other scalars to report.
        optimizer: an optimiser of optax.
        train: keyword arguments of the module while it is trained, such as `{"train": True}`.
        predict: keyword arguments of the module when it predicts.

    Returns:
        `init`, `update` and `apply`, as those of `learner`.

    Raises:
        TypeError: when the optimiser is not one of optax's.

    Example:
        >>> import jax.numpy as jnp, optax, phalanx as phx
        >>> from flax import linen
        >>> loss = lambda logits, y: optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        >>> network = phx.ensembles.linen_learner(linen.Dense(3), jnp.ones((1, 4)), loss, optax.sgd(0.1))
        >>> phx.ensemble(network.init, network.update, num_members=2).num_members
        2
    """
    return _learner(linen_module(module, (example,), train, predict), loss, optimizer)


def _learner(module: Module, loss: Loss, optimizer: optax.GradientTransformation) -> Learner:
    """Return the learner of a module."""

    def init(key: Array) -> Trained:
        params, rest = module.begin(key)
        return Trained(params, rest, optimizer.init(params))

    def apply(state: Trained, inputs: PyTree) -> Any:
        return module.predict(state.params, state.rest, inputs)

    return Learner(init, _update(module.train, loss, optimizer), apply)


def _update(forward: Callable[..., Any], loss: Loss, optimizer: Any) -> Callable[..., Any]:
    optax = require("optax")
    if not hasattr(optimizer, "init") or not hasattr(optimizer, "update"):
        raise TypeError(
            f"learner: optimizer must be one of optax's, such as optax.adam(1e-3); got {type(optimizer).__name__}."
        )
    optimizer = optax.with_extra_args_support(optimizer)

    def update(state: Trained, batch: PyTree, key: Array) -> tuple[Trained, dict[str, Array]]:
        inputs, targets = batch

        def of(params: PyTree) -> tuple[Array, Any]:
            outputs, rest = forward(params, state.rest, key, inputs)
            losses = loss(outputs, targets)
            value, others = losses if isinstance(losses, tuple) else (losses, {})
            return value, (rest, others)

        (value, (rest, others)), gradient = jax.value_and_grad(of, has_aux=True)(state.params)
        # some optimisers read the loss, or evaluate it along a line
        change, optimizer_state = optimizer.update(
            gradient,
            state.optimizer,
            state.params,
            value=value,
            grad=gradient,
            value_fn=lambda params: of(params)[0],
        )
        params = optax.apply_updates(state.params, change)
        return Trained(params, rest, optimizer_state), {"loss": value, **others}

    return update


def classification_loss(
    logits: Float[Array, "... classes"], labels: Integer[Array, "..."]
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Return the mean cross-entropy of classes and, in a dict, the accuracy: the loss of a classifier.

    A label that is not a class, such as -1 or a number of 1 to C where classes are numbered from 0, makes it NaN.

    Raises:
        TypeError: when labels are not whole numbers.
        ValueError: when the number of labels differs from the number of rows of the logits.

    Example:
        >>> import jax.numpy as jnp, phalanx as phx
        >>> loss, measured = phx.ensembles.classification_loss(jnp.zeros((4, 2)), jnp.array([0, 0, 0, 1]))
        >>> print(round(float(loss), 4), float(measured["accuracy"]))
        0.6931 0.75
    """
    optax = require("optax")
    if not jnp.issubdtype(jnp.result_type(labels), jnp.integer):
        raise TypeError(
            f"classification_loss: labels must be the whole numbers of classes, from 0; got {jnp.result_type(labels)}."
        )
    if jnp.shape(labels) != logits.shape[:-1]:
        raise ValueError(
            f"classification_loss: labels of shape {jnp.shape(labels)} for logits of shape {logits.shape}; expected "
            f"{logits.shape[:-1]}, a class for each row."
        )
    is_class = jnp.all((labels >= 0) & (labels < logits.shape[-1]))
    value = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return jnp.where(is_class, value, jnp.nan), {"accuracy": jnp.mean(logits.argmax(-1) == labels)}
