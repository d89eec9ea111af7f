"""What a report needs of a posterior. The posterior itself lives upstairs, in `run`, which calls down here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from pandas import DataFrame


class Reported(Protocol):
    """A posterior, as far as a report looks at it; see `phalanx.Posterior`."""

    @property
    def draws(self) -> dict[str, np.ndarray]:
        """Arrays of shape `(chain, draw, ...)` by variable name."""
        ...

    @property
    def stats(self) -> dict[str, np.ndarray]:
        """Arrays of shape `(chain, draw)` by statistic."""
        ...

    @property
    def timing(self) -> Any:
        """Seconds of each phase: compile, warmup, sampling, total; gradient_evaluations."""
        ...

    @property
    def record(self) -> Any:
        """What was run where."""
        ...

    @property
    def num_chains(self) -> int:
        """Chains in the draws."""
        ...

    @property
    def num_draws(self) -> int:
        """Draws of each chain."""
        ...

    @property
    def num_divergences(self) -> int:
        """Divergent draws over all chains."""
        ...

    def summary(self) -> DataFrame:
        """One row per scalar element, the log density first."""
        ...


def has_energy(posterior: Reported) -> bool:
    """Tell whether the kernel has a kinetic energy; a random walk reports NaN, or the potential energy alone."""
    energy = posterior.stats.get("energy")
    if energy is None or not np.isfinite(energy).any():
        return False
    log_density = posterior.stats.get("log_density")
    return log_density is None or not np.array_equal(energy, -log_density, equal_nan=True)
