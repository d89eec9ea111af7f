"""Transformer over the pixels of images: exact log likelihood, samples, and completions of half images."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import phalanx as phx
from phalanx.demos.options import LARGE, DemoOptions, as_bytes, introduce, save
from phalanx.extras import require
from phalanx.language.tracing import Program
from phalanx.mesh.specs import PyTree
from phalanx.networks import Network, image_transformer, levels, pixel_sampler
from phalanx.report import console
from phalanx.report.plots import style
from phalanx.report.plots.images import bits_curve, image_panels

if TYPE_CHECKING:
    from jaxtyping import UInt8
    from matplotlib.figure import Figure

WIDTH = 64
LAYERS = 2
HEADS = 2
WINDOW = 28
BATCH = 16
RATE = 3e-3
HELD_OUT = 480
TEMPERATURES = (0.8, 0.9, 1.0)
SHOWN = 10
"""Images in one row of a picture."""

WORDS = """
    p(image) = product over pixels of p(pixel | pixels before it), 256 levels each: {rows} x {columns} pixels
    transformer: {layers} layers of width {width}, {heads} heads, each sees {window} pixels back; {weights:,} weights
    Adam, steps from {rate} to 0 along a cosine: {steps:,} batches of {batch} images, {epochs:.2f} epochs
    batches sharded over {data} devices, heads and hidden units over {model}
"""


def make_model(transformer: Network) -> Program:
    """Return the model of images `(images, pixels)` as rows of pixels, each given those before it."""

    def model(pixels: Array) -> None:
        outputs = phx.network("transformer", transformer)(pixels)
        phx.sample("pixels", levels(outputs).to_event(1), obs=pixels)

    return model


def main(options: DemoOptions) -> phx.Fit:
    """Train the transformer, sample and complete images, and write pictures and `result.json` to `options.out`."""
    optax = require("optax")
    data = options.images()
    mesh = options.data_and_model(BATCH)
    train, test = (as_bytes(x).reshape(len(x), -1) for x in (data.train_images, data.test_images))
    rows, columns = data.train_images.shape[1:3]
    transformer = image_transformer(rows, columns, width=WIDTH, layers=LAYERS, heads=HEADS, window=WINDOW)

    train, held_out = train[:-HELD_OUT], train[-HELD_OUT:]
    steps = 2400 if len(train) >= LARGE else 800  # minutes on two cores
    if options.epochs is not None:
        steps = options.epochs * (len(train) // BATCH)
    weights = sum(
        math.prod(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(transformer.init, jax.random.key(0)))
    )
    text = WORDS.format(
        rows=rows,
        columns=columns,
        layers=LAYERS,
        width=WIDTH,
        heads=HEADS,
        window=WINDOW,
        weights=weights,
        rate=RATE,
        steps=steps,
        batch=BATCH,
        epochs=steps * BATCH / len(train),
        data=mesh.shape["data"],
        model=mesh.shape["model"],
    )
    introduce(f"A transformer over the pixels of {data.name}", text, f"{data.source}; {data.licence}")
    rate = optax.warmup_cosine_decay_schedule(0.0, RATE, min(40, steps // 4), steps)
    began = time.perf_counter()
    fit = phx.fit(
        make_model(transformer),
        None,
        phx.batches({"pixels": train}, BATCH, seed=options.seed),
        optimizer=optax.adam(rate, b2=0.98),
        num_steps=steps,
        seed=options.seed,
        mesh=mesh,
        matmul_precision=options.precision,
        training=phx.training(every=max(1, steps // 16), held_out={"pixels": held_out}, log=options.out / "losses.csv"),
    )
    seconds = time.perf_counter() - began
    write(options, data, transformer, fit, test, {"steps": steps, "seconds": seconds, "weights": weights})
    return fit


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
    data: phx.datasets.Classification,
    transformer: Network,
    fit: phx.Fit,
    test: np.ndarray,
    run: dict[str, Any],
) -> None:
    """Print the test score; sample images, complete halves, and write pictures and `result.json`."""
    weights = fit.params["transformer"]
    side = data.train_images.shape[1:3]
    to = console()
    bits = bits_per_dimension(transformer, weights, test)
    text = f"{bits:.3f} bits per dimension on {len(test):,} test images of {data.name}, 8 bits (exact, not a bound)"
    to.print(text, style="bold", highlight=False)
    sampler = pixel_sampler(transformer, levels)
    key = jax.random.key(options.seed)
    blank = jnp.zeros((SHOWN, test.shape[1]), jnp.uint8)
    half = test.shape[1] // 2
    sampler(weights, key, blank, 0, 1.0).block_until_ready()
    began = time.perf_counter()
    samples = {f"T = {t}": np.asarray(sampler(weights, key, blank, 0, t)) for t in TEMPERATURES}
    rate = len(TEMPERATURES) * SHOWN / (time.perf_counter() - began)
    to.print(f"{rate:.1f} images sampled per second, {SHOWN} at a time", highlight=False)
    test_images = test[:SHOWN]
    completed = {"test image": test_images, "given": np.where(np.arange(test_images.shape[1]) < half, test_images, 0)}
    for number in range(3):
        of_number = sampler(weights, jax.random.fold_in(key, number), jnp.asarray(test_images), half, 0.9)
        completed["completed, T = 0.9" if not number else " " * number] = np.asarray(of_number)
    figures = {
        "samples": image_rows(samples, side),
        "completions": image_rows(completed, side),
        "training": bits_curve(fit.looks, bits),
    }
    result = {
        "data": data.name,
        "bits_per_dimension_test": bits,
        "test_images": len(test),
        "width": WIDTH,
        "layers": LAYERS,
        "heads": HEADS,
        "window": WINDOW,
        "batch": BATCH,
        "rate": RATE,
        **run,
        "images_per_second": rate,
        "epochs": run["steps"] * BATCH / (len(data.train_images) - HELD_OUT),
        "looks": [look._asdict() for look in fit.looks],
    }
    save(figures, result, options.out)


def image_rows(rows: Mapping[str, np.ndarray], side: tuple[int, int]) -> Figure:
    """Draw rows of images `(images, pixels)` from 0 to 255, each row with its name."""
    count = len(next(iter(rows.values())))
    figure = style.new_figure(0.85 * count + 1.2, 0.95 * len(rows))
    for line, (name, images) in zip(image_panels(figure, len(rows), count), rows.items(), strict=True):
        for axes, image in zip(line, images, strict=True):
            axes.imshow(np.reshape(image, side), cmap="Greys", vmin=0, vmax=255, interpolation="nearest")
        line[0].set_ylabel(name, fontsize=8, color=style.MUTED, rotation=0, ha="right", va="center")
    return figure
