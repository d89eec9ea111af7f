"""Results of a run so far: its draws, statistics, times and record."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax import Array

from phalanx.adaptation.stuck_chains import Relocation
from phalanx.diagnostics import Finding
from phalanx.diagnostics.judging.checked_run import SHORT_CHAIN
from phalanx.diagnostics.judging.stationarity import shifts
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import RunRecord, Timing
from phalanx.posterior.together import ProcessDraws
from phalanx.programs.centring import Centrings
from phalanx.run.continuing import draws_of_held_chains
from phalanx.run.host.draw_store import step_sizes
from phalanx.run.host.reducer_state import HostReducers, findings
from phalanx.run.init_values import Initial
from phalanx.run.loop import Run
from phalanx.run.state import Reduced, RunArguments, RunState

if TYPE_CHECKING:
    from jaxtyping import Shaped


class Data(NamedTuple):
    """Data of a run: arrays on the devices, and the record of the sampler."""

    arrays: tuple[Array, ...]
    record: RunRecord


class Clock:
    """Clock of the phases of a run.

    Args:
        start_time: local time at the start, ISO 8601.
        before: times of the run that this one continues.
    """

    def __init__(self, start_time: str, before: Timing | None = None):
        self.started = start_time
        self.before = before or Timing()
        self._began = time.perf_counter()
        self._sampling_began = None

    def sampling_begins(self) -> None:
        """Note the end of warm-up."""
        self._sampling_began = time.perf_counter()

    def timing(self, run: Run, compile_seconds: float, compilations: int) -> Timing:
        """Return the times so far and the work done."""
        now = time.perf_counter()
        warmup_end = now if self._sampling_began is None else self._sampling_began
        state = run.state
        machine = run.kernel.machine
        evaluations = state.warmup.evaluations + state.sampling.evaluations
        ticks = state.sampling.ticks
        makes_whole_draws = machine.makes_whole_draws or not ticks
        num_chains = run.engine.blocks.num_chains
        return Timing(
            compile=self.before.compile + compile_seconds,
            warmup=self.before.warmup + warmup_end - self._began,
            sampling=self.before.sampling + now - warmup_end,
            gradient_evaluations=evaluations if machine.uses_gradient else 0,
            compilations=compilations,
            lane_efficiency=1.0 if makes_whole_draws else state.sampling.evaluations / (num_chains * ticks),
        )


class RunStart(NamedTuple):
    """Start of a run, or of the rest of one.

    Attributes:
        seed: the seed.
        kernel: the kernel with the hyperparameters to begin with.
        initial: initial values of a new run.
        arguments: of a new run, as its record contains them.
        centring: centring that belongs to the kernel's hyperparameters; None without.
        before: posterior of the part before; None for a new run.
        state: state at the end of that part.
    """

    seed: int
    kernel: Kernel
    initial: Initial = Initial()
    arguments: RunArguments = RunArguments()
    centring: Centrings | None = None
    before: Posterior | None = None
    state: RunState | None = None

    def begin(self, run: Run) -> None:
        """Warm a new run up, or restore the state of the part before, with its draws of warm-up."""
        if self.before is None or self.state is None:
            run.begin(self.initial, self.arguments, self.centring)
            return
        before = self.before
        held_chains = run.engine.blocks.held_chains
        run.warmup_draws = draws_of_held_chains(before, before.warmup_draws, held_chains)
        run.warmup_stats = draws_of_held_chains(before, before.warmup_stats, held_chains)
        run.resume(self.state)

    def clock(self) -> Clock:
        """Return a clock that starts now, after the times of the part before."""
        if self.before is None:
            return Clock(datetime.now().isoformat(timespec="seconds"))
        return Clock(self.before.record.started, self.before.timing)


class RunResults(NamedTuple):
    """Draws and statistics `(chain, draw, ...)`, states and results of reducers, draws of warm-up with statistics.

    In a run of several processes the draws are those of the chains that the process holds, unless a store has them.
    """

    draws: Mapping[str, Shaped[np.ndarray, "chains draws *shape"]]
    stats: Mapping[str, Shaped[np.ndarray, "chains draws"]]
    states: Reduced
    reduced: Mapping[str, Any]
    warmup_draws: Mapping[str, Any]
    warmup_stats: Mapping[str, Any]

    @classmethod
    def of(cls, run: Run, with_draws: bool = True) -> RunResults:
        """Return the results so far.

        Draws in a store are read with `with_draws` alone, and must have been written to it before.
        """
        state = run.state
        states = run.reduced
        results = states, HostReducers.of(run.engine.executables.reducing).finalize(states)
        of_warmup = run.warmup_draws, run.warmup_stats
        if not state.stored.count or (run.store is not None and not with_draws):
            return cls({}, {}, *results, *of_warmup)
        if run.store is not None:
            return cls(*run.store.read(), *results, *run.store.read_warm_up())  # pyright: ignore[reportArgumentType]
        draws, stats = state.stored.common_draws
        stats["step_size"] = step_sizes(state, stats)
        return cls({name: draws[name] for name in run.engine.blocks.names}, stats, *results, *of_warmup)

    def place(self, run: Run) -> ProcessDraws | None:
        """Return which of all draws this process holds; None if it holds all. All processes must call it together."""
        is_part = (self.stats or self.warmup_stats) and run.store is None
        return ProcessDraws.of(run.engine.blocks.held_chains, self.stats) if is_part else None

    def record(self, before: RunRecord, run: Run, clock: Clock, samples: int) -> RunRecord:
        """Return the record of a run of `samples` iterations, given the record of its sampler."""
        state = run.state
        reducers = HostReducers.of(run.engine.executables.reducing)
        relocations = [Relocation(*relocation) for relocation in state.relocations]
        executables = run.engine.executables
        num_draws = self.states.draws
        num_lost = 0 if executables.reduce is None else max(0, state.stored.count - num_draws)
        drifts = filter(None, [self._not_stationary(run, before)])
        return replace(
            before.of_run(
                clock.started, run.interrupted, relocations, (*drifts, *findings(dict(self.reduced), num_lost))
            ),
            seed=state.seed,
            init=state.arguments.init,
            superchains=state.arguments.superchains,
            num_warmup=state.arguments.num_warmup,
            num_samples=samples,
            reduced_draws=0 if executables.stores_draws else num_draws,
            acceptance_rate=self.states.acceptance_rate,
            divergences=self.states.divergences,
            diagnostics=reducers.reductions.statistics,
            constant=reducers.constant(self.states),
            centring={name: _spread(np.asarray(centring[0])) for name, centring in state.centring.items()},
        )

    def _not_stationary(self, run: Run, record: RunRecord) -> Finding | None:
        """Return a finding if short chains still drift together; longer ones are compared by R-hat."""
        settling = run.state.settling
        held_chains = run.engine.blocks.held_chains
        draws = run.state.stored.count
        if settling is None or not settling.count or not self.stats or draws >= SHORT_CHAIN:
            return None
        owned = held_chains.owned
        parts = (settling.draws, settling.stats), (self.draws, self.stats)
        early, late = (
            {name: values[owned] for name, values in [("log_density", stats["log_density"]), *variables.items()]}
            for variables, stats in parts
        )
        return shifts(early, late, record.labels, held_chains.total).finding


def _spread(weights: Shaped[np.ndarray, "..."]) -> tuple[float, float, float]:
    return float(np.mean(weights)), float(np.min(weights)), float(np.max(weights))
