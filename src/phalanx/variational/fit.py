"""`fit`: learn the parameters of a guide, and of a model, from data."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from os import PathLike
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from phalanx.density.given_names import Coords, Dims
from phalanx.density.imputation import impute
from phalanx.extras import require
from phalanx.inputs.arguments import check_outcome_named, columns_left_out, left_out_in_words
from phalanx.inputs.dataframe_input import UserData, columns_of
from phalanx.language.tracing import Program
from phalanx.learning.compiled import Compiler
from phalanx.learning.loop import Loop, Stop
from phalanx.posterior.record import Timing
from phalanx.run.arguments import check_arguments
from phalanx.run.checks import check_not_traced, data_in_one_dict
from phalanx.run.describe import source_of
from phalanx.run.progress.display import make_progress, waiting
from phalanx.run.progress.report import Report
from phalanx.run.progress.watchdog import watched
from phalanx.run.until import Until
from phalanx.store.policy import SavePolicy
from phalanx.variational import checks
from phalanx.variational.beginning import FirstParameters, Init, pair_of
from phalanx.variational.data_checks import DataChecks
from phalanx.variational.guides.coordinates import size_of
from phalanx.variational.guides.guide import Guide
from phalanx.variational.guides.pair import Pair, alignment_of, for_steps
from phalanx.variational.methods.fixed_draws import FixedDraws
from phalanx.variational.methods.growing import Growing
from phalanx.variational.methods.matching import FIRST_MATCHES, match_scores
from phalanx.variational.methods.method import FitError, FitMethod, Solved
from phalanx.variational.methods.settling import Settling
from phalanx.variational.methods.step import FitState, Steps
from phalanx.variational.methods.stochastic import Stochastic
from phalanx.variational.monitoring.options import Training
from phalanx.variational.monitoring.recording import names_for, record_of
from phalanx.variational.monitoring.stream import Stream, on_host, rows_of, stream_of
from phalanx.variational.objective import Objective, elbo
from phalanx.variational.result import Fit
from phalanx.variational.unbounded import check_bounded

RATE = 0.05
"""Rate of the default optimiser, Adam."""

UNTOUCHED = "The fit made no steps and did not check whether the parameters still change."
"""Why a fit without steps is not settled."""

LONGEST, USUAL = 10.0, 1.0
"""The longest gradient in units of a guide's widths, in nats: in all, and for each coordinate, whose squares add up."""


