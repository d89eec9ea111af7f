"""Variational autoencoder of handwritten digits, whose prior, decoder and encoder are three programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, random

import phalanx as phx
from phalanx.demos.options import LARGE, DemoOptions, as_bytes, introduce, save
from phalanx.extras import require
from phalanx.flows import InverseAutoregressive, MaskedAutoregressive, QuantizedLogisticMixture
from phalanx.language.tracing import Program
from phalanx.learning.batches import Batches
from phalanx.networks import Network, from_nnx
from phalanx.report import console
from phalanx.report.plots import style
from phalanx.report.plots.images import bits_curve, image_panels

if TYPE_CHECKING:
    from flax import nnx
    from jaxtyping import Shaped
    from matplotlib.figure import Figure

COMPONENTS, NOTHING, EVERYTHING = 2, 0.0, 255.0
"""Logistic components of a pixel, and its range."""

EPOCHS = 16
EPOCHS_OF_FEW = 100
BATCH = 100
RATE = 1e-3
CLIP = 200.0
OFTEN = 100
"""Least steps between two evaluations."""

WEIGHED, DRAWS = 200, 5000
"""Test images with an importance-weighted bound, and its draws for each."""

COLUMNS, ROWS, BETWEEN = 12, 6, 12
"""Images in a row of a picture, rows of draws from the prior, and images from one test image to another."""

MATHEMATICS = """
    z ~ prior: {latent} normals through {layers} masked autoregressive layers
    x | z ~ decoder: {pixels} pixels, {likelihood}
    z | x ~ encoder: normals through {layers} inverse autoregressive layers, given x
    hidden layers of {hidden} units; Adam, from {rate} to 0, batches of {batch}, {epochs} epochs
    devices: {data} along data, {model} along model
"""


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
        return phx.sample("z", dist.TransformedDistribution(normal, self._flow("prior", MaskedAutoregressive)))

    def decoder(self, z: Array, x: Array | None = None) -> Array:
        """Sample images, given their latent variables."""
        return phx.sample("x", self.pixels_of(self.network("decoder")(z)).to_event(1), obs=x)

    def encoder(self, x: Array) -> Array:
        """Sample latent variables given images: normals, transformed by a flow whose draws take one pass."""
        images = x.astype(jnp.float32) / (1.0 if self.binary else EVERYTHING)
        loc, log_scale, context = jnp.split(self.network("encoder")(images), 3, -1)
        normal = dist.Normal(loc, jnp.exp(log_scale)).to_event(1)
        flow = self._flow("posterior", InverseAutoregressive, context)
        return phx.sample("z", dist.TransformedDistribution(normal, flow))

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
        return phx.network(name, self.network_of(name))

    def network_of(self, name: str) -> Network:
        """Return the encoder's or the decoder's network as a function of its weights."""
        if name not in self._networks:
            outputs = self.pixels if self.binary else 3 * COMPONENTS * self.pixels
            sizes = (self.pixels, 3 * self.latent) if name == "encoder" else (self.latent, outputs)
            self._networks[name] = from_nnx(make_network(*sizes, self.hidden))
        return self._networks[name]

    def _flow(self, name: str, layer: Any, context: Array | None = None) -> list[Any]:
        """Return autoregressive layers, every other one in reverse order."""
        forward = tuple(range(self.latent))
        context_size = 0 if context is None else self.latent

        def begin(key: Array) -> list[Any]:
            return [layer.init(k, self.latent, (self.hidden,), context_size) for k in random.split(key, self.layers)]

        weights = phx.param(name, begin, spec=self._over_model)
        orders = [forward if i % 2 else forward[::-1] for i in range(self.layers)]
        return [layer(each, order, context=context) for each, order in zip(weights, orders, strict=True)]

    def _over_model(self, path: str, shape: tuple[int, ...]) -> tuple[str | None, ...]:
        """Return the mesh axes of a flow's weights: hidden units are sharded over `model`."""
        return tuple("model" if size == self.hidden else None for size in shape)


