"""From a model and data to a compiled sampler: check, trace, and build or look up the compiled blocks.

A run on many data sets (`each=`) has a group of chains for each; other runs have one group.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.density.finite_data import check_finite_data
from phalanx.density.target import Target
from phalanx.inputs.dataframe_input import UserData
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.language.observations import check_unscaled
from phalanx.language.tracing import Program
from phalanx.mesh.devices import axes_but_chain
from phalanx.posterior.communication import notice_of_gathers
from phalanx.programs.traced_program import check_latents
from phalanx.reducers.reductions import Reductions
from phalanx.run import checks
from phalanx.run.compile import executable_cache
from phalanx.run.describe import describe
from phalanx.run.device.blocks import planned
from phalanx.run.device.executables import compile_blocks
from phalanx.run.device.reducing import Reducing
from phalanx.run.init_values import check_values
from phalanx.run.options import RunOptions, SamplerOptions
from phalanx.run.progress.display import waiting
from phalanx.run.sampler import Sampler
from phalanx.run.traced_call import TracedCall

GROUP_BYTES = 2**24
"""Memory of all devices for the draws of a block of a run on many data sets: with tens of thousands of chains a few
draws of each. Every block copies it, tile by tile: with 3,000 data sets 2**27 bytes took 1.7 times as long as 2**23,
and 2**21 1.6 times."""

GROUP_DRAWS = 64
"""Maximal number of draws of each chain in such a block."""

PRIOR_ONLY = "The model observes no data: these are draws from the prior."
"""Note of a run without observations, which is not a finding."""


def sampler_of(
    options: SamplerOptions, run: RunOptions, model: Program, data: UserData | None, caller: str = "phx.mcmc"
) -> Sampler:
    """Compile a sampler of one data set, after checks of all arguments, also of those of the run.

    `caller` is the function that the user called, for messages.

    Raises:
        TypeError, ValueError: see `phx.mcmc`.
    """
    run.checked(options.num_chains, options.keep)
    began = time.perf_counter()
    call = _trace_model(options, model, data, caller)
    check_values(run.init, call.whole.latents(), options.num_chains)
    return compile_sampler(options, run, call, began)


def compile_sampler(options: SamplerOptions, run: RunOptions, call: TracedCall, began: float) -> Sampler:
    """Compile a sampler of a traced model, or take what an earlier call compiled; `began` is the time of the call."""
    kernel = options.kernel
    whole = call.whole
    keep = options.stored(call.model)
    latents = [latent.name for latent in whole.latents()]
    reductions = Reductions.of(options.reducers, keep or latents, tuple(whole.observed))
    if reductions.of_observations:
        check_unscaled(whole.observed, "reducers")
    of_groups = call.per_lane_data, call.groups
    key = executable_cache.key_of(
        whole,
        kernel,
        reductions,
        call.mesh,
        call.arguments,
        options.num_chains,
        keep,
        options.matmul_precision,
        *of_groups,
    )
    stored_names, too_large = _variables_to_store(call, kernel, keep)
    cached_executables = executable_cache.EXECUTABLES.look_up(key)
    target = (
        _target(call, kernel)
        if cached_executables is None
        else cached_executables.blocks.target.with_arguments(call.arguments)
    )
    kernel = kernel.on(target)
    arrays = call.place_arrays(target)
    if cached_executables is None:
        with waiting(bool(run.progress), "compiling"):
            reducing = _reducing(call, target, kernel, reductions, options.num_chains, stored_names)
            # the trace of a user's kernel or reducer is of one chain, which another process may have edited for many
            of_ours = executable_cache.is_ours(options.kernel) and executable_cache.is_ours(reductions)
            executables = compile_blocks(reducing, arrays, options.matmul_precision, key if of_ours else None)
        executable_cache.EXECUTABLES.keep(key, executables)
    else:
        executables = cached_executables.serving(call.model, reductions)
        target = executables.blocks.target.with_arguments(call.arguments)
    record = replace(describe(target, kernel, options.num_chains, options.matmul_precision), **call.names)
    notices = [*call.notices, *too_large, notice_of_gathers(target, record.communication)]
    if not whole.observes:
        record = replace(record, passed=(*record.passed, PRIOR_ONLY))
        notices.append(PRIOR_ONLY)
    return Sampler(
        executables,
        arrays,
        kernel,
        record,
        call.naming,
        time.perf_counter() - began,
        compilations=executables.count if cached_executables is None else 0,
        notice="\n".join(filter(None, notices)) or None,
        indices=call.indices,
        traces=partial(executable_cache.trace_words, call.as_written, options.kernel, reductions),
        continued={"on_block": run.on_block, "progress": run.progress},
    )


def _trace_model(options: SamplerOptions, model: Program, data: UserData | None, caller: str) -> TracedCall:
    """Return the model traced on the data, after checks that need no compiling."""
    kernel = options.kernel
    num_chains = options.num_chains
    return TracedCall.of(
        caller,
        model,
        data,
        kernel=kernel,
        mesh=options.mesh,
        lanes=num_chains,
        names=options.names,
        check_mesh=lambda mesh: checks.check_chains(num_chains, mesh, kernel),
        missing=options.missing,
        options=lambda: {
            "num_chains": num_chains,
            "keep": options.keep,
            "reducers": list(options.reducers),
            "matmul_precision": options.matmul_precision,
        },
    )


def _variables_to_store(
    call: TracedCall, kernel: Kernel, keep: Sequence[str] | None
) -> tuple[Sequence[str], list[str]]:
    """Return the variables to store, and a sentence for each deterministic value that is too large."""
    if keep is not None:
        return keep, []
    # computing deterministic values of all rows would take longer than the step on a minibatch
    deterministic = {} if kernel.batch_size is not None else call.whole.deterministic
    return checks.stored_by_default([latent.name for latent in call.whole.latents()], deterministic)


def _target(call: TracedCall, kernel: Kernel) -> Target:
    """Return the log density of a model that was not compiled before, after checks that compile a program each."""
    check_latents(call.model, call.whole)
    if call.groups is None:  # a data set that is not finite takes no part in a run on many
        uses_gradient = kernel.machine.uses_gradient
        check_finite_data(call.model, call.arguments, axes_but_chain(call.mesh), gradient=uses_gradient)
    target = Target.of(call.model, call.arguments, call.mesh, call.whole)
    target = target if call.groups is None else target.of_groups(call.per_lane_data, call.groups)
    target = target if kernel.batch_size is None else target.in_batches(kernel.batch_size)
    checks.check_kernel(kernel, target)
    return target


def _reducing(
    call: TracedCall,
    target: Target,
    kernel: Kernel,
    reductions: Reductions,
    num_chains: int,
    stored_names: Sequence[str],
) -> Reducing:
    """Return the functions of a run that are to be compiled."""
    names = checks.check_names(stored_names, target)
    blocks = planned(target, kernel, num_chains * (call.groups or 1), names, call.whole)
    if call.groups is not None:
        width = 4 * blocks.num_chains * sum(blocks.row_layout.widths)
        blocks = replace(blocks, groups=call.groups, slots=max(1, min(GROUP_DRAWS, GROUP_BYTES // width)))
    checks.check_coordinates(kernel, sum(blocks.layout.whole_lengths))
    observed_names = tuple(call.whole.observed) if reductions.of_observations else ()
    reducing = Reducing(blocks, reductions, tuple(blocks.target.value_names()), observed_names)
    _ = reducing.on_rows  # traces the functions of reducers, which may raise
    if call.groups is not None:
        _check_by_chain(reducing)
    return reducing


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
