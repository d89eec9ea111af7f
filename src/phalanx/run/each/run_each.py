"""`phx.mcmc(..., each=)`: divide the data, compile one program for all data sets, run it, and return the posteriors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from phalanx.adaptation.tuner import Sums
from phalanx.density.given_names import GivenNames
from phalanx.density.indices import IndexCheck
from phalanx.density.naming import Naming
from phalanx.density.target import Target, choose_mesh
from phalanx.exactness.sharding_check import check_level
from phalanx.inputs.arguments import Arguments, split_arguments
from phalanx.inputs.needed_values import trace_with_values
from phalanx.kernels.nuts import nuts
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.language.tracing import Program
from phalanx.mesh.devices import CHAIN, axes_but_chain, default_mesh, use_every_core
from phalanx.mesh.processes import to_host
from phalanx.posterior.record import Timing
from phalanx.programs.traced_program import TracedProgram, check_latents
from phalanx.reducers.reducer import Reduce, Reducer
from phalanx.reducers.reductions import Reductions
from phalanx.run import checks
from phalanx.run.compile import executable_cache
from phalanx.run.compile.memory_estimate import check_plan, explained, plan_memory
from phalanx.run.describe import describe, names_in_record
from phalanx.run.device.blocks import ChainState
from phalanx.run.device.executables import Executables, compile_blocks
from phalanx.run.device.reducing import Reducing
from phalanx.run.device.tiles import given_tile
from phalanx.run.each.blocks import EachBlocks, EachTarget
from phalanx.run.each.data_sets import DataSets, Each
from phalanx.run.each.posteriors import Posteriors
from phalanx.run.each.ragged import REAL, check_ragged, real_rows, with_real_rows
from phalanx.run.each.warming import EachWarming, kernel_of_each
from phalanx.run.engine import Engine
from phalanx.run.host.reducer_state import HostReducers
from phalanx.run.init_values import Initial, check_values, initial_of
from phalanx.run.loop import Run
from phalanx.run.options import RunOptions
from phalanx.run.progress.display import make_progress, waiting
from phalanx.run.progress.watchdog import watched
from phalanx.run.state import Aim, Reduced

BLOCK_BYTES = 2**27
"""Memory of all devices for the draws of a block: with tens of thousands of chains a few draws of each."""

BLOCK_DRAWS = 64
"""Maximal number of draws of each chain in a block."""


class EachEngine(Engine):
    """Engine of a run on many data sets, some of which may have no chain that can start."""

    failed: dict[int, str]

    def begin(self, initial: Initial) -> tuple[ChainState, Sums]:
        """Return chains at their initial positions; a data set without one takes part with the data of another."""
        begun = self.executables.start(self.seed, self.arrays, initial)
        initial.check(begun.misfits)
        self.failed = self._failed(begun.finite, begun.invalid)
        if self.failed:
            self.arrays = self._without_failed()
            begun = self.executables.start(self.seed, self.arrays, initial)
        rows = begun.rows
        return begun.chains, self.executables.summed(rows, 0, 1) if rows else self.blocks.no_sums()

    def _failed(self, finite: Array, invalid: Any) -> dict[int, str]:
        assert isinstance(self.blocks, EachBlocks)
        by_set = self.blocks.sets, self.blocks.chains_of_one
        bad = ~to_host(finite).reshape(by_set).all(1)
        reasons = {
            int(number): "the log density, or its gradient, is not finite at the start"
            for number in np.flatnonzero(bad)
        }
        for (name, parameter), counts in invalid.items():
            found = to_host(counts).reshape(by_set)[:, 0]
            what = f"the parameter {parameter!r} of {name!r}" if parameter else f"a value of {name!r}"
            reasons |= {int(number): f"{what} is not valid" for number in np.flatnonzero(found)}
        return reasons

    def _without_failed(self) -> tuple[Array, ...]:
        """Return the arrays, where data sets that failed have the data of one that did not."""
        target, sets = self.blocks.target, self.blocks.sets  # pyright: ignore[reportAttributeAccessIssue]
        assert isinstance(target, EachTarget)
        source = np.arange(sets)
        good = np.setdiff1d(source, list(self.failed))
        if not len(good):
            raise ValueError(
                f"each: none of the {sets:,} data sets can be sampled; of the first, {self.failed[0]}. Run phx.mcmc on "
                f"it alone to see more."
            )
        source[list(self.failed)] = good[0]
        take = jax.jit(lambda array: array[source])
        return tuple(
            jax.device_put(take(array), array.sharding) if number in target.own else array
            for number, array in enumerate(self.arrays)
        )


class EachRun(Run):
    """Run on many data sets in progress."""

    def __init__(self, executables: Executables, kernel: Kernel, seed: int, arrays: Any, progress: Any, looks: Any):
        super().__init__(executables, kernel, seed, arrays, progress, looks)
        self.engine: EachEngine = EachEngine(executables, seed, arrays)

    def _warming(self, aim: Aim) -> EachWarming:
        return EachWarming(self.engine, self.kernel, aim.num_warmup)


def run_each(
    run: RunOptions, model: Program, data: Any, each: Each, kernel: Kernel | None, num_chains: int, seed: int,
    mesh: Mesh | None, keep: str | Sequence[str] | None, given: GivenNames,
    reducers: Mapping[str, Reducer | Reduce] | None, missing: str | None, check: str, matmul_precision: str,
) -> Posteriors:  # fmt: skip
    """Return the posteriors of many data sets; see `phx.mcmc`."""
    began = time.perf_counter()
    kernel = nuts() if kernel is None else kernel
    others = {name: getattr(run, name) for name in ("tuning", "until", "checkpoint", "store")}
    checks.check_alone("each", missing=missing, **others)
    check_level(check)
    run = run.checked(num_chains, keep)
    checks.check_precision(matmul_precision)
    checks.check_kernel_type(kernel)
    checks.check_mesh_type(mesh)
    sets = DataSets.of(model, {} if data is None else data, each)
    notice = None
    if mesh is None:
        notice, mesh = use_every_core(), default_mesh(sets.count)
    checks.check_not_traced(data)
    program, left_out = model, frozenset()
    if sets.rows is not None:
        program = with_real_rows(model, sets.most)
        left_out = check_ragged(model, program, sets)
    arguments = split_arguments(program, _filled(sets, 0))
    mesh = choose_mesh(arguments, mesh)
    _check_mesh(mesh, sets)
    varies = dict.fromkeys((*sets.own, REAL), "it differs by data set")
    arguments, whole = trace_with_values(
        arguments, lambda a: TracedProgram.of_whole(program, a, axes_but_chain(mesh)), varies
    )
    check_latents(program, whole)
    whole_arrays, own = _arrays(arguments, sets)
    _check_indices(IndexCheck.of(whole), arguments, whole_arrays, own, sets)
    names = names_in_record(Naming.of(whole, arguments, given), arguments)
    kernel = kernel_of_each(kernel, sets.count)
    init = _of_all(run.init, {latent.name: latent.shape for latent in whole.latents()}, num_chains, sets.count)
    stored = _stored(whole, keep, left_out)
    total = sets.count * num_chains
    latents = [latent.name for latent in whole.latents()]
    reductions = Reductions.of(reducers or {}, stored or latents, tuple(whole.observed))
    if not stored and not reductions.entries:
        raise ValueError(
            "keep: with an empty list a run has no result without reducers; name a variable, or a reducer."
        )
    key = executable_cache.key_of(
        whole, kernel, reductions, mesh, arguments.layout, arguments.names, arguments.local_shapes(), own, total,
        sets.count, stored, given_tile(), matmul_precision,
    )  # fmt: skip
    one = Target.of(program, arguments, mesh, whole, "off")
    target = EachTarget.of_one(one, whole_arrays, own, sets.count)
    checks.check_kernel(kernel, target)
    arrays, executables, compilations = target.place_arrays(), executable_cache.EXECUTABLES.look_up(key), 0
    if executables is None:
        with waiting(bool(run.progress), "compiling"):
            blocks = _blocks(target, kernel, total, checks.check_names(stored, target), sets.count)
            read = tuple(whole.observed) if reductions.of_observations else ()
            reducing = Reducing(blocks, reductions, tuple(blocks.target.value_names()), read)
            _check_by_chain(reducing)
            executables = compile_blocks(reducing, arrays, matmul_precision)
        executable_cache.EXECUTABLES.keep(key, executables)
        compilations = executables.count
    initial = initial_of(init, one, total, seed, lambda *_: {})
    plan = plan_memory(executables, arrays, total * run.room)
    check_plan(plan)
    compiled = time.perf_counter()
    record = replace(
        describe(one, kernel, num_chains, matmul_precision), **names, seed=seed, init=initial.described,
        num_warmup=run.warmup, num_samples=run.num_samples, started=datetime.now().isoformat(timespec="seconds"),
    )  # fmt: skip
    looks = [] if run.on_block is None else [run.on_block]
    with watched(make_progress(run.progress)) as display:
        if notice:
            display.say(notice)
        display.say(f"{sets.count:,} data sets x {num_chains} chains; {plan}")
        going = EachRun(executables, kernel, seed, arrays, display, looks)
        with explained(plan), going.interrupts.held():
            going.begin(initial, run.aim(initial))
            warmed = time.perf_counter()
            going.sample(run.num_samples, None)
    state, failed = going.state, going.engine.failed
    draws, stats = state.stored.whole
    if stats:
        step_size = np.repeat(np.asarray(state.tuning.step_size), num_chains)
        stats["step_size"] = np.broadcast_to(step_size[:, None], stats["energy"].shape)
    ticks, evaluations = state.sampling.ticks, state.warmup.evaluations + state.sampling.evaluations
    timing = Timing(
        compile=compiled - began, warmup=warmed - compiled, sampling=time.perf_counter() - warmed,
        gradient_evaluations=evaluations if kernel.machine.uses_gradient else 0, compilations=compilations,
        lane_efficiency=1.0 if kernel.machine.in_lock_step else state.sampling.evaluations / (total * ticks),
    )  # fmt: skip

    def target_of(number: int) -> Target:
        alone = sets.one(number, padded=False)
        return Target(model, alone, mesh=default_mesh(num_chains), check="off")

    def by_set(arrays: Any) -> dict[str, np.ndarray]:
        return {name: array.reshape(sets.count, num_chains, *array.shape[1:]) for name, array in arrays.items()}

    return Posteriors(
        draws=by_set({name: draws[name] for name in stored if name in draws}), stats=by_set(stats), sets=sets.names,
        reduced=_reduced(executables.reducing, state.reduced, sets.count),
        failed={sets.names[number]: reason for number, reason in sorted(failed.items())}, timing=timing,
        record=record, target_of=target_of,
    )  # fmt: skip


def _check_by_chain(reducing: Reducing) -> None:
    """Raise if a reducer has one state for all chains, on a device or once merged: each data set needs its own."""

    def merged(chains: int) -> dict[str, Any]:
        values = {name: jnp.zeros((chains, *s.shape), s.dtype) for name, s in reducing.shapes.items()}
        states = jax.tree.map(np.asarray, reducing.reductions.init(values))
        return {
            name: {part: entry.reducer.merge(state, state) for part, state in states[name].items()}
            for name, entry in reducing.reductions.stateful
        }

    few, more = merged(2), merged(4)
    for name in few:
        pairs = zip(jax.tree.leaves(few[name]), jax.tree.leaves(more[name]), strict=True)
        if any((np.shape(a)[:1], np.shape(b)[:1]) != ((2,), (4,)) for a, b in pairs):
            raise ValueError(
                f"reducers[{name!r}]: {dict(reducing.reductions.entries)[name].reducer} has one state for all chains, "
                f"and with each= every data set needs its own. Leave it out, or compute it from stored draws."
            )


def _reduced(reducing: Reducing, reduced: Reduced, sets: int) -> dict[str, Any]:
    """Return the results of reducers, arrays `(set, ...)`."""
    host = HostReducers.of(reducing)

    def of_set(number: int) -> dict[str, Any]:
        def own(leaf: np.ndarray) -> np.ndarray:
            count = len(leaf) // sets
            return leaf[number * count : (number + 1) * count]

        return host.finalize(reduced._replace(states=jax.tree.map(own, reduced.states)))

    return jax.tree.map(lambda *results: np.stack(results), *map(of_set, range(sets))) if reduced.states else {}


def _check_mesh(mesh: Mesh, sets: DataSets) -> None:
    if wide := {axis: size for axis, size in axes_but_chain(mesh).items() if size > 1}:
        raise ValueError(
            f"mesh: with each= whole data sets are sharded over the axis {CHAIN!r}, and the mesh has {wide}. Give "
            f"mesh=phx.make_mesh(chain=...) without other axes."
        )
    if sets.count % mesh.shape[CHAIN]:
        raise ValueError(
            f"mesh: {sets.count} data sets cannot be divided evenly over {mesh.shape[CHAIN]} devices along {CHAIN!r}. "
            f"Use a number of devices that divides {sets.count}, or leave out mesh=."
        )


def _filled(sets: DataSets, number: int) -> dict[str, Any]:
    """Return the data of one data set, with the rows that fill it up."""
    real = {} if sets.rows is None else {REAL: real_rows(sets, number)}
    return sets.one(number, padded=True) | real


def _arrays(arguments: Arguments, sets: DataSets) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Return the arrays of all data sets, and the numbers of those of which each data set has its own entry."""
    own = dict(sets.own) if sets.rows is None else {**sets.own, REAL: real_rows(sets, slice(None))}
    numbers = tuple(number for number, name in enumerate(arguments.names) if name in own)
    whole = tuple(
        jnp.asarray(own[name], array.dtype) if name in own else array
        for name, array in zip(arguments.names, arguments.arrays, strict=True)
    )
    return whole, numbers


