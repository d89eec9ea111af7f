"""Options of a run, none of which requires recompilation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.extras import require
from phalanx.posterior.posterior import Posterior
from phalanx.programs.centring import Centrings
from phalanx.run.checks import check_on_block, check_sizes
from phalanx.run.init_values import Initial, check_kind
from phalanx.run.loop import UNTIL_ROOM
from phalanx.run.progress.report import RunReport
from phalanx.run.state import Aim
from phalanx.run.until import Until
from phalanx.store.policy import SavePolicy

WARMUP_DRAWS, WARMUP_LEAST, WARMUP_MOST = 4000, 300, 1000
"""Draws of a warm-up over all chains, and the minimum and maximum of each chain."""


@dataclass(frozen=True)
class RunOptions:
    """Arguments of `Sampler.run` except seed and data, which that method explains."""

    num_warmup: int | None = None
    num_samples: int = 1000
    thin: int = 1
    until: Until | None = None
    init: Any = None
    tuning: Posterior | None = None
    on_block: Callable[[RunReport], Any] | None = None
    checkpoint: SavePolicy | str | PathLike[str] | None = None
    store: str | PathLike[str] | None = None
    save_warmup: bool = False
    progress: bool = True

    def checked(self, num_chains: int, keep: Any) -> RunOptions:
        """Check the options; return them with Python's integers, and with a value of `num_warmup`.

        Raises:
            TypeError, ValueError: when one is out of range; the message names it.
        """
        check_sizes(num_chains, 0 if self.num_warmup is None else self.num_warmup, self.num_samples, self.thin)
        until, tuning, progress = self.until, self.tuning, self.progress
        if until is not None and not isinstance(until, Until):
            raise TypeError(f"until: expected a condition such as phx.until(ess=400, r_hat=1.01), got {until!r}.")
        if until is not None and keep is not None and not len(keep) and (until.r_hat or until.ess):
            raise ValueError(
                "until: r_hat= and ess= need stored draws, and keep=[] stores none. Keep a variable, or give only "
                "seconds=."
            )
        check_on_block(self.on_block)
        if not isinstance(progress, bool | int | np.bool_):
            raise TypeError(f"progress must be True or False; got {progress!r}.")
        if tuning is not None and not hasattr(tuning, "state"):
            raise TypeError(f"tuning: expected a posterior, whose tuning to use; got {tuning!r}.")
        check_kind(self.init)
        self._check_store(keep)
        if not isinstance(self.save_warmup, bool | np.bool_):
            raise TypeError(f"save_warmup must be True or False; got {self.save_warmup!r}.")
        if self.save_warmup and keep is not None and not len(keep):
            raise ValueError("save_warmup: keep=[] stores no draws. Keep a variable, or leave out save_warmup=.")
        warmup = default_warmup(int(num_chains)) if self.num_warmup is None else int(self.num_warmup)
        samples, thin = int(self.num_samples), int(self.thin)
        policy, progress = SavePolicy.of(self.checkpoint), bool(progress)
        return replace(self, num_warmup=warmup, num_samples=samples, thin=thin, checkpoint=policy, progress=progress)

    def aim(self, initial: Initial) -> Aim:
        """Return the arguments that the record of a run contains; only valid after `checked`."""
        return Aim(self.warmup, self.thin, initial.described, initial.superchains, bool(self.save_warmup))

    @property
    def policy(self) -> SavePolicy | None:
        """Policy of saves; None without a checkpoint."""
        return SavePolicy.of(self.checkpoint)

    def _check_store(self, keep: Any) -> None:
        if self.store is None:
            return
        if not isinstance(self.store, str | PathLike):
            raise TypeError(f"store: expected a folder, such as 'out/run.zarr'; got {self.store!r}.")
        if keep is not None and not len(keep):
            raise ValueError("store: keep=[] stores no draws. Keep a variable, or leave out store=.")
        policy = self.policy
        if policy is not None and policy.folder.resolve() == Path(self.store).resolve():
            raise ValueError(f"store={str(self.store)!r} is the folder of the checkpoint, too; name another one.")
        require("zarr")

    def in_words(self, saved: Posterior | None) -> dict[str, str]:
        """Return the options that processes must share besides a run's identity; a checkpoint holds the run `saved`."""
        found = {name: str(getattr(self, name)) for name in ("num_samples", "until", "checkpoint", "store")}
        return found | {"the number of saved draws": str(None if saved is None else saved.num_draws)}

    @property
    def centring(self) -> Centrings:
        """Centring of variables that belongs to the given tuning of another run; empty if that has no centring."""
        return {} if self.tuning is None else self.tuning.state.centring

    @property
    def num_stored(self) -> int:
        """Maximal number of stored draws of each chain."""
        return self.num_samples // self.thin

    @property
    def room(self) -> int:
        """Number of draws of each chain for which to allocate memory."""
        return self.num_stored if self.until is None else min(self.num_stored, UNTIL_ROOM)

    @property
    def warmup(self) -> int:
        """Iterations of warm-up; only valid after `checked`."""
        return self.num_warmup or 0


def default_warmup(num_chains: int) -> int:
    """Return the iterations of warm-up: 4,000 over all chains, with 300 to 1,000 of each chain.

    Tuning needs a total number of draws, so more chains need fewer iterations; but each chain needs some iterations to
    reach the typical set.

    Examples:
        >>> [default_warmup(num_chains) for num_chains in (1, 4, 8, 64)]
        [1000, 1000, 500, 300]
    """
    return min(max(WARMUP_DRAWS // num_chains, WARMUP_LEAST), WARMUP_MOST)