def make_network(inputs: int, outputs: int, width: int) -> Callable[[nnx.Rngs], nnx.Module]:
    """Return `make(rngs)` of a Flax NNX module whose hidden units are sharded over the mesh's `model` axis."""
    nnx = require("flax.nnx")
    normal = nnx.initializers.lecun_normal()
    zeros = nnx.initializers.zeros_init()
    small = nnx.initializers.variance_scaling(0.01, "fan_in", "truncated_normal")

    class Dense(nnx.Module):
        """Two layers; the hidden units are sharded in both, so that devices do not communicate between them."""

        def __init__(self, rngs: Any):
            of_columns = (None, "model")
            of_rows = ("model", None)
            self.first = nnx.Linear(
                inputs,
                width,
                kernel_init=nnx.with_partitioning(normal, of_columns),
                bias_init=nnx.with_partitioning(zeros, ("model",)),
                rngs=rngs,
            )
            self.last = nnx.Linear(width, outputs, kernel_init=nnx.with_partitioning(small, of_rows), rngs=rngs)

        def __call__(self, x: Array) -> Array:
            return self.last(nnx.silu(self.first(x)))

    return lambda rngs: Dense(rngs)


def main(options: DemoOptions) -> phx.Fit:
    """Train the model, print its test scores, and write pictures, log, checkpoint and result to `options.out`."""
    optax = require("optax")
    data = options.images()
    mesh = options.data_and_model(BATCH)
    train, held_out, test = images_of(data, options)
    vae = VAE(train.shape[1], binary=options.binary)
    default = EPOCHS if len(train) >= LARGE else EPOCHS_OF_FEW
    epochs = default if options.epochs is None else options.epochs
    likelihood = "black or white, sampled anew in each step" if vae.binary else "a mixture of 2 logistics on 0 to 255"
    text = MATHEMATICS.format(
        latent=vae.latent,
        layers=vae.layers,
        pixels=vae.pixels,
        likelihood=likelihood,
        hidden=vae.hidden,
        rate=RATE,
        batch=BATCH,
        epochs=epochs,
        data=mesh.shape["data"],
        model=mesh.shape["model"],
    )
    introduce(f"A variational autoencoder on {data.name}", text, f"{data.source}; {data.licence}")
    rows = rows_of(train, vae, options.seed)
    steps = epochs * rows.per_epoch
    fit = phx.fit(
        vae.model,
        vae.encoder,
        rows,
        num_particles=1,
        objective=phx.guides.elbo(path=False),  # the encoder's flow is slow to invert
        optimizer=optax.chain(
            optax.clip_by_global_norm(CLIP * len(train)), optax.adam(optax.cosine_decay_schedule(RATE, steps))
        ),
        num_steps=steps,
        seed=options.seed,
        mesh=mesh,
        training=phx.training(
            every=max(rows.per_epoch, OFTEN),
            held_out=rows_of(held_out, vae, options.seed + 1),
            checkpoint=options.out / "checkpoint",
            log=options.out / "losses.csv",
        ),
        matmul_precision=options.precision,
    )
    write(options, data, vae, fit, next(rows_of(test, vae, options.seed + 2, len(test)).in_order())["x"])
    return fit