def _check_indices(
    indices: IndexCheck, arguments: Arguments, arrays: Sequence[Any], own: Sequence[int], sets: DataSets
) -> None:
    """Raise if an index in the data of some data set is out of range."""
    if not indices.applies:
        return
    axes = [0 if number in own else None for number in range(len(arrays))]
    outside: Callable[..., Array] = jax.jit(
        jax.vmap(lambda *of_one: indices.any_outside(of_one, arguments.shardings), in_axes=axes)
    )
    for number in np.flatnonzero(to_host(outside(*arrays)))[:1]:
        of_one = [array[int(number)] if axis == 0 else array for array, axis in zip(arrays, axes, strict=True)]
        try:
            indices.check(arguments.with_arrays(of_one))
        except ValueError as error:
            raise ValueError(f"each: data set {sets.words([number])}: {error}") from None


def _stored(whole: TracedProgram, keep: str | Sequence[str] | None, left_out: frozenset[str]) -> tuple[str, ...]:
    """Return the variables to store; deterministic values of each row are not, if data sets differ in their rows."""
    checks.check_keep(keep)
    if keep is None:
        names, _ = checks.stored_by_default([latent.name for latent in whole.latents()], whole.deterministic)
        return tuple(name for name in names if name not in left_out)
    names = (keep,) if isinstance(keep, str) else tuple(keep)
    if rows := [name for name in names if name in left_out]:
        raise ValueError(
            f"keep: {rows[0]!r} has an element for each row, and the data sets differ in their numbers of rows. Leave "
            f"it out, and compute it by posteriors.of(name).predictive()."
        )
    return names


def _of_all(init: Any, shapes: Mapping[str, tuple[int, ...]], num_chains: int, sets: int) -> Any:
    """Return initial values for the chains of all data sets, given those of one."""
    if init is not None and not isinstance(init, Mapping):
        raise ValueError(
            f"init: with each= expected None or a dict of values by variable, with which the chains of each data set "
            f"start; got {init!r}."
        )
    check_values(init, dict(shapes), num_chains)
    each = {name: (num_chains, *shape) for name, shape in shapes.items()}
    return init and {
        name: np.concatenate([np.asarray(value)] * sets) if np.shape(value) == each[name] else value
        for name, value in init.items()
    }


def _blocks(target: EachTarget, kernel: Kernel, total: int, names: tuple[str, ...], sets: int) -> EachBlocks:
    blocks = EachBlocks(target.without_arrays(), kernel, total, names, slots=1, sets=sets)
    width = 4 * total * sum(blocks.row_layout.widths)
    return replace(blocks, slots=max(1, min(BLOCK_DRAWS, BLOCK_BYTES // width)))
