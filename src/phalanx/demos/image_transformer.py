"""Transformer over the pixels of images: exact log likelihood, samples, and completions of half images."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.datasets import Classification
from phalanx.demos.ensemble import LARGE, as_bytes, load
from phalanx.demos.options import DemoOptions, data_and_model
from phalanx.demos.pictures.images import bits_curve, image_rows
from phalanx.demos.show import introduce, save
from phalanx.extras import require
from phalanx.language.tracing import sample
from phalanx.learning.batches import batches
from phalanx.mesh.specs import PyTree
from phalanx.networks import Network
from phalanx.networks.parameters import network
from phalanx.networks.pixels import image_transformer, levels, pixel_sampler
from phalanx.report import console
from phalanx.variational.fit import fit
from phalanx.variational.monitoring.options import training
from phalanx.variational.result import Fit

if TYPE_CHECKING:
    from jaxtyping import UInt8

WIDTH, LAYERS, HEADS, WINDOW = 64, 2, 2, 28
BATCH, RATE, HELD_OUT = 16, 3e-3, 480
TEMPERATURES = (0.8, 0.9, 1.0)
SHOWN = 10
"""Images in one row of a picture."""

WORDS = """
    p(image) = product over pixels of p(pixel | pixels before it), 256 levels each: {rows} x {columns} pixels
    transformer: {layers} layers of width {width}, {heads} heads, each sees {window} pixels back; {weights:,} weights
    Adam, steps from {rate} to 0 along a cosine: {steps:,} batches of {batch} images, {epochs:.2f} epochs
    batches sharded over {data} devices, heads and hidden units over {model}
"""


def main(options: DemoOptions) -> Fit:
    """Train the transformer, sample and complete images, and write pictures and `result.json` to `options.out`."""
    optax, data, mesh = require("optax"), load(options), data_and_model(options, BATCH)
    train, test = (as_bytes(x).reshape(len(x), -1) for x in (data.train_images, data.test_images))
    rows, columns = data.train_images.shape[1:3]
    transformer = image_transformer(rows, columns, width=WIDTH, layers=LAYERS, heads=HEADS, window=WINDOW)

    def model(pixels: Array) -> None:
        outputs = network("transformer", transformer)(pixels)
        sample("pixels", levels(outputs).to_event(1), obs=pixels)

    train, held_out = train[:-HELD_OUT], train[-HELD_OUT:]
    steps = number_of_steps(options, len(train))
    weights = sum(
        math.prod(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(transformer.init, jax.random.key(0)))
    )
    words = WORDS.format(
        rows=rows, columns=columns, layers=LAYERS, width=WIDTH, heads=HEADS, window=WINDOW, weights=weights, rate=RATE,
        steps=steps, batch=BATCH, epochs=steps * BATCH / len(train), data=mesh.shape["data"], model=mesh.shape["model"],
    )  # fmt: skip
    introduce(f"A transformer over the pixels of {data.name}", words, f"{data.source}; {data.licence}")
    rate = optax.warmup_cosine_decay_schedule(0.0, RATE, min(40, steps // 4), steps)
    began = time.perf_counter()
    learned = fit(
        model, None, batches({"pixels": train}, BATCH, seed=options.seed), optimizer=optax.adam(rate, b2=0.98),
        num_steps=steps, seed=options.seed, mesh=mesh, matmul_precision=options.precision,
        training=training(every=max(1, steps // 16), held_out={"pixels": held_out}, log=options.out / "losses.csv"),
    )  # fmt: skip
    seconds = time.perf_counter() - began
    write(options, data, transformer, learned, test, {"steps": steps, "seconds": seconds, "weights": weights})
    return learned


def number_of_steps(options: DemoOptions, rows: int) -> int:
    """Return the steps of the requested epochs, or by default those that take minutes on two cores."""
    if options.epochs is not None:
        return options.epochs * (rows // BATCH)
    return 2400 if rows >= LARGE else 800


def bits_per_dimension(
    transformer: Network, weights: PyTree, images: UInt8[np.ndarray, "image pixel"], batch: int = 50
) -> float:
    """Return the exact negative log likelihood of images, in bits per pixel."""

    @jax.jit
    def nats(weights: PyTree, pixels: Array) -> Array:
        return -jnp.sum(jnp.asarray(levels(transformer.apply(weights, pixels)).log_prob(pixels)))

    total = sum(float(nats(weights, images[i : i + batch])) for i in range(0, len(images), batch))
    return total / (images.size * math.log(2.0))


def write(
    options: DemoOptions,
    data: Classification,
    transformer: Network,
    learned: Fit,
    test: np.ndarray,
    run: dict[str, Any],
) -> None:
    """Print the test score; sample images, complete halves, and write pictures and `result.json`."""
    weights, side, to = learned.params["transformer"], data.train_images.shape[1:3], console()
    bits = bits_per_dimension(transformer, weights, test)
    words = f"{bits:.3f} bits per dimension on {len(test):,} test images of {data.name}, 8 bits (exact, not a bound)"
    to.print(words, style="bold", highlight=False)
    sampler, key = pixel_sampler(transformer, levels), jax.random.key(options.seed)
    blank, half = jnp.zeros((SHOWN, test.shape[1]), jnp.uint8), test.shape[1] // 2
    sampler(weights, key, blank, 0, 1.0).block_until_ready()
    began = time.perf_counter()
    drawn = {f"T = {t}": np.asarray(sampler(weights, key, blank, 0, t)) for t in TEMPERATURES}
    rate = len(TEMPERATURES) * SHOWN / (time.perf_counter() - began)
    to.print(f"{rate:.1f} images sampled per second, {SHOWN} at a time", highlight=False)
    given = test[:SHOWN]
    completed = {"test image": given, "given": np.where(np.arange(given.shape[1]) < half, given, 0)}
    for number in range(3):
        of_number = sampler(weights, jax.random.fold_in(key, number), jnp.asarray(given), half, 0.9)
        completed["completed, T = 0.9" if not number else " " * number] = np.asarray(of_number)
    figures = {
        "samples": image_rows(drawn, side),
        "completions": image_rows(completed, side),
        "training": bits_curve(learned.looks, bits),
    }
    result = {
        "data": data.name, "bits_per_dimension_test": bits, "test_images": len(test), "width": WIDTH, "layers": LAYERS,
        "heads": HEADS, "window": WINDOW, "batch": BATCH, "rate": RATE, **run, "images_per_second": rate,
        "epochs": run["steps"] * BATCH / (len(data.train_images) - HELD_OUT),
        "looks": [look._asdict() for look in learned.looks],
    }  # fmt: skip
    save(figures, result, options.out)
