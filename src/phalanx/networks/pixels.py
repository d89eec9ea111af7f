"""Autoregressive models of images: a network over pixels, distributions of a pixel, and a sampler by pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax, random
from jax.core import Tracer
from jax.typing import ArrayLike

from phalanx.flows.likelihoods import HIGHEST, QuantizedLogisticMixture
from phalanx.mesh.specs import PyTree
from phalanx.networks.frameworks import from_nnx
from phalanx.networks.network import Network

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

COLDEST = 1e-30
"""Lowest temperature, which avoids a division by zero; at it a value less probable by a millionth is never drawn."""

Likelihood = Callable[..., dist.Distribution]
"""`likelihood(outputs, temperature)`, the distribution of pixels given a network's outputs."""


def image_transformer(rows: int, columns: int, **sizes: Any) -> Network:
    """Make a transformer over the pixels of an image, each given the earlier ones in raster order.

    Args:
        rows: rows of an image.
        columns: columns of an image.
        **sizes: `width`, `layers`, `heads`, `window`, `outputs`, `dtype` and `implementation` of
            `phalanx.networks.transformer.ImageTransformer`.

    Returns:
        The network, whose input are pixels `(batch, rows * columns)` from 0 to 255. Its weights have metadata for their
        layout over the mesh's `model` axis. `pixel_sampler` draws from it.

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


def levels(outputs: Float[Array, "*batch levels"], temperature: ArrayLike = 1.0) -> dist.Distribution:
    """Return a categorical distribution of a pixel's levels, from one output each.

    At a temperature below 1 probable levels become more probable; at 0 the most probable level has all the mass.

    Example:
        >>> import jax.numpy as jnp, phalanx as phx
        >>> phx.networks.levels(jnp.zeros(256)).probs[0].item()
        0.00390625
    """
    return dist.CategoricalLogits(_logits_at_temperature(outputs, temperature))


def logistics(outputs: Float[Array, "*batch outputs"], temperature: ArrayLike = 1.0) -> dist.Distribution:
    """Return a discretised mixture of K logistics for a pixel, from 3 K outputs: logits, locations and log scales.

    At a temperature below 1 the mixture and its components are narrower; at 0 all mass is at the location of the most
    probable component.

    Example:
        >>> import jax.numpy as jnp, phalanx as phx
        >>> phx.networks.logistics(jnp.zeros(3)).loc.tolist()
        [127.5]
    """
    logits, loc, log_scale = jnp.split(outputs, 3, axis=-1)
    middle = HIGHEST / 2
    # the initial scale is a tenth of the range; the lowest one is below the rounding to whole numbers
    scale = middle * jnp.exp(jnp.clip(log_scale - 1.6, -7.0, 3.0)) * jnp.maximum(temperature, COLDEST)
    return QuantizedLogisticMixture(
        _logits_at_temperature(logits, temperature), middle * (1 + loc), scale, validate_args=False
    )


def _logits_at_temperature(
    logits: Float[Array, "*batch outputs"], temperature: ArrayLike
) -> Float[Array, "*batch outputs"]:
    """Return logits at a temperature; at another one than 1 the largest is 0, so that it stays finite when divided."""
    if isinstance(temperature, float) and temperature == 1.0:
        return logits  # as in training, where another pass over all logits would cost time
    largest = lax.stop_gradient(jnp.max(logits, -1, keepdims=True))  # logits are defined up to a constant
    return (logits - largest) / jnp.maximum(temperature, COLDEST)


def pixel_sampler(network: Network, likelihood: Likelihood, *, cached: bool = True) -> Callable[..., Array]:
    """Return a function that draws images pixel by pixel, compiled once for each number of images.

    Args:
        network: from `image_transformer`.
        likelihood: `levels`, `logistics`, or another function of outputs and a temperature.
        cached: whether keys and values of earlier positions are cached. Without a cache the network is applied to the
            whole image for every pixel: the same pixels, hundreds of times slower; for comparison.

    Returns:
        `sampler(weights, key, images, known, temperature)`: `images`, `(images, pixels)`, with the pixels from number
        `known` on drawn anew; 0 draws whole images, half the number of pixels completes halves. At a temperature of 0
        each pixel is the most probable one; a negative temperature is a ValueError.

    Example:
        >>> import jax, jax.numpy as jnp, phalanx as phx
        >>> network = phx.networks.image_transformer(4, 4, width=8, layers=1, heads=2)
        >>> sampler = phx.networks.pixel_sampler(network, phx.networks.levels)
        >>> weights = network.init(jax.random.key(0))
        >>> sampler(weights, jax.random.key(1), jnp.zeros((5, 16), jnp.uint8), 8, 0.9).shape
        (5, 16)
    """

    def outputs_at(weights: PyTree, images: Array, position: Array, caches: PyTree) -> tuple[Array, PyTree]:
        if cached:
            return network.apply(weights, images, position, caches, method="next")
        return network.apply(weights, images)[:, position], caches

    def sample(weights: PyTree, key: Array, images: Array, num_given: Array | int, temperature: Array | float) -> Array:
        def step(position: Array, state: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
            images, caches = state
            outputs, caches = outputs_at(weights, images, position, caches)
            samples = jnp.asarray(likelihood(outputs, temperature).sample(random.fold_in(key, position)))
            pixels = jnp.where(position < num_given, images[:, position], samples.astype(images.dtype))
            return images.at[:, position].set(pixels), caches

        caches = network.apply(weights, len(images), method="caches") if cached else ()
        return lax.fori_loop(0, images.shape[1], step, (images, caches))[0]

    compiled = jax.jit(sample)

    def sampler(
        weights: PyTree,
        key: Array,
        images: Shaped[Array | np.ndarray, "images ..."],
        known: Array | int,
        temperature: Array | float,
    ) -> Shaped[Array, "images pixels"]:
        if not isinstance(temperature, Tracer) and not float(temperature) >= 0:
            raise ValueError(f"pixel_sampler: temperature must be 0 or above; got {temperature}.")
        return compiled(weights, key, images, known, temperature)

    return sampler
