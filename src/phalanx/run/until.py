"""Stopping conditions: R-hat, effective sample size and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from phalanx.diagnostics import ess, rhat
from phalanx.mesh.processes import agreed

if TYPE_CHECKING:
    from jaxtyping import Shaped

Arrays = Mapping[str, Any]
"""Arrays `(chain, draw, ...)` by name, in memory or in a store."""

FIRST = 50
"""Draws of each chain at the first evaluation."""

GROWTH = 1.25
"""Growth of the number of draws between two evaluations, which take time themselves."""


@dataclass(frozen=True)
class Until:
    """Stopping condition; see `phx.until`."""

    r_hat: float | None
    ess: float | None
    seconds: float | None


def until(*, r_hat: float | None = None, ess: float | None = None, seconds: float | None = None) -> Until:
    """Return a condition on which `phx.mcmc` stops sampling.

    `r_hat` and `ess` must be met by every stored variable and by the log density; `seconds` ends sampling in any case.
    `num_samples` of `phx.mcmc` is then the maximal number of iterations per chain.

    Args:
        r_hat: upper limit of every rank-normalised split R-hat, such as 1.01.
        ess: lower limit of every bulk and tail effective sample size over all chains, such as 400.
        seconds: time limit of sampling, without warm-up and compilation. With reducers, sampling ends somewhat later,
            when all chains have the same number of draws.

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
    """Evaluator of a stopping condition on the draws of a run.

    Args:
        condition: the condition.
        names: names of the stored variables.
    """

    def __init__(self, condition: Until, names: Sequence[str]):
        self._condition = condition
        self._names = names
        self._began = time.monotonic()

    def look(self, count: int, due: int, read_draws: Callable[[], tuple[Arrays, Arrays]]) -> tuple[bool, int]:
        """Return true if sampling should stop, and the number of draws of each chain at the next evaluation.

        R-hat and effective sample sizes are evaluated if every chain has `due` draws. `read_draws` returns the draws
        and statistics so far, `count` draws of each chain.
        """
        condition = self._condition
        if condition.seconds is not None and agreed(time.monotonic() - self._began >= condition.seconds) and count:
            return True, due
        if count < due:
            return False, due
        due = int(np.ceil(due * GROWTH))
        if condition.r_hat is None and condition.ess is None:
            return False, due
        draws, stats = read_draws()  # of several processes, each array is gathered when it is taken
        series = [(stats, "log_density"), *((draws, name) for name in self._names)]
        return all(self._good(arrays[name]) for arrays, name in series), due

    def _good(self, draws: Shaped[np.ndarray, "chains draws *shape"]) -> bool:
        """Return true if every element of a variable meets the condition; diagnostics that are NaN are ignored."""
        condition = self._condition
        if condition.r_hat is not None and np.any(rhat(draws) >= condition.r_hat):
            return False
        return condition.ess is None or not any(np.any(ess(draws, kind) < condition.ess) for kind in ("bulk", "tail"))
