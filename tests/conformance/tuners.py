"""Every tuner there is. A new one joins the conformance suite by being listed here."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from phalanx.adaptation.tuner import VectorMoments
from phalanx.kernels import Metric, Sample, StepSize, Sums, TrajectoryLength, Tuner


class Tuning(NamedTuple):
    """Hyperparameters of a kernel that has all those that tuners set."""

    step_size: Any = np.asarray(0.25, np.float32)
    trajectory_length: Any = np.asarray(1.5, np.float32)
    max_steps: Any = np.asarray(100, np.int32)
    metric: Any = None
    learns: Any = np.bool_(False)
    in_warm_up: Any = np.bool_(False)


TUNERS: dict[str, Tuner] = {
    "step size": StepSize(0.8),
    "metric, diagonal": Metric("diagonal"),
    "metric, dense": Metric("dense"),
    "metric, auto, bounding trajectories early": Metric("auto", ("max_steps", 6)),
    "trajectory length": TrajectoryLength(),
}

SIZES = (3, 2)
"""Coordinates of each group: the global ones, and some sharded over devices."""

CHAINS = 4


def sums(random: np.random.Generator, draws: int, tuning: Any) -> Sums:
    """Sums over some draws of each chain, accepted the more often the smaller the steps."""
    rates = np.exp(-tuning.step_size * random.uniform(0.5, 1.5, size=draws * CHAINS))
    stats = {
        "acceptance_rate": float(rates.sum()),
        "trajectory_gradient": float(random.normal(1.0, 0.1, rates.size).sum()),
        "jump_gradient": float(random.normal(1.0, 0.1, rates.size).sum()),
    }
    position, gradient = (tuple(_moments(random.normal(size=(rates.size, n))) for n in SIZES) for _ in range(2))
    return Sums(rates.size, stats, float((1 / rates).sum()), position, gradient)


def sample(random: np.random.Generator, draws: int) -> Sample:
    """Draws of a window, chain by chain."""
    position, gradient = ([random.normal(size=(draws * CHAINS, n)).astype(np.float32) for n in SIZES] for _ in range(2))
    return Sample(position, gradient, random.normal(size=draws * CHAINS), np.repeat(np.arange(CHAINS), draws))


def _moments(rows: np.ndarray) -> VectorMoments:
    return VectorMoments(len(rows), rows.mean(0), np.square(rows - rows.mean(0)).sum(0))
