"""Run on many data sets in progress: data sets without a start are set aside, warm-up is that of each data set."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import Array

from phalanx.adaptation.tuner import Sums
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.mesh.processes import to_host
from phalanx.run.device.blocks import ChainState
from phalanx.run.device.executables import Executables
from phalanx.run.each.blocks import EachBlocks, EachTarget
from phalanx.run.each.warm_up import EachWarmUpPhase
from phalanx.run.engine import Engine
from phalanx.run.host.draw_store import DrawStore
from phalanx.run.init_values import Initial
from phalanx.run.loop import Run
from phalanx.run.state import Aim


class EachEngine(Engine):
    """Engine of a run on many data sets, some of which may have no chain that can start."""

    failed: dict[int, str]

    def begin(self, initial: Initial) -> tuple[ChainState, Sums]:
        """Return chains at their initial positions; a data set without one takes part with the data of another."""
        begun = self.executables.start(self.seed, self.arrays, initial)
        initial.check(begun.misfits)
        self.failed = self._failed(begun.finite, begun.invalid)
        if self.failed:
            self.arrays = self._without_failed()
            begun = self.executables.start(self.seed, self.arrays, initial)
        rows = begun.rows
        return begun.chains, self.executables.summed(rows, 0, 1) if rows else self.blocks.no_sums()

    def _failed(self, finite: Array, invalid: Any) -> dict[int, str]:
        assert isinstance(self.blocks, EachBlocks)
        by_set = self.blocks.sets, self.blocks.chains_of_one
        bad = ~to_host(finite).reshape(by_set).all(1)
        reasons = {
            int(number): "the log density, or its gradient, is not finite at the start"
            for number in np.flatnonzero(bad)
        }
        for (name, parameter), counts in invalid.items():
            found = to_host(counts).reshape(by_set)[:, 0]
            what = f"the parameter {parameter!r} of {name!r}" if parameter else f"a value of {name!r}"
            reasons |= {int(number): f"{what} is not valid" for number in np.flatnonzero(found)}
        return reasons

    def _without_failed(self) -> tuple[Array, ...]:
        """Return the arrays, where data sets that failed have the data of one that did not."""
        target, sets = self.blocks.target, self.blocks.sets  # pyright: ignore[reportAttributeAccessIssue]
        assert isinstance(target, EachTarget)
        source = np.arange(sets)
        good = np.setdiff1d(source, list(self.failed))
        if not len(good):
            raise ValueError(
                f"each: none of the {sets:,} data sets can be sampled; of the first, {self.failed[0]}. Run phx.mcmc on "
                f"it alone to see more."
            )
        source[list(self.failed)] = good[0]
        take = jax.jit(lambda array: array[source])
        return tuple(
            jax.device_put(take(array), array.sharding) if number in target.own else array
            for number, array in enumerate(self.arrays)
        )


class EachRun(Run):
    """Run on many data sets in progress."""

    def __init__(
        self, executables: Executables, kernel: Kernel, seed: int, arrays: Any, progress: Any, looks: Any,
        store: DrawStore | None = None,
    ):  # fmt: skip
        super().__init__(executables, kernel, seed, arrays, progress, looks, store=store)
        self.engine: EachEngine = EachEngine(executables, seed, arrays)

    def _warm_up_phase(self, aim: Aim) -> EachWarmUpPhase:
        return EachWarmUpPhase(self.engine, self.kernel, aim.num_warmup)