def images_of(data: phx.datasets.Classification, options: DemoOptions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the training, held-out and test images, as rows of pixels from 0 to 255."""
    train, test = (as_bytes(x).reshape(len(x), -1) for x in (data.train_images, data.test_images))
    order = np.random.default_rng(options.seed).permutation(len(train))
    held_out = max(BATCH, len(train) // 12 // BATCH * BATCH)
    return train[order[held_out:]], train[order[:held_out]], test


def rows_of(images: np.ndarray, vae: VAE, seed: int, size: int = BATCH) -> Batches:
    """Return batches of images; a binary model samples each pixel, white with the probability of its grey."""

    def binarise(batch: dict[str, np.ndarray], rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        return {"x": (rng.random(batch["x"].shape) < batch["x"] / 255).astype(np.uint8)}

    return phx.batches({"x": images}, size, seed=seed, transform=binarise if vae.binary else None)


def write(options: DemoOptions, data: phx.datasets.Classification, vae: VAE, fit: phx.Fit, test: np.ndarray) -> None:
    """Print the bounds on the test images with their data; write pictures and `result.json`."""
    bound = fit.row_bounds({"x": test}, 1, seed=options.seed).elbo
    some = test[:WEIGHED]
    bounds = fit.row_bounds({"x": some}, DRAWS, seed=options.seed)
    bits = 1.0 / (vae.pixels * math.log(2.0))
    kind = "dynamically binarised" if vae.binary else "8-bit"
    numbers = {
        "data": f"{data.name}, {kind}, {'x'.join(map(str, data.test_images.shape[1:]))}",
        "test_images": len(test),
        "elbo_nats": -float(bound.mean()),
        "elbo_bits_per_dimension": -float(bound.mean()) * bits,
        "weighted_images": len(some),
        "weighted_draws": DRAWS,
        "weighted_nats": -float(bounds.importance_weighted.mean()),
        "weighted_bits_per_dimension": -float(bounds.importance_weighted.mean()) * bits,
        "elbo_nats_same_images": -float(bounds.elbo.mean()),
        "weights": int(sum(np.size(leaf) for leaf in jax.tree.leaves(fit.params))),
        "steps": fit.steps,
        "failed_steps": fit.failed,
        "seconds": fit.looks[-1].seconds,
    }
    lines = (
        f"{numbers['data']}, all {len(test):,} test images, evidence lower bound (1 draw): "
        f"{numbers['elbo_nats']:.2f} nats, {numbers['elbo_bits_per_dimension']:.4f} bits per dimension",
        f"{numbers['data']}, the first {len(some):,} test images, importance-weighted bound ({DRAWS:,} draws): "
        f"{numbers['weighted_nats']:.2f} nats, {numbers['weighted_bits_per_dimension']:.4f} bits per dimension",
    )
    to = console()
    for line in lines:
        to.print(line, style="bold", highlight=False)
    figures = draw_pictures(vae, fit, test, data.test_images.shape[1:], options.seed)
    save(figures, {**numbers, "looks": [look._asdict() for look in fit.looks]}, options.out)


def draw_pictures(
    vae: VAE, fit: phx.Fit, test: Shaped[np.ndarray, "image pixel"], side: tuple[int, ...], seed: int
) -> dict[str, Figure]:
    """Draw samples, reconstructions, interpolations and the loss."""
    key = random.key(seed)

    def run(*names: str, key: Array) -> Callable[[Program], Any]:
        """Return a function that runs a program with the learned values of its parameters."""
        values = {name: fit.params[name] for name in names}
        return lambda program: phx.seed(phx.substitute(program, values), key)()

    @jax.jit
    def prior(key: Array) -> Array:
        return run("prior", key=key)(lambda: vae.prior(COLUMNS * ROWS))

    @jax.jit
    def encode(x: Array, key: Array) -> Array:
        return run("encoder", "posterior", key=key)(lambda: vae.encoder(x))

    @jax.jit
    def decode(z: Array) -> Array:
        return vae.brightness(run("decoder", key=key)(lambda: vae.network("decoder")(z)))

    def grid(title: str, images: np.ndarray | Array, rows: int) -> Figure:
        images = np.asarray(images).reshape(rows, -1, *side)
        figure = style.new_figure(0.75 * images.shape[1], 0.75 * rows + 0.35)
        figure.suptitle(title, fontsize=9, color=style.MUTED)
        panels = image_panels(figure, *images.shape[:2])
        for axes, image in zip(panels.flat, images.reshape(-1, *side), strict=True):
            axes.imshow(image, cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        return figure

    originals = test[:COLUMNS]
    behind = encode(originals, random.fold_in(key, 1))
    weight = jnp.linspace(0.0, 1.0, BETWEEN)[None, :, None]
    pairs = (1 - weight) * behind[: COLUMNS // 2, None] + weight * behind[COLUMNS // 2 :, None]
    between = decode(pairs.reshape(-1, vae.latent))
    grey = originals / (1.0 if vae.binary else 255.0)
    reconstructed = np.concatenate([grey, np.asarray(decode(behind))])
    title = "Test images, and expected pixels given one draw of their latent variables"
    return {
        "samples": grid("Expected pixels of draws from the prior", decode(prior(key)), ROWS),
        "reconstructions": grid(title, reconstructed, 2),
        "interpolation": grid(
            "From one test image to another, along a line between their latent variables", between, COLUMNS // 2
        ),
        "loss": bits_curve(fit.looks),
    }
