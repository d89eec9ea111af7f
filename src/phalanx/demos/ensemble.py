"""Deep ensemble on images: networks with different initial weights, and their averaged predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from phalanx.datasets import Classification, digits, mnist
from phalanx.demos.models.cnn import make_cnn
from phalanx.demos.options import DemoOptions
from phalanx.demos.pictures.ensemble import curves, disagreed_upon
from phalanx.demos.show import introduce, save
from phalanx.ensembles import Prediction, classification_loss, ensemble, nnx_learner
from phalanx.extras import require
from phalanx.report import console, reliability_figure

if TYPE_CHECKING:
    from jaxtyping import Shaped, UInt8

MEMBERS, RATE, MOMENTUM = 8, 0.1, 0.9
LARGE = 10_000
"""Number of images from which on training has fewer epochs of larger batches."""

WORDS = """
    conv 32, conv 64, dense 256, {classes} classes
    SGD with momentum {momentum}, steps from {rate} to 0, batches of {batch}
    {members} members: other initial weights, the same batches
"""

Row = dict[str, Any]
"""Losses and accuracies after an epoch, by name."""


def main(options: DemoOptions) -> Prediction:
    """Train the ensemble, print every epoch, and write pictures and `result.json` to `options.out`."""
    from rich.progress import Progress  # slow to import

    optax = require("optax")
    data = load(options)
    members = MEMBERS if options.members is None else options.members
    batch, epochs = (128, 12) if len(data.train_images) >= LARGE else (32, 30)
    epochs = epochs if options.epochs is None else options.epochs
    classes, side = int(data.train_labels.max()) + 1, data.train_images.shape[1]
    words = WORDS.format(classes=classes, momentum=MOMENTUM, rate=RATE, batch=batch, members=members)
    introduce(f"A deep ensemble on {data.name}", words, f"{data.source}; {data.licence}")
    steps = epochs * -(-len(data.train_images) // batch)
    optimizer = optax.sgd(optax.cosine_decay_schedule(RATE, steps), momentum=MOMENTUM)
    network = nnx_learner(make_cnn(side, classes), classification_loss, optimizer)
    trained = ensemble(network.init, network.update, members, seed=options.seed)
    training = trained.train(
        (as_bytes(data.train_images), data.train_labels), batch_size=batch, num_epochs=epochs, seed=options.seed
    )
    history, prediction, test_images = [], None, as_bytes(data.test_images)
    precision = jax.default_matmul_precision(options.precision)
    with precision, Progress(console=console(), transient=True) as bar:
        task = bar.add_task("epochs", total=epochs)
        for measured in training:
            prediction = trained.predict(network.apply, test_images)
            history.append(row(measured, prediction, data.test_labels))
            bar.console.print(line(len(history), epochs, history[-1]), highlight=False)
            bar.advance(task)
    if trained.interrupted:
        raise KeyboardInterrupt
    assert prediction is not None  # there is at least one epoch
    write(options, data, history, prediction)
    return prediction


def load(options: DemoOptions) -> Classification:
    """Return MNIST, or scikit-learn's digits if MNIST is missing and the user named no folder."""
    try:
        return mnist(options.data)
    except FileNotFoundError:
        if options.data is not None:
            raise
        return digits()


def as_bytes(images: Shaped[np.ndarray, "..."]) -> UInt8[np.ndarray, "..."]:
    """Return images with pixels as bytes from 0 to 255."""
    return images if images.dtype == np.uint8 else np.round(255 * images / images.max()).astype(np.uint8)


def row(measured: Mapping[str, np.ndarray], prediction: Prediction, labels: np.ndarray) -> Row:
    """Return the losses and accuracies after an epoch."""
    return {
        "train_loss": measured["loss"].tolist(),
        "train_accuracy": measured["accuracy"].tolist(),
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


def write(options: DemoOptions, data: Classification, history: list[Row], prediction: Prediction) -> None:
    """Print the scores; write pictures and `result.json`."""
    labels = data.test_labels
    whole, each = prediction.scores(labels), prediction.member_scores(labels)
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
