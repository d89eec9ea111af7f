"""Protocol of a posterior as reports use it; `phalanx.Posterior`, which calls this package, implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from phalanx.density.target import Target
    from phalanx.diagnostics import Check, Verdict
    from phalanx.diagnostics.table import SummaryTable


@runtime_checkable
class Reported(Protocol):
    """Posterior with the attributes that a report reads; see `phalanx.Posterior`."""

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
        """Course of warm-up, arrays `(round,)` by quantity; empty if the run tuned no parameter."""
        ...

    @property
    def timing(self) -> Any:
        """Seconds of each phase: compile, warmup, sampling, total; gradient_evaluations."""
        ...

    @property
    def record(self) -> Any:
        """Record of the run: model, kernel, sizes, mesh, devices, data, versions."""
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

    @property
    def target(self) -> Target | None:
        """The model with its data; None if it is unknown."""
        ...

    def summary(self) -> SummaryTable:
        """Return the summary table: one row per scalar element, the log density first."""
        ...

    def verdict(self, checks: Sequence[Check] = ()) -> Verdict:
        """Judge whether the draws are good to use."""
        ...
