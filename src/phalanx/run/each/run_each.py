"""`phx.mcmc(..., each=)`: divide the data, compile one program for all data sets, run it, and return the posteriors."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.density.target import Target
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.language.tracing import Program
from phalanx.posterior.each.posteriors import Posteriors
from phalanx.posterior.each.stored_sets import Sets
from phalanx.posterior.record import RunRecord
from phalanx.programs.sites import Latent
from phalanx.reducers.reductions import Reductions
from phalanx.run import checks
from phalanx.run.compile import executable_cache
from phalanx.run.compile.memory_estimate import check_plan, explained, plan_memory
from phalanx.run.describe import describe
from phalanx.run.device.blocks import Blocks
from phalanx.run.device.executables import Executables, compile_blocks
from phalanx.run.device.reducing import Reducing
from phalanx.run.each.data_sets import Each
from phalanx.run.each.kernel import kernel_of_each
from phalanx.run.each.model_on_sets import ModelOnSets
from phalanx.run.host.draw_store import step_sizes, store_at
from phalanx.run.host.reducer_state import HostReducers
from phalanx.run.init_values import Initial, check_values, initial_of
from phalanx.run.loop import Run
from phalanx.run.options import RunOptions, SamplerOptions
from phalanx.run.progress.display import make_progress, waiting
from phalanx.run.progress.watchdog import watched
from phalanx.run.results import Clock
from phalanx.run.state import Reduced
from phalanx.store.identity import Identity

BLOCK_BYTES = 2**24
"""Memory of all devices for the draws of a block: with tens of thousands of chains a few draws of each. Every block
copies it, tile by tile: with 3,000 data sets 2**27 bytes took 1.7 times as long as 2**23, and 2**21 1.6 times."""

BLOCK_DRAWS = 64
"""Maximal number of draws of each chain in a block."""


def run_each(
    options: SamplerOptions, run: RunOptions, model: Program, data: object, each: Each, seed: int
) -> Posteriors:
    """Return the posteriors of many data sets; see `phx.mcmc`."""
    began = time.perf_counter()
    _check(options, run)
    num_chains = options.num_chains
    run = run.checked(num_chains, options.keep)
    on_sets = ModelOnSets.of(model, data, each, options.mesh, options.names, evenly=run.store is not None)
    sets = on_sets.sets
    target = on_sets.target()
    filled = on_sets.filled_up
    kernel = kernel_of_each(options.kernel, filled)
    checks.check_kernel(kernel, target)
    init = _of_all(run.init, on_sets.whole.latents(), num_chains, filled)
    stored = on_sets.stored(options)
    reductions = Reductions.of(options.reducers, stored or list(on_sets.latents), tuple(on_sets.whole.observed))
    _check_result(stored, reductions)
    blocks = _blocks(target, kernel, filled * num_chains, checks.check_names(stored, target), filled)
    arrays = on_sets.place_arrays(target)
    with waiting(bool(run.progress), "compiling"):
        executables, compilations = _compiled(on_sets, arrays, blocks, reductions, options.matmul_precision)
    initial = initial_of(init, target, blocks.num_chains, seed, lambda *_: {})
    plan = plan_memory(executables, arrays, blocks.num_chains * (run.room if run.store is None else 2 * blocks.slots))
    check_plan(plan)
    record = _record(on_sets, describe(target, kernel, num_chains, options.matmul_precision), run, initial, seed)
    compile_seconds = time.perf_counter() - began
    clock = Clock(record.started)
    with (
        store_at(run.store, run.num_stored, record, blocks.names, blocks.held, Sets(sets.names)) as draws_to,
        watched(make_progress(run.progress)) as display,
    ):
        if draws_to is not None:
            draws_to.begin(_identity_of(seed), None)
        for notice in filter(None, on_sets.notices):
            display.say(notice)
        display.say(f"{sets.count:,} data sets x {num_chains} chains; {plan}")
        going = Run(executables, kernel, seed, arrays, display, run.callbacks, store=draws_to)
        with explained(plan), going.interrupts.held():
            going.begin(initial, run.aim(initial))
            if draws_to is not None:
                draws_to.sets = Sets(sets.names, going.engine.failed)
            clock.sampling_begins()
            going.sample(run.num_samples, None)
        timing = clock.timing(going, compile_seconds, compilations)
        record = replace(record, interrupted=going.interrupted)
        if draws_to is None:
            draws, stats = _by_set(going, filled, sets.count)
        else:
            draws, stats = map(Sets(sets.names, going.engine.failed).by_set, draws_to.read())
            draws_to.end(record, timing, {})
    return Posteriors(
        draws={name: draws[name] for name in stored if name in draws},
        stats=stats,
        sets=sets.names,
        failed={sets.names[n]: reason for n, reason in sorted(going.engine.failed.items()) if n < sets.count},
        reduced=_reduced(executables.reducing, going.reduced, filled, sets.count),
        timing=timing,
        record=record,
        target_of=lambda number: on_sets.target_of(number, num_chains),
    )


def _check(options: SamplerOptions, run: RunOptions) -> None:
    """Raise for options that runs on many data sets do not take."""
    others = {name: getattr(run, name) for name in ("tuning", "until", "checkpoint")}
    others |= {"save_warmup": run.save_warmup or None}
    checks.check_alone("each", missing=options.missing, **others)


def _check_result(stored: Sequence[str], reductions: Reductions) -> None:
    """Raise for a run of which nothing remains."""
    if not stored and not reductions.entries:
        raise ValueError("keep: with an empty list a run has no result without reducers; name a variable or a reducer.")


def _record(on_sets: ModelOnSets, described: RunRecord, run: RunOptions, initial: Initial, seed: int) -> RunRecord:
    """Return the record of a run, at its beginning."""
    return replace(
        described,
        **on_sets.names,
        seed=seed,
        init=initial.described,
        num_warmup=run.warmup,
        num_samples=run.num_samples,
        started=datetime.now().isoformat(timespec="seconds"),
    )


def _identity_of(seed: int) -> Identity:
    """Return the identity of a run, which no call continues."""
    return Identity(said={"call": "phx.mcmc with each=", "seed": str(seed)}, contents={}, traces={}, releases={})


def _by_set(run: Run, filled: int, sets: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return draws and statistics in memory, `(set, chain, draw, ...)`, without those of copies that fill up."""
    draws, stats = run.state.stored.whole
    stats |= {"step_size": step_sizes(run.state, stats)} if stats else {}
    draws, stats = (
        {name: v.reshape(filled, -1, *v.shape[1:])[:sets] for name, v in of.items()} for of in (draws, stats)
    )
    return draws, stats


