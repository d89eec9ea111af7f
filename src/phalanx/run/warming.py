"""Warm-up of a run: rounds of recorded draws, of which tuners learn and chains are relocated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from phalanx.adaptation.stuck import Relocation
from phalanx.adaptation.tuner import Sums
from phalanx.adaptation.warm_up import WarmUp, WarmUpState
from phalanx.kernels.kernel import Kernel
from phalanx.run.chains import Chains
from phalanx.run.landscape import landscape_of
from phalanx.run.portable import portable
from phalanx.run.window import Window

MOST_SAMPLED = 2**20
"""Numbers that come to the host of one draw of each chain, at most, where correlations are learned from draws: of more
chains than that some are left out."""


class Round(NamedTuple):
    """A round of warm-up.

    Attributes:
        sums: what its draws add up to.
        noted: what the record says of it.
        relocations: chains that go on beside others.
        ticks: what it took.
    """

    sums: Sums
    noted: dict[str, Any]
    relocations: list[Relocation]
    ticks: int


class Warming:
    """Warm-up of the chains of a run.

    Args:
        chains: the chains, where they begin.
        kernel: with the hyperparameters to begin with.
        num_warmup: iterations per chain.
        beginning: what positions, and gradients there, add up to where they begin.
        tuners: what an earlier warm-up has learned that this one goes on with.
    """

    def __init__(
        self, chains: Chains, kernel: Kernel, num_warmup: int, beginning: Sums, tuners: WarmUpState | None
    ):  # fmt: skip
        self._chains, self._kernel = chains, kernel
        landscape = landscape_of(chains.executables, chains.arrays, int(chains.seed))
        self._warm_up = WarmUp(kernel, chains.blocks.num_chains, num_warmup, beginning, landscape)
        if tuners is not None:
            self._warm_up.go_on(tuners)
        groups, layout = self._warm_up.sampled_groups, chains.blocks.row_layout
        one_of_each = chains.blocks.num_chains * layout.widths[0]
        # which chains are stuck is only asked where there are few
        self._window = Window(layout, groups, 1 if groups is None else math.ceil(one_of_each / MOST_SAMPLED))
        chains.tune(self._warm_up.tuning, self._warm_up.abandon)

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
        chains.count_draws()

    def _round(self) -> Round:
        warm_up, chains, used = self._warm_up, self._chains, self._warm_up.tuning
        ticks = warm_up.ticks
        sums = self._drawn(ticks)
        warm_up.learn(sums, self._window.take)
        has_new_metric, relocations = chains.tune(warm_up.tuning, warm_up.abandon), warm_up.relocations
        if relocations:
            sources = np.arange(chains.blocks.num_chains)
            for relocation in relocations:
                sources[relocation.chain] = relocation.beside
            chains.put_beside(sources)
        return Round(sums, self._noted(used, sums, has_new_metric), relocations, ticks)

    def _drawn(self, ticks: int) -> Sums:
        """What the draws of so many ticks add up to. How they are cut changes nothing: no chain's slots fill up."""
        chains, slots, made, left = self._chains, self._chains.blocks.slots, [], ticks
        goal = np.full(chains.blocks.num_chains, slots)
        while left:
            now = min(left, slots, chains.executables.pace.ticks)
            recorded = chains.record(goal, now).sunk
            made.append(chains.executables.summed(recorded.states[0], recorded.count))
            chains.ended(now)  # no chain has all the draws it was asked for before
            if not self._warm_up.searching:
                self._window.add(recorded)
            left -= now
        return reduce(Sums.merge, made)

    def _noted(self, used: Any, sums: Sums, has_new_metric: bool) -> dict[str, Any]:
        """What the record says of a round, which used a tuning."""
        noted = {
            "iteration": self._warm_up.iterations,
            "step_size": float(used.step_size),
            "acceptance_rate": sums.mean("acceptance_rate"),
            "divergences": int(sums.stats["diverging"]),
            "metric_changed": has_new_metric,
            "relocated_chains": len(self._warm_up.relocations),
        }
        if self._kernel.tunes_trajectory:
            noted["trajectory_length"] = float(used.trajectory_length)
        return noted
