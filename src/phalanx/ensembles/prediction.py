"""Prediction of an ensemble: the mean of its members' probabilities, and measures of their disagreement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.diagnostics.calibration import Calibration, calibrate

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped

SMALLEST = 1e-12
"""Least probability in a logarithm, which then is finite."""


class Scores(NamedTuple):
    """Scores of probabilities: accuracy, mean negative log likelihood, Brier score, expected calibration error."""

    accuracy: float
    nll: float
    brier: float
    ece: float


@dataclass(frozen=True)
class Prediction:
    """Probabilities of classes by every member.

    Attributes:
        probabilities: probabilities by member, row and class.
        weights: weights of the members, with sum one; None for equal weights.

    Example:
        >>> import numpy as np, phalanx as phx
        >>> two = phx.ensembles.Prediction(np.array([[[0.9, 0.1]], [[0.5, 0.5]]]))
        >>> print(two.mean, two.mutual_information.round(3))
        [[0.7 0.3]] [0.102]
    """

    probabilities: Float[np.ndarray, "members rows classes"]
    weights: Float[np.ndarray, "members"] | None = None

    @cached_property
    def mean(self) -> Float[np.ndarray, "rows classes"]:
        """The ensemble's probabilities, the (weighted) mean of its members'."""
        return np.average(self.probabilities, axis=0, weights=self.weights)

    def subset(self, members: int | Sequence[int] | np.ndarray) -> Prediction:
        """Return the prediction of some of the members.

        Args:
            members: their numbers, or a mask.

        Raises:
            ValueError: when a number is out of range, no member is chosen, or all chosen ones have weight 0.
        """
        numbers = np.atleast_1d(np.asarray(members))
        count = len(self.probabilities)
        if numbers.dtype == bool and numbers.shape == (count,):
            numbers = np.flatnonzero(numbers)
        if (
            not numbers.size
            or numbers.ndim > 1
            or numbers.dtype.kind not in "iu"
            or not (abs(numbers + 0.5) < count).all()
        ):
            raise ValueError(
                f"Prediction.subset: give numbers of members, from 0 to {count - 1}, one at least; got {members!r}."
            )
        subset = Prediction(self.probabilities[numbers])
        return subset if self.weights is None else subset.weighted(self.weights[numbers])

    def weighted(self, weights: Sequence[float] | np.ndarray) -> Prediction:
        """Return the prediction with other weights of the members.

        Raises:
            ValueError: when the number of weights differs from that of members, one is negative, or all are zero.
        """
        values = np.asarray(weights, np.float64)
        if values.shape != self.probabilities.shape[:1] or not (values >= 0).all() or not 0 < values.sum() < np.inf:
            raise ValueError(
                f"Prediction.weighted: give a weight of at least 0 for each of {len(self.probabilities)} members, not "
                f"all of them 0; got {weights!r}."
            )
        return Prediction(self.probabilities, values / values.sum())

    @property
    def vote_entropy(self) -> Float[np.ndarray, "rows"]:
        """Entropy, in nats, of the members' votes for the most probable class; 0 where they agree."""
        classes = self.probabilities.shape[-1]
        votes = self.probabilities.argmax(-1)[..., None] == np.arange(classes)
        return _entropy(np.average(votes, axis=0, weights=self.weights))

    @property
    def mutual_information(self) -> Float[np.ndarray, "rows"]:
        """Entropy of the mean less the mean of entropies, in nats: the disagreement of the members."""
        of_members = np.average(_entropy(self.probabilities), axis=0, weights=self.weights)
        return np.maximum(_entropy(self.mean) - of_members, 0.0)

    def scores(self, labels: np.ndarray) -> Scores:
        """Return the scores of the ensemble.

        Args:
            labels: classes of the rows, `(rows,)`.

        Raises:
            ValueError: when labels are not one class for each row, or some probabilities are not finite.
        """
        self._check_finite()
        return score(self.mean, labels)

    def member_scores(self, labels: np.ndarray) -> list[Scores]:
        """Return the scores of each member; raises as `scores` does."""
        self._check_finite()
        return [score(values, labels) for values in self.probabilities]

    def calibration(self, labels: np.ndarray) -> Calibration:
        """Return how often the most probable class is the true one, given its probability; raises as `scores` does."""
        self._check_finite()
        return calibrate(self.mean.max(-1), self.mean.argmax(-1) == check_labels(labels, self.mean))

    def temperature(self, labels: np.ndarray) -> float:
        r"""Return the $T$ for which the mean's $p^{1/T}$, normalised, is most likely; give labels of held-out rows.

        Source: Guo, Pleiss, Sun, Weinberger (2017), On calibration of modern neural networks.
        """
        from scipy.optimize import minimize_scalar

        self._check_finite()

        minimum = minimize_scalar(lambda log_t: score(_temper(self.mean, np.exp(log_t)), labels).nll, bounds=(-3, 3))
        return float(np.exp(minimum.x))

    def tempered(self, temperature: float) -> Float[np.ndarray, "rows classes"]:
        """Return the ensemble's probabilities at a temperature.

        Raises:
            ValueError: when the temperature is not positive.
        """
        if not 0 < temperature < np.inf:
            raise ValueError(f"Prediction.tempered: the temperature must be positive, got {temperature!r}.")
        return _temper(self.mean, temperature)

    def _check_finite(self) -> None:
        diverged_members = [m for m, values in enumerate(self.probabilities) if not np.isfinite(values).all()]
        if diverged_members:
            raise ValueError(
                f"Prediction: members {diverged_members} predict probabilities that are not finite: they have probably "
                f"diverged in training. Train with smaller steps, or leave them out with prediction.subset."
            )


