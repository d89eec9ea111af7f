"""Loop of a run: warm-up, then sampling, block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import Array

from phalanx.kernels.protocol.kernel import Kernel
from phalanx.mesh.interrupts import Interrupts, ended_by_interrupt
from phalanx.mesh.processes import to_host
from phalanx.programs.centring import Centrings
from phalanx.run.device.executables import Executables
from phalanx.run.engine import Engine
from phalanx.run.host.draw_buffer import DrawBuffer
from phalanx.run.host.draw_store import DrawStore, warmup_step_sizes
from phalanx.run.host.reducer_state import HostReducers
from phalanx.run.init_values import Initial
from phalanx.run.phases.phase import Phase
from phalanx.run.phases.reduce import ReducePhase
from phalanx.run.phases.store import StorePhase
from phalanx.run.phases.warm_up import DiscardPhase, WarmUpPhase
from phalanx.run.progress.report import Progress, RunReport
from phalanx.run.state import DrawsByName, Reduced, RunArguments, RunState, Stored, Work
from phalanx.run.until import StoppingWatch, Until

UNTIL_ROOM = 1024
"""Initial room of the draw buffer, in draws of each chain, if `until` decides the number of draws."""


class Run:
    """A run in progress: its state, its engine and its observers.

    Args:
        executables: the compiled blocks.
        kernel: the kernel with its initial hyperparameters.
        seed: seed of the run.
        arrays: the data on the devices.
        progress: the progress display.
        callbacks: functions called with a report after each block.
        saves: whether SIGTERM, like Ctrl-C, waits for the end of a block, because the run is saved.
        store: store of the draws; None to keep them in memory.

    Attributes:
        warmup_draws, warmup_stats: draws of warm-up of the chains that this process holds, and their statistics, once
            it is complete; empty if they are discarded, or in the store.
    """

    state: RunState
    """Current state; set by `begin` or `resume`."""

    def __init__(
        self,
        executables: Executables,
        kernel: Kernel,
        seed: int,
        arrays: tuple[Array, ...],
        progress: Progress,
        callbacks: Sequence[Callable[[RunReport], object]] = (),
        saves: bool = False,
        store: DrawStore | None = None,
    ):
        self.store = store
        self.engine = Engine(executables, seed, arrays)
        self.kernel = kernel
        self.interrupts = Interrupts(saves)
        self.interrupted = False
        self.so_far: Callable[..., Any] | None = None
        """Function that returns a posterior of the run so far, passed on in reports; with `with_draws=False` without
        those in a store."""
        self.warmup_draws: DrawsByName = {}
        self.warmup_stats: DrawsByName = {}
        self._progress = progress
        self._callbacks = [progress.show, *callbacks]
        self._acceptance = math.nan

    def begin(self, initial: Initial, arguments: RunArguments, centring: Centrings | None = None) -> None:
        """Find initial positions, then warm up; `centring` is that under which a given tuning was learned."""
        engine = self.engine
        num_chains = self.engine.blocks.num_chains
        engine.use_centring({} if centring is None else centring)
        chains, beginning = engine.begin(initial)
        warming = self._warm_up_phase(arguments)
        state = RunState(
            seed=int(engine.seed),
            arguments=arguments,
            chains=chains,
            tuning=self.kernel.tuning,
            mean_steps=1.0,
            warming=None,
            sinks=None,
            goal=0,
            stored=Stored.nothing(num_chains),
            reduced=Reduced(),
            next_look=0,
            stopped=False,
            warmup=Work(evaluations=num_chains),
            sampling=Work(),
            centring=engine.centring,
            warmed=Stored.nothing(num_chains) if arguments.save_warmup else None,
            settling=Stored.nothing(num_chains) if arguments.superchains else None,
        )
        self.state = warming.begin(state, beginning)
        if self.state.in_warm_up:
            self.state = engine.rested(self.state, warming.accumulates)
            self._go_through(warming)
        self._keep_warm_up()

    def resume(self, saved_state: RunState) -> None:
        """Restore a fetched state, and complete its warm-up."""
        executables = self.engine.executables
        if (larger := executables.with_slots(saved_state.slots, self.engine.arrays)) is not executables:
            self.engine = Engine(larger, saved_state.seed, self.engine.arrays)
        stores = executables.stores_draws
        self.engine.use_centring(saved_state.centring)
        reduced_state = HostReducers.of(self.engine.executables.reducing).pooled(saved_state.reduced)
        state = self.engine.placed(saved_state._replace(reduced=reduced_state))
        warming = self._warm_up_phase(state.arguments)
        state = warming.resume(state) if state.in_warm_up else state
        self.state = self.engine.rested(state, warming.accumulates if state.in_warm_up else not stores)
        if state.in_warm_up:
            self._go_through(warming)
        self._keep_warm_up()

    def _keep_warm_up(self) -> None:
        """Move the draws of a complete warm-up out of the state, into the store if there is one."""
        if (warmup_draws := self.state.warmed) is None:
            return
        if warmup_draws.count:
            draws, stats = warmup_draws.common_draws
            stats["step_size"] = warmup_step_sizes(self.state, stats)
            if self.store is None:
                self.warmup_draws = draws
                self.warmup_stats = stats
            else:
                self.store.take_warm_up(draws, stats)
        self.state = self.state._replace(warmed=None)

    def sample(self, num_samples: int, until: Until | None) -> None:
        """Sample until every chain has `num_samples // thin` more draws or `until` is met."""
        engine = self.engine
        stored_draws = self.state.stored
        thin = self.state.arguments.thin
        if not engine.executables.stores_draws:
            seconds = math.inf if until is None else until.seconds or math.inf
            phase = ReducePhase(engine, num_samples // thin, thin, seconds)
        else:
            total = num_samples // thin
            room = total + stored_draws.count if until is None else min(total, UNTIL_ROOM)
            room = room if self.store is None else 0
            buffer = DrawBuffer(engine.blocks.target, engine.blocks.held_chains, stored_draws.count + total, room)
            watch = None if until is None else StoppingWatch(until, engine.blocks.names)
            phase = StorePhase(engine, buffer, thin, watch, self.store)
        self.state = phase.begin(self.state)
        try:
            with ended_by_interrupt(lambda: self._interrupted(phase)):
                self._go_through(phase)
        finally:
            self._move_to_store()

    def _go_through(self, phase: Phase) -> None:
        while (goal := phase.goal(self.state)) is not None:
            self.state, progress = phase.take_block(self.engine.advance(self.state, goal, phase.accumulates))
            if progress.rates.size:  # in a short block no draw may have ended
                self._acceptance = float(np.mean(progress.rates))
            report = RunReport(
                phase.name,
                progress.done,
                progress.total,
                self.engine.blocks.num_chains,
                self._acceptance,
                progress.divergences,
                progress.speed,
                self.so_far,
            )
            for callback in self._callbacks:
                callback(report)
            self.interrupts.agree()

    def _move_to_store(self) -> None:
        """Move the last block's draws, which a phase leaves in memory while the devices make the next, to the store."""
        if self.store is not None:
            self.state = self.store.take(self.state)

    def _interrupted(self, phase: StorePhase | ReducePhase) -> None:
        """Keep the draws so far; without draws re-raise the interrupt."""
        if not self.draws:
            raise
        self.interrupted = True
        self._progress.say(phase.interrupted(self.state))

    def _warm_up_phase(self, arguments: RunArguments) -> WarmUpPhase | DiscardPhase:
        if self.engine.executables.record is None:  # draws are neither stored nor used for tuning
            return DiscardPhase(self.engine, arguments.num_warmup)
        return WarmUpPhase(self.engine, self.kernel, arguments.num_warmup)

    @property
    def reduced(self) -> Reduced:
        """The reducers' states after all draws that every chain has stored, or after the last complete round.

        After a second Ctrl-C within a block, the draws of the round under way are lost to reducers.
        """
        state = self.state
        engine = self.engine
        if engine.executables.reduce is None or state.sinks is None or state.in_warm_up or not self.can_continue:
            return state.reduced
        draws = int(to_host(state.sinks.count).min())
        return engine.reduced(state, draws) if draws else state.reduced

    @property
    def draws(self) -> int:
        """Number of draws that every chain has, stored or reduced."""
        return self.state.stored.count if self.engine.executables.stores_draws else self.state.reduced.draws

    @property
    def can_continue(self) -> bool:
        """True if the run has begun, and no second Ctrl-C has ended it within a block, which loses the chains."""
        return "state" in vars(self) and not self.state.chains.lanes.draw.is_deleted()

    @property
    def value(self) -> RunState:
        """The current state as arrays on the host that depend on no mesh; draws for a store are moved to it before.

        Raises:
            ValueError: when a second Ctrl-C ended the run within a block.
        """
        if not self.can_continue:
            raise ValueError(
                "state: a second Ctrl-C ended this run within a block, so that its chains are lost. Its draws are "
                "valid, but the run cannot be continued. Start another run from the last draws, with init=posterior "
                "and tuning=posterior."
            )
        self._move_to_store()
        return self.engine.fetched(self.state)
