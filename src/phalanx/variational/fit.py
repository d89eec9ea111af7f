"""`fit`: learn the parameters of a guide, and of a model, from data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from os import PathLike
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from phalanx.density.given_names import Coords, Dims
from phalanx.inputs.dataframe_input import UserData
from phalanx.language.tracing import Program
from phalanx.learning.loop import Stop
from phalanx.posterior.record import Timing
from phalanx.run.checks import data_in_one_dict
from phalanx.run.progress.report import Report
from phalanx.run.until import Until
from phalanx.store.policy import SavePolicy
from phalanx.variational.compiled_fit import CompiledFit
from phalanx.variational.guides.guide import Guide
from phalanx.variational.monitoring.options import Training
from phalanx.variational.monitoring.recording import record_of
from phalanx.variational.objective import Objective, elbo
from phalanx.variational.options import FitOptions
from phalanx.variational.result import Fit, FitOutcome
from phalanx.variational.start import Init
from phalanx.variational.traced_fit import TracedFit


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
    options = FitOptions(
        optimizer,
        num_steps,
        num_particles,
        batch_size,
        num_rows,
        elbo() if objective is None else objective,
        mesh,
        seed,
        until,
        init,
        average,
        training,
        checkpoint,
        dims,
        coords,
        matmul_precision,
        missing,
        on_block,
        progress,
    ).checked(guide)
    if each is not None:
        from phalanx.variational.each.fit_each import fit_each

        fits: Any = fit_each(model, guide, data, each, options)
        return fits
    return _learn(TracedFit.of(model, guide, data, options), options, began)


def _learn(traced_fit: TracedFit, options: FitOptions, began: float) -> Fit:
    """Compile, learn, and return the fit of a call that began at a time.

    Raises:
        FitError: when the loss is no longer finite.
    """
    compiled = CompiledFit.of(traced_fit, options)
    learning = time.perf_counter()
    start_time = datetime.now().isoformat(timespec="seconds")
    outcome, fit_error = compiled.learn()
    timing = Timing(
        compile=learning - began,
        warmup=0.0,
        sampling=time.perf_counter() - learning,
        gradient_evaluations=outcome.gradients,
        compilations=compiled.compiler.count,
    )
    result = _result(traced_fit, compiled, outcome, timing, start_time)
    if fit_error is not None:
        fit_error.fit = result
        raise fit_error
    return result


def _result(traced_fit: TracedFit, compiled: CompiledFit, outcome: FitOutcome, timing: Timing, start_time: str) -> Fit:
    """Return the fit, with the values of the learned parameters."""
    pair = traced_fit.pair
    options = compiled.options
    is_interrupted = compiled.loop.stopped is Stop.INTERRUPTED
    record = record_of(
        pair,
        options.objective,
        options.num_steps,
        options.seed,
        start_time,
        is_interrupted,
        traced_fit.names,
        options.matmul_precision,
    )

    def values(free: Any) -> Any:
        return jax.tree.map(np.asarray, compiled.values(free))

    params = values(outcome.free)
    last = None if outcome.last is None else values(outcome.last)
    if options.num_steps == 0 and isinstance(options.init, Fit):
        last = options.init.last
    return Fit(
        params={name: params[name] for name in pair.learned.parameters},
        losses=outcome.losses,
        timing=timing,
        record=record,
        unsettled=outcome.unsettled,
        steps=outcome.steps,
        seen=outcome.seen,
        looks=tuple(outcome.looks),
        failed=outcome.failed,
        free=outcome.free,
        pair=pair,
        arrays=compiled.arrays,
        last=last,
    )