def score(probabilities: Float[np.ndarray, "rows classes"], labels: Shaped[np.ndarray, "..."]) -> Scores:
    """Return the scores of probabilities for labels `(rows,)`.

    Raises:
        ValueError: when labels are not one class for each row.

    Example:
        >>> import numpy as np, phalanx as phx
        >>> scores = phx.ensembles.score(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))
        >>> print(scores.accuracy, round(scores.nll, 3), round(scores.brier, 3))
        0.5 0.511 0.37
    """
    labels = check_labels(labels, probabilities)
    of_truth = np.take_along_axis(probabilities, labels[:, None], axis=1)[:, 0].astype(np.float64)
    best = probabilities.argmax(-1)
    squares = (probabilities.astype(np.float64) ** 2).sum(-1) - 2 * of_truth + 1
    return Scores(
        accuracy=float(np.mean(best == labels)),
        nll=float(-np.mean(np.log(np.maximum(of_truth, SMALLEST)))),
        brier=float(squares.mean()),
        ece=calibrate(probabilities.max(-1).astype(np.float64), best == labels).error,
    )


def check_labels(
    labels: Shaped[np.ndarray, "..."], probabilities: Float[np.ndarray, "rows classes"]
) -> Int[np.ndarray, "rows"]:
    """Return labels, after checking that they are one class for each row of probabilities.

    Raises:
        ValueError: when they are not.
    """
    labels, (rows, classes) = np.asarray(labels), probabilities.shape
    if labels.shape != (rows,):
        raise ValueError(f"labels: {rows} rows were predicted, but labels have shape {labels.shape}.")
    if labels.dtype.kind not in "iub" or not ((labels >= 0) & (labels < classes)).all():
        raise ValueError(
            f"labels: expected whole numbers from 0 to {classes - 1}, got {labels.dtype} from {labels.min()} to "
            f"{labels.max()}."
        )
    return labels.astype(int)


def _entropy(probabilities: np.ndarray) -> np.ndarray:
    p = probabilities.astype(np.float64)
    return -np.sum(p * np.log(np.maximum(p, SMALLEST)), axis=-1)


def _temper(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    logits = np.log(np.maximum(probabilities.astype(np.float64), SMALLEST)) / temperature
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
