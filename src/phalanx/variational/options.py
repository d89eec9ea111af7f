"""Options of a fit, which are checked before the model is traced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from jax.sharding import Mesh

from phalanx.density.given_names import Coords, Dims
from phalanx.run.arguments import check_arguments
from phalanx.run.progress.report import Report
from phalanx.run.until import Until
from phalanx.store.policy import SavePolicy
from phalanx.variational import checks
from phalanx.variational.monitoring.options import Training
from phalanx.variational.objective import Objective
from phalanx.variational.start import Init


@dataclass(frozen=True)
class FitOptions:
    """Arguments of `phx.fit` besides model, guide, data and `each`, which that function explains.

    Attributes:
        stops: whether the fit stops when the guide no longer changes; only valid after `checked`.
        averages: whether the parameters are averages over steps; only valid after `checked`.
    """

    optimizer: Any
    num_steps: int
    num_particles: int
    batch_size: int | None
    num_rows: int | None
    objective: Objective
    mesh: Mesh | None
    seed: int
    until: Until | bool | None
    init: Init | None
    average: bool | None
    training: Training | None
    checkpoint: SavePolicy | str | PathLike[str] | None
    dims: Dims | None
    coords: Coords | None
    matmul_precision: str
    missing: str | None
    on_block: Callable[[Report], Any] | None
    progress: bool
    stops: bool = False
    averages: bool = False

    def checked(self, guide: object) -> FitOptions:
        """Check the options for this guide; return them with Python's numbers, and with `stops` and `averages`.

        Raises:
            TypeError, ValueError: when one is out of range; the message names it.
        """
        checks.check_no_guide(guide, self.objective, self.optimizer)
        policy = checks.check_saves(self.checkpoint, self.training)
        checks.check_training(self.training, self.optimizer, self.num_steps, policy is not None)
        checks.check_average(self.average, self.optimizer, self.training, self.num_steps)
        optimizer = checks.number_of(self.optimizer)
        num_particles = 1 if guide is None else self.num_particles
        check_arguments(
            seed=self.seed,
            num_steps=self.num_steps,
            num_particles=num_particles,
            on_block=self.on_block,
            progress=self.progress,
            missing=self.missing,
            matmul_precision=self.matmul_precision,
            mesh=self.mesh,
        )
        checks.check_optimizer(optimizer)
        checks.check_objective(self.objective)
        checks.check_until(self.until)
        average = guide is not None if self.average is None else self.average
        return replace(
            self,
            optimizer=optimizer,
            num_steps=int(self.num_steps),
            num_particles=int(num_particles),
            seed=int(self.seed),
            checkpoint=policy,
            averages=bool(average) and self.training is None,
            stops=guide is not None and self.training is None and self.until is not False,
        )

    @property
    def policy(self) -> SavePolicy | None:
        """Policy of saves; None without a checkpoint."""
        return SavePolicy.of(self.checkpoint)

    @property
    def seconds(self) -> float | None:
        """Time limit of the steps; None without."""
        return self.until.seconds if isinstance(self.until, Until) else None

    @property
    def callbacks(self) -> list[Callable[[Report], Any]]:
        """Functions that are called with each report."""
        return [] if self.on_block is None else [self.on_block]

    def in_words(self, num_rows: int | None) -> dict[str, Any]:
        """Return what all processes of a fit must share, given the number of rows of all batches."""
        is_recorded = self.optimizer is None or isinstance(self.optimizer, str | float)
        names = ("num_steps", "num_particles", "batch_size", "seed", "until", "checkpoint", "matmul_precision")
        return {
            **{name: getattr(self, name) for name in names},
            "num_rows": num_rows,
            "optimizer": self.optimizer if is_recorded else type(self.optimizer).__name__,
        }
