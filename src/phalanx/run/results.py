"""What a run has come to: its draws, statistics, times and record, when it has ended or on its way."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from phalanx.posterior.record import RunRecord, Timing
from phalanx.run.loop import Run


class Clock:
    """Seconds of the phases of a run, which may go on with another.

    Args:
        started: local time at the start, ISO 8601.
        before: times of the run that is gone on with.
    """

    def __init__(self, started: str, before: Timing | None = None):
        self.started, self.before = started, before or Timing()
        self._began, self._sampling_began = time.perf_counter(), None

    def sampling_begins(self) -> None:
        """Warm-up is over."""
        self._sampling_began = time.perf_counter()

    def timing(self, run: Run, compile_seconds: float, compilations: int) -> Timing:
        """Times so far, and the work done in them."""
        now = time.perf_counter()
        ended = now if self._sampling_began is None else self._sampling_began
        evaluations, ticks = run.warmup.evaluations + run.sampling.evaluations, run.sampling.ticks
        in_lock_step = run.kernel.machine.in_lock_step or not ticks
        return Timing(
            compile=self.before.compile + compile_seconds,
            warmup=self.before.warmup + ended - self._began,
            sampling=self.before.sampling + now - ended,
            gradient_evaluations=evaluations if run.kernel.machine.uses_gradient else 0,
            compilations=compilations,
            lane_efficiency=1.0 if in_lock_step else run.sampling.evaluations / (run.blocks.num_chains * ticks),
        )


class Outcome(NamedTuple):
    """Draws and statistics `(chain, draw, ...)`, and what was reduced."""

    draws: Mapping[str, np.ndarray]
    stats: Mapping[str, np.ndarray]
    reduced: Mapping[str, Any]

    @classmethod
    def of(cls, run: Run) -> Outcome:
        """What is known now."""
        if run.stored is None or not run.stored.count:
            return cls({}, {}, run.reduced.finalize())
        draws, stats = run.stored.finish(run.blocks.names)
        stats["step_size"] = np.full(stats["energy"].shape, run.chains.step_size, run.chains.step_size.dtype)
        return cls(draws, stats, run.reduced.finalize())

    def record(self, before: RunRecord, run: Run, clock: Clock, samples: int) -> RunRecord:
        """The record of a run that was asked for so many iterations, given that of what was compiled."""
        record = replace(before, init=run.aim.init, num_warmup=run.aim.num_warmup, num_samples=samples)
        record = record.of_run(int(run.chains.seed), clock.started, run.interrupted, run.relocations, run.reduced)
        return replace(record, findings=(*record.findings, *run.reduced.findings(dict(self.reduced))))
