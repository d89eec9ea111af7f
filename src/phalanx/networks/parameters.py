"""Networks whose weights are a parameter of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import random

from phalanx.language.parameters import param
from phalanx.mesh.specs import Spec, specs_of
from phalanx.networks.network import Network


def network(name: str, network: Network, *, spec: Spec = None) -> Callable[..., Any]:
    """Declare a network's weights as a parameter of the program, and return the network as a function of its inputs.

    Args:
        name: name of the parameter.
        network: from `phx.networks.from_nnx`, `from_linen`, `from_equinox` or `from_functions`.
        spec: layout of the weights over a mesh: a tree of specs; or a function of an array's path, such as
            "layers.0.kernel", and its shape, that returns a `jax.sharding.PartitionSpec`, a tuple of mesh axes, or None
            to keep the network's own.

    Returns:
        A function from inputs to outputs: the network's `apply` at the weights.

    Raises:
        TypeError: when `network` is not a `Network`.
        ValueError: when a spec does not fit its weight.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions as dist, phalanx as phx
        >>> from flax import nnx
        >>> linear = phx.networks.from_nnx(lambda rngs: nnx.Linear(3, 2, rngs=rngs))
        >>> def model(x, y):
        ...     phx.sample("y", dist.CategoricalLogits(phx.network("net", linear)(x)), obs=y)
        >>> list(phx.trace(phx.seed(model, 0))(jnp.ones((5, 3)), jnp.zeros(5, int)))
        ['net', 'y']
    """
    if not isinstance(network, Network):
        raise TypeError(
            f"phx.network {name!r}: expected a network, such as phx.networks.from_nnx(make) or "
            f"phx.networks.from_functions(init, apply); got {type(network).__name__}."
        )
    specs = network.specs
    if spec is not None:
        specs = specs_of(jax.eval_shape(network.init, random.key(0)), spec, specs, f"phx.network {name!r}")
    weights = param(name, network.init, spec=specs)
    return lambda *inputs, **options: network.apply(weights, *inputs, **options)