@data_in_one_dict
def fit(
    model: Program,
    guide: Guide | Callable[..., Any] | None,
    data: UserData | Iterable[Mapping[str, Any]] | None = None,
    *,
    optimizer: Any = None,
    num_steps: int = 20_000,
    num_particles: int = 8,
    batch_size: int | None = None,
    num_rows: int | None = None,
    objective: Objective | None = None,
    mesh: Mesh | None = None,
    seed: int = 0,
    until: Until | bool | None = None,
    init: Init | None = None,
    average: bool | None = None,
    training: Training | None = None,
    checkpoint: SavePolicy | str | PathLike[str] | None = None,
    dims: Dims | None = None,
    coords: Coords | None = None,
    matmul_precision: str = "float32",
    missing: str | None = None,
    each: str | Mapping[str, int] | None = None,
    on_block: Callable[[Report], Any] | None = None,
    progress: bool = True,
) -> Fit:
    r"""Learn the parameters of a guide, and of the model, so that the guide comes close to the posterior.

    The fit maximises a lower bound of the evidence, $E_q[\log p(x, z) - \log q(z)]$; see `phx.guides.elbo`. With
    `guide=None`, for a model without latent variables, it maximises the log likelihood.

    Args:
        model: a program whose keyword arguments are the data. Its own parameters (`phx.param`) are learned too.
        guide: a program with the model's latent variables, by name, that takes some of the model's arguments or none;
            or one made from the model, such as `phx.guides.mean_field()`. None learns the model's parameters by
            maximum likelihood, if all its variables are observed: all `num_steps` are made, without particles.
        data: the keyword arguments, as for `phx.mcmc`. Arrays placed with `phx.shard` keep their placement. For data
            that do not fit in memory: batches of rows in random order, an iterable of dicts with the same arrays, one
            for each step. `num_rows=` is the number of rows they represent; `phx.batches` know it. A list or a loader
            begins anew at its end, an iterator ends the fit; batches of fewer rows than the first are left out.
        optimizer: one of optax's; or a rate for the default one, Adam at 0.05. The default lowers its rate as the fit
            settles, for a flow also along a cosine; another rate does not recompile. Or "lbfgs", a quasi-Newton method:
            it needs a bound without noise, so it holds draws, and doubles them until fresh draws show no better guide
            (sample average approximation). It has no rate, and takes far fewer gradients if the guide has few
            parameters for each coordinate, as `phx.guides.mean_field()`; expressive guides need too many draws. Or
            "batch-and-match", for `phx.guides.full_rank()`, also without a rate: each step solves for the normal whose
            scores are those of the posterior at its draws, at the cost of a matrix's eigenvalues.
        num_steps: the most steps. With 0 the parameters are those of `init=`, for instance to draw from a fit that was
            read from a file.
        num_particles: draws from the guide per step, sharded over the mesh's `chain` axis; those of `mean_field` come
            in pairs. With "lbfgs", any number of draws that are evaluated at once.
        batch_size: rows in each step, drawn with replacement, on each device from its own rows. Rows are those of the
            sharded arrays or, if no array is sharded, of all arrays with the largest leading dimension. Terms of rows
            are weighted to represent all rows; the bound's error is then not reported.
        num_rows: rows of all batches together, if data come in batches. Results that need all rows, such as the
            evidence, are then refused, and draws that depend on rows use those of the first batch.
        objective: the function that the fit minimises, by default `phx.guides.elbo()`, the negative bound.
        mesh: the devices, from `phx.make_mesh`; by default those the data were placed on, or one.
        seed: a whole number; the same seed gives the same fit on any number of devices, except for rounding (which the
            climbs of `phx.guides.pathfinder` amplify).
        until: None stops when the guide no longer changes, at a rate and at half of it; `phx.until(seconds=...)` also
            when time is over; False makes all steps at one rate or, with "lbfgs", keeps to `num_particles` draws.
        init: initial values: a dict by parameter or, for a guide made from the model, by variable; a fit to continue
            from its last step, with an optimiser that begins anew; or a posterior, about whose means the guide begins.
            Data of `phx.batches` continue with the batch that follows the fit's last.
        average: whether the parameters are averages over the last steps, which have less noise than the last step.
            None averages those of a guide, and returns the last step of a fit without one.
        training: from `phx.training(...)`: held-out rows and a log of a long fit.
        checkpoint: a folder, or `phx.checkpoint(folder, ...)` to choose when to save and what to keep. The fit is saved
            there every ten seconds or less often where saving takes longer than a fiftieth of the time, at its end,
            after Ctrl-C, and at SIGTERM, which ends the process with status 143. The same call continues, also on
            another mesh: losses and parameters are those of a fit that was never interrupted, bit for bit on the same
            devices. Data that come in batches must be `phx.batches`. Another model, guide, objective, optimiser, seed,
            batch size, order, data or, without `training=`, number of steps is refused; the message names what differs.
        dims: names of the axes of variables and data, as for `phx.mcmc`.
        coords: names of the entries along dimensions, as for `phx.mcmc`.
        matmul_precision: precision of matrix products: "float32", "tensorfloat32" or "bfloat16".
        missing: "impute" makes the missing entries of observed variables latent, as for `phx.mcmc`; a guide of your own
            needs the variable `y_missing`, too. Not for data in batches.
        each: the column with the name of each row's data set, or the axes of arguments along which there is an entry
            for each data set, as in `{"y": 0}`: fits of many data sets at once, see docs/many-data-sets.md.
        on_block: a function called after each block of steps with a report: steps done and in total, the bound and its
            error. An exception from it ends the fit.
        progress: whether to show the progress of the fit.

    Returns:
        The fit; with `each=`, `phx.Fits`. Its parameters are averages over the last steps, or those of the last step
        without a guide (see `average`); with `training=` those of the best evaluation, or the last if no rows are held
        out. Ctrl-C returns what was learned so far.

    Raises:
        TypeError: when data do not fit the model, or the optimiser, the objective or the guide has another type.
        ValueError: when the guide does not match the model; the message names the variable, parameter or argument.
        FitError: when the loss is no longer finite; a ValueError, whose `fit` is the fit before that.

    Example:
        >>> import numpy as np, numpyro.distributions as dist, phalanx as phx
        >>> def model(y):
        ...     mean = phx.sample("mean", dist.Normal(0.0, 10.0))
        ...     phx.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> fit = phx.fit(model, phx.guides.full_rank(), {"y": np.array([1.0, 2.0, 3.0])}, progress=False)
        >>> fit.posterior(1000).draws["mean"].shape
        (1, 1000)

    Source:
        Kucukelbir, Tran, Ranganath, Gelman, Blei (2017), Automatic differentiation variational inference; Tran,
        Hoffman, Moore, Suter, Vasudevan, Radul (2018), Simple, distributed, and accelerated probabilistic programming.
        For fixed draws: Giordano, Ingram, Broderick (2024), Black box variational inference with a deterministic
        objective; Burroni, Takatsu, Domke, Sheldon (2024), Sample average approximation for black-box variational
        inference. For matched scores: Cai, Modi, Pillaud-Vivien, Margossian, Gower, Blei, Saul (2024), Batch and match.
    """
    began = time.perf_counter()
    checks.check_no_guide(guide, objective, optimizer)
    policy = checks.check_saves(checkpoint, training)
    checks.check_training(training, optimizer, num_steps, policy is not None)
    checks.check_average(average, optimizer, training, num_steps)
    objective, optimizer = elbo() if objective is None else objective, checks.number_of(optimizer)
    num_particles = 1 if guide is None else num_particles
    stops = guide is not None and training is None and until is not False
    averages = (guide is not None if average is None else average) and training is None
    check_arguments(
        seed=seed, num_steps=num_steps, num_particles=num_particles, on_block=on_block, progress=progress,
        missing=missing, matmul_precision=matmul_precision, mesh=mesh,
    )  # fmt: skip
    checks.check_optimizer(optimizer)
    checks.check_objective(objective)
    checks.check_until(until)
    if each is not None:
        from phalanx.variational.each.fit_each import FitOptions, fit_each

        options = FitOptions(
            objective, int(num_steps), int(num_particles), int(seed), until, stops, averages, init, dims, coords,
            matmul_precision, on_block, progress,
        )  # fmt: skip
        fits: Any = fit_each(
            model, guide, data, each, mesh, optimizer, options,
            lambda pair, shapes: steps_of(pair, objective, optimizer, num_particles, num_steps, shapes),
            {
                "training": training, "checkpoint": checkpoint, "batch_size": batch_size, "num_rows": num_rows,
                "missing": missing,
            },
        )  # fmt: skip
        return fits
    is_whole = data is None or isinstance(data, Mapping) or columns_of(data) is not None
    left_out = columns_left_out(model, data) if is_whole else []
    said = tuple(filter(None, [left_out_in_words(left_out)]))
    if missing is not None:
        if not is_whole:
            raise ValueError("missing: entries of data that come in batches cannot be imputed; give all rows at once.")
        model, data, imputed = impute(model, data, mesh)
        said += imputed
    num_rows = rows_of(data, num_rows)
    stream = stream_of(data, num_rows, batch_size)
    data = data if stream is None else stream.first
    pair = pair_of(model, guide, data, mesh, batch_size, num_rows, init)
    if left_out and not pair.problem.whole.observes:
        check_outcome_named(model, left_out)
    check_not_traced(data)
    pair.problem.check_same(
        "phx.fit", guide=pair.guide.name, **{"the text of the guide": source_of(guide)}, num_steps=num_steps,
        num_particles=num_particles, batch_size=batch_size, num_rows=num_rows, seed=seed,
        optimizer=optimizer if isinstance(optimizer, str | float | None) else type(optimizer).__name__, until=until,
        checkpoint=policy, matmul_precision=matmul_precision,
    )  # fmt: skip
    checks.check_particles(num_particles, pair)
    checks.check_steps_to_save(policy, pair)
    checks.check_learned(pair.learned, pair.guide.name)
    names = names_for(pair.problem, dims, coords)
    if num_steps:
        check_bounded(pair)
    checks.check_estimator(objective, alignment_of(pair).scored, num_particles)
    checks.check_fixed(optimizer, objective, pair)
    checks.check_matching(optimizer, objective, pair)
    compiler = Compiler(matmul_precision, pair.problem.mesh)
    data_checks = DataChecks(pair, compiler)
    unseen = data_checks.unseen(pair.problem.arguments)
    pair.problem.check_function()
    pair.problem.check_finite()
    arrays = pair.problem.place_arrays() if stream is None else stream.begin(pair.problem, data_checks)
    with waiting(progress, "compiling"):
        checked = arrays if stream is None else on_host(pair.problem.arguments)
        first = FirstParameters.of(pair, compiler, int(seed), arrays, init, continues=num_steps > 0)
        checks.check_found(pair, first.given, num_steps)
        data_checks.begin(checked, once=stream is None)
        begun = pair, first.shapes, np.uint32(seed), arrays, int(num_steps), stops, averages, compiler
        method = _method(objective, optimizer, int(num_particles), stream, training, policy, init, *begun)
        values = first.values_from(compiler)
        data_checks.check(pair.problem.arguments, checked)
        loop = Loop(method, method.init(first.as_given() if num_steps == 0 else first()))
        loop.saves = method.saves if isinstance(method, Stochastic) else None
    compiled, started = time.perf_counter(), datetime.now().isoformat(timespec="seconds")
    failed: FitError | None = None
    with watched(make_progress(progress)) as display:
        for sentence in (*said, *unseen):
            display.say(sentence)
        seconds = until.seconds if isinstance(until, Until) else None
        try:
            # a deque exhausts the loop without Python code between two blocks, where Ctrl-C would escape the loop
            deque(loop.blocks(display, [] if on_block is None else [on_block], seconds), maxlen=0)
        except FitError as error:
            failed, loop.stopped = error, None
    learned = method.outcome(loop.state, loop.stopped)
    learned = learned if failed is None or failed.free is None else learned._replace(free=failed.free, last=None)
    timing = Timing(
        compile=compiled - began, warmup=0.0, sampling=time.perf_counter() - compiled,
        gradient_evaluations=learned.gradients, compilations=compiler.count,
    )  # fmt: skip
    interrupted = loop.stopped is Stop.INTERRUPTED
    record = record_of(pair, objective, num_steps, int(seed), started, interrupted, names)
    params = jax.tree.map(np.asarray, values(learned.free))
    last = None if learned.last is None else jax.tree.map(np.asarray, values(learned.last))
    last = init.last if num_steps == 0 and isinstance(init, Fit) else last
    result = Fit(
        params={name: params[name] for name in pair.learned.parameters}, losses=learned.losses, timing=timing,
        record=replace(record, matmul_precision=matmul_precision), unsettled=learned.unsettled, steps=learned.steps,
        seen=learned.seen, looks=tuple(learned.looks), failed=learned.failed, free=learned.free, pair=pair,
        arrays=arrays, last=last,
    )  # fmt: skip
    if failed is not None:
        failed.fit = result
        raise failed
    return result


