"""Where draws from a guide go: they are stored, or folded by reducers, batch by batch, and become a posterior."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from phalanx.density.target import Target
from phalanx.diagnostics import Finding, Verdict
from phalanx.errors.names import hint
from phalanx.language.handlers import substitute
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import Timing
from phalanx.run.checks import stored_by_default
from phalanx.run.device.reductions import Reductions
from phalanx.run.device.state_layout import ArrayPlacement
from phalanx.run.host.reducer_state import HostReducers, findings
from phalanx.run.state import Reduced
from phalanx.variational.drawing import Drawing
from phalanx.variational.fitted import Fitted
from phalanx.variational.judging.resampling import Resampled


def posterior_of(fit: Fitted, n: int, seed: int, keep: Any, reducers: Mapping[str, Any], verdict: Verdict) -> Posterior:
    """`n` draws from a fit's guide, as one chain."""
    began, drawing = time.perf_counter(), fit.drawing
    latents, known = list(fit.record.latents), drawing.names
    if keep is None:
        # of data that come in batches a value may be of a batch's rows
        values = {} if fit.is_streamed else fit.proposals.pair.problem.whole.deterministic
        keep, _ = stored_by_default(latents, values)
    names = [keep] if isinstance(keep, str) else list(keep)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(
            f"keep: the model has no variable {', '.join(map(repr, unknown))}; it has {', '.join(map(repr, known))}."
            f"{hint(unknown, known)}"
        )
    fold = Fold(drawing, Reductions.of(reducers, names or latents)) if reducers else None
    stored: dict[str, list[np.ndarray]] = {name: [] for name in names}
    stats: dict[str, list[np.ndarray]] = {"log_density": [], "log_weight": []}
    for drawn, size in drawing.batches(seed, n):
        for name in names:
            stored[name].append(np.asarray(drawn.values[name])[:size])
        if fold is not None:
            fold.add(drawn.values, size)
        if fit.is_streamed:  # of all rows the density is not known
            continue
        log_p, log_q = (np.asarray(part)[:size] for part in (drawn.log_p, drawn.log_q))
        stats["log_density"].append(log_p)
        stats["log_weight"].append(np.zeros_like(log_p) if fit.is_resampled else log_p - log_q)
    reduced, failed = ({}, ()) if fold is None else fold.finalize()
    seconds = time.perf_counter() - began
    record = replace(
        fit.record, num_samples=n, num_chains=1, seed=seed, independent=True,
        findings=(*(f._replace(topic=f"fit: {f.topic}") for f in verdict.findings), *failed),
        passed=verdict.passed,
    )  # fmt: skip
    timing = Timing(fit.timing.compile, fit.timing.sampling, seconds, fit.timing.gradient_evaluations)
    return Posterior(
        {name: np.concatenate(parts)[None] for name, parts in stored.items()},
        {name: np.concatenate(parts)[None] for name, parts in stats.items() if parts},
        timing,
        record,
        reduced,
        target=None if fit.is_streamed else target_of(fit),
    )


def target_of(fit: Fitted) -> Target | None:
    """The model at the learned parameters, with its data; None where its terms cannot be told apart by device."""
    assert fit.pair is not None
    problem, parameters = fit.pair.problem, fit.pair.model_parameters()
    values = {name: fit.params[name] for name in parameters}
    whole = None if parameters else problem.whole  # its trace, where nothing in it is learned
    try:
        return Target.of(substitute(problem.model, values), problem.arguments, problem.mesh, whole, check="off")
    except ValueError:
        return None


class Fold:
    """Reducers of draws that come in batches: a state for each batch on the devices, merged on the host."""

    def __init__(self, drawing: Drawing | Resampled, reductions: Reductions):
        reductions.check_superchains(0)
        self._reductions, self._compiler, self._compiled = reductions, drawing.compiler, None
        self._host: HostReducers | None = None
        self._reduced = Reduced()

    def add(self, values: Mapping[str, Array], size: int) -> None:
        """Take in a batch, of which the first `size` draws count."""
        arguments = dict(values), np.int32(size)
        self._compiled = self._compiled or self._compiler(self._fold, *arguments)
        states = self._compiled(*arguments)
        self._host = self._host or HostReducers(self._reductions, jax.tree.map(lambda _: ArrayPlacement(), states))
        self._reduced = self._host.with_states(self._reduced, states)

    def finalize(self) -> tuple[dict[str, Any], tuple[Finding, ...]]:
        """What was learned, by reducer name, and by variable where a reducer had several; and what has failed."""
        assert self._host is not None  # there is at least one draw
        results = self._host.finalize(self._reduced)
        return results, findings(results, 0)

    def _fold(self, values: Mapping[str, Array], size: Array) -> Any:
        count = len(next(iter(values.values())))

        def one(states: Any, drawn: tuple[Any, Array]) -> tuple[Any, None]:
            draw, number = drawn
            chain = {name: value[None] for name, value in draw.items()}  # one chain, whose draws follow one another
            return self._reductions.update(states, chain, (number < size)[None]), None

        example = {name: value[:1] for name, value in values.items()}
        states = self._reductions.init(example)
        return lax.scan(one, states, (dict(values), jnp.arange(count)))[0]
