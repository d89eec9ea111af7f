"""Warm-up of a run: rounds of recorded draws, of which tuners learn and chains are relocated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from phalanx.adaptation.stuck import Relocation
from phalanx.adaptation.tuner import Batch
from phalanx.adaptation.warm_up import WarmUp, WarmUpState
from phalanx.kernels.kernel import Kernel
from phalanx.run.chains import Chains, Groups
from phalanx.run.host import HostBlock
from phalanx.run.landscape import landscape_of
from phalanx.run.portable import portable


class Round(NamedTuple):
    """A round of warm-up.

    Attributes:
        draws: of all chains.
        noted: what the record says of it.
        relocations: chains that go on beside others.
        evaluations, ticks: what it took.
    """

    draws: Batch
    noted: dict[str, Any]
    relocations: list[Relocation]
    evaluations: int
    ticks: int


class Warming:
    """Warm-up of the chains of a run.

    Args:
        chains: the chains, where they begin.
        kernel: with the hyperparameters to begin with.
        num_warmup: iterations per chain.
        position, gradient: where they begin.
        tuners: what an earlier warm-up has learned that this one goes on with.
    """

    def __init__(
        self, chains: Chains, kernel: Kernel, num_warmup: int, position: Groups, gradient: Groups,
        tuners: WarmUpState | None,
    ):  # fmt: skip
        self._chains, self._kernel = chains, kernel
        numbers = np.arange(chains.blocks.num_chains)
        landscape = landscape_of(chains.executables, chains.arrays, int(chains.seed))
        self._warm_up = WarmUp(kernel, len(numbers), num_warmup, Batch(position, gradient, {}, numbers), landscape)
        if tuners is not None:
            self._warm_up.go_on(tuners)
        chains.tune(self._warm_up.tuning, self._warm_up.abandon)
        self.last = position
        """Positions in the latest round, the latest first, `(draw, coordinate)` by group."""

    @property
    def state(self) -> Any:
        """What the tuners know, as a value of no mesh; None within a window."""
        return portable(self._warm_up.state, self._chains.blocks.target)

    @property
    def is_between_windows(self) -> bool:
        """Whether it could go on from here in another run."""
        return self._warm_up.state is not None

    @property
    def iterations(self) -> int:
        """Draws made of each chain, on average."""
        return int(self._warm_up.iterations)

    def rounds(self) -> Iterator[Round]:
        """Round after round, until there is nothing left to do."""
        warm_up, chains = self._warm_up, self._chains
        if not (warm_up.abandon or warm_up.over or self._kernel.machine.in_lock_step):
            chains.rest_a_tick(samples=False)
        while not warm_up.over:
            yield self._round()
        chains.mean_steps = warm_up.mean_steps

    def _round(self) -> Round:
        warm_up, chains, used = self._warm_up, self._chains, self._warm_up.tuning
        draws, evaluations, ticks = self._drawn(warm_up.ticks)
        if len(draws.chain):
            self.last = [part[::-1] for part in draws.position] or self.last
        warm_up.learn(draws)
        has_new_metric, relocations = chains.tune(warm_up.tuning, warm_up.abandon), warm_up.relocations
        if relocations:
            sources = np.arange(chains.blocks.num_chains)
            for relocation in relocations:
                sources[relocation.chain] = relocation.beside
            chains.put_beside(sources)
        return Round(draws, self._noted(used, draws, has_new_metric), relocations, evaluations, ticks)

    def _drawn(self, ticks: int) -> tuple[Batch, int, int]:
        """The draws of so many ticks. How they are cut into blocks changes nothing: no chain's slots fill up."""
        chains, layout = self._chains, self._chains.blocks.row_layout
        batches, evaluations, left, slots = [], 0, ticks, chains.blocks.slots
        goal = np.full(chains.blocks.num_chains, slots)
        while left:
            now = min(left, slots, chains.executables.pace.ticks)
            block = HostBlock.fetched(chains.record(goal, now).sunk, layout)
            batches.append(block.batch())
            chains.first = chains.first + block.count
            evaluations += int(batches[-1].stats["num_steps"].sum(dtype=np.int64))
            left -= now
        if len(batches) == 1:
            return batches[0], evaluations, ticks
        together = jax.tree.map(lambda *parts: np.concatenate(parts), *batches)
        order = np.argsort(together.chain, kind="stable")
        return jax.tree.map(lambda part: part[order], together), evaluations, ticks

    def _noted(self, used: Any, draws: Batch, has_new_metric: bool) -> dict[str, Any]:
        """What the record says of a round, which used a tuning."""
        rates = draws.stats["acceptance_rate"]
        noted = {
            "iteration": self._warm_up.iterations,
            "step_size": float(used.step_size),
            "acceptance_rate": float(rates.mean(dtype=np.float64)) if rates.size else math.nan,
            "divergences": int(draws.stats["diverging"].sum()),
            "metric_changed": has_new_metric,
            "relocated_chains": len(self._warm_up.relocations),
        }
        if self._kernel.tunes_trajectory:
            noted["trajectory_length"] = float(used.trajectory_length)
        return noted