def _is_default(optimizer: object) -> bool:
    return optimizer is None or isinstance(optimizer, float)


def _method(
    objective: Objective, optimizer: Any, num_particles: int, stream: Stream | None, training: Training | None,
    policy: SavePolicy | None, init: Init | None, pair: Pair, shapes: dict[str, Any], seed: np.uint32,
    arrays: tuple[Array, ...], num_steps: int, stops: bool, averages: bool, compiler: Compiler,
) -> FitMethod[Any]:  # fmt: skip
    """Return the method: steps, each with fresh draws, climbs with fixed draws, or no steps."""
    seen = init.seen if isinstance(init, Fit) else 0
    if num_steps == 0:
        return Solved(seen, UNTOUCHED)
    if pair.guide.traits.is_solved:
        return Solved()
    if isinstance(optimizer, str) and optimizer == checks.LBFGS:
        return Growing(FixedDraws.of(pair, num_particles), seed, arrays, num_steps, stops, compiler)
    if isinstance(optimizer, str) and optimizer == checks.BATCH_AND_MATCH:
        matching = Steps(pair, objective, None, num_particles, match_scores)
        begins, settling = partial(FitState.of, optimizer=()), Settling.begin(num_steps, stops, FIRST_MATCHES)
        return Stochastic(matching, begins, shapes, seed, arrays, 1.0, settling, compiler, averages=averages)
    steps, rate, falls = steps_of(for_steps(pair), objective, optimizer, num_particles, num_steps, shapes)
    return Stochastic(
        steps, partial(steps.begin, averages=averages or stops), shapes, seed, arrays, rate,
        Settling.begin(num_steps, stops), compiler, stream, falls, training, policy, first_batch=seen,
        averages=averages,
    )  # fmt: skip


