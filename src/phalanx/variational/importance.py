"""Importance sampling: draws of a proposal, chosen by their weights under the model."""

from __future__ import annotations

import time
from datetime import datetime

import jax
import numpy as np
from jax.sharding import Mesh

from phalanx.inputs.arguments import check_program
from phalanx.inputs.dataframe_input import UserData
from phalanx.language.tracing import Program
from phalanx.learning.compiled import Compiler
from phalanx.mesh.random_numbers import check_seed
from phalanx.posterior.record import Timing
from phalanx.run.checks import data_in_one_dict
from phalanx.variational.data_checks import DataChecks
from phalanx.variational.guides.guide import Guide
from phalanx.variational.methods.step import Losses
from phalanx.variational.monitoring.recording import names_for, record_of
from phalanx.variational.objective import elbo
from phalanx.variational.result import Fit
from phalanx.variational.start import FirstParameters, Init, pair_of


@data_in_one_dict
def importance(
    model: Program,
    proposal: Guide | Program,
    data: UserData | None = None,
    *,
    init: Init | None = None,
    mesh: Mesh | None = None,
    seed: int = 0,
) -> Fit:
    r"""Weight the draws of a proposal program by the model; no parameters are learned.

    Draws $z_s \sim q(z)$ have weights $w_s = p(x, z_s) / q(z_s)$; their mean estimates the evidence, and draws chosen
    in proportion to them are draws of the posterior. If the proposal has lighter tails than the posterior, a few draws
    have all the weight; the verdict reports that.

    Args:
        model: a program whose keyword arguments are the data.
        proposal: a program with the model's latent variables, by name; it takes some of the model's arguments, or none.
        data: the keyword arguments.
        init: values of the proposal's parameters (`phx.param`): a dict, or a fit that has learned them.
        mesh: the devices; by default those the data were placed on, or one.
        seed: a whole number.

    Returns:
        A fit of no steps: `.evidence()`, `.posterior(n)` of draws chosen by their smoothed weights, `.verdict()`.

    Raises:
        ValueError: when a latent variable differs in name, shape or support in the proposal; the message names it.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> def model(y):
        ...     phx.sample("y", dist.Normal(phx.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=y)
        >>> proposal = lambda: phx.sample("mean", dist.StudentT(4.0, 0.0, 1.0))
        >>> weighted = phx.importance(model, proposal, {"y": 2.0})
        >>> round(weighted.evidence().log_evidence, 1)  # -log(2 pi 2) / 2 - 1
        -2.3
        >>> weighted.posterior(1000).draws["mean"].shape
        (1, 1000)

    Source:
        Vehtari, Simpson, Gelman, Yao, Gabry (2024), Pareto smoothed importance sampling.
    """
    check_seed(seed)
    if proposal is None:
        raise TypeError("importance: proposal must be a program with the model's latent variables; got None.")
    if not isinstance(proposal, Guide):
        check_program(proposal, "importance: proposal")
    began = time.perf_counter()
    start_time = datetime.now().isoformat(timespec="seconds")
    pair = pair_of(model, proposal, data, mesh, None, None, init)
    pair.problem.check_same("phx.importance", proposal=pair.guide.name, seed=seed)
    compiler = Compiler()
    arrays = pair.problem.place_arrays()
    learned_params = pair.learned  # traces both programs first: errors in a program come before errors in values
    pair.problem.check_function()
    pair.problem.check_finite()
    DataChecks(pair, compiler).check_now(pair.problem.arguments)
    free = FirstParameters.of(pair, compiler, int(seed), arrays, init)()
    empty = np.zeros(0, np.float32)
    return Fit(
        params=jax.tree.map(np.asarray, dict(learned_params.constrain(free))),
        losses=Losses(empty, empty),
        timing=Timing(compile=time.perf_counter() - began, compilations=compiler.count),
        record=record_of(pair, elbo(), 0, int(seed), start_time, False, names_for(pair.problem)),
        free=free,
        pair=pair,
        arrays=arrays,
        is_proposal=True,
    )