def _compiled(
    on_sets: ModelOnSets, arrays: Sequence[Array], blocks: Blocks, reductions: Reductions, matmul_precision: str
) -> tuple[Executables, int]:
    """Return the compiled blocks, and how many programs were compiled for them."""
    key = executable_cache.key_of(
        on_sets.whole,
        blocks.kernel,
        reductions,
        on_sets.mesh,
        on_sets.arguments,
        on_sets.own,
        blocks.num_chains,
        blocks.groups,
        blocks.names,
        matmul_precision,
    )
    known = executable_cache.EXECUTABLES.look_up(key)
    if known is not None:
        return known.serving(on_sets.program, reductions), 0
    read = tuple(on_sets.whole.observed) if reductions.of_observations else ()
    reducing = Reducing(blocks, reductions, tuple(blocks.target.value_names()), read)
    _check_by_chain(reducing)
    of_ours = executable_cache.is_ours(blocks.kernel) and executable_cache.is_ours(reductions)
    executables = compile_blocks(reducing, arrays, matmul_precision, ("each", key) if of_ours and key else None)
    executable_cache.EXECUTABLES.keep(key, executables)
    return executables, executables.count


def _check_by_chain(reducing: Reducing) -> None:
    """Raise if a reducer has one state for all chains, on a device or once merged: each data set needs its own."""

    def merged(chains: int) -> dict[str, Any]:
        values = {name: jnp.zeros((chains, *s.shape), s.dtype) for name, s in reducing.shapes.items()}
        states = jax.tree.map(np.asarray, reducing.reductions.init(values))
        return {
            name: {part: entry.reducer.merge(state, state) for part, state in states[name].items()}
            for name, entry in reducing.reductions.stateful
        }

    few = merged(2)
    more = merged(4)
    for name in few:
        pairs = zip(jax.tree.leaves(few[name]), jax.tree.leaves(more[name]), strict=True)
        if any((np.shape(a)[:1], np.shape(b)[:1]) != ((2,), (4,)) for a, b in pairs):
            raise ValueError(
                f"reducers[{name!r}]: {dict(reducing.reductions.entries)[name].reducer} has one state for all chains, "
                f"and with each= every data set needs its own. Leave it out, or compute it from stored draws."
            )


def _reduced(reducing: Reducing, reduced: Reduced, filled: int, sets: int) -> dict[str, Any]:
    """Return the results of reducers, arrays `(set, ...)`, without those of copies that fill up."""
    host = HostReducers.of(reducing)

    def of_set(number: int) -> dict[str, Any]:
        def own(leaf: np.ndarray) -> np.ndarray:
            count = len(leaf) // filled
            return leaf[number * count : (number + 1) * count]

        return host.finalize(reduced._replace(states=jax.tree.map(own, reduced.states)))

    return jax.tree.map(lambda *results: np.stack(results), *map(of_set, range(sets))) if reduced.states else {}


def _of_all(init: Any, latents: Sequence[Latent], num_chains: int, sets: int) -> Any:
    """Return initial values for the chains of all data sets, given those of one."""
    if init is not None and not isinstance(init, Mapping):
        raise ValueError(
            f"init: with each= expected None or a dict of values by variable, with which the chains of each data set "
            f"start; got {init!r}."
        )
    check_values(init, latents, num_chains)
    each = {latent.name: (num_chains, *latent.shape) for latent in latents}
    return init and {
        name: np.concatenate([np.asarray(value)] * sets) if np.shape(value) == each[name] else value
        for name, value in init.items()
    }


def _blocks(target: Target, kernel: Kernel, total: int, names: tuple[str, ...], sets: int) -> Blocks:
    blocks = Blocks(target.without_arrays(), kernel, total, names, slots=1, groups=sets)
    width = 4 * total * sum(blocks.row_layout.widths)
    return replace(blocks, slots=max(1, min(BLOCK_DRAWS, BLOCK_BYTES // width)))
