"""Images pixel by pixel: a network for it, distributions of a pixel, and drawing one pixel after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, lax, random
from jax.core import Tracer

from phalanx.flows.likelihoods import HIGHEST, QuantizedLogisticMixture
from phalanx.networks.network import Network
from phalanx.networks.nnx import from_nnx

COLDEST = 1e-30
"""The lowest temperature: what is less probable by a millionth is out of reach, and nothing is divided by zero."""

Likelihood = Callable[..., dist.Distribution]
"""`likelihood(outputs, temperature)`, the distribution of pixels that a network's outputs stand for."""


def image_transformer(rows: int, columns: int, **sizes: Any) -> Network:
    """A transformer over the pixels of an image, each given those before it in raster order.

    Args:
        rows: of an image.
        columns: of an image.
        **sizes: `width`, `layers`, `heads`, `window`, `outputs`, `dtype` and `implementation`, as
            `phalanx.networks.transformer.ImageTransformer` has them.

    Returns:
        The network, of pixels `(batch, rows * columns)` from 0 to 255. Its weights say how they are laid out over the
        mesh's `model` axis. `pixel_sampler` draws from it.

    Raises:
        ImportError: when Flax is not installed.
        ValueError: when a size is out of range.

    Example:
        >>> import jax, jax.numpy as jnp, phalanx as phx
        >>> network = phx.networks.image_transformer(4, 4, width=8, layers=1, heads=2)
        >>> def model(pixels):
        ...     outputs = phx.network("transformer", network)(pixels)
        ...     phx.sample("pixels", phx.networks.levels(outputs).to_event(1), obs=pixels)
        >>> found = phx.trace(phx.seed(model, 0))(jnp.zeros((3, 16), int))["pixels"]
        >>> found.log_prob().shape
        (3,)

    Source:
        Parmar, Vaswani, Uszkoreit, Kaiser, Shazeer, Ku, Tran (2018), Image transformer.
    """
    from phalanx.networks.transformer import ImageTransformer

    return from_nnx(lambda rngs: ImageTransformer(rows, columns, **sizes, rngs=rngs))


def levels(outputs: Array, temperature: Array | float = 1.0) -> dist.Distribution:
    """A categorical distribution of a pixel's 256 levels, from as many outputs: `(..., 256)`.

    At a temperature below 1 what is probable becomes more so; at 0 the most probable level has it all.
    """
    return dist.CategoricalLogits(_cooled(outputs, temperature))


def logistics(outputs: Array, temperature: Array | float = 1.0) -> dist.Distribution:
    """A discretised mixture of K logistics for a pixel, from 3 K outputs: logits, locations, log scales: `(..., 3 K)`.

    At a temperature below 1 components and their scales are narrower; at 0 there is the most probable one's location.
    """
    logits, loc, log_scale = jnp.split(outputs, 3, axis=-1)
    middle = HIGHEST / 2
    # a tenth of the range wide at first; never narrower than what rounding leaves
    scale = middle * jnp.exp(jnp.clip(log_scale - 1.6, -7.0, 3.0)) * jnp.maximum(temperature, COLDEST)
    return QuantizedLogisticMixture(_cooled(logits, temperature), middle * (1 + loc), scale, validate_args=False)


def _cooled(logits: Array, temperature: Array | float) -> Array:
    """Logits at a temperature. Where it is not 1, the largest is 0: however cold it is, that one is a number."""
    if isinstance(temperature, float) and temperature == 1.0:
        return logits  # as in training, where a pass over all of them is a part of a step
    largest = lax.stop_gradient(jnp.max(logits, -1, keepdims=True))  # what is added to all logits makes no difference
    return (logits - largest) / jnp.maximum(temperature, COLDEST)


def pixel_sampler(network: Network, likelihood: Likelihood, *, cached: bool = True) -> Callable[..., Array]:
    """A function that draws images pixel by pixel, compiled once for each number of images.

    Args:
        network: of `image_transformer`.
        likelihood: `levels`, `logistics`, or another function of outputs and a temperature.
        cached: whether keys and values of the positions before are kept. Without, the network goes over the whole image
            for every pixel: the same pixels, hundreds of times slower; for comparison.

    Returns:
        `sampler(weights, key, images, known, temperature)`: `images`, `(images, pixels)`, with the pixels from number
        `known` on drawn anew; 0 draws whole images, half of the pixels completes halves. At a temperature of 0 each
        pixel is the most probable one; below it there is none, and it raises a ValueError.

    Example:
        >>> import jax, jax.numpy as jnp, phalanx as phx
        >>> network = phx.networks.image_transformer(4, 4, width=8, layers=1, heads=2)
        >>> sampler = phx.networks.pixel_sampler(network, phx.networks.levels)
        >>> weights = network.init(jax.random.key(0))
        >>> sampler(weights, jax.random.key(1), jnp.zeros((5, 16), jnp.uint8), 8, 0.9).shape
        (5, 16)
    """

    def outputs_of(weights: Any, images: Array, position: Array, caches: Any) -> tuple[Array, Any]:
        if cached:
            return network.apply(weights, images, position, caches, method="next")
        return network.apply(weights, images)[:, position], caches

    def sample(weights: Any, key: Array, images: Array, known: Array | int, temperature: Array | float) -> Array:
        def step(position: Array, state: tuple[Array, Any]) -> tuple[Array, Any]:
            images, caches = state
            outputs, caches = outputs_of(weights, images, position, caches)
            drawn = jnp.asarray(likelihood(outputs, temperature).sample(random.fold_in(key, position)))
            kept = jnp.where(position < known, images[:, position], drawn.astype(images.dtype))
            return images.at[:, position].set(kept), caches

        caches = network.apply(weights, len(images), method="caches") if cached else ()
        return lax.fori_loop(0, images.shape[1], step, (images, caches))[0]

    compiled = jax.jit(sample)

    def sampler(weights: Any, key: Array, images: Array, known: Array | int, temperature: Array | float) -> Array:
        if not isinstance(temperature, Tracer) and not float(temperature) >= 0:
            raise ValueError(f"pixel_sampler: temperature must be 0 or above; got {temperature}.")
        return compiled(weights, key, images, known, temperature)

    return sampler
