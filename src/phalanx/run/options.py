"""What a run of compiled blocks is told: nothing of it needs a compilation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from phalanx.run.checks import check_on_block, check_progress, check_sizes, check_tuning, check_until
from phalanx.run.progress import Report
from phalanx.run.until import Until

WARMUP_DRAWS, WARMUP_LEAST, WARMUP_MOST = 4000, 200, 1000
"""Draws of a warm-up in all, and the least and the most of each chain."""


@dataclass(frozen=True)
class Options:
    """How far a run goes; see `phx.mcmc` for each.

    Attributes:
        num_warmup: iterations per chain before the first draw; None chooses by the number of chains.
        num_samples: iterations per chain after warm-up.
        thin: iterations per stored draw.
        until: when to stop before `num_samples`.
        init: where chains begin.
        tuning: a posterior, with whose tuning chains begin.
        on_block: called with a report after each block.
        progress: whether to show how the run goes.
    """

    num_warmup: int | None = None
    num_samples: int = 1000
    thin: int = 1
    until: Until | None = None
    init: Any = None
    tuning: Any = None
    on_block: Callable[[Report], Any] | None = None
    progress: bool = True

    def changed(self, **given: Any) -> Options:
        """The same but for what is given; None leaves a thing as it is."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def checked(self, num_chains: int, keep: Any) -> Options:
        """The same, looked at, with whole numbers as Python's.

        Raises:
            TypeError, ValueError: when one is out of range; the message names it.
        """
        check_sizes(num_chains, 0 if self.num_warmup is None else self.num_warmup, self.num_samples, self.thin)
        check_until(self.until, keep)
        check_on_block(self.on_block)
        check_progress(self.progress)
        check_tuning(self.tuning)
        warmup = default_warmup(int(num_chains)) if self.num_warmup is None else int(self.num_warmup)
        return replace(
            self,
            num_warmup=warmup,
            num_samples=int(self.num_samples),
            thin=int(self.thin),
            progress=bool(self.progress),
        )

    @property
    def num_stored(self) -> int:
        """Draws stored of each chain, at most."""
        return self.num_samples // self.thin

    @property
    def warmup(self) -> int:
        """Iterations of warm-up, once they have been looked at."""
        return self.num_warmup or 0


def default_warmup(num_chains: int) -> int:
    """Iterations of warm-up: some 4,000 draws in all, as 4 chains make in 1,000, but 200 of each chain at least.

    Tuning needs draws, whoever makes them; each chain needs its own time to reach the typical set.
    """
    return min(max(WARMUP_DRAWS // num_chains, WARMUP_LEAST), WARMUP_MOST)
