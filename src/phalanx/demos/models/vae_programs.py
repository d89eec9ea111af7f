"""Prior, decoder and encoder of a variational autoencoder as programs, their networks sharded over `model`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array

from phalanx.extras import require
from phalanx.flows import InverseAutoregressive, MaskedAutoregressive, QuantizedLogisticMixture
from phalanx.language.parameters import param
from phalanx.language.tracing import sample
from phalanx.networks import Network, from_nnx
from phalanx.networks.parameters import network

if TYPE_CHECKING:
    from flax import nnx

COMPONENTS, NOTHING, EVERYTHING = 2, 0.0, 255.0
"""Logistic components of a pixel, and its range."""


@dataclass(frozen=True)
class VAE:
    """Variational autoencoder: `model` is prior and decoder, `encoder` is the guide.

    Attributes:
        pixels: pixels of an image.
        latent: latent coordinates of an image.
        hidden: width of each network's hidden layer, sharded over `model`.
        layers: autoregressive layers of the prior, and of the posterior.
        binary: True for black or white pixels instead of 0 to 255.
    """

    pixels: int
    latent: int = 48
    hidden: int = 256
    layers: int = 2
    binary: bool = False
    _networks: dict[str, Network] = field(default_factory=dict, repr=False, compare=False)

    def model(self, x: Array) -> None:
        """Model latent variables of each image, and the image."""
        self.decoder(self.prior(len(x)), x)

    def prior(self, rows: int) -> Array:
        """Sample latent variables: standard normals, transformed by a flow whose density takes one pass."""
        normal = dist.Normal(0.0, 1.0).expand([rows, self.latent]).to_event(1)
        return sample("z", dist.TransformedDistribution(normal, self._flow("prior", MaskedAutoregressive)))

    def decoder(self, z: Array, x: Array | None = None) -> Array:
        """Sample images, given their latent variables."""
        return sample("x", self.pixels_of(self.network("decoder")(z)).to_event(1), obs=x)

    def encoder(self, x: Array) -> Array:
        """Sample latent variables given images: normals, transformed by a flow whose draws take one pass."""
        loc, log_scale, context = jnp.split(self.network("encoder")(self._scaled(x)), 3, -1)
        normal = dist.Normal(loc, jnp.exp(log_scale)).to_event(1)
        return sample(
            "z", dist.TransformedDistribution(normal, self._flow("posterior", InverseAutoregressive, context))
        )

    def pixels_of(self, raw: Array) -> Any:
        """Return the distribution of pixels with the decoder's outputs as parameters."""
        if self.binary:
            return dist.Bernoulli(logits=raw)
        logits, loc, log_scale = jnp.split(raw.reshape(*raw.shape[:-1], self.pixels, 3 * COMPONENTS), 3, -1)
        ends = jnp.linspace(NOTHING, EVERYTHING, COMPONENTS).reshape((1,) * (raw.ndim) + (-1,))
        return QuantizedLogisticMixture(logits, ends + EVERYTHING * loc, jnp.exp(2.5 + log_scale))

    def brightness(self, raw: Array) -> Array:
        """Return the expected pixels, from 0 to 1."""
        pixels = self.pixels_of(raw)
        if self.binary:
            return pixels.mean
        each = jnp.clip(pixels.loc, NOTHING, EVERYTHING) / EVERYTHING
        return jnp.sum(jax.nn.softmax(pixels.logits, -1) * each, -1)

    def network(self, name: str) -> Callable[..., Array]:
        """Return the encoder's or the decoder's network with learned weights."""
        return network(name, self.network_of(name))

    def network_of(self, name: str) -> Network:
        """Return the encoder's or the decoder's network as a function of its weights."""
        if name not in self._networks:
            outputs = self.pixels if self.binary else 3 * COMPONENTS * self.pixels
            sizes = (self.pixels, 3 * self.latent) if name == "encoder" else (self.latent, outputs)
            self._networks[name] = from_nnx(make_network(*sizes, self.hidden))
        return self._networks[name]

    def _flow(self, name: str, layer: Any, context: Array | None = None) -> list[Any]:
        """Return autoregressive layers, every other one in reverse order."""
        forward, known = tuple(range(self.latent)), 0 if context is None else self.latent

        def begin(key: Array) -> list[Any]:
            return [layer.init(k, self.latent, (self.hidden,), known) for k in jax.random.split(key, self.layers)]

        weights = param(name, begin, spec=self._over_model)
        orders = [forward if i % 2 else forward[::-1] for i in range(self.layers)]
        return [layer(each, order, context=context) for each, order in zip(weights, orders, strict=True)]

    def _over_model(self, path: str, shape: tuple[int, ...]) -> tuple[str | None, ...]:
        """Return the mesh axes of a flow's weights: hidden units are sharded over `model`."""
        return tuple("model" if size == self.hidden else None for size in shape)

    def _scaled(self, x: Array) -> Array:
        return x.astype(jnp.float32) / (1.0 if self.binary else EVERYTHING)


def make_network(inputs: int, outputs: int, hidden: int) -> Callable[[nnx.Rngs], nnx.Module]:
    """Return `make(rngs)` of a Flax NNX module whose hidden units are sharded over the mesh's `model` axis."""
    nnx = require("flax.nnx")
    normal, zeros = nnx.initializers.lecun_normal(), nnx.initializers.zeros_init()
    small = nnx.initializers.variance_scaling(0.01, "fan_in", "truncated_normal")

    class Dense(nnx.Module):
        """Two layers; the hidden units are sharded in both, so that devices do not communicate between them."""

        def __init__(self, rngs: Any):
            sharded, gathered = (None, "model"), ("model", None)
            self.first = nnx.Linear(
                inputs, hidden, kernel_init=nnx.with_partitioning(normal, sharded),
                bias_init=nnx.with_partitioning(zeros, ("model",)), rngs=rngs,
            )  # fmt: skip
            self.last = nnx.Linear(hidden, outputs, kernel_init=nnx.with_partitioning(small, gathered), rngs=rngs)

        def __call__(self, x: Array) -> Array:
            return self.last(nnx.silu(self.first(x)))

    return lambda rngs: Dense(rngs)
