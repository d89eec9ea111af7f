"""A compiled sampler: run it as often as you like."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
from jax import Array

from phalanx.diagnostics.elements import Names
from phalanx.kernels.kernel import Kernel
from phalanx.mesh.placement import check_alive
from phalanx.programs.arguments import split_arguments
from phalanx.programs.indices import IndexCheck
from phalanx.programs.labels import LabelSearch
from phalanx.programs.rows_apart import RowsApart
from phalanx.run.checks import check_arrays, check_seed
from phalanx.run.executables import Executables
from phalanx.run.initial import Initial, initial_of
from phalanx.run.loop import Run
from phalanx.run.plan import Plan
from phalanx.run.posterior import Posterior
from phalanx.run.progress import Progress, make_progress
from phalanx.run.record import RunRecord, Timing
from phalanx.run.until import Until

CHAINS_CHECKED = 2
"""Chains at whose positions, when warm-up ends, what is not proved is checked again."""

STREAM_DRAWS = 1024
"""Draws of each chain, after which a stream that stores none says what is known."""


@dataclass
class Sampler:
    """A model, its data and a kernel, compiled: run it as often as you like, with other seeds and other data.

    Make one with `phx.compile`.

    Attributes:
        executables: the compiled blocks.
        arrays: the data on the devices.
        kernel: the kernel, with the hyperparameters to begin with.
        num_warmup, num_samples: iterations per chain.
        thin: iterations per stored draw.
        until: when to stop before `num_samples`.
        progress: whether to show how the run goes.
        record: what is run where, but for the seed.
        rows: what is known of the devices' shares of the log density.
        check: what to do where nothing is: "warn", "strict" or "off".
        compile_seconds: seconds spent on tracing and compiling; counted in the first run's timing.
        compilations: programs compiled; none when an earlier sampler's could be used.
        plan: the memory it takes.
        notice: what is said before a run.
        init: where chains begin, unless a run says otherwise.
        indices: what other data are looked at with.
        labels: what finds the names of variables' entries in the names of other data.
    """

    executables: Executables
    arrays: tuple[Array, ...]
    kernel: Kernel
    num_warmup: int
    num_samples: int
    thin: int
    until: Until | None
    progress: bool
    record: RunRecord
    rows: RowsApart
    check: str = "warn"
    compile_seconds: float = 0.0
    compilations: int = 0
    plan: Plan | None = None
    notice: str | None = None
    init: Any = None
    indices: IndexCheck | None = None
    labels: LabelSearch | None = None

    def run(self, seed: int = 0, data: Mapping[str, Any] | None = None, init: Any = None) -> Posterior:
        """Run all chains: initial positions, warm-up, sampling.

        Ctrl-C during sampling ends the run and returns the draws so far.

        Args:
            seed: a whole number; the same seed gives the same draws.
            data: other data of the same shapes, types and placement; None means those given when compiling.
            init: where chains begin, as for `phx.mcmc`; None means what was given when compiling.

        Returns:
            The posterior.

        Raises:
            ValueError: when the data differ in shape from those compiled for, an observed value lies outside its
                distribution's support, an initial value does not fit its variable, or no chain start with a finite
                log density is found; the sites are named.
            KeyboardInterrupt: on Ctrl-C before the first draw.
        """
        check_seed(seed)
        arrays, rows, labels = (self.arrays, self.rows, self.record.labels) if data is None else self._place(data)
        for name, array in zip(self.executables.blocks.target.arguments.names, arrays, strict=True):
            check_alive(f"data: {name}", array)
        started = datetime.now().isoformat(timespec="seconds")
        with make_progress(self.progress) as progress:
            self._announce(progress, rows)
            initial, began = self._initial(init, int(seed), arrays), time.perf_counter()
            run = Run(self.executables, self.kernel, int(seed), arrays, initial, progress)
            run.warm_up(self.num_warmup)
            rows = self._check_again(run, rows)
            warm = time.perf_counter()
            draws, stats, reduced = self._draw(run)
        timing = self._timing(run, warm - began, time.perf_counter() - warm)
        self.compile_seconds, self.compilations = 0.0, 0
        record = replace(self.record, init=initial.told, labels=labels).of_rows(rows)
        record = record.of_run(int(seed), started, run.interrupted, run.moves, run.told)
        record = replace(record, findings=(*record.findings, *run.told.findings(reduced)))
        target = self.executables.blocks.target.with_arrays(arrays)
        return Posterior(draws, stats, timing, record, reduced, run.warmup_record, target)

    def stream(self, seed: int = 0, num_samples: int | None = None) -> Iterator[dict[str, Any]]:
        """Run all chains and hand over what they draw, block by block; nothing accumulates. See `phx.stream`."""
        check_seed(seed)
        with make_progress(self.progress) as progress:
            self._announce(progress, self.rows)
            initial = self._initial(None, int(seed), self.arrays)
            run = Run(self.executables, self.kernel, int(seed), self.arrays, initial, progress)
            run.warm_up(self.num_warmup)
            self._check_again(run, self.rows)
            stores, left = self.executables.folding.stores_draws, math.inf if num_samples is None else num_samples
            block = self.thin * (self.executables.blocks.slots if stores else STREAM_DRAWS)
            while left >= self.thin and not run.interrupted:
                count = int(min(block, left))
                left -= count
                if stores:
                    draws, _ = run.sample(count, self.thin, None).finish(self.executables.blocks.names)
                    yield {**draws, **run.told.finalize()}
                else:
                    run.fold(count, self.thin, math.inf)
                    yield run.told.finalize()

    def _check_again(self, run: Run, rows: RowsApart) -> RowsApart:
        """Where the chains are when warm-up ends, the shares of what is not proved add up, too; or it is an error."""
        if rows.check is None or not rows.check.names or self.check == "off":
            return rows
        arguments = self.executables.blocks.target.arguments.with_arrays(run.arrays)
        again = rows.look(arguments, "warn", run.positions(CHAINS_CHECKED))
        return again if len(again.unchecked) < len(rows.unchecked) else rows

    def _initial(self, init: Any, seed: int, arrays: tuple[Array, ...]) -> Initial:
        blocks, init = self.executables.blocks, self.init if init is None else init
        prior = partial(self.executables.prior, arrays=arrays)
        return initial_of(init, blocks.target, blocks.num_chains, seed, prior)

    def _announce(self, progress: Progress, rows: RowsApart) -> None:
        if rows.problem:
            progress.say(f"phalanx: {rows.problem}")
        if self.notice:
            progress.say(self.notice)
        if self.plan is not None:
            progress.say(str(self.plan))

    def _draw(self, run: Run) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]:
        """Draws, statistics and what was reduced."""
        if not self.executables.folding.stores_draws:
            seconds = math.inf if self.until is None else self.until.seconds or math.inf
            run.fold(self.num_samples, self.thin, seconds)
            return {}, {}, run.told.finalize()
        draws, stats = run.sample(self.num_samples, self.thin, self.until).finish(self.executables.blocks.names)
        stats["step_size"] = np.full(stats["energy"].shape, run.step_size, run.step_size.dtype)
        return draws, stats, run.told.finalize()

    def _timing(self, run: Run, warmup: float, sampling: float) -> Timing:
        chains, gradients = self.executables.blocks.num_chains, self.kernel.uses_gradient
        evaluations = run.warmup.evaluations + run.sampling.evaluations
        in_step, ticks = self.kernel.machine.in_step, run.sampling.ticks
        efficiency = 1.0 if in_step else run.sampling.evaluations / (chains * ticks)
        return Timing(
            compile=self.compile_seconds,
            warmup=warmup,
            sampling=sampling,
            gradient_evaluations=evaluations if gradients else 0,
            compilations=self.compilations,
            lane_efficiency=efficiency,
        )

    def _place(self, data: Mapping[str, Any]) -> tuple[tuple[Array, ...], RowsApart, Names]:
        target = self.executables.blocks.target
        arguments = split_arguments(target.program, data)
        check_arrays(target.arguments, arguments)
        if self.indices is not None:
            self.indices.check(arguments)
        target = target.with_arguments(arguments, self.check)
        labels = {} if self.labels is None else self.labels.names(arguments)
        return target.place_arrays(), target.rows, labels
