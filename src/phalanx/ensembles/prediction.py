"""What an ensemble says of rows: the mean of its members' probabilities, and how far they disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from phalanx.diagnostics.calibration import Calibration, calibrate

SMALLEST = 1e-12
"""Probabilities are not taken to be smaller, so that a logarithm is finite."""


class Scores(NamedTuple):
    """How good probabilities are: `accuracy`, mean negative log likelihood, Brier score, expected calibration error."""

    accuracy: float
    nll: float
    brier: float
    ece: float


@dataclass(frozen=True)
class Prediction:
    """Probabilities of classes by every member.

    Attributes:
        probabilities: `(members, rows, classes)`.
        weights: of the members, adding up to one; None where all weigh the same.
    """

    probabilities: np.ndarray
    weights: np.ndarray | None = None

    @cached_property
    def mean(self) -> np.ndarray:
        """The ensemble's probabilities, the (weighted) mean of its members': `(rows, classes)`."""
        return np.average(self.probabilities, axis=0, weights=self.weights)

    def subset(self, members: Sequence[int] | np.ndarray) -> Prediction:
        """The prediction of some of the members."""
        chosen = np.asarray(members)
        weights = None if self.weights is None else self.weights[chosen] / self.weights[chosen].sum()
        return Prediction(self.probabilities[chosen], weights)

    def weighted(self, weights: Sequence[float] | np.ndarray) -> Prediction:
        """The prediction with other weights of the members.

        Raises:
            ValueError: when there is not one weight for each member, one is negative, or all are zero.
        """
        values = np.asarray(weights, np.float64)
        if values.shape != self.probabilities.shape[:1] or (values < 0).any() or values.sum() <= 0:
            raise ValueError(
                f"Prediction.weighted: give a weight of at least 0 for each of {len(self.probabilities)} members, not "
                f"all of them 0; got {weights!r}."
            )
        return Prediction(self.probabilities, values / values.sum())

    @property
    def vote_entropy(self) -> np.ndarray:
        """Entropy, in nats, of the members' votes for the most probable class: `(rows,)`; 0 where they agree."""
        classes = self.probabilities.shape[-1]
        votes = self.probabilities.argmax(-1)[..., None] == np.arange(classes)
        return _entropy(np.average(votes, axis=0, weights=self.weights))

    @property
    def mutual_information(self) -> np.ndarray:
        """Entropy of the mean less the mean of entropies, in nats, `(rows,)`: what members do not agree on."""
        own = np.average(_entropy(self.probabilities), axis=0, weights=self.weights)
        return np.maximum(_entropy(self.mean) - own, 0.0)

    def scores(self, labels: np.ndarray) -> Scores:
        """How good the ensemble is; `labels` are `(rows,)`."""
        return score(self.mean, labels)

    def member_scores(self, labels: np.ndarray) -> list[Scores]:
        """How good each member is."""
        return [score(values, labels) for values in self.probabilities]

    def calibration(self, labels: np.ndarray) -> Calibration:
        """How often the ensemble's most probable class is the true one, given its probability."""
        return calibrate(self.mean.max(-1), self.mean.argmax(-1) == labels)

    def temperature(self, labels: np.ndarray) -> float:
        r"""The $T$ at which the mean's $p^{1/T}$, normalised, is most likely; to be found on held-out rows.

        Source: Guo, Pleiss, Sun, Weinberger (2017), On calibration of modern neural networks.
        """
        from scipy.optimize import minimize_scalar

        found = minimize_scalar(lambda log_t: score(_tempered(self.mean, np.exp(log_t)), labels).nll, bounds=(-3, 3))
        return float(np.exp(found.x))

    def tempered(self, temperature: float) -> np.ndarray:
        """The ensemble's probabilities at a temperature, `(rows, classes)`."""
        return _tempered(self.mean, temperature)


def score(probabilities: np.ndarray, labels: np.ndarray) -> Scores:
    """How good probabilities `(rows, classes)` are for labels `(rows,)`.

    Raises:
        ValueError: when there are not as many labels as rows.
    """
    labels = np.asarray(labels)
    if labels.shape != probabilities.shape[:1]:
        raise ValueError(f"score: {len(probabilities)} rows were predicted, but labels have shape {labels.shape}.")
    of_truth = np.take_along_axis(probabilities, labels[:, None].astype(int), axis=1)[:, 0].astype(np.float64)
    best = probabilities.argmax(-1)
    squares = (probabilities.astype(np.float64) ** 2).sum(-1) - 2 * of_truth + 1
    return Scores(
        accuracy=float(np.mean(best == labels)),
        nll=float(-np.mean(np.log(np.maximum(of_truth, SMALLEST)))),
        brier=float(squares.mean()),
        ece=calibrate(probabilities.max(-1).astype(np.float64), best == labels).error,
    )


def _entropy(probabilities: np.ndarray) -> np.ndarray:
    p = probabilities.astype(np.float64)
    return -np.sum(p * np.log(np.maximum(p, SMALLEST)), axis=-1)


def _tempered(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    logits = np.log(np.maximum(probabilities.astype(np.float64), SMALLEST)) / temperature
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
