"""Bayesian softmax regression on the 1,797 real 8 x 8 digits of scikit-learn; `mnist.py` runs it on MNIST."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array

import phalanx as phx
from phalanx.demos.options import DemoOptions, Sizes, finish, introduce
from phalanx.report import reliability_figure
from phalanx.report.plots import style
from phalanx.report.plots.images import image_panels

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from matplotlib.figure import Figure

MATHEMATICS = """
    w ~ Normal(0, 1)                  [{pixels}, 10]
    b ~ Normal(0, 1)                  [10]
    y ~ Categorical(logits = x w + b)  for each of {rows:,} images x
"""
BATCH = 16
"""Draws per batch of predictions: probabilities of 10,000 images take 0.4 MB a draw."""


def model(x: Array, y: Array) -> None:
    """Model classes `y` by a softmax regression on `x` (images, pixels), from 0 to 1 or bytes."""
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1], 10]))
    b = phx.sample("b", dist.Normal(0.0, 1.0).expand([10]))
    weights = w / 255 if x.dtype == jnp.uint8 else w  # scales the weights once instead of every pixel

    def rows(x: Array) -> dist.Distribution:
        return dist.CategoricalLogits(x.astype(w.dtype) @ weights + b[None])

    phx.sample("y", phx.blocked(rows, x), obs=y)


def main(options: DemoOptions) -> phx.Posterior:
    """Run the demo: the data on two shards if the number of devices is even, the chains on the other axis."""
    shards = 2 if jax.device_count() % 2 == 0 else 1
    sizes = options.sizes(chains=4, warmup=300, draws=1000)
    return run(phx.datasets.digits(), phx.hmc(num_steps=32), sizes, shards, options)


def run(
    data: phx.datasets.Classification, kernel: phx.Kernel, sizes: Sizes, shards: int, options: DemoOptions
) -> phx.Posterior:
    """Sample the posterior, score it on the test images, and write report and pictures to `options.out`."""
    images, test_images = (x.reshape(len(x), -1) for x in (data.train_images, data.test_images))
    if test_images.dtype == np.uint8:
        test_images = (test_images / 255).astype(np.float32)
    mesh = options.mesh(shards)
    mathematics = MATHEMATICS.format(pixels=images.shape[1], rows=len(images))
    introduce(f"Bayesian softmax regression on {data.name}", mathematics, f"{data.source}; {data.licence}")
    posterior = phx.mcmc(
        model,
        phx.shard({"x": images, "y": data.train_labels}, mesh),
        kernel=kernel,
        **sizes,
        seed=options.seed,
        mesh=mesh,
        matmul_precision=options.precision,
    )
    prediction = predict(posterior, test_images, data.test_labels)
    average = phx.ensembles.Prediction(prediction.mean[None])
    scores = average.scores(data.test_labels)
    mean = float(prediction.draw_accuracy.mean())
    headline = {
        "data": data.name,
        "test_accuracy_mean_over_draws": mean,
        "test_accuracy_bayesian_model_average": scores.accuracy,
        "test_log_loss_bayesian_model_average": scores.nll,
        "expected_calibration_error": scores.ece,
    }
    text = (
        f"test accuracy {mean:.4f} averaged over draws, {scores.accuracy:.4f} of the Bayesian model average "
        f"({100 * (scores.accuracy - mean):+.2f} points); log loss {scores.nll:.4f}, "
        f"expected calibration error {scores.ece:.4f}"
    )
    figures = {
        "reliability": reliability_figure(
            average.calibration(data.test_labels), "accuracy", "confidence of the Bayesian model average", "images"
        ),
        "accuracy": accuracy_figure(prediction),
        "weights": weights_figure(posterior, data.train_images.shape[1]),
    }
    finish(posterior, headline, text, figures, options.out)
    return posterior


class AveragePrediction(NamedTuple):
    """Prediction of test images by the Bayesian model average, and accuracies on the way.

    Attributes:
        mean: probabilities `(images, classes)`, the mean over draws.
        draw_accuracy: accuracy of each draw.
        counts, running_accuracy: numbers of draws, and accuracies of the average of so many.
    """

    mean: Float[np.ndarray, "image class"]
    draw_accuracy: Float[np.ndarray, "draw"]
    counts: list[int]
    running_accuracy: list[float]


def predict(
    posterior: phx.Posterior, images: Float[np.ndarray, "image pixel"], labels: Int[np.ndarray, "image"]
) -> AveragePrediction:
    """Average predictions over draws, batch by batch: the probabilities of all draws would not fit in memory."""
    weights, biases = (np.swapaxes(posterior.draws[n], 0, 1).reshape(-1, *posterior.draws[n].shape[2:]) for n in "wb")

    @jax.jit
    def probabilities(w: Array, b: Array) -> tuple[Array, Array]:
        each = jax.nn.softmax(jnp.einsum("np,dpc->dnc", images, w) + b[:, None], axis=-1)
        return each.sum(0), jnp.mean(each.argmax(-1) == labels[None], axis=-1)

    total = np.zeros((len(labels), biases.shape[-1]))
    accuracies = []
    counts = []
    running = []
    for first in range(0, len(biases), BATCH):
        sums, accuracy = probabilities(weights[first : first + BATCH], biases[first : first + BATCH])
        total += np.asarray(sums)
        accuracies.append(np.asarray(accuracy))
        counts.append(min(first + BATCH, len(biases)))
        running.append(float(np.mean(total.argmax(-1) == labels)))
    return AveragePrediction(total / len(biases), np.concatenate(accuracies), counts, running)


def accuracy_figure(prediction: AveragePrediction) -> Figure:
    """Draw the accuracy of single draws, and that of the Bayesian model average of increasing numbers of draws."""
    figure = style.new_figure(7.5, 3.6)
    axes = figure.subplots()
    single = prediction.draw_accuracy
    running = prediction.running_accuracy
    draws = np.arange(1, len(single) + 1)
    axes.plot(draws, single, ".", color=style.SECOND, markersize=2, alpha=0.5, label="one draw")
    mean = single.mean()
    axes.axhline(mean, color=style.SECOND, linewidth=1.5, label=f"mean over draws, {mean:.4f}")
    label = f"Bayesian model average, {running[-1]:.4f}"
    axes.plot(prediction.counts, running, color=style.ACCENT, linewidth=2, label=label)
    style.finish(axes, "Test accuracy", "draws", "")
    style.explain(figure)
    return figure


def weights_figure(posterior: phx.Posterior, side: int) -> Figure:
    """Draw posterior mean and standard deviation of each class's weights, as images of `side` x `side` pixels."""
    flat = posterior.draws["w"].reshape(-1, *posterior.draws["w"].shape[2:])
    figure = style.new_figure(10.0, 2.5)
    means, deviations = image_panels(figure, 2, flat.shape[-1])
    for axes, values, name, colors, lowest in (
        (means, flat.mean(0), "mean", "RdBu_r", -1.0),
        (deviations, flat.std(0), "sd", "viridis", 0.0),
    ):
        limit = np.abs(values).max()
        for panel, image in zip(axes, values.T, strict=True):
            panel.imshow(image.reshape(side, side), colors, vmin=lowest * limit, vmax=limit, interpolation="nearest")
        axes[0].set_ylabel(name, fontsize=9, color=style.MUTED)
    for digit, panel in enumerate(means):
        panel.set_title(str(digit), fontsize=9, color=style.INK)
    return figure
