"""Variational autoencoder of handwritten digits, whose prior, decoder and encoder are three programs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import numpy as np

from phalanx.datasets import Classification
from phalanx.demos.ensemble import LARGE, as_bytes, load
from phalanx.demos.models.vae_programs import VAE
from phalanx.demos.options import DemoOptions, data_and_model
from phalanx.demos.pictures.vae import draw_pictures
from phalanx.demos.show import introduce, save
from phalanx.extras import require
from phalanx.learning.batches import Batches, batches
from phalanx.report import console
from phalanx.variational.fit import fit
from phalanx.variational.guides.constructors import elbo
from phalanx.variational.monitoring.options import training
from phalanx.variational.result import Fit

EPOCHS, EPOCHS_OF_FEW, BATCH, RATE, CLIP = 16, 100, 100, 1e-3, 200.0
OFTEN = 100
"""Least steps between two evaluations."""

WEIGHED, DRAWS = 200, 5000
"""Test images with an importance-weighted bound, and its draws for each."""

MATHEMATICS = """
    z ~ prior: {latent} normals through {layers} masked autoregressive layers
    x | z ~ decoder: {pixels} pixels, {likelihood}
    z | x ~ encoder: normals through {layers} inverse autoregressive layers, given x
    hidden layers of {hidden} units; Adam, from {rate} to 0, batches of {batch}, {epochs} epochs
    devices: {data} along data, {model} along model
"""


def main(options: DemoOptions) -> Fit:
    """Train the model, print its test scores, and write pictures, log, checkpoint and result to `options.out`."""
    optax = require("optax")
    data, mesh = load(options), data_and_model(options, BATCH)
    train, held_out, test = images_of(data, options)
    vae = VAE(train.shape[1], binary=options.binary)
    default = EPOCHS if len(train) >= LARGE else EPOCHS_OF_FEW
    epochs = default if options.epochs is None else options.epochs
    likelihood = "black or white, sampled anew in each step" if vae.binary else "a mixture of 2 logistics on 0 to 255"
    words = MATHEMATICS.format(
        latent=vae.latent, layers=vae.layers, pixels=vae.pixels, likelihood=likelihood, hidden=vae.hidden, rate=RATE,
        batch=BATCH, epochs=epochs, data=mesh.shape["data"], model=mesh.shape["model"],
    )  # fmt: skip
    introduce(f"A variational autoencoder on {data.name}", words, f"{data.source}; {data.licence}")
    rows = rows_of(train, vae, options.seed)
    steps = epochs * rows.per_epoch
    learned = fit(
        vae.model,
        vae.encoder,
        rows,
        num_particles=1,
        objective=elbo(path=False),  # the encoder's flow is slow to invert
        optimizer=optax.chain(
            optax.clip_by_global_norm(CLIP * len(train)), optax.adam(optax.cosine_decay_schedule(RATE, steps))
        ),
        num_steps=steps,
        seed=options.seed,
        mesh=mesh,
        training=training(
            every=max(rows.per_epoch, OFTEN),
            held_out=rows_of(held_out, vae, options.seed + 1),
            checkpoint=options.out / "checkpoint",
            log=options.out / "losses.csv",
        ),
        matmul_precision=options.precision,
    )
    write(options, data, vae, learned, next(rows_of(test, vae, options.seed + 2, len(test)).in_order())["x"])
    return learned


def images_of(data: Classification, options: DemoOptions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the training, held-out and test images, as rows of pixels from 0 to 255."""
    train, test = (as_bytes(x).reshape(len(x), -1) for x in (data.train_images, data.test_images))
    order = np.random.default_rng(options.seed).permutation(len(train))
    held_out = max(BATCH, len(train) // 12 // BATCH * BATCH)
    return train[order[held_out:]], train[order[:held_out]], test


def rows_of(images: np.ndarray, vae: VAE, seed: int, size: int = BATCH) -> Batches:
    """Return batches of images; a binary model samples each pixel, white with the probability of its grey."""

    def binarise(batch: dict[str, np.ndarray], rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        return {"x": (rng.random(batch["x"].shape) < batch["x"] / 255).astype(np.uint8)}

    return batches({"x": images}, size, seed=seed, transform=binarise if vae.binary else None)


def write(options: DemoOptions, data: Classification, vae: VAE, learned: Fit, test: np.ndarray) -> None:
    """Print the bounds on the test images with their data; write pictures and `result.json`."""
    bound = learned.row_bounds({"x": test}, 1, seed=options.seed).elbo
    some = test[:WEIGHED]
    weighted = learned.row_bounds({"x": some}, DRAWS, seed=options.seed)
    bits = 1.0 / (vae.pixels * math.log(2.0))
    kind = "dynamically binarised" if vae.binary else "8-bit"
    numbers = {
        "data": f"{data.name}, {kind}, {'x'.join(map(str, data.test_images.shape[1:]))}", "test_images": len(test),
        "elbo_nats": -float(bound.mean()), "elbo_bits_per_dimension": -float(bound.mean()) * bits,
        "weighted_images": len(some), "weighted_draws": DRAWS,
        "weighted_nats": -float(weighted.importance_weighted.mean()),
        "weighted_bits_per_dimension": -float(weighted.importance_weighted.mean()) * bits,
        "elbo_nats_same_images": -float(weighted.elbo.mean()),
        "weights": int(sum(np.size(leaf) for leaf in jax.tree.leaves(learned.params))), "steps": learned.steps,
        "failed_steps": learned.failed, "seconds": learned.looks[-1].seconds,
    }  # fmt: skip
    lines = (
        f"{numbers['data']}, all {len(test):,} test images, evidence lower bound (1 draw): "
        f"{numbers['elbo_nats']:.2f} nats, {numbers['elbo_bits_per_dimension']:.4f} bits per dimension",
        f"{numbers['data']}, the first {len(some):,} test images, importance-weighted bound ({DRAWS:,} draws): "
        f"{numbers['weighted_nats']:.2f} nats, {numbers['weighted_bits_per_dimension']:.4f} bits per dimension",
    )
    to = console()
    for line in lines:
        to.print(line, style="bold", highlight=False)
    figures = draw_pictures(vae, learned, test, data.test_images.shape[1:], options.seed)
    save(figures, {**numbers, "looks": [look._asdict() for look in learned.looks]}, options.out)
