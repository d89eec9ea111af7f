"""Importance resampling: draws chosen from a pool of a guide's, by their smoothed weights under the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from phalanx.learning.compiled import Compiler
from phalanx.variational.drawing import STREAM, Drawing, Drawn, on_host, only
from phalanx.variational.guides.guide_and_model import Pair
from phalanx.variational.judging.evidence import Weights

POOL = 8192
"""Draws that others are chosen from."""


@dataclass(frozen=True)
class Resampled:
    """Draws from a guide, resampled.

    A draw depends on the seed and its own number alone: they determine its number in the pool, and so its key. Only the
    weights of the pool are kept.

    Attributes:
        proposals: the guide's own draws.

    Source:
        Zhang, Carpenter, Gelman, Vehtari (2022), Pathfinder: parallel quasi-Newton variational inference; Vehtari,
        Simpson, Gelman, Yao, Gabry (2024), Pareto smoothed importance sampling.
    """

    proposals: Drawing
    _weights: dict[int, np.ndarray] = field(default_factory=dict, compare=False)

    resampled: ClassVar[bool] = True

    @property
    def pair(self) -> Pair:
        """Guide and model."""
        return self.proposals.pair

    @property
    def compiler(self) -> Compiler:
        """Compiler of the programs."""
        return self.proposals.compiler

    def batches(self, seed: int, count: int) -> Iterator[tuple[Drawn, int]]:
        """Yield batches of draws on the devices, and how many of each are wanted."""
        draw_numbers = np.random.default_rng([seed, STREAM]).choice(POOL, count, p=self._weights_of(seed))
        return self.proposals.numbered(seed, draw_numbers)

    def _weights_of(self, seed: int) -> np.ndarray:
        if seed not in self._weights:
            pool = on_host(only((), self.proposals.batches(seed, POOL)), POOL)
            weights = Weights.of(pool.log_p, pool.log_q).normalized
            # the verdict reports a pool without a finite weight
            self._weights.clear()
            self._weights[seed] = weights if np.isfinite(weights).all() else np.full(POOL, 1.0 / POOL)
        return self._weights[seed]
