"""Compiled sampler of a model, which runs any number of times without compiling."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from typing import Any, NoReturn

from jax import Array

from phalanx.density.data_check import DataCheck
from phalanx.density.imputation import impute_again
from phalanx.density.naming import Naming
from phalanx.diagnostics.judging.checks import MANY_CHAINS
from phalanx.inputs.arguments import Arguments
from phalanx.inputs.dataframe_input import UserData
from phalanx.inputs.known_data import KnownData
from phalanx.inputs.known_data import Names as NamesOfData
from phalanx.inputs.placement import check_alive
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.mesh.agreement import check_same
from phalanx.mesh.forks import refuse_fork
from phalanx.posterior.each.stored_sets import Sets
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import RunRecord
from phalanx.programs.centring import centred_first
from phalanx.run.arguments import check_arguments
from phalanx.run.checkpoint import RunCheckpoint, checkpoint_in, identity_of
from phalanx.run.checks import check_arrays, check_types
from phalanx.run.compile.memory_estimate import MemoryPlan, check_plan, explained, plan_memory
from phalanx.run.continuing import ContinuationChecks, SamplerContinuation, check_contents, check_same_names, since_kept
from phalanx.run.describe import names_in_record
from phalanx.run.device.executables import Executables
from phalanx.run.host.draw_store import DrawStore, store_at
from phalanx.run.init_values import Initial, initial_of, superchains
from phalanx.run.loop import Run
from phalanx.run.options import RunOptions
from phalanx.run.phases.streaming import RunStream, StreamBlock
from phalanx.run.progress.display import make_progress
from phalanx.run.progress.report import Progress, RunReport
from phalanx.run.progress.watchdog import watched
from phalanx.run.results import Clock, Data, RunResults, RunStart
from phalanx.run.state import RunArguments, RunState
from phalanx.run.until import Until
from phalanx.store.identity import Identity, texts_of
from phalanx.store.policy import SavePolicy


@dataclass
class Sampler:
    """Sampler of a model, compiled for a kernel and the shapes of the data; made by `phx.compile`.

    Attributes:
        executables: the compiled blocks.
        arrays: the data on the devices.
        kernel: the kernel with its initial hyperparameters.
        record: record of model, data and devices, without the seed.
        naming: names of the axes of variables, also for other data.
        compile_seconds: seconds spent on tracing and compiling, added to the timing of the first run.
        compilations: number of compiled programs; 0 if an earlier sampler's programs are used.
        notice: line to show before a run.
        indices: check of the indices in other data.
        traces: returns digests of the traces of model, kernel and reducers, by name.
        continued: default arguments of `posterior.continue_run`.
        sets: names of the data sets of a run on many; None of a run on one.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> sampler = phx.compile(lambda: phx.sample("x", dist.Normal(0.0, 1.0)))
        >>> [sampler.run(seed, num_samples=10, progress=False)["x"].shape for seed in range(2)]
        [(4, 10), (4, 10)]
    """

    executables: Executables
    arrays: tuple[Array, ...]
    kernel: Kernel
    record: RunRecord
    naming: Naming
    compile_seconds: float = 0.0
    compilations: int = 0
    notice: str | None = None
    indices: DataCheck | None = None
    traces: Callable[[], dict[str, str]] = dict
    continued: Mapping[str, Any] = field(default_factory=dict)
    sets: Sets | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A sampler cannot be pickled: its compiled programs belong to its process. Pickle the model and the data, "
            "and call phx.compile there; its posteriors can be pickled."
        )

    def __copy__(self) -> Sampler:
        return replace(self)

    def __deepcopy__(self, memo: object) -> Sampler:
        return self  # its compiled programs belong to this process, and are not copied

    def run(
        self,
        seed: int = 0,
        data: UserData | None = None,
        *,
        init: Any = None,
        tuning: Posterior | None = None,
        num_warmup: int | None = None,
        num_samples: int = 1000,
        thin: int = 1,
        until: Until | None = None,
        on_block: Callable[[RunReport], Any] | None = None,
        checkpoint: SavePolicy | str | PathLike[str] | None = None,
        store: str | PathLike[str] | None = None,
        save_warmup: bool = False,
        progress: bool = True,
    ) -> Posterior:
        """Draw from the posterior without compiling: initial positions, warm-up, sampling.

        Ctrl-C during sampling ends the run and returns the draws so far.

        Args:
            seed: a whole number; the same seed gives the same draws.
            data: other data of the same shapes, types and placement; None means the data of `phx.compile`. Phalanx
                matches levels and columns by name, in any order; omitted numbers keep their values.
            init: initial values; like all arguments below, as for `phx.mcmc`.
            tuning: posterior whose tuning the chains use.
            num_warmup: iterations per chain before the first draw; None chooses by the number of chains.
            num_samples: iterations per chain after warm-up.
            thin: iterations per stored draw.
            until: condition on which to stop before `num_samples`.
            on_block: function called with a report after each block.
            checkpoint: folder to save the run to, and to continue it from, or `phx.checkpoint`.
            store: folder to write the draws to, instead of keeping them in memory.
            save_warmup: keep the draws of warm-up.
            progress: show progress.

        Returns:
            The posterior.

        Raises:
            TypeError, ValueError: when an argument is out of range, the data have other shapes, an observed value has
                no density, an initial value does not fit, or no start has a finite log density. It names the sites.
            KeyboardInterrupt: on Ctrl-C before the first draw.

        Example:
            >>> import numpyro.distributions as dist, phalanx as phx
            >>> sampler = phx.compile(lambda: phx.sample("x", dist.Normal(0.0, 1.0)))
            >>> sampler.run(seed=1, num_samples=10, progress=False).draws["x"].shape
            (4, 10)
        """
        refuse_fork()
        check_arguments(seed=seed)
        options = RunOptions(
            num_warmup, num_samples, thin, until, init, tuning, on_block, checkpoint, store, save_warmup, progress
        )
        options = self._checked(options)
        data_used = self._data(data)
        blocks = self.executables.blocks
        initial = self._initial(options.init, int(seed), data_used.arrays)
        arguments = options.arguments(initial)
        record = replace(data_used.record, num_warmup=options.warmup, num_samples=options.num_samples)
        with (
            store_at(
                options.store, options.num_stored, record, blocks.names, blocks.held_chains, self.sets
            ) as draws_to,
            checkpoint_in(options.policy, blocks.held_chains, draws_to) as saves,
        ):
            contents = {} if saves is None else self.arguments(data_used.arrays).fingerprints()
            identity = self._identity(int(seed), arguments, initial, options, data_used, contents)
            before = None if saves is None else saves.read(identity, contents)
            check_same("phx.mcmc", lambda: texts_of(identity) | options.in_words(before))
            if saves is None or before is None:
                if draws_to is not None:
                    draws_to.begin(identity, None if saves is None else saves.saves.folder)
                start = RunStart(int(seed), self._tuned(options), initial, arguments, options.centring)
                return self._execute(start, data_used, options, options.num_samples, saves, draws_to)
            with saves.explained():
                state = self._state_of(before, data_used.arrays)
                state = state._replace(stopped=state.stopped and options.until is not None)
                num_left = saves.iterations_left(before, state, options.num_samples)
            if draws_to is not None:
                draws_to.resume(identity, saves.saves.folder, state.stored.count)
            start = RunStart(int(seed), self.kernel, before=before, state=state)
            return self._execute(
                start, data_used, replace(options, num_samples=num_left), options.num_samples, saves, draws_to
            )

    def continue_run(
        self,
        posterior: Posterior,
        num_samples: int,
        *,
        data: UserData | None = None,
        until: Until | None = None,
        on_block: Callable[[RunReport], Any] | None = None,
        progress: bool = True,
    ) -> Posterior:
        """Continue a run with its tuning; the result equals one longer run.

        The draws are equal bit for bit on the same number of devices. On another number of devices sums round
        differently, so that the draws of chaotic trajectories diverge in time. The posterior may come from a file,
        another process, or another number of devices along `chain`.

        Args:
            posterior: the run, with the same model, kernel, number of chains and stored variables.
            num_samples: iterations per chain to add.
            data: as for `run`.
            until: condition on which to stop earlier; its `seconds` count from this call.
            on_block: function called with a report after each block.
            progress: show progress.

        Returns:
            A new posterior with all draws, earlier and later.

        Raises:
            ValueError: when the posterior has another model, kernel, data or number of chains, or contains no state.
        """
        data_used = self._data(data, posterior.record.names)
        if not self.naming.given:
            data_used = data_used._replace(record=data_used.record.named_like(posterior.record))
        check_arguments(num_samples=num_samples)
        num_samples = int(num_samples)
        check_same("continue_run", lambda: {"num_samples": str(num_samples), "until": str(until)})
        state = self._state_of(posterior, data_used.arrays)._replace(next_look=0, stopped=False)
        more = num_samples + since_kept(posterior, state, num_samples)
        arguments = state.arguments
        options = RunOptions(arguments.num_warmup, more, arguments.thin, until, on_block=on_block, progress=progress)
        options = self._checked(options)
        start = RunStart(state.seed, self.kernel, before=posterior, state=state)
        return self._execute(start, data_used, options, posterior.record.num_samples + num_samples)

    def _execute(
        self,
        start: RunStart,
        data: Data,
        options: RunOptions,
        samples: int,
        saves: RunCheckpoint | None = None,
        draws_to: DrawStore | None = None,
    ) -> Posterior:
        """Return the posterior of a run of `samples` iterations, of which it still makes `options.num_samples`."""
        num_stored = 0 if start.state is None else start.state.stored.count
        room = num_stored + options.room if draws_to is None else 2 * self.executables.blocks.slots
        plan = self.plan(room, data.arrays, options.warmup * bool(options.save_warmup))  # earlier draws are copied
        callbacks = options.callbacks if saves is None else [*options.callbacks, saves.offer]
        with watched(make_progress(options.progress)) as display:
            self._announce(display, plan)
            clock = start.clock()
            run = Run(
                self.executables, start.kernel, start.seed, data.arrays, display, callbacks, saves is not None, draws_to
            )
            run.so_far = partial(self._so_far, run, data, clock)
            is_warm = start.state is not None and not start.state.in_warm_up
            with explained(plan), nullcontext() if saves is None else saves.after_an_error(run), run.interrupts.held():
                if is_warm:
                    clock.sampling_begins()
                start.begin(run)
                if draws_to is not None and self.sets is not None:
                    draws_to.sets = self.sets._replace(failed=run.engine.failed)
                if not is_warm:
                    clock.sampling_begins()
                run.sample(options.num_samples, options.until)
            posterior = self._posterior(run, data, clock, samples, lambda: run.value)
            self.compile_seconds = 0.0
            self.compilations = 0
            run.so_far = None
            if draws_to is not None:
                draws_to.end(posterior.record, posterior.timing, run.state.warmup_record)
            if saves is not None:
                saves.end_run(run, posterior)
        return posterior

    def _identity(
        self,
        seed: int,
        arguments: RunArguments,
        initial: Initial,
        options: RunOptions,
        data: Data,
        contents: Mapping[str, str],
    ) -> Identity:
        """Return what a saved run must share with a call that continues it; `contents` are checksums of its data."""
        record = replace(data.record, seed=seed, num_warmup=arguments.num_warmup, init=arguments.init)
        reducers = {name: str(entry.reducer) for name, entry in self.executables.reducing.reductions.stateful}
        identity = identity_of(record, arguments.thin, reducers, initial.values, options)
        if options.policy is not None:
            identity["traces"] = {name: digest or None for name, digest in self.traces().items()}
        return {**identity, "contents": {**identity["contents"], **contents}}

    def stream(self, seed: int, num_samples: int | None, options: RunOptions) -> Generator[StreamBlock, None, None]:
        """Yield draws and results of reducers block by block, without storing them; see `phx.stream`."""
        check_arguments(seed=seed)
        options = self._checked(options)
        data = self._data(None)
        held_chains = self.executables.blocks.held_chains
        with checkpoint_in(options.policy, held_chains) as saves, watched(make_progress(options.progress)) as display:
            self._announce(display, self.plan(options.room))
            initial = self._initial(options.init, int(seed), self.arrays)
            arguments = options.arguments(initial)
            contents = {} if saves is None else self.arguments(self.arrays).fingerprints()
            identity = self._identity(int(seed), arguments, initial, options, data, contents)
            identity["said"]["call"] = "phx.stream"
            check_same("phx.stream", lambda: texts_of(identity) | {"num_samples": str(num_samples)})
            before = None if saves is None else saves.read(identity, contents)
            kernel = self._tuned(options) if before is None else self.kernel
            state = None if before is None else self._state_of(before, self.arrays)
            start = RunStart(int(seed), kernel, initial, arguments, options.centring, before, state)
            callbacks = options.callbacks
            if saves is not None:
                callbacks.append(lambda report: saves.offer(replace(report, done=stream.draws_made)))
            run = Run(self.executables, kernel, start.seed, self.arrays, display, callbacks, saves is not None)
            stream = RunStream.of(run, num_samples, options.thin, before)
            clock = start.clock()
            run.so_far = partial(self._stream_so_far, stream, data, clock)
            with nullcontext() if saves is None else saves.after_an_error(run):
                with run.interrupts.held():
                    start.begin(run)
                yield from stream.blocks()
                if saves is not None:
                    saves.end_run(run, run.so_far())

    def _stream_so_far(self, stream: RunStream, data: Data, clock: Clock) -> Posterior:
        """Return a posterior whose state has the draws that the caller of a stream has not received."""
        run = stream.run
        received = stream.received
        state = run.value._replace(stored=run.state.stored.without_room.gathered(run.engine.blocks.held_chains))
        posterior = self._posterior(run, data, clock, state.arguments.thin * received, lambda: state)
        return replace(posterior, draws={}, stats={}, held_draws=None)

    def _posterior(
        self, run: Run, data: Data, clock: Clock, samples: int, state: Callable[[], RunState], with_draws: bool = True
    ) -> Posterior:
        """Return the posterior of a run of `samples` iterations; `with_draws` as for `RunResults.of`."""
        results = RunResults.of(run, with_draws)
        record = data.record
        sampler = replace(self, arrays=data.arrays, record=record)
        return Posterior(
            dict(results.draws),
            dict(results.stats),
            clock.timing(run, self.compile_seconds, self.compilations),
            results.record(record, run, clock, samples),
            dict(results.reduced),
            run.state.warmup_record,
            self.executables.blocks.target.with_arrays(data.arrays),
            continuation=SamplerContinuation(sampler, state),
            held_draws=results.place(run),
            warmup_draws=dict(results.warmup_draws),
            warmup_stats=dict(results.warmup_stats),
        )

    def _so_far(self, run: Run, data: Data, clock: Clock, with_draws: bool = True) -> Posterior:
        """Return the posterior of a run that is still in progress."""
        state = run.value
        return self._posterior(run, data, clock, state.arguments.thin * run.draws, lambda: state, with_draws)

    def _tuned(self, options: RunOptions) -> Kernel:
        """Return the kernel with its initial hyperparameters."""
        tuning = options.tuning
        return self.kernel if tuning is None else replace(self.kernel, tuning=self._checks.tuning_of(tuning))

    @property
    def _checks(self) -> ContinuationChecks:
        return ContinuationChecks(self.executables, self.record.kernel)

    def _checked(self, options: RunOptions) -> RunOptions:
        stores = self.executables.stores_draws and self.executables.blocks.names
        return options.checked(self.executables.blocks.chains_of_group, None if stores else ())

    def _state_of(self, posterior: Posterior, arrays: tuple[Array, ...]) -> RunState:
        """Return the state of a posterior; raise unless it belongs to this model and these data."""
        state = self._checks.state_of(posterior)
        earlier = posterior.continuation.sampler if isinstance(posterior.continuation, SamplerContinuation) else None
        same_data = earlier is not None and list(map(id, earlier.arrays)) == list(map(id, arrays))
        contents = posterior.continuation is not None and posterior.continuation.contents() if not same_data else None
        if contents:
            check_contents(contents, self.arguments(arrays).fingerprints())
        if earlier is None or earlier.executables is not self.executables or not same_data:
            self._checks.check_log_density(state, arrays, bool(contents) or same_data)
        return state

    def arguments(self, arrays: tuple[Array, ...]) -> Arguments:
        """Return the arguments of the model, given the data on the devices."""
        return self.executables.blocks.target.arguments.with_arrays(arrays)

    def _initial(self, init: Any, seed: int, arrays: tuple[Array, ...]) -> Initial:
        blocks = self.executables.blocks
        prior = partial(self.executables.prior, arrays=arrays)
        groups = self.kernel.superchains
        if init is None and groups and blocks.num_chains >= MANY_CHAINS and blocks.num_chains % groups == 0:
            init = superchains(groups)
        initial = initial_of(init, blocks.target, blocks.num_chains, seed, prior)
        initial.check_moves(blocks.adapter.is_of_one_chain)
        self.executables.reducing.reductions.check_superchains(initial.superchains)
        return initial

    def plan(self, draws: int = 0, arrays: tuple[Array, ...] | None = None, of_warmup: int = 0) -> MemoryPlan:
        """Return the memory of a run that stores so many draws of each chain; raise if it exceeds the free memory."""
        rows = len(self.executables.blocks.held_chains.numbers) * (draws + of_warmup)
        plan = plan_memory(self.executables, self.arrays if arrays is None else arrays, rows)
        check_plan(plan)
        return plan

    def _announce(self, progress: Progress, plan: MemoryPlan) -> None:
        if self.notice:
            progress.say(self.notice)
        sets = "" if self.sets is None else f"{len(self.sets.names):,} data sets x {self.record.num_chains} chains; "
        progress.say(f"{sets}{plan}")

    def _data(self, data: UserData | None, names: NamesOfData | None = None) -> Data:
        """Return the data of a run on the devices.

        Args:
            data: the user's data; None for the data of the sampler.
            names: levels and columns in the order by which to number them; None for the sampler's.
        """
        check_types(self.executables.x64)
        target = self.executables.blocks.target
        if data is None:
            check_same_names(names, self.record.names)
            run_data = Data(self.arrays, self.record)
        else:
            names = self.record.names if names is None else names
            of_fit = KnownData.of(target.arguments.with_arrays(self.arrays), names)
            complete_data = centred_first(target.program, impute_again(target.program, data))
            arguments = of_fit.split(target.program, complete_data).with_compiled_in(target.arguments.constants)
            check_arrays(target.arguments, arguments)
            if self.indices is not None:
                self.indices.check_indices(arguments)
            target = target.with_arguments(arguments)
            name_fields = names_in_record(self.naming, arguments, names)
            run_data = Data(target.place_arrays(), replace(self.record, **name_fields))
        for name, array in zip(target.arguments.names, run_data.arrays, strict=True):
            check_alive(f"data: {name}", array)
        return run_data