def steps_of(
    pair: Pair, objective: Objective, optimizer: Any, num_particles: int, num_steps: int, shapes: dict[str, Any]
) -> tuple[Steps, float, bool]:
    """Return the steps of an optimiser of optax, the factor on its changes, and whether its rate falls to zero."""
    falls, longest = _is_default(optimizer) and pair.guide.traits.rate_falls, None
    if _is_default(optimizer) and pair.guide.traits.by_widths:
        longest = max(LONGEST, USUAL * math.sqrt(size_of(pair.problem.latents)))
    if not _is_default(optimizer):
        checks.check_update(optimizer, shapes)
    rate, transform = _optimizer_of(optimizer, longest, num_steps if falls else None)
    return Steps(pair, objective, transform, num_particles), rate, falls


def _optimizer_of(optimizer: Any, longest: float | None, falls_for: int | None) -> tuple[float, Any]:
    """Return a factor on changes, and an optimiser of optax; another rate of the default one does not recompile.

    Gradients in units of a guide's widths are cut to the `longest`: if a guide begins too wide, one draw may have a
    gradient of thousands of nats, whose square Adam forgets in thousands of steps, and hardly moves meanwhile.

    The rate of a flow falls for `falls_for` steps. Each of its many weights moves at random by about the rate: in a
    funnel of 100 dimensions that costs tenths of a nat, and a thousandth at the end of a cosine.
    """
    optax = require("optax")
    if _is_default(optimizer):
        default = optax.scale_by_adam()
        if longest is not None:
            default = optax.chain(optax.clip_by_global_norm(longest), default)
        if falls_for is not None:
            falling = optax.scale_by_schedule(optax.cosine_decay_schedule(1.0, falls_for))
            default = optax.chain(default, falling)
        return -float(RATE if optimizer is None else optimizer), default
    return 1.0, optax.with_extra_args_support(optimizer)
