"""Deep ensemble on images: networks with different initial weights, and their averaged predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array

import phalanx as phx
from phalanx.demos.options import LARGE, DemoOptions, as_bytes, introduce, save
from phalanx.ensembles import Prediction, classification_loss, nnx_learner
from phalanx.extras import require
from phalanx.report import console, reliability_figure
from phalanx.report.plots import style
from phalanx.report.plots.images import image_panels

if TYPE_CHECKING:
    from flax import nnx
    from jaxtyping import Int, Shaped
    from matplotlib.figure import Figure

MEMBERS = 8
RATE = 0.1
MOMENTUM = 0.9
SHOWN = 16
"""Images in a picture."""

WORDS = """
    conv 32, conv 64, dense 256, {classes} classes
    SGD with momentum {momentum}, steps from {rate} to 0, batches of {batch}
    {members} members: other initial weights, the same batches
"""

Row = dict[str, Any]
"""Losses and accuracies after an epoch, by name."""


def make_cnn(side: int, classes: int) -> Callable[[nnx.Rngs], nnx.Module]:
    """Return `make(rngs)` of a Flax NNX module for images of `side` x `side` bytes: 32 and 64 channels, 256 units."""
    nnx = require("flax.nnx")
    size = side // 2 // 2

    class CNN(nnx.Module):
        """Convolution and pooling, twice; then two dense layers."""

        def __init__(self, rngs: Any):
            self.first = nnx.Conv(1, 32, kernel_size=(3, 3), rngs=rngs)
            self.second = nnx.Conv(32, 64, kernel_size=(3, 3), rngs=rngs)
            self.hidden = nnx.Linear(size * size * 64, 256, rngs=rngs)
            self.logits = nnx.Linear(256, classes, rngs=rngs)

        def __call__(self, images: Array) -> Array:
            x = images.astype("float32")[..., None] / 255
            for convolution in (self.first, self.second):
                x = nnx.avg_pool(nnx.relu(convolution(x)), window_shape=(2, 2), strides=(2, 2))
            return self.logits(nnx.relu(self.hidden(x.reshape(x.shape[0], -1))))

    return lambda rngs: CNN(rngs)


def main(options: DemoOptions) -> Prediction:
    """Train the ensemble, print every epoch, and write pictures and `result.json` to `options.out`."""
    from rich.progress import Progress  # slow to import

    optax = require("optax")
    data = options.images()
    members = MEMBERS if options.members is None else options.members
    batch, epochs = (128, 12) if len(data.train_images) >= LARGE else (32, 30)
    epochs = epochs if options.epochs is None else options.epochs
    classes = int(data.train_labels.max()) + 1
    side = data.train_images.shape[1]
    text = WORDS.format(classes=classes, momentum=MOMENTUM, rate=RATE, batch=batch, members=members)
    introduce(f"A deep ensemble on {data.name}", text, f"{data.source}; {data.licence}")
    steps = epochs * -(-len(data.train_images) // batch)
    optimizer = optax.sgd(optax.cosine_decay_schedule(RATE, steps), momentum=MOMENTUM)
    network = nnx_learner(make_cnn(side, classes), classification_loss, optimizer)
    trained = phx.ensemble(network.init, network.update, members, seed=options.seed)
    training = trained.train(
        (as_bytes(data.train_images), data.train_labels), batch_size=batch, num_epochs=epochs, seed=options.seed
    )
    history = []
    prediction = None
    test_images = as_bytes(data.test_images)
    precision = jax.default_matmul_precision(options.precision)
    with precision, Progress(console=console(), transient=True) as bar:
        task = bar.add_task("epochs", total=epochs)
        for losses in training:
            prediction = trained.predict(network.apply, test_images)
            history.append(row(losses, prediction, data.test_labels))
            bar.console.print(line(len(history), epochs, history[-1]), highlight=False)
            bar.advance(task)
    if trained.interrupted:
        raise KeyboardInterrupt
    assert prediction is not None  # there is at least one epoch
    write(options, data, history, prediction)
    return prediction


def row(losses: Mapping[str, np.ndarray], prediction: Prediction, labels: np.ndarray) -> Row:
    """Return the losses and accuracies after an epoch."""
    return {
        "train_loss": losses["loss"].tolist(),
        "train_accuracy": losses["accuracy"].tolist(),
        "test_accuracy": [score.accuracy for score in prediction.member_scores(labels)],
        "ensemble_accuracy": prediction.scores(labels).accuracy,
    }


def line(epoch: int, epochs: int, row: Row) -> str:
    """Return an epoch in words."""
    loss, accuracy, test = (np.array(row[name]) for name in ("train_loss", "train_accuracy", "test_accuracy"))
    return (
        f"epoch {epoch:>{len(str(epochs))}}/{epochs}  loss {loss.mean():.4f} ({loss.min():.4f} to {loss.max():.4f})  "
        f"train {accuracy.mean():.4f}  test {test.mean():.4f} ({test.min():.4f} to {test.max():.4f})  "
        f"ensemble {row['ensemble_accuracy']:.4f}"
    )


def write(options: DemoOptions, data: phx.datasets.Classification, history: list[Row], prediction: Prediction) -> None:
    """Print the scores; write pictures and `result.json`."""
    labels = data.test_labels
    whole = prediction.scores(labels)
    each = prediction.member_scores(labels)
    mean = {name: float(np.mean([getattr(score, name) for score in each])) for name in whole._fields}
    to = console()
    for name, value in whole._asdict().items():
        to.print(f"test {name}: ensemble {value:.4f}, mean member {mean[name]:.4f}", style="bold", highlight=False)
    figures = {
        "training": curves(history),
        "reliability": reliability_figure(
            prediction.calibration(labels), "accuracy", "confidence of the ensemble", "test images"
        ),
        "disagreed_upon": disagreed_upon(prediction, data.test_images, labels),
    }
    result = {"data": data.name, "ensemble": whole._asdict(), "mean_member": mean, "epochs": history}
    save(figures, result, options.out)


def curves(history: Sequence[Row]) -> Figure:
    """Draw loss and test error, epoch by epoch: the mean member with the range of all, and the ensemble."""
    figure = style.new_figure(9.0, 3.6)
    loss_axes, right = figure.subplots(1, 2)
    epochs = np.arange(1, len(history) + 1)
    loss = np.array([row["train_loss"] for row in history])
    error = 100 * (1 - np.array([row["test_accuracy"] for row in history]))
    for axes, values, title in ((loss_axes, loss, "Training loss"), (right, error, "Test error, percent")):
        axes.fill_between(epochs, values.min(1), values.max(1), color=style.SECOND, alpha=0.25, linewidth=0)
        label = "mean member, and the range of all"
        axes.plot(epochs, values.mean(1), color=style.SECOND, linewidth=1.6, label=label)
        axes.set_ylim(0, 1.05 * values.max())
        style.whole_numbers(axes.xaxis)
        style.finish(axes, title, "epoch", "")
    whole = 100 * (1 - np.array([row["ensemble_accuracy"] for row in history]))
    right.plot(epochs, whole, color=style.ACCENT, linewidth=2, label="ensemble")
    loss_axes.plot([], [], color=style.ACCENT, linewidth=2, label="ensemble")
    style.explain(figure)
    return figure


def disagreed_upon(
    prediction: Prediction, images: Shaped[np.ndarray, "image row column"], labels: Int[np.ndarray, "image"]
) -> Figure:
    """Draw the images that members disagree on most, with their class and the ensemble's two best guesses."""
    order = np.argsort(-prediction.mutual_information, kind="stable")[:SHOWN]
    columns = min(8, len(order))
    rows = -(-len(order) // columns)
    figure = style.new_figure(1.25 * columns, 1.75 * rows)
    figure.suptitle(
        "Images that members disagree on: true class (orange if the ensemble errs), and its two best guesses",
        fontsize=8.5,
        color=style.MUTED,
    )
    for axes, image in zip(image_panels(figure, rows, columns).flat, order, strict=False):
        p = prediction.mean[image]
        first, second = np.argsort(-p)[:2]
        axes.imshow(images[image], cmap="Greys", interpolation="nearest")
        color = style.INK if first == labels[image] else style.SECOND
        axes.set_title(f"{labels[image]}", fontsize=10, fontweight="bold", color=color, pad=2)
        axes.set_xlabel(f"{first}: {p[first]:.2f}\n{second}: {p[second]:.2f}", fontsize=7.5, color=style.MUTED)
    return figure
