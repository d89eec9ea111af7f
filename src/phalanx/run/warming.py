"""Warm-up of a run: rounds of recorded draws, from which tuners learn and after which chains are relocated."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from phalanx.adaptation.stuck_chains import Relocation, StuckChains
from phalanx.adaptation.tuner import Sample, Sums
from phalanx.adaptation.warm_up import WarmUp, WarmUpState
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.mesh.processes import to_host
from phalanx.run.chains import Chains
from phalanx.run.device.advance import Sunk
from phalanx.run.device.window import Window
from phalanx.run.host.portable import portable
from phalanx.run.host_target import landscape_of

MOST_SAMPLED = 2**20
"""Numbers of one draw of each chain that come to the host, at most, where correlations are learned from draws: of more
chains than that some are left out."""


class Round(NamedTuple):
    """A round of warm-up.

    Attributes:
        sums: over its draws.
        noted: its entry in the record.
        relocations: chains that continue beside others.
    """

    sums: Sums
    noted: dict[str, Any]
    relocations: list[Relocation]


class Block(NamedTuple):
    """Progress of warm-up: the ticks of a block, or a round that is complete."""

    ticks: int
    round: Round | None


class Warming:
    """Warm-up of the chains of a run.

    Args:
        chains: the chains, where they begin.
        kernel: with the hyperparameters to begin with.
        num_warmup: iterations per chain.
        beginning: sums over the positions, and gradients there, where they begin.
        tuners: the state of an earlier warm-up that this one continues.
    """

    def __init__(
        self, chains: Chains, kernel: Kernel, num_warmup: int, beginning: Sums, tuners: WarmUpState | None
    ):  # fmt: skip
        self._chains, self._kernel = chains, kernel
        landscape = landscape_of(chains.executables, chains.arrays, int(chains.seed))
        stuck = StuckChains(chains.blocks.num_chains, landscape) if kernel.relocates else None
        self._warm_up = WarmUp(
            kernel.tuners, kernel.tuning, num_warmup, beginning, kernel.tuned_steps, stuck,
            runs_ahead=not kernel.machine.in_lock_step,
        )  # fmt: skip
        if tuners is not None:
            self._warm_up.go_on(tuners)
        groups, layout = self._warm_up.sampled_groups, chains.blocks.row_layout
        one_of_each = chains.blocks.num_chains * layout.widths[0]
        # which chains are stuck is only asked where there are few
        self._window = Window(layout, groups, 1 if groups is None else math.ceil(one_of_each / MOST_SAMPLED))
        self._sunk: Sunk | None = None
        """Draws in the slots of the devices."""
        self._filled = 0
        """Slots that every chain has filled."""
        chains.tune(self._warm_up.tuning)

    @property
    def state(self) -> Any:
        """State of the tuners, as a value of no mesh; None within a window."""
        return portable(self._warm_up.state, self._chains.blocks.layout)

    @property
    def is_between_windows(self) -> bool:
        """Return whether another run could continue from here."""
        return self._warm_up.state is not None

    @property
    def iterations(self) -> int:
        """Draws made by each chain."""
        return self._warm_up.iterations

    def blocks(self) -> Iterator[Block]:
        """Run block after block, until warm-up is complete."""
        warm_up, chains = self._warm_up, self._chains
        if not (warm_up.over or self._kernel.machine.in_lock_step):
            chains.rest_a_tick(samples=False)
        while not warm_up.over:
            yield from self._round()
        chains.count_draws()

    def _round(self) -> Iterator[Block]:
        """A round; its draws fill the slots behind those of the rounds before, as long as they fit."""
        warm_up, slots, left, sums = self._warm_up, self._chains.blocks.slots, self._warm_up.length, []
        while left:
            if self._filled + left > slots:
                self._empty_slots()
            length = min(left, slots)
            left -= length
            ahead = warm_up.ahead if not left and self._filled + length + warm_up.ahead <= slots else 0
            (rows,) = yield from self._until_filled(self._filled + length, ahead)
            sums.append(self._chains.executables.summed(rows, self._filled, length))
            self._filled += length
        yield Block(0, self._learned(reduce(Sums.merge, sums)))

    def _until_filled(self, slots: int, ahead: int) -> Generator[Block, None, Any]:
        """Blocks until every chain has filled so many slots, while others fill some `ahead`; returns the records."""
        chains, sunk = self._chains, self._sunk
        goal = np.full(chains.blocks.num_chains, slots)
        while sunk is None or (to_host(sunk.count) < slots).any():
            advanced = chains.record(goal, chains.executables.pace.ticks, sunk, ahead=ahead, later=self._warm_up.later)
            sunk = self._sunk = advanced.sunk
            yield Block(chains.wait(advanced), None)
        return sunk.states

    def _empty_slots(self) -> None:
        """Keep the draws for the end of the window, where no chain is ahead of the others."""
        if self._sunk is not None and not self._warm_up.searching:
            self._window.add(self._sunk)
        self._sunk, self._filled = None, 0

    def _draws_of_window(self) -> Sample | None:
        self._empty_slots()
        return self._window.take()

    def _learned(self, sums: Sums) -> Round:
        """Learn from a round, and place chains for the next."""
        warm_up, chains, used = self._warm_up, self._chains, self._warm_up.tuning
        chains.mean_steps = sums.mean("num_steps")
        if warm_up.searching:
            self._empty_slots()
        warm_up.learn(sums, self._draws_of_window)
        has_new_metric, relocations = chains.tune(warm_up.tuning), warm_up.relocations
        if relocations:
            sources = np.arange(chains.blocks.num_chains)
            for relocation in relocations:
                sources[relocation.chain] = relocation.beside
            chains.put_beside(sources)
        return Round(sums, self._noted(used, sums, has_new_metric), relocations)

    def _noted(self, used: Any, sums: Sums, has_new_metric: bool) -> dict[str, Any]:
        """Entry in the record of a round that used a tuning."""
        noted = {
            "iteration": self._warm_up.iterations,
            "step_size": float(used.step_size),
            "acceptance_rate": sums.mean("acceptance_rate"),
            "divergences": int(sums.stats["diverging"]),
            "metric_changed": has_new_metric,
            "relocated_chains": len(self._warm_up.relocations),
        }
        return noted | {name: float(getattr(used, name)) for tuner in self._kernel.tuners for name in tuner.sets}
