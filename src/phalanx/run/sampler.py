"""A compiled sampler: run it as often as you like."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import Array

from phalanx.density.indices import IndexCheck
from phalanx.density.labels import LabelSearch
from phalanx.exactness.sharding_check import ShardingCheck
from phalanx.inputs.arguments import Arguments
from phalanx.inputs.known_data import KnownData, scalars_of
from phalanx.inputs.known_data import Names as NamesOfData
from phalanx.inputs.placement import check_alive
from phalanx.inputs.recoding import listed
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.mesh.keys import check_seed
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import RunRecord
from phalanx.run.checks import check_arrays, check_sizes, check_types
from phalanx.run.compile.memory_estimate import MemoryPlan, check_plan, plan_memory
from phalanx.run.continuing import Continuing, check_contents, since_kept
from phalanx.run.device.executables import Executables
from phalanx.run.draws_check import check_at_draws
from phalanx.run.engine import positions_of
from phalanx.run.init_values import Initial, initial_of
from phalanx.run.loop import UNTIL_ROOM, Run
from phalanx.run.options import RunOptions
from phalanx.run.progress.display import make_progress
from phalanx.run.progress.report import Progress, Report
from phalanx.run.progress.watchdog import watched
from phalanx.run.results import Clock, RunResults
from phalanx.run.state import Aim, RunState, Stored
from phalanx.run.until import Until

CHAINS_CHECKED = 2
"""Chains at whose positions, when warm-up ends, what is not proved is checked again."""

STREAM_DRAWS = 1024
"""Draws of each chain, after which a stream that stores none says what is known."""


class Data(NamedTuple):
    """The data of a run: arrays on the devices, the state of their shares, and the run's record of them."""

    arrays: tuple[Array, ...]
    rows: ShardingCheck
    record: RunRecord


