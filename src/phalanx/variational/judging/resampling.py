"""Importance resampling: draws chosen from a pool of a guide's, by their smoothed weights under the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from phalanx.learning.compiled import Compiler
from phalanx.variational.drawing import STREAM, Drawing, Drawn, on_host
from phalanx.variational.judging.evidence import Weights

POOL = 8192
"""Draws to choose from."""


@dataclass(frozen=True)
class Resampled:
    """Draws from a guide, resampled.

    A draw depends on the seed and its own number alone: which one of the pool it is, and so its key, is chosen on the
    host. Of the pool nothing is kept but the weights.

    Attributes:
        proposals: the guide's own draws.

    Source:
        Zhang, Carpenter, Gelman, Vehtari (2022), Pathfinder: parallel quasi-Newton variational inference; Vehtari,
        Simpson, Gelman, Yao, Gabry (2024), Pareto smoothed importance sampling.
    """

    proposals: Drawing
    _weights: dict[int, np.ndarray] = field(default_factory=dict, compare=False)

    @property
    def compiler(self) -> Compiler:
        """Compiles what is run."""
        return self.proposals.compiler

    @property
    def names(self) -> list[str]:
        """Names of the values of a draw."""
        return self.proposals.names

    def batches(self, seed: int, count: int) -> Iterator[tuple[Drawn, int]]:
        """Batches of draws on the devices, and how many of each are wanted."""
        chosen = np.random.default_rng([seed, STREAM]).choice(POOL, count, p=self._weights_of(seed))
        return self.proposals.numbered(seed, chosen)

    def draw(self, seed: int, count: int, names: Sequence[str] | None = None) -> Drawn:
        """`count` draws on the host, of the named variables or of all."""
        return on_host(self.batches(seed, count), names)

    def _weights_of(self, seed: int) -> np.ndarray:
        if seed not in self._weights:
            drawn = self.proposals.draw(seed, POOL, names=())
            weights = Weights.of(drawn.log_p, drawn.log_q).normalized
            # where no draw has a density under the model, the verdict says so
            self._weights.clear()
            self._weights[seed] = weights if np.isfinite(weights).all() else np.full(POOL, 1.0 / POOL)
        return self._weights[seed]
