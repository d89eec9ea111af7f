"""What a report needs of a posterior. The posterior itself lives upstairs, in `run`, which calls down here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from phalanx.diagnostics import Check, Verdict
    from phalanx.diagnostics.table import SummaryTable


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
    def warmup(self) -> dict[str, np.ndarray]:
        """How warm-up went, an array `(round,)` of each thing noted; empty where nothing was tuned."""
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

    def summary(self) -> SummaryTable:
        """One row per scalar element, the log density first."""
        ...

    def verdict(self, checks: Sequence[Check] = ()) -> Verdict:
        """Whether the draws are good to use."""
        ...