@dataclass
class Sampler:
    """A model, its data and a kernel, compiled: run it as often as you like, with other seeds and other data.

    Make one with `phx.compile`.

    Attributes:
        executables: the compiled blocks.
        arrays: the data on the devices.
        kernel: the kernel, with the hyperparameters to begin with.
        record: what is run where, but for the seed.
        rows: what is known of the devices' shares of the log density.
        check: what to do where nothing is: "warn", "strict" or "off".
        compile_seconds: seconds spent on tracing and compiling; counted in the first run's timing.
        compilations: programs compiled; none when an earlier sampler's could be used.
        notice: what is said before a run.
        indices: what other data are looked at with.
        labels: what finds the names of variables' entries in the names of other data.
        continued: arguments of `posterior.continue_run` where it is given no others.
    """

    executables: Executables
    arrays: tuple[Array, ...]
    kernel: Kernel
    record: RunRecord
    rows: ShardingCheck
    check: str = "warn"
    compile_seconds: float = 0.0
    compilations: int = 0
    notice: str | None = None
    indices: IndexCheck | None = None
    labels: LabelSearch | None = None
    continued: Mapping[str, Any] = field(default_factory=dict)

    def run(
        self,
        seed: int = 0,
        data: Mapping[str, Any] | None = None,
        init: Any = None,
        *,
        tuning: Posterior | None = None,
        num_warmup: int | None = None,
        num_samples: int = 1000,
        thin: int = 1,
        until: Until | None = None,
        on_block: Callable[[Report], Any] | None = None,
        progress: bool = True,
    ) -> Posterior:
        """Run all chains: initial positions, warm-up, sampling. Nothing is compiled.

        Ctrl-C during sampling ends the run and returns the draws so far.

        Args:
            seed: a whole number; the same seed gives the same draws.
            data: other data of the same shapes, types and placement; None means those given when compiling. Levels and
                columns are found by their names, in any order; numbers that are left out are those of before.
            init: where chains begin. This and the following are as for `phx.mcmc`.
            tuning: a posterior, with whose tuning they begin.
            num_warmup: iterations per chain before the first draw; None chooses by the number of chains.
            num_samples: iterations per chain after warm-up.
            thin: iterations per stored draw.
            until: when to stop before `num_samples`.
            on_block: called with a report after each block.
            progress: whether to show how the run goes.

        Returns:
            The posterior.

        Raises:
            TypeError, ValueError: when an argument is out of range, the data differ in shape from those compiled for,
                an observed value lies outside its distribution's support, an initial value does not fit its variable,
                or no chain start with a finite log density is found; the sites are named.
            KeyboardInterrupt: on Ctrl-C before the first draw.
        """
        check_seed(seed)
        options = self._checked(RunOptions(num_warmup, num_samples, thin, until, init, tuning, on_block, progress))
        data_used = self._data(data)
        plan = self.plan(_room(options), data_used.arrays)
        started = datetime.now().isoformat(timespec="seconds")
        with watched(make_progress(options.progress)) as display:
            self._announce(display, data_used.rows, plan)
            initial, clock = self._initial(options.init, int(seed), data_used.arrays), Clock(started)
            aim = Aim(options.warmup, options.thin, initial.described, initial.superchains)
            kernel = self._tuned(options)
            run = Run(self.executables, kernel, int(seed), data_used.arrays, display, options.on_block)
            run.so_far = partial(self._so_far, run, data_used, clock)
            with run.interrupts.held():
                run.begin(initial, aim)
                clock.sampling_begins()
                data_used = data_used._replace(rows=self._check_again(run, data_used.rows))
                run.so_far = partial(self._so_far, run, data_used, clock)
                run.sample(options.num_samples, options.until)
        return self._done(run, data_used, clock, options.num_samples)

    def continue_run(
        self,
        posterior: Posterior,
        num_samples: int,
        *,
        data: Mapping[str, Any] | None = None,
        until: Until | None = None,
        on_block: Callable[[Report], Any] | None = None,
        progress: bool = True,
    ) -> Posterior:
        """Go on with a run, its tuning kept: the draws of one longer run.

        On as many devices they are equal bit for bit; on another number of devices but for rounding, since sums are
        taken in another order, and chains may part after many draws.

        It may have been made in another process, or on another number of devices along `chain`, and read from a file.

        Args:
            posterior: the run, of the same model, kernel, number of chains, and variables kept.
            num_samples: iterations per chain to add.
            data: as for `run`.
            until: when to stop earlier; its `seconds` count from here on.
            on_block: called with a report after each block.
            progress: whether to show how the run goes.

        Returns:
            A posterior with the draws before and after; the one given stays as it is.

        Raises:
            ValueError: when the posterior is of another model or kernel, of other data or another number of chains,
                or does not know its state.
        """
        data_used = self._data(data, posterior.record.names)
        check_sizes(self.executables.blocks.num_chains, 0, num_samples, 1)
        state = self._state_of(posterior, data_used.arrays)._replace(next_look=0)
        num_samples = int(num_samples)
        more, aim = num_samples + since_kept(posterior, state, num_samples), state.aim
        options = RunOptions(aim.num_warmup, more, aim.thin, until, on_block=on_block, progress=progress)
        options = self._checked(options)
        plan = self.plan(state.stored.count + _room(options), data_used.arrays)  # the draws before are copied
        with watched(make_progress(options.progress)) as display:
            self._announce(display, data_used.rows, plan)
            clock = Clock(posterior.record.started, posterior.timing)
            run = Run(self.executables, self.kernel, state.seed, data_used.arrays, display, options.on_block)
            run.so_far = partial(self._so_far, run, data_used, clock)
            with run.interrupts.held():
                if not state.in_warm_up:
                    clock.sampling_begins()
                run.resume(state)
                if state.in_warm_up:
                    data_used = data_used._replace(rows=self._check_again(run, data_used.rows))
                    clock.sampling_begins()
                run.so_far = partial(self._so_far, run, data_used, clock)
                run.sample(options.num_samples, options.until)
        return self._done(run, data_used, clock, posterior.record.num_samples + num_samples)

    def stream(self, seed: int, num_samples: int | None, options: RunOptions) -> Generator[dict[str, Any], None, None]:
        """Run all chains and hand over what they draw, block by block; nothing accumulates. See `phx.stream`."""
        check_seed(seed)
        check_types(self.executables.wide)
        options = self._checked(options)
        with watched(make_progress(options.progress)) as display:
            self._announce(display, self.rows, self.plan(_room(options)))
            initial = self._initial(options.init, int(seed), self.arrays)
            aim = Aim(options.warmup, options.thin, initial.described, initial.superchains)
            run = Run(self.executables, self._tuned(options), int(seed), self.arrays, display, options.on_block)
            run.begin(initial, aim)
            self._check_again(run, self.rows)
            stores, left = self.executables.stores_draws, math.inf if num_samples is None else num_samples
            block = options.thin * (self.executables.blocks.slots if stores else STREAM_DRAWS)
            while left >= options.thin and not run.interrupted:
                count = int(min(block, left))
                left -= count
                run.state = run.state._replace(stored=Stored.nothing(self.executables.blocks.num_chains))
                with run.interrupts.held():
                    run.sample(count, None)
                results = RunResults.of(run)
                yield {**results.draws, **results.reduced}

    def _posterior(self, run: Run, data: Data, clock: Clock, samples: int, state: Callable[[], RunState]) -> Posterior:
        """Return the results of a run that was asked for so many iterations."""
        results, record = RunResults.of(run), data.record.of_rows(data.rows)
        sampler = replace(self, arrays=data.arrays, rows=data.rows, record=data.record)
        return Posterior(
            dict(results.draws), dict(results.stats), clock.timing(run, self.compile_seconds, self.compilations),
            results.record(record, run, clock, samples), dict(results.reduced), run.state.warmup_record,
            self.executables.blocks.target.with_arrays(data.arrays),
            goes_on=GoesOn(sampler, state),
        )  # fmt: skip

    def _so_far(self, run: Run, data: Data, clock: Clock) -> Posterior:
        """A run on its way, which goes on meanwhile."""
        state = run.value
        return self._posterior(run, data, clock, state.aim.thin * run.draws, lambda: state)

    def _tuned(self, options: RunOptions) -> Kernel:
        """The kernel, with the hyperparameters to begin with."""
        if options.tuning is None:
            return self.kernel
        return replace(self.kernel, tuning=Continuing(self.executables, self.record.kernel).tuning_of(options.tuning))

    def _done(self, run: Run, data: Data, clock: Clock, samples: int) -> Posterior:
        data = data._replace(rows=check_at_draws(run, data.rows, self.check))
        posterior = self._posterior(run, data, clock, samples, lambda: run.value)
        self.compile_seconds, self.compilations, run.so_far = 0.0, 0, None
        return posterior

    def _checked(self, options: RunOptions) -> RunOptions:
        return options.checked(self.executables.blocks.num_chains, None if self.executables.stores_draws else ())

    def _state_of(self, posterior: Posterior, arrays: tuple[Array, ...]) -> RunState:
        """The state of a run of this model, on these data."""
        fit = Continuing(self.executables, self.record.kernel)
        state = fit.state_of(posterior)
        of = posterior.goes_on.sampler if isinstance(posterior.goes_on, GoesOn) else None
        same_data = of is not None and list(map(id, of.arrays)) == list(map(id, arrays))
        known = posterior.goes_on is not None and posterior.goes_on.contents() if not same_data else None
        if known:
            check_contents(known, self.arguments(arrays).fingerprints())
        if of is None or of.executables is not self.executables or not same_data:
            fit.check_heights(state, arrays, bool(known) or same_data)
        return state

    def arguments(self, arrays: tuple[Array, ...]) -> Arguments:
        """The data of a run, as arguments of the model."""
        return self.executables.blocks.target.arguments.with_arrays(arrays)

    def _check_again(self, run: Run, rows: ShardingCheck) -> ShardingCheck:
        """Where the chains are when warm-up ends, the shares of what is not proved add up, too; or it is an error."""
        if rows.check is None or not rows.check.names or self.check == "off":
            return rows
        arguments = self.executables.blocks.target.arguments.with_arrays(run.engine.arrays)
        again = rows.compare(arguments, "warn", positions_of(run.state.chains, CHAINS_CHECKED))
        return again if len(again.unchecked) < len(rows.unchecked) else rows

    def _initial(self, init: Any, seed: int, arrays: tuple[Array, ...]) -> Initial:
        blocks = self.executables.blocks
        prior = partial(self.executables.prior, arrays=arrays)
        initial = initial_of(init, blocks.target, blocks.num_chains, seed, prior)
        if initial.superchains and blocks.machine.is_of_one_chain:
            raise ValueError(
                "init: phx.superchains puts chains beside others, and of the states of an algorithm written for one "
                "chain nothing is known. Give values for each chain that are equal within a group."
            )
        self.executables.reducing.reductions.check_superchains(initial.superchains)
        return initial

    def plan(self, draws: int = 0, arrays: tuple[Array, ...] | None = None) -> MemoryPlan:
        """Return the memory of a run that stores so many draws of each chain; refuse what does not fit."""
        blocks = self.executables.blocks
        plan = plan_memory(self.executables, self.arrays if arrays is None else arrays, blocks.num_chains * draws)
        check_plan(plan, blocks.target.mesh.devices.flat[0])
        return plan

    def _announce(self, progress: Progress, rows: ShardingCheck, plan: MemoryPlan) -> None:
        if rows.problem:
            progress.say(f"phalanx: {rows.problem}")
        if self.notice:
            progress.say(self.notice)
        progress.say(str(plan))

    def _data(self, data: Mapping[str, Any] | None, names: NamesOfData | None = None) -> Data:
        """The data of a run on the devices, in the numbering of the names of another run, or of this sampler."""
        check_types(self.executables.wide)
        target = self.executables.blocks.target
        if data is None:
            _check_same_names(names, self.record.names)
            used = Data(self.arrays, self.rows, self.record)
        else:
            names = self.record.names if names is None else names
            known = KnownData.of(target.arguments.with_arrays(self.arrays), names)
            arguments = known.split(target.program, data).fixing(target.arguments.constants)
            check_arrays(target.arguments, arguments)
            if self.indices is not None:
                self.indices.check(arguments)
            target = target.with_arguments(arguments, self.check)
            labels = {} if self.labels is None else self.labels.names(arguments)
            record = replace(self.record, labels=labels, names=names, scalars=scalars_of(arguments))
            used = Data(target.place_arrays(), target.rows, record)
        for name, array in zip(target.arguments.names, used.arrays, strict=True):
            check_alive(f"data: {name}", array)
        return used


