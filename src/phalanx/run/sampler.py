"""A compiled sampler: the three blocks of a run as executables, and the run itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from phalanx.adaptation import dual_averaging
from phalanx.kernels.kernel import Kernel
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.keys import INITIAL_POSITION
from phalanx.programs.arguments import split_arguments
from phalanx.run.blocks import Begun, Blocks, WarmedUp
from phalanx.run.checks import check_arrays, check_beginning
from phalanx.run.compilation import use_cache
from phalanx.run.host import HostDraws
from phalanx.run.pace import Pace
from phalanx.run.posterior import Posterior
from phalanx.run.progress import Progress, Report, make_progress
from phalanx.run.record import RunRecord, Timing

Executable = Callable[..., Any]


@dataclass(frozen=True)
class Executables:
    """The compiled blocks. They hold no data, and serve every run of one model, kernel and set of shapes."""

    blocks: Blocks
    begin: Executable
    warm_up: Executable
    sample: Executable
    count = 3
    paces: Mapping[str, Pace] = field(default_factory=lambda: {"warm-up": Pace(), "sampling": Pace()})


def compile_blocks(blocks: Blocks, arrays: Sequence[Array], matmul_precision: str) -> Executables:
    """Trace and compile the blocks of a run, ahead of time."""
    use_cache()
    mesh, shared, chains = blocks.target.mesh, PartitionSpec(), PartitionSpec(CHAIN)
    data = blocks.target.array_specs()
    with jax.default_matmul_precision(matmul_precision):
        state_specs = blocks.state_specs()
        begin = blocks.on_mesh(blocks.begin, (shared, data), Begun(state_specs, chains, chains, shared))
        begin = jax.jit(begin, in_shardings=_shardings(mesh, (shared, data))).lower(_SEED, arrays)
        warmed = _before_warm_up(blocks, blocks.kernel, begin.out_info.state)
        warmed_specs = WarmedUp(state_specs, blocks.shared(warmed.tuning), shared, shared, shared, shared)

        in_specs = (shared, data, shared, shared, shared, warmed_specs)
        warm_up = blocks.on_mesh(blocks.warm_up, in_specs, warmed_specs)
        warm_up = jax.jit(warm_up, in_shardings=_shardings(mesh, in_specs), donate_argnums=5)
        warm_up = warm_up.lower(_SEED, arrays, _INT, _INT, _INT, warmed)

        in_specs = (shared, data, warmed_specs.tuning, shared, shared, state_specs)
        sample = blocks.on_mesh(blocks.sample, in_specs, blocks.sampled_specs(state_specs))
        sample = jax.jit(sample, in_shardings=_shardings(mesh, in_specs), donate_argnums=5)
        sample = sample.lower(_SEED, arrays, warmed.tuning, _INT, _INT, warmed.state)
    # what runs only once is not worth optimising
    begin = begin.compile({"xla_backend_optimization_level": "0"})
    return Executables(blocks, begin, warm_up.compile(), sample.compile())


@dataclass
class Sampler:
    """A model, its data and a kernel, compiled: run it as often as you like, with other seeds and other data.

    Make one with `phx.compile`.

    Attributes:
        executables: the compiled blocks.
        arrays: the data on the devices.
        kernel: the kernel, with the hyperparameters to begin with.
        num_warmup, num_samples: iterations per chain.
        progress: whether to show how the run goes.
        record: what is run where, but for the seed.
        compile_seconds: seconds spent on tracing and compiling; counted in the first run's timing.
        compilations: programs compiled; none when an earlier sampler's could be used.
    """

    executables: Executables
    arrays: tuple[Array, ...]
    kernel: Kernel
    num_warmup: int
    num_samples: int
    progress: bool
    record: RunRecord
    compile_seconds: float = 0.0
    compilations: int = 0
    notice: str | None = None

    def run(self, seed: int = 0, data: Mapping[str, Any] | None = None) -> Posterior:
        """Run all chains: initial positions, warm-up, sampling.

        Ctrl-C during sampling ends the run and returns the draws so far.

        Args:
            seed: a whole number; the same seed gives the same draws.
            data: other data of the same shapes, types and placement; None means those given when compiling.

        Returns:
            The posterior.

        Raises:
            ValueError: when the data differ in shape from those compiled for, an observed value lies outside its
                distribution's support, or no chain start with a finite log density is found; the sites are named.
            KeyboardInterrupt: on Ctrl-C before the first draw.
        """
        if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
            raise ValueError(f"seed must be a whole number from 0 to 2**32 - 1, got {seed!r}.")
        arrays = self.arrays if data is None else self._place(data)
        run = _Run(self, np.uint32(seed), arrays)
        started = datetime.now().isoformat(timespec="seconds")
        with make_progress(self.progress) as progress:
            if self.notice:
                progress.say(self.notice)
            posterior = run.through(progress, started)
        self.compile_seconds, self.compilations = 0.0, 0
        return posterior

    def _place(self, data: Mapping[str, Any]) -> tuple[Array, ...]:
        target = self.executables.blocks.target
        arguments = split_arguments(target.program, data)
        check_arrays(target.arguments, arguments)
        return target.with_arguments(arguments).place_arrays()


class _Run:
    """One run of a sampler: where it is, and what it has counted."""

    def __init__(self, sampler: Sampler, seed: np.uint32, arrays: tuple[Array, ...]):
        self.sampler, self.seed, self.arrays = sampler, seed, arrays
        self.executables, self.blocks = sampler.executables, sampler.executables.blocks
        self.evaluations = 0
        self.interrupted = False

    def through(self, progress: Progress, started: str) -> Posterior:
        """All phases, one after the other."""
        sampler, began = self.sampler, time.perf_counter()
        warmed = self._warm_up(self._begin(), progress)
        warm = time.perf_counter()
        host = self._sample(warmed, progress)
        done = time.perf_counter()
        timing = Timing(
            compile=sampler.compile_seconds,
            warmup=warm - began,
            sampling=done - warm,
            gradient_evaluations=self.evaluations if self.blocks.kernel.uses_gradient else 0,
            compilations=sampler.compilations,
        )
        draws, stats = host.finish(self.blocks.names)
        step_size = np.asarray(warmed.tuning.step_size)
        stats["step_size"] = np.full(stats["energy"].shape, step_size, step_size.dtype)
        record = sampler.record.of_run(int(self.seed), started, self.interrupted)
        return Posterior(draws, stats, timing, record)

    def _begin(self) -> WarmedUp:
        begun = self.executables.begin(self.seed, self.arrays)
        check_beginning(self.blocks, begun, self.arrays)
        self.evaluations += self.blocks.num_chains
        return _before_warm_up(self.blocks, self.sampler.kernel, begun.state)

    def _warm_up(self, warmed: WarmedUp, progress: Progress) -> WarmedUp:
        total, done, divergences = self.sampler.num_warmup, 0, 0
        tuned = self.sampler.kernel.tuned_steps
        tuned = np.int32(total if tuned is None else min(tuned, total))
        while done < total:
            with self.executables.paces["warm-up"].block(total - done) as count:
                first = np.int32(INITIAL_POSITION + 1 + done)
                warmed = self.executables.warm_up(self.seed, self.arrays, tuned, first, np.int32(count), warmed)
                jax.block_until_ready(warmed.state)
            done += count
            divergences += int(warmed.divergences)
            self.evaluations += int(warmed.num_steps)
            self._show(progress, "warm-up", done, total, float(warmed.acceptance_rate) / count, divergences)
        return warmed

    def _sample(self, warmed: WarmedUp, progress: Progress) -> HostDraws:
        blocks, thin = self.blocks, self.blocks.thin
        total = self.sampler.num_samples // thin
        host = HostDraws(blocks.target, blocks.num_chains, total)
        state, tuning = warmed.state, warmed.tuning
        before = INITIAL_POSITION + 1 + self.sampler.num_warmup
        try:
            while host.count < total:
                with self.executables.paces["sampling"].block(min(total - host.count, blocks.size)) as count:
                    first = np.int32(before + host.count * thin)
                    sampled = self.executables.sample(self.seed, self.arrays, tuning, first, np.int32(count), state)
                    state = sampled.state
                    added = host.add(sampled.draws, sampled.stats, count)
                self.evaluations += int(added["num_steps"].sum(dtype=np.int64))
                self._show(
                    progress, "sampling", host.count, total, float(np.mean(added["acceptance_rate"])), host.divergences
                )
        except KeyboardInterrupt:
            if not host.count:
                raise
            self.interrupted = True
            progress.say(f"Interrupted: returning the {host.count} of {total} draws per chain made so far.")
        return host

    def _show(self, progress: Progress, phase: str, done: int, total: int, acceptance: float, divergences: int) -> None:
        progress.show(Report(phase, done, total, self.blocks.num_chains, acceptance, divergences))


_SEED, _INT = np.uint32(0), np.int32(0)


def _before_warm_up(blocks: Blocks, kernel: Kernel, state: Any) -> WarmedUp:
    """What warm-up starts from: the kernel's tuning as it came, on every device."""
    mesh, zero = blocks.target.mesh, np.zeros((), jnp.result_type(float))
    tuning = jax.tree.map(np.asarray, kernel.tuning)
    adaptation = jax.tree.map(np.asarray, dual_averaging.start(jnp.asarray(tuning.step_size)))
    tuning = jax.device_put(tuning, _shardings(mesh, blocks.shared(tuning)))
    return WarmedUp(state, tuning, adaptation, zero, np.int32(0), np.int32(0))


def _shardings(mesh: Mesh, specs: Any) -> Any:
    return jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=lambda s: isinstance(s, PartitionSpec))
