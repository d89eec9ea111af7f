"""One run, from the first position to the last draw: warm-up, then blocks whose draws are drained to the host."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jax import Array

from phalanx.adaptation.stuck_chains import Relocation
from phalanx.adaptation.tuner import Sums
from phalanx.adaptation.warm_up import WarmUpState
from phalanx.kernels.protocol.adapter import Rest
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.mesh.interrupts import Interrupts
from phalanx.run.chains import Chains
from phalanx.run.device.executables import Executables
from phalanx.run.device.thinning import SinceKept
from phalanx.run.host.draw_buffer import HostDraws, Latest
from phalanx.run.host.folding import Folding
from phalanx.run.host.host_sink import Drain
from phalanx.run.host.portable import on_mesh
from phalanx.run.host.reducer_state import HostFold
from phalanx.run.host.storing import Storing
from phalanx.run.init_values import Initial
from phalanx.run.progress.report import Progress, Report
from phalanx.run.state import Aim, RunState, Stored, Work
from phalanx.run.until import Until
from phalanx.run.warming import Warming

UNTIL_ROOM = 1024
"""Draws of each chain that room is made for at first, where nobody knows how many there will be."""


class Run:
    """One run: its chains, what is known of their draws, and what has been counted.

    Args:
        executables: the compiled blocks.
        kernel: with the hyperparameters to begin with.
        seed: of the run.
        arrays: the data on the devices.
        aim: what was asked for.
        progress: where it is shown.
        on_block: called with a report after each block.
    """

    def __init__(
        self, executables: Executables, kernel: Kernel, seed: int, arrays: tuple[Array, ...], aim: Aim,
        progress: Progress, on_block: Callable[[Report], Any] | None = None,
    ):  # fmt: skip
        self.executables, self.kernel, self.aim = executables, kernel, aim
        self.blocks, self.progress = executables.blocks, progress
        self.chains, self.interrupts = Chains(executables, seed, arrays), Interrupts()
        self.stored: HostDraws | None = None
        """Draws that are stored, where any are."""
        self.reduced = HostFold.of(executables.reducing)
        """What reducers know."""
        self.warmup, self.sampling = Work(evaluations=self.blocks.num_chains), Work()
        self.relocations: list[Relocation] = []
        self.rounds: list[dict[str, Any]] = []
        self.interrupted = False
        self.so_far: Callable[[], Any] | None = None
        """What makes a posterior of the run so far, for whoever is told of a block."""
        self._looks = (progress.show,) if on_block is None else (progress.show, on_block)
        self._marks = on_block is not None
        """Whether somebody may ask for the run's state where it cannot be told from what is on the devices then."""
        self._marked: RunState | None = None
        self._latest: Latest | None = None
        self._acceptance = math.nan

    @classmethod
    def resumed(
        cls, executables: Executables, kernel: Kernel, state: RunState, arrays: tuple[Array, ...], progress: Progress,
        on_block: Callable[[Report], Any] | None = None,
    ) -> Run:  # fmt: skip
        """A run that goes on from a state."""
        aim = Aim(state.num_warmup, state.thin, state.init, state.superchains)
        run = cls(executables, kernel, state.seed, arrays, aim, progress, on_block)
        run.warmup, run.sampling, run.rounds = state.warmup, state.sampling, list(state.rounds)
        run.relocations = [Relocation(*relocation) for relocation in state.relocations]
        run.reduced = HostFold.of(executables.reducing, state.reduced)
        return run

    # -- from here to there -----------------------------------------------------------------------------------------

    def begin(self, initial: Initial) -> None:
        """Find where to begin, and tune."""
        self._warm_up(self.chains.begin(initial), None)

    def go_on(self, state: RunState) -> None:
        """Put the chains, and the tuning, where they were; and tune on, if that was not over."""
        self.chains.resume(state)
        if state.in_warm_up:
            nothing = Sums.nothing(self.blocks.layout.whole_lengths)
            self._warm_up(nothing, on_mesh(state.tuners, self.blocks.layout))
            return
        if not self.kernel.machine.in_lock_step:
            self.chains.rest_a_tick(samples=True)
        if self.chains.replays:
            at, layout = state.rest.at, self.blocks.layout
            position, gradient = (layout.of_whole(x, zero=True) for x in (at.position, at.gradient))
            self._latest = Latest(position, gradient, at.log_density)

    def _warm_up(self, beginning: Sums, tuners: WarmUpState | None) -> None:
        """Tune, from where the chains are, with what warm-up has learned before."""
        num_warmup = self.aim.num_warmup
        warming = Warming(self.chains, self.kernel, num_warmup, beginning, tuners)
        self._mark(warming.state)
        if self.executables.record is None:  # nothing is tuned, and so nothing looked at
            self._drain(Folding(self.chains, HostFold.of(self.executables.reducing), num_warmup, 1), "warm-up")
            return
        divergences = sum(noted["divergences"] for noted in self.rounds)
        for ticks, made in warming.blocks():
            self.warmup, rates = self.warmup.more(ticks, 0), np.zeros(0)
            if made is not None:
                divergences += made.noted["divergences"]
                self.relocations += made.relocations
                self.rounds.append(made.noted)
                self.warmup = self.warmup.more(0, int(made.sums.stats["num_steps"]))
                rates = np.full(1, made.noted["acceptance_rate"])
                if warming.is_between_windows:
                    self._mark(warming.state)
            self._show("warm-up", warming.iterations, num_warmup, rates, divergences)

    def sample(self, num_samples: int, until: Until | None, stored: Stored | None = None) -> None:
        """Draw, until every chain has `num_samples // thin` draws more, or `until` is met.

        Args:
            num_samples: iterations of each chain.
            until: when to stop before.
            stored: draws there are already.
        """
        thin = self.aim.thin
        if not self.executables.stores_draws:
            seconds = math.inf if until is None else until.seconds or math.inf
            self._drain(Folding(self.chains, self.reduced, num_samples // thin, thin, seconds), "sampling")
            return
        self._marked, total = None, num_samples // thin
        stored = stored or Stored({}, {}, np.zeros(self.blocks.num_chains, np.int64))
        room = total + stored.count if until is None else min(total, UNTIL_ROOM)
        self.stored = host = HostDraws(self.blocks, stored.count + total, room, stored, self._latest)
        watch = None if until is None else until.watch(host, self.blocks.names)
        self._drain(Storing(self.chains, host, self.reduced, thin, watch), "sampling")
        self.reduced.ahead = int(host.counts.max() - host.count)

    def _drain(self, drain: Drain, phase: str) -> None:
        """Block after block, until there are enough draws. This is the loop that all draws come through."""
        is_warm_up = phase == "warm-up"
        # where draws are stored, the state is known at any time
        is_marked = not is_warm_up and self.stored is None
        if is_marked:
            self._mark(None)
        try:
            while (goal := drain.goal()) is not None:
                made = drain.advance(goal, int(min(self.executables.pace.ticks, goal.ticks)))
                if is_warm_up:
                    self.warmup = self.warmup.more(made.ticks, made.evaluations)
                else:
                    self.sampling = self.sampling.more(made.ticks, made.evaluations)
                if is_marked and drain.is_between:
                    self._mark(None)
                self._show(phase, made.done, made.total, made.rates, made.divergences, made.speed)
        except KeyboardInterrupt:
            if is_warm_up or not drain.kept:
                raise
            self.interrupted = True
            self.progress.say(drain.interrupted)
        if not self.interrupted:  # else what is lost of a round is made again
            self._marked = None

    def _show(
        self, phase: str, done: int, total: int, acceptance: np.ndarray, divergences: int, speed: float = 0.0
    ) -> None:
        if acceptance.size:  # in a short block no draw may have ended
            self._acceptance = float(np.mean(acceptance))
        report = Report(phase, done, total, self.blocks.num_chains, self._acceptance, divergences, speed, self.so_far)
        for look in self._looks:
            look(report)
        self.interrupts.agree()

    # -- what there is ----------------------------------------------------------------------------------------------

    @property
    def draws(self) -> int:
        """Draws that every chain has, of which what becomes of them is known here."""
        return self.reduced.draws if self.stored is None else self.stored.count

    @property
    def warmup_record(self) -> dict[str, np.ndarray]:
        """How warm-up went, by name: an array `(round,)`."""
        names = self.rounds[0] if self.rounds else ()
        return {name: np.array([noted[name] for noted in self.rounds]) for name in names}

    @property
    def state(self) -> RunState:
        """The run as a value, from which it goes on to the same draws."""
        if self.interrupted and self._marked is None:  # to tell it may take draws of which nothing is known: once
            self._marked = self._state()
        return self._state() if self._marked is None else self._marked

    def _mark(self, tuners: Any) -> None:
        """Keep the run's state, for whoever asks before the next mark: from here its draws are made again."""
        if self._marks:
            self._marked = self._state()._replace(tuners=tuners)

    def _state(self) -> RunState:
        """The run as it is now."""
        rest, since = self._rest()
        stored = Stored({}, {}, np.zeros(1, int)) if self.stored is None else self.stored.stored.rest
        relocations = tuple(
            (relocation.chain, relocation.beside, relocation.log_share) for relocation in self.relocations
        )
        return RunState(
            int(self.chains.seed), *self.aim[:3], rest, since, self.chains.tuning, float(self.chains.mean_steps),
            stored, self.reduced.known, self.warmup, self.sampling, relocations, tuple(self.rounds),
            superchains=self.aim.superchains,
        )  # fmt: skip

    def _rest(self) -> tuple[Rest, SinceKept]:
        """Where chains are between two draws, and what they did since the draw last kept."""
        host = self.stored
        if host is not None and host.latest is not None and self.chains.replays:
            # chains may be within a trajectory, or, after an interrupt, a block ahead of what is stored: of each the
            # last draw kept, after which it replays what came since
            return self.chains.rest_after(host.latest, self.aim.thin * host.counts)
        if self.interrupted and host is None:
            self.chains.end_trajectories()
        return self.chains.rest()