def _room(options: RunOptions) -> int:
    """Return draws of each chain that room is made for."""
    return options.num_stored if options.until is None else min(options.num_stored, UNTIL_ROOM)


def _check_same_names(there: NamesOfData | None, here: NamesOfData | None) -> None:
    """Refuse to go on with a run whose data number levels or columns otherwise."""
    for name in {} if there is None or here is None else {**there, **here}:
        was, now = there.get(name), here.get(name)  # pyright: ignore[reportOptionalMemberAccess]
        if was != now:
            said = ["no names" if found is None else f"the {found[0]} {listed(found[1])}" for found in (was, now)]
            raise ValueError(
                f"continue_run: {name} has {said[1]} in this sampler's data, and {said[0]} in the posterior's. Give "
                f"the data again: continue_run(posterior, num_samples, data=...) numbers them as the posterior's."
            )


@dataclass(frozen=True)
class GoesOn:
    """Sampler and state of a run: the `Continuation` of its posterior."""

    sampler: Sampler
    state: Callable[[], RunState]

    def saved(self) -> RunState:
        """The run as a file can hold it."""
        return self.state().plain

    def contents(self) -> Mapping[str, str]:
        """A checksum of each of the data; empty where they are not to be had.

        Their memory may have been given away. Of several processes one alone may ask, and would wait for the others.
        """
        arrays = self.sampler.arrays
        if jax.process_count() > 1 or any(array.is_deleted() for array in arrays):
            return {}
        return self.sampler.arguments(arrays).fingerprints()

    def continue_run(self, posterior: Posterior, num_samples: int, **options: Any) -> Posterior:
        """A longer run."""
        return self.sampler.continue_run(posterior, num_samples, **{**self.sampler.continued, **options})
