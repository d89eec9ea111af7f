"""Posterior of a fit: draws from its guide are stored, or reduced, batch by batch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from phalanx.density.site_shardings import WrongAxis
from phalanx.density.target import Target
from phalanx.diagnostics import Finding, Verdict
from phalanx.errors.names import hint
from phalanx.language.handlers import substitute
from phalanx.learning.compiled import Compiled, Compiler
from phalanx.mesh.specs import PyTree
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import RunRecord, Timing
from phalanx.reducers.reducer import Reduce, Reducer
from phalanx.reducers.reductions import Reductions
from phalanx.run.checks import stored_by_default
from phalanx.run.device.state_layout import ArrayPlacement
from phalanx.run.host.reducer_state import HostReducers, findings
from phalanx.run.state import Reduced
from phalanx.variational.drawing import Drawing
from phalanx.variational.judging.resampling import Resampled
from phalanx.variational.problem import Problem


def posterior_of(
    drawing: Drawing | Resampled,
    record: RunRecord,
    timing: Timing,
    params: Mapping[str, Any],
    keep: str | Sequence[str] | None,
    reducers: Mapping[str, Reducer | Reduce],
    verdict: Verdict,
) -> Posterior:
    """Draw from a guide, and return the posterior of the draws, one chain. The record has their number and seed.

    Args:
        drawing: the draws.
        record: record of the fit, with the number of draws and their seed.
        timing: timing of the fit.
        params: learned parameters.
        keep: names of variables to store, or one name; see `Fit.posterior`.
        reducers: reducers by name.
        verdict: verdict on the fit, whose findings come first in the posterior's.
    """
    began = time.perf_counter()
    problem = drawing.pair.problem
    latents = list(record.latents)
    available = list(problem.whole.values)
    if keep is None:  # of streamed data, deterministic values may have the rows of the first batch alone
        keep, _ = stored_by_default(latents, {} if problem.is_streamed else problem.whole.deterministic)
    names = [keep] if isinstance(keep, str) else list(keep)
    if unknown := [name for name in names if name not in available]:
        raise ValueError(
            f"keep: the model has no variable {', '.join(map(repr, unknown))}; it has "
            f"{', '.join(map(repr, available))}."
            f"{hint(unknown, available)}"
        )
    reduction = DrawReduction(drawing.compiler, Reductions.of(reducers, names or latents)) if reducers else None
    draws_by_name: dict[str, list[np.ndarray]] = {name: [] for name in names}
    stats: dict[str, list[np.ndarray]] = {"log_density": [], "log_weight": []}
    for batch, size in drawing.batches(record.seed, record.num_samples):
        for name in names:
            draws_by_name[name].append(np.asarray(batch.values[name])[:size])
        if reduction is not None:
            reduction.add(batch.values, size)
        if problem.is_streamed:  # a density on the rows of one batch is not that of the data
            continue
        log_p, log_q = (np.asarray(part)[:size] for part in (batch.log_p, batch.log_q))
        stats["log_density"].append(log_p)
        stats["log_weight"].append(np.zeros_like(log_p) if drawing.resampled else log_p - log_q)
    results, findings_of_reducers = ({}, ()) if reduction is None else reduction.finalize()
    of_fit = [finding._replace(topic=f"fit: {finding.topic}") for finding in verdict.findings]
    seconds = time.perf_counter() - began
    return Posterior(
        {name: np.concatenate(parts)[None] for name, parts in draws_by_name.items()},
        {name: np.concatenate(parts)[None] for name, parts in stats.items() if parts},
        Timing(timing.compile, timing.sampling, seconds, timing.gradient_evaluations),
        replace(record, findings=(*of_fit, *findings_of_reducers), passed=verdict.passed),
        results,
        target=None if problem.is_streamed else target_of(problem, params),
    )


def target_of(problem: Problem, params: Mapping[str, Any]) -> Target | None:
    """Return the model at the learned parameters, with its data; None if data are sharded over the axis of chains."""
    if problem.parameters:
        values = {name: params[name] for name in problem.parameters}
        problem = replace(problem, program=substitute(problem.program, values))
    try:
        return Target.of(problem.program, problem.arguments, problem.mesh, problem.whole)
    except WrongAxis:
        return None


class DrawReduction:
    """Reducers of draws in batches: a state for each batch on the devices, merged on the host."""

    def __init__(self, compiler: Compiler, reductions: Reductions):
        reductions.check_superchains(0)
        self._reductions = reductions
        self._compiler = compiler
        self._compiled: Compiled | None = None
        self._host: HostReducers | None = None
        self._reduced = Reduced()
        self._before = 0

    def add(self, values: Mapping[str, Array], size: int) -> None:
        """Accumulate the first `size` draws of a batch."""
        arguments = dict(values), np.int32(size), np.full(1, self._before, np.int32)
        self._compiled = self._compiled or self._compiler(self._accumulate, *arguments)
        states = self._compiled(*arguments)
        self._host = self._host or HostReducers(self._reductions, jax.tree.map(lambda _: ArrayPlacement(), states))
        self._reduced, self._before = self._host.with_states(self._reduced, states), self._before + size

    def finalize(self) -> tuple[dict[str, Any], tuple[Finding, ...]]:
        """Return results by reducer, and by variable if a reducer has several; and findings on failed reducers."""
        assert self._host is not None  # a posterior has draws
        results = self._host.finalize(self._reduced)
        return results, findings(results, 0)

    def _accumulate(self, values: Mapping[str, Array], size: Array, before: Array) -> PyTree:
        count = len(next(iter(values.values())))

        def one(states: PyTree, numbered_draw: tuple[dict[str, Array], Array]) -> tuple[PyTree, None]:
            draw, number = numbered_draw
            chain = {name: value[None] for name, value in draw.items()}  # one chain
            return self._reductions.update(states, chain, (number < size)[None]), None

        example = {name: value[:1] for name, value in values.items()}
        states = self._reductions.init(example, before)
        return lax.scan(one, states, (dict(values), jnp.arange(count)))[0]
