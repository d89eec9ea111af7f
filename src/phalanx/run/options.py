"""Options of a sampler, which its compiled programs depend on, and of a run, which no program depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from phalanx.density.given_names import Coords, Dims, GivenNames
from phalanx.extras import require
from phalanx.kernels.nuts import nuts
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.language.tracing import Program
from phalanx.posterior.posterior import Posterior
from phalanx.programs.centring import Centrings
from phalanx.reducers.reducer import Reduce, Reducer
from phalanx.run.arguments import check_arguments
from phalanx.run.init_values import Initial
from phalanx.run.loop import UNTIL_ROOM
from phalanx.run.progress.report import RunReport
from phalanx.run.state import RunArguments
from phalanx.run.until import Until
from phalanx.store.policy import SavePolicy

WARMUP_DRAWS = 4000
"""Draws of a warm-up over all chains, by default."""

WARMUP_LEAST = 300
"""Minimal draws of each chain."""

WARMUP_MOST = 1000
"""Maximal draws of each chain."""


@dataclass(frozen=True)
class SamplerOptions:
    """Arguments of `phx.compile` besides model and data, which that function explains."""

    kernel: Kernel
    num_chains: int
    mesh: Mesh | None
    keep: str | Sequence[str] | None
    names: GivenNames
    reducers: Mapping[str, Reducer | Reduce]
    missing: str | None
    matmul_precision: str

    @classmethod
    def of(
        cls,
        kernel: Kernel | None,
        num_chains: int,
        mesh: Mesh | None,
        keep: str | Sequence[str] | None,
        dims: Dims | None,
        coords: Coords | None,
        reducers: Mapping[str, Reducer | Reduce] | None,
        missing: str | None,
        matmul_precision: str,
    ) -> SamplerOptions:
        """Return the options, checked one by one; where the user gives none, those by default.

        Raises:
            TypeError, ValueError: when one is out of range; the message names it.
        """
        kernel = nuts() if kernel is None else kernel
        check_arguments(
            kernel=kernel,
            num_chains=num_chains,
            mesh=mesh,
            keep=keep,
            missing=missing,
            matmul_precision=matmul_precision,
        )
        # a NumPy integer would give another cache key
        names = GivenNames.of(dims, coords)
        number = int(num_chains)
        return cls(kernel, number, mesh, keep, names, {} if reducers is None else reducers, missing, matmul_precision)

    def stored(self, model: Program) -> tuple[str, ...] | None:
        """Return the variables to store, from the argument or an attribute of the model; None for those by default."""
        return kept_names(self.keep, model)


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
        check_arguments(num_chains=num_chains, **vars(self))
        samples = int(self.num_samples)
        stores_nothing = keep is not None and not len(keep)
        if self.thin > samples:
            raise ValueError(f"thin={self.thin} keeps none of num_samples={samples} draws; give a smaller thin.")
        if stores_nothing and self.until is not None and (self.until.r_hat or self.until.ess):
            raise ValueError(
                "until: r_hat= and ess= need stored draws, and keep=[] stores none. Keep a variable, or give only "
                "seconds=."
            )
        if stores_nothing and self.store is not None:
            raise ValueError("store: keep=[] stores no draws. Keep a variable, or leave out store=.")
        if stores_nothing and self.save_warmup:
            raise ValueError("save_warmup: keep=[] stores no draws. Keep a variable, or leave out save_warmup=.")
        self._check_store()
        warmup = default_warmup(int(num_chains)) if self.num_warmup is None else int(self.num_warmup)
        return replace(
            self,
            num_warmup=warmup,
            num_samples=samples,
            thin=int(self.thin),
            checkpoint=self.policy,
            progress=bool(self.progress),
        )

    @property
    def callbacks(self) -> list[Callable[[RunReport], Any]]:
        """Functions that are called after each block."""
        return [] if self.on_block is None else [self.on_block]

    def arguments(self, initial: Initial) -> RunArguments:
        """Return the arguments that the record of a run contains; only valid after `checked`."""
        return RunArguments(self.warmup, self.thin, initial.described, initial.superchains, bool(self.save_warmup))

    @property
    def policy(self) -> SavePolicy | None:
        """Policy of saves; None without a checkpoint."""
        return SavePolicy.of(self.checkpoint)

    def _check_store(self) -> None:
        if self.store is None:
            return
        policy = self.policy
        if policy is not None and policy.folder.resolve() == Path(self.store).resolve():
            raise ValueError(f"store={str(self.store)!r} is the folder of the checkpoint, too; name another one.")
        require("zarr")

    def in_words(self, saved_run: Posterior | None) -> dict[str, str]:
        """Return the options that processes must share besides a run's identity; a checkpoint holds `saved_run`."""
        texts = {name: str(getattr(self, name)) for name in ("num_samples", "until", "checkpoint", "store")}
        return texts | {"the number of saved draws": str(None if saved_run is None else saved_run.num_draws)}

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


def kept_names(keep: str | Sequence[str] | None, model: Program) -> tuple[str, ...] | None:
    """Return the variables that `keep=`, or else an attribute `keep` of the model, names; None where neither does."""
    keep = getattr(model, "keep", None) if keep is None else keep
    if keep is None:
        return None
    return (keep,) if isinstance(keep, str) else tuple(keep)


def default_warmup(num_chains: int) -> int:
    """Return the iterations of warm-up: 4,000 over all chains, with 300 to 1,000 of each chain.

    Tuning needs a total number of draws, so more chains need fewer iterations; but each chain needs some iterations to
    reach the typical set.

    Examples:
        >>> [default_warmup(num_chains) for num_chains in (1, 4, 8, 64)]
        [1000, 1000, 500, 300]
    """
    return min(max(WARMUP_DRAWS // num_chains, WARMUP_LEAST), WARMUP_MOST)
