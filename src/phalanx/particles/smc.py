"""`phx.smc`: from a model with a proper prior, and data, to the posterior and the evidence."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from phalanx.adaptation.late_adjustment import LateAdjustment
from phalanx.density.finite_data import check_finite_data
from phalanx.density.given_names import Coords, Dims, GivenNames
from phalanx.density.labels import check_labels
from phalanx.density.target import Target
from phalanx.inputs.dataframe_input import UserData
from phalanx.kernels.nuts import nuts
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.language.tracing import Program
from phalanx.mesh.devices import axes_but_chain
from phalanx.mesh.interrupts import ended_by_interrupt
from phalanx.mesh.processes import to_host
from phalanx.particles.first_particles import check_prior
from phalanx.particles.pool import Pool
from phalanx.particles.programs import ParticleBlocks, Programs, compile_programs
from phalanx.particles.result import Particles
from phalanx.particles.stages import StageReport, Stages, TemperatureTuners
from phalanx.particles.verdict import judge_stages
from phalanx.posterior.communication import notice_of_gathers
from phalanx.posterior.record import RunRecord, Timing
from phalanx.programs.closure_key import draws_key
from phalanx.programs.traced_program import check_latents
from phalanx.reducers.reductions import Reductions
from phalanx.run import checks
from phalanx.run.arguments import check_arguments, check_whole
from phalanx.run.compile import executable_cache
from phalanx.run.describe import describe
from phalanx.run.device.blocks import BLOCK_BYTES, Blocks
from phalanx.run.device.tiles import Tiles
from phalanx.run.init_values import prior_of
from phalanx.run.options import kept_names
from phalanx.run.progress.display import make_progress, waiting
from phalanx.run.progress.watchdog import watched
from phalanx.run.traced_call import TracedCall

FEWEST_PARTICLES = 16
"""The fewest particles: the error of the evidence is a variance over their ancestors."""

MOST_SLOTS = 64
"""The most draws of a particle that one block records."""


@checks.data_in_one_dict
def smc(
    model: Program,
    data: UserData | None = None,
    *,
    kernel: Kernel | None = None,
    num_particles: int = 2048,
    num_moves: int | None = None,
    target_ess: float = 0.5,
    persistent: bool = False,
    seed: int = 0,
    mesh: Mesh | None = None,
    keep: str | Sequence[str] | None = None,
    dims: Dims | None = None,
    coords: Coords | None = None,
    matmul_precision: str = "float32",
    on_block: Callable[[StageReport], Any] | None = None,
    progress: bool = True,
) -> Particles:
    r"""Move particles from the prior to the posterior, and estimate the evidence on the way.

    Particles begin as draws from the prior. At rising temperatures $0 = \beta_0 < \dots < \beta_T = 1$ they are
    weighted for $p(\theta) \, p(y \mid \theta)^{\beta_t}$, resampled, and moved by a kernel that leaves that
    distribution invariant. The product of the mean weights estimates $p(y)$. In contrast to chains, particles find the
    mass of modes that no kernel moves between, if draws from the prior lead to them.

    The likelihood is everything but the densities of latent variables: observed variables and every `phx.factor`.

    Args:
        model: a program whose keyword arguments are the data. Every latent variable needs a proper prior, from which it
            can be drawn.
        data: the keyword arguments, as for `phx.mcmc`. Arrays placed with `phx.shard` keep their placement.
        kernel: the kernel, `phx.nuts()` by default; any that leaves its target invariant. It is tuned on the way from
            all particles together: a metric as a temperature begins, a step size after each round of moves.
        num_particles: particles in all, sharded evenly over the mesh's `chain` axis. The error of the evidence falls
            with the root of their number.
        num_moves: draws of the kernel for each particle at each temperature. None chooses: until the squared distance
            of particles from where they began stops changing, 200 at most.
        target_ess: effective particles after weighing, as a fraction of all, which determines the next temperature. A
            higher one leads to more temperatures and a smaller error.
        persistent: weigh the particles of all temperatures so far, not of the last alone. It takes fewer temperatures,
            and the memory of the host for all of them.
        seed: a whole number. The same seed gives the same particles: bit for bit on the same number of devices, up to
            rounding on others.
        mesh: the devices, from `phx.make_mesh`, by default as for `phx.mcmc`.
        keep: names of the variables to store, or one name. None means those that an attribute `keep` of the model names
            or else all latent variables and the deterministic values of at most 10,000 elements.
        dims: names of the axes of variables and data, as for `phx.mcmc`.
        coords: names of the entries along dimensions, as for `phx.mcmc`.
        matmul_precision: precision of matrix products: "float32", "tensorfloat32" or "bfloat16".
        on_block: a function called at each temperature with a report: temperature, effective particles, acceptance
            rate, evidence. An exception from it ends the run.
        progress: show progress.

    Returns:
        The particles: `posterior()`, `evidence()`, `verdict()`, `summary()`, and the course of the temperatures.

    Raises:
        TypeError: when data is not a dict or does not fit the model, or kernel is not a kernel.
        ValueError: when a prior cannot be drawn from, a latent variable is discrete, the model observes no data, sizes
            do not fit the mesh, or the likelihood is zero at all draws from the prior. The message names the variable
            or argument to change.
        KeyboardInterrupt: on Ctrl-C: before the last temperature there are no draws of the posterior.

    Example:
        >>> import numpy as np, numpyro.distributions as dist, phalanx as phx
        >>> def coin(heads):
        ...     p = phx.sample("p", dist.Uniform(0.0, 1.0))
        ...     phx.sample("heads", dist.Binomial(10, p), obs=heads)
        >>> particles = phx.smc(coin, {"heads": np.array(7.0)}, num_particles=1024, progress=False)
        >>> found = particles.evidence()  # exactly log(1 / 11)
        >>> bool(abs(found.log_evidence + np.log(11)) < 4 * found.error)
        True

    Source:
        Del Moral, Doucet, Jasra (2006), Sequential Monte Carlo samplers; Jasra, Stephens, Doucet, Tsagaris (2011),
        Inference for Lévy-driven stochastic volatility models via adaptive sequential Monte Carlo, for the
        temperatures; Karamanis, Seljak (2024), Persistent sampling.
    """
    began = time.perf_counter()
    start_time = datetime.now().isoformat(timespec="seconds")
    check_whole("num_particles", num_particles, FEWEST_PARTICLES)
    number = int(num_particles)
    kernel = nuts() if kernel is None else kernel
    _check_kernel(kernel)
    choices = {"target_ess": target_ess, "persistent": persistent, "num_moves": num_moves, "seed": seed, "keep": keep}
    check_arguments(**choices, mesh=mesh, matmul_precision=matmul_precision, on_block=on_block, progress=progress)
    call = TracedCall.of(
        "phx.smc",
        model,
        data,
        kernel=kernel,
        mesh=mesh,
        lanes=number,
        names=GivenNames.of(dims, coords),
        check_mesh=lambda mesh: checks.check_even("num_particles", number, "particles", mesh),
        options=lambda: {"num_particles": number, "matmul_precision": matmul_precision, **choices},
    )
    _check_model(call)
    stored_names, too_large = _variables_to_keep(keep, call)
    programs, target, compilations = _programs(call, kernel, number, stored_names, matmul_precision, bool(progress))
    compile_end = time.perf_counter()
    arrays = target.place_arrays()
    record = _record(call, target, kernel.on(target), number, matmul_precision, int(seed), start_time)
    moves = None if num_moves is None else int(num_moves)
    tuners = TemperatureTuners(kernel.on(target))
    with watched(make_progress(bool(progress))) as display:
        for sentence in filter(None, [*call.notices, *too_large, notice_of_gathers(target, record.communication)]):
            display.say(sentence)
        callbacks = [display.show, *([] if on_block is None else [on_block])]
        stages = Stages(programs, tuners, Pool(persistent), int(seed), arrays, moves, float(target_ess), callbacks)
        with ended_by_interrupt(stages.interrupted), stages.interrupts.held():
            stages.begin()
            stages.run()
    timing = Timing(
        compile=compile_end - began,
        sampling=time.perf_counter() - compile_end,
        compilations=compilations,
        gradient_evaluations=stages.evaluations if kernel.machine.uses_gradient else 0,
    )
    return _result(stages, record, timing, target.with_arrays(arrays))


def _check_model(call: TracedCall) -> None:
    """Raise unless every latent variable can be drawn from a prior, and the model observes data."""
    check_latents(call.model, call.whole)
    check_prior(call.whole)
    check_labels(call.whole, call.arguments)


def _record(
    call: TracedCall,
    target: Target,
    kernel: Kernel,
    num_particles: int,
    matmul_precision: str,
    seed: int,
    start_time: str,
) -> RunRecord:
    """Return the record of a run, at its beginning."""
    return replace(
        describe(target, kernel, 1, matmul_precision),
        num_samples=num_particles,
        seed=seed,
        started=start_time,
        init="draws from the prior",
        independent=True,
        **call.names,
    )


def _check_kernel(kernel: Kernel) -> None:
    """Raise unless `kernel` is a kernel that leaves its target invariant."""
    check_arguments(kernel=kernel)
    if kernel.centring is not None:
        raise ValueError(
            f"kernel: {kernel.name} learns a centring in a warm-up, and phx.smc has none. Leave out centring=: "
            f"particles come from the prior, and the kernel moves each for a few draws only."
        )
    if any(isinstance(tuner, LateAdjustment) for tuner in kernel.tuners):
        raise ValueError(
            f"kernel: {kernel.name} makes exact draws only once a warm-up has ended, and phx.smc has none. Use "
            f"phx.mams(), whose draws are the same."
        )
    if kernel.batch_size is not None or kernel.bias is not None:
        raise ValueError(
            f"kernel: {kernel.name} does not leave its target invariant, and the weights of particles, and so the "
            f"evidence, would be wrong. Use phx.nuts(), phx.hmc() or another kernel of all rows."
        )


def _variables_to_keep(keep: str | Sequence[str] | None, call: TracedCall) -> tuple[tuple[str, ...], list[str]]:
    """Return the variables to keep, and a sentence for each deterministic value that is too large."""
    names = kept_names(keep, call.model)
    if names is not None:
        return names, []
    return checks.stored_by_default([latent.name for latent in call.whole.latents()], call.whole.deterministic)


def _programs(
    call: TracedCall, kernel: Kernel, number: int, stored_names: tuple[str, ...], matmul_precision: str, progress: bool
) -> tuple[Programs, Target, int]:
    """Return the compiled programs, of this call or an earlier one, the target, and the number compiled now."""
    whole = call.whole
    arguments = call.arguments
    mesh = call.mesh
    key = executable_cache.key_of(
        whole,
        kernel,
        Reductions(()),
        mesh,
        arguments,
        "particles",
        number,
        stored_names,
        matmul_precision,
        draws_key(whole),
    )
    executables = executable_cache.EXECUTABLES.look_up(key)
    if executables is not None:
        return executables, executables.blocks.target.of_program(whole.program).with_arguments(arguments), 0
    check_finite_data(whole.program, arguments, axes_but_chain(mesh), gradient=kernel.machine.uses_gradient)
    target = Target.of(whole.program, arguments, mesh, whole)
    checks.check_kernel(kernel, target)
    names = checks.check_names(stored_names, target)
    jax.eval_shape(prior_of(target), jax.random.split(jax.random.key(0), number), arguments.arrays)  # may refuse
    with waiting(progress, "compiling"):
        one = Blocks(target.without_arrays(), kernel.on(target), number, names, slots=1)
        checks.check_coordinates(kernel, sum(one.layout.whole_lengths))
        width = 4 * number * sum(one.row_layout.widths)
        blocks = replace(one, slots=max(1, min(MOST_SLOTS, BLOCK_BYTES // width)))
        programs = compile_programs(
            ParticleBlocks(blocks, Tiles.of(blocks, stores_draws=True).record),
            target.place_arrays(),
            matmul_precision,
            key if executable_cache.is_ours(kernel) else None,
        )
    executable_cache.EXECUTABLES.keep(key, programs)
    return programs, target, programs.count


def _result(stages: Stages, record: RunRecord, timing: Timing, target: Target) -> Particles:
    judgement = judge_stages(stages)
    programs = stages.programs
    values = programs.values(stages.at(1.0), programs.placed(stages.positions[-1]))
    draws = {name: target.trim(name, to_host(value), leading=1) for name, value in values.items()}
    record = replace(
        record, findings=(*record.findings, *judgement.findings), passed=(*record.passed, *judgement.passed)
    )
    course = {name: np.array(values) for name, values in stages.record.items()}
    stats = {"log_density": np.asarray(stages.log_density)}
    return Particles(draws, course, judgement.error, record, timing, stats, target)
