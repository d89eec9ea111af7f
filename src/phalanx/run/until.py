"""Stopping when the answer is good enough."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phalanx.diagnostics import ess, rhat
from phalanx.mesh.processes import agreed
from phalanx.run.state import Stored

FIRST = 50
"""Draws of each chain at the first look."""

GROWTH = 1.25
"""How much more draws there are at each look than at the one before: looking takes time, too."""


@dataclass(frozen=True)
class Until:
    """When to stop sampling; see `phx.until`."""

    r_hat: float | None
    ess: float | None
    seconds: float | None

    def watch(self, names: Sequence[str]) -> StoppingWatch:
        """Return the condition on a run of these variables that starts now."""
        return StoppingWatch(self, names)


def until(r_hat: float | None = None, ess: float | None = None, seconds: float | None = None) -> Until:
    """Sample until the answer is good enough.

    R-hat and effective sample sizes are those of every stored variable and of the log density, and all of them must be
    met; `seconds` ends sampling in any case. `num_samples` is then the most draws of a chain.

    Args:
        r_hat: every rank-normalised split R-hat is below this, such as 1.01.
        ess: every bulk and tail effective sample size, over all chains, is at least this, such as 400.
        seconds: of sampling, warm-up and compilation apart. With reducers, chains that are behind catch up, since
            those in short trajectories would otherwise weigh more: that may take some time more.

    Returns:
        A condition for `phx.mcmc(..., until=...)`.

    Raises:
        ValueError: when no condition is given, or one is out of range.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))
        >>> posterior = phx.mcmc(model, num_samples=100_000, until=phx.until(ess=400, r_hat=1.01), progress=False)
        >>> posterior.num_draws < 5000
        True
    """
    if r_hat is None and ess is None and seconds is None:
        raise ValueError("until: give at least one of r_hat=, ess= and seconds=.")
    for name, value, least in (("r_hat", r_hat, 1.0), ("ess", ess, 0.0), ("seconds", seconds, 0.0)):
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool) or not value > least):
            raise ValueError(f"until: {name} must be a number above {least:g}, got {value!r}.")
    return Until(r_hat, ess, seconds)


class StoppingWatch:
    """A condition, evaluated on the draws of a run.

    Args:
        condition: when to stop.
        names: of the stored variables.
    """

    def __init__(self, condition: Until, names: Sequence[str]):
        self._condition, self._names = condition, names
        self._began = time.monotonic()

    def first_look(self, stored: Stored) -> int:
        """Return the draws of each chain at the first look."""
        return max(FIRST, stored.count + 1)

    def look(self, stored: Stored, due: int) -> tuple[bool, int]:
        """Return whether to stop, and the draws of each chain at the next look; one is `due` at so many draws."""
        wanted = self._condition
        if wanted.seconds is not None and agreed(self._seconds >= wanted.seconds) and stored.count:
            return True, due
        if stored.count < due:
            return False, due
        due = int(np.ceil(due * GROWTH))
        if wanted.r_hat is None and wanted.ess is None:
            return False, due
        draws, stats = stored.whole
        return all(self._good(values) for values in (stats["log_density"], *(draws[n] for n in self._names))), due

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _good(self, draws: np.ndarray) -> bool:
        """Return whether every element of one variable is good enough; a NaN, as of a constant, is no obstacle."""
        wanted = self._condition
        if wanted.r_hat is not None and np.any(rhat(draws) >= wanted.r_hat):
            return False
        return wanted.ess is None or not any(np.any(ess(draws, kind) < wanted.ess) for kind in ("bulk", "tail"))
