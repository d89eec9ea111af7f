"""Networks in programs: their weights as a parameter, or random with a prior."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import random
from jax.tree_util import KeyPath, keystr
from numpyro.distributions import Distribution, Normal

from phalanx.language.parameters import param
from phalanx.language.tracing import sample
from phalanx.mesh.specs import PyTree, Spec, path_of, specs_of
from phalanx.networks.network import Network

Prior = Callable[[str, tuple[int, ...]], Distribution]
"""From the name and shape of an array of weights to their distribution."""


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


def random_network(
    name: str,
    network: Network | Callable[[Any], Any],
    apply: Callable[..., Any] | None = None,
    *,
    prior: Prior | None = None,
) -> Callable[..., Any]:
    """Sample a network's weights as random variables of the program; return the network as a function of its inputs.

    Args:
        name: prefix of the weights' names, `name.path.of.the.array`.
        network: from `phx.networks.from_nnx`, `from_linen` or `from_equinox`; or a function of a key that makes its
            weights, a tree of arrays, of which only the shapes are used.
        apply: with such a function, `apply(weights, *inputs)`, the outputs.
        prior: `prior(path, shape)`, the distribution of an array of weights, of that shape; None means independent
            normals, with variance 1 over the number of inputs for matrices and kernels, and 1 for the rest.

    Returns:
        A function from inputs to outputs.

    Raises:
        TypeError: when `apply` is missing, or is given with a network, which has its own.
        ValueError: when a prior has another shape than its weights, or `init` makes something other than weights.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro.distributions as dist, phalanx as phx
        >>> init = lambda key: {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}
        >>> def model(x, y):
        ...     network = phx.random_network("net", init, lambda p, x: x @ p["w"] + p["b"][None])
        ...     phx.sample("y", dist.CategoricalLogits(network(x)), obs=y)
        >>> list(phx.trace(phx.seed(model, 0))(jnp.ones((5, 3)), jnp.zeros(5, int)))
        ['net.b', 'net.w', 'y']

    Source:
        Neal (1996), Bayesian learning for neural networks.
    """
    choose = _scaled_normal if prior is None else prior
    if isinstance(network, Network) and apply is not None:
        raise TypeError(
            f"random_network {name!r}: the network has its own apply; got {apply!r}. Give a prior by name, as "
            f"in phx.random_network({name!r}, network, prior=prior)."
        )
    init, apply = (network.init, network.apply) if isinstance(network, Network) else (network, apply)
    if not callable(init) or not callable(apply):
        raise TypeError(
            f"random_network {name!r}: expected a network, such as phx.networks.from_nnx(make), or two functions, "
            f"init and apply; got {init!r} and {apply!r}."
        )
    shapes = jax.eval_shape(init, random.key(0))
    if isinstance(shapes, Mapping) and "params" in shapes and len(shapes) > 1:
        others = ", ".join(repr(collection) for collection in shapes if collection != "params")
        raise ValueError(
            f"random_network {name!r}: init makes, besides parameters, the collections {others}, which are not "
            f"weights. Use a module without them, such as one that normalises by layer and not by batch."
        )

    def weights(path: KeyPath, like: PyTree) -> PyTree:
        if not jnp.issubdtype(like.dtype, jnp.floating):
            raise ValueError(
                f"random_network {name!r}: init makes {keystr(path)} of type {like.dtype}, which is not a weight. Let "
                f"it return the weights alone."
            )
        site = path_of(path)
        distribution = choose(site, like.shape)
        shape = (*distribution.batch_shape, *distribution.event_shape)
        if shape != like.shape:
            raise ValueError(
                f"random_network {name!r}: the prior of {site!r} has shape {shape}, but these weights {like.shape}. "
                f"Expand it, as in dist.Normal(0.0, 1.0).expand(shape)."
            )
        return sample(f"{name}.{site}" if site else name, distribution)

    params = jax.tree_util.tree_map_with_path(weights, shapes)
    return lambda *inputs, **options: apply(params, *inputs, **options)


def _scaled_normal(path: str, shape: tuple[int, ...]) -> Distribution:
    inputs = 1
    for size in shape[:-1]:
        inputs *= size
    return Normal(0.0, inputs**-0.5 if len(shape) > 1 else 1.0).expand(list(shape))
