"""Leave-one-out cross-validation of a posterior: by ArviZ, or batch by batch where the log densities do not fit."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from phalanx.density.model_on_mesh import ModelOnMesh
from phalanx.diagnostics.convergence import mcse
from phalanx.diagnostics.elements import Names, element_name
from phalanx.diagnostics.judging.checks import Finding
from phalanx.diagnostics.psis import smooth, threshold
from phalanx.errors.message_text import count, first_few
from phalanx.extras import is_installed, require
from phalanx.inputs.dataframe_input import UserData
from phalanx.language.observations import check_unscaled, counted, is_masked
from phalanx.language.tracing import Program
from phalanx.mesh.processes import to_host
from phalanx.posterior.criticism.log_likelihood import Terms, chosen_names
from phalanx.posterior.criticism.model_at_draws import ModelAtDraws, RunDraws
from phalanx.posterior.criticism.model_data import are_deleted, fingerprint_of, likelihood_factors
from phalanx.posterior.over_draws import Batch, batches, key_of, over_draws
from phalanx.reducers.loo import TAIL, PointwiseLoo, are_equal, left_out, ratios_of
from phalanx.reducers.loo import loo as loo_reducer
from phalanx.reducers.pareto_tail import tail_length

MOST_TERMS = 2**25
"""Log densities that are held in memory at once, and given to ArviZ."""

MOST_RATIOS = 2**28
"""Importance ratios that are kept otherwise, which bounds the memory for very many observations."""


@dataclass(frozen=True, repr=False)
class Loo:
    r"""Leave-one-out cross-validation: how well the model predicts an observation from all others.

    Attributes:
        elpd: expected log predictive density, $\sum_i \log p(y_i \mid y_{-i})$.
        se: standard error of `elpd` over observations.
        p_loo: effective number of parameters: by how much fewer `elpd` is with the observation left out.
        pointwise: terms of `elpd` by observed variable, in its shape; NaN for entries that are masked or missing.
        pareto_k: shape of the tail of the importance weights, by observed variable, in its shape; minus infinity where
            all weights are equal, as for an observation that depends on no latent variable: its term is exact.
        num_draws: draws over all chains.
        good_k: the largest `pareto_k` for which so many draws suffice.
        factors: names of terms of the likelihood that are not observations and are not left out with them: those of
            `phx.factor`, unless they are proved to be part of the prior, and sums over discrete variables that
            observations share. `good` is false if there are any.
        fingerprint: by observed variable, one number for each observation, from which `phx.compare` recognises the
            data: its value, or a projection of a vector; NaN if it is not known. Empty if no data are known.
        weighted: true if draws are those of a guide, with importance weights: `pareto_k` then is of the product of
            their weights and the ratios.
        labels: labels of the observations, by variable and axis.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions as dist, phalanx as phx
        >>> def model(y):
        ...     mean = phx.sample("mean", dist.Normal(0.0, 10.0))
        ...     phx.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> loo = phx.mcmc(model, {"y": jnp.arange(5.0)}, num_samples=500, progress=False).loo()
        >>> loo.num_observations, loo.pointwise["y"].shape
        (5, (5,))
    """

    elpd: float
    se: float
    p_loo: float
    pointwise: Mapping[str, np.ndarray] = field(repr=False)
    pareto_k: Mapping[str, np.ndarray] = field(repr=False)
    num_draws: int
    good_k: float
    factors: tuple[str, ...] = ()
    weighted: bool = False
    labels: Names = field(default_factory=dict, repr=False)
    fingerprint: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        results: Mapping[str, PointwiseLoo],
        masks: Mapping[str, np.ndarray] | None = None,
        model: ModelOnMesh | None = None,
        weighted: bool = False,
    ) -> Loo:
        """Sum up results by observed variable, of observations that are true in `masks`, of a model and its data."""
        masks = {} if masks is None else masks
        there = {name: masks.get(name, np.ones(one.elpd.shape, bool)) for name, one in results.items()}
        pointwise = {name: np.where(there[name], one.elpd, np.nan) for name, one in results.items()}
        shapes = {name: np.where(there[name], one.pareto_k, np.nan) for name, one in results.items()}
        terms, lppd = (
            np.concatenate([part[there[name]].ravel() for name, part in parts.items()])
            for parts in (pointwise, {name: np.asarray(one.lppd) for name, one in results.items()})
        )
        draws = next(iter(results.values())).draws
        with np.errstate(invalid="ignore"):  # an observation may be impossible
            elpd = float(terms.sum())
            se = math.sqrt(len(terms)) * float(terms.std())
            p_loo = float(lppd.sum()) - elpd
        shapes_by_name = {name: part.shape for name, part in pointwise.items()}
        is_known = model is not None and not are_deleted(model)
        factors = likelihood_factors(model, shapes_by_name) if model is not None and is_known else ()
        fingerprint = fingerprint_of(model, shapes_by_name) if model is not None and is_known else {}
        fingerprint = {name: np.where(there[name], part, np.nan) for name, part in fingerprint.items()}
        return cls(
            elpd, se, p_loo, pointwise, shapes, draws, threshold(draws), factors, weighted, fingerprint=fingerprint
        )

    @property
    def num_observations(self) -> int:
        """Observations, without those that are masked or missing."""
        return sum(int(np.sum(~np.isnan(k))) for k in self.pareto_k.values())

    @property
    def num_bad(self) -> int:
        """Observations that too few draws represent when they are left out: `pareto_k` is above `good_k`."""
        return sum(int(np.sum(k > self.good_k)) for k in self.pareto_k.values())

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Problems that forbid using the result, by topic: each with an advice."""
        return tuple(finding for finding in (self._no_meaning(), self._factor(), self._large_k()) if finding)

    @property
    def good(self) -> bool:
        """True if all of the likelihood is left out with its observation, and the weights can be averaged."""
        return not self.findings and math.isfinite(self.elpd)

    def __bool__(self) -> bool:
        return self.good

    def __repr__(self) -> str:
        return str(self)  # a notebook shows this

    def __str__(self) -> str:
        lines = [
            f"Leave-one-out cross-validation of {count(self.num_observations, 'observation')} "
            f"({count(self.num_draws, 'draw')}{' of a guide, weighted by the model' if self.weighted else ''})",
            f"  elpd  {self.elpd:12.1f}  standard error {self.se:.1f}",
            f"  p_loo {self.p_loo:12.1f}",
            self.verdict,
        ]
        return "\n".join(lines)

    @property
    def verdict(self) -> str:
        """The judgement in words: good to use, or the problems and the ways out."""
        if self.findings:
            return "\n".join(f"Not good to use yet: {one.problem} Try {one.advice}." for one in self.findings)
        if not math.isfinite(self.elpd):
            return "Not good to use yet: elpd is not finite: an observation is impossible without it."
        return f"Good to use: every Pareto k is at most {self.good_k:.2f}."

    def _no_meaning(self) -> Finding | None:
        if self.num_observations != 1:
            return None
        name = next(name for name, shapes in self.pareto_k.items() if not np.isnan(shapes).all())
        return Finding(
            "one observation",
            f"leave-one-out cross-validation has no meaning here: the model has one observation, {name!r}, and without "
            f"it no data are left. A vector of a multivariate distribution, or under .to_event(), is one observation.",
            "densities of its entries, for instance a latent vector (a Gaussian process) with independent noise of "
            "each entry; or leave out parts of the data, and predict them with posterior.predictive()",
        )

    def _factor(self) -> Finding | None:
        if not self.factors:
            return None
        several = len(self.factors) > 1
        return Finding(
            "factor left out",
            f"the model also has {first_few([repr(name) for name in self.factors])}, "
            f"{'terms that are not observations and' if several else 'a term that is no observation and'} may be part "
            f"of the likelihood (phx.factor, or a sum over discrete variables that observations share): elpd leaves "
            f"{'them' if several else 'it'} out.",
            "to give the observations their whole density, for instance by TruncatedNormal or a class with log_prob; "
            "or predictions of held-out data. If the term concerns only latent variables, elpd is right",
        )

    def _large_k(self) -> Finding | None:
        if not self.num_bad or self.num_observations == 1:
            return None
        worst = [f"{name} {k:.2f}" for name, k in self._worst()]
        changes = "the posterior changes so much without it that the draws do not represent it."
        advice = (
            "K-fold cross-validation, or leave these observations out one by one; or a likelihood with heavier tails, "
            "if they are outliers. More draws help if k is below 1 and the model is right"
        )
        if self.weighted:
            changes = "the guide's draws do not represent the posterior without it."
            advice = "a closer guide, such as phx.guides.full_rank(), or phx.mcmc"
        return Finding(
            "large Pareto k",
            f"{self.num_bad} of {count(self.num_observations, 'observation')} "
            f"{'has' if self.num_bad == 1 else 'have'} a Pareto k above {self.good_k:.2f} ({', '.join(worst)}): "
            f"{changes}",
            advice,
        )

    def _worst(self) -> list[tuple[str, float]]:
        lines = []
        for name, shapes in self.pareto_k.items():
            flat = np.where(np.isnan(shapes), -np.inf, shapes).ravel()
            for place in np.argsort(-flat, kind="stable")[:3]:
                if flat[place] > self.good_k:
                    index = tuple(map(int, np.unravel_index(place, shapes.shape)))
                    lines.append((element_name(name, index, shapes.shape, self.labels), float(flat[place])))
        return sorted(lines, key=lambda one: -one[1])[:3]


def leave_one_out(
    model: Program | None,
    data: UserData | None,
    run: RunDraws,
    results_of_reducers: Mapping[str, Any],
    log_weights: np.ndarray | None = None,
    names: str | Sequence[str] | None = None,
) -> Loo:
    """Evaluate leave-one-out cross-validation; see `Posterior.loo`.

    `results_of_reducers` are the results of the run's reducers, and `log_weights` the logarithms of the draws'
    importance weights, `(chain, draw)`; None for draws of the posterior.
    """
    sizes = run.sizes
    values = run.of_latents()
    wanted_names = None if names is None else (names,) if isinstance(names, str) else tuple(names)
    has_draws = math.prod(sizes) and len(values) == len(run.latents)
    if not has_draws and (results := _reduced_by_run(results_of_reducers)):
        results = {name: results[name] for name in chosen_names("loo", wanted_names, results)}
        there = {name: ~np.isnan(one.pareto_k) for name, one in results.items()}
        if model is None and data is None:
            return Loo.of(results, there, run.target)
        return Loo.of(results, there, ModelAtDraws.of("loo", model, data, run, run.latents))
    if not math.prod(sizes):
        raise ValueError(
            'loo: there are no draws to evaluate. Store some (keep=None), or run with reducers={"loo": '
            "phx.reducers.loo()}, which reduces the log densities of the observations."
        )
    program = ModelAtDraws.of("loo", model, data, run, run.latents)
    terms = Terms(program, names=wanted_names)
    shapes, largest = program.shapes(terms, values)
    outcomes = {n: v for n, v in terms.met.items() if v.observed and v.distribution is not None}
    check_unscaled({n: v for n, v in outcomes.items() if names is None or n in shapes}, "loo")
    size = program.batch_size(shapes, largest)
    how = {"seed": 0, "batch_size": size, "given": program.place_arrays(), "mesh": program.mesh}
    total = math.prod(sizes)
    observations = sum(math.prod(shape.shape) for shape in shapes.values())
    is_weighted = log_weights is not None and np.ptp(log_weights) != 0  # a fit may have chosen draws by their weights
    efficiency = 1.0 if is_weighted else _efficiency(values)
    if is_weighted:
        if total * observations > MOST_TERMS:
            raise ValueError(
                f"loo: the draws have importance weights, and {total:,} draws of {observations:,} log densities do not "
                f"fit into memory. Draw fewer, with fit.posterior(n); or choose draws by their weights first, with "
                f"phx.importance(model, guide, data, init=fit).posterior(n)."
            )
        results = _by_weights(over_draws(terms, values, sizes, **how), np.asarray(log_weights, np.float64).ravel())
    elif total * observations <= MOST_TERMS and is_installed("arviz"):
        results = _by_arviz(over_draws(terms, values, sizes, **how), efficiency)
    else:
        tail = min(tail_length(total, efficiency), max(MOST_RATIOS // observations, TAIL // 4))
        results = _batch_by_batch(batches(terms, values, sizes, **how), max(tail, 10))
    return Loo.of(results, _masks(terms, values, how["given"]), program, is_weighted)


def _reduced_by_run(results_of_reducers: Mapping[str, Any]) -> dict[str, PointwiseLoo]:
    """Return the results of a run's reducer `loo()`, by observed variable; empty without one."""
    for result in results_of_reducers.values():
        parts = {"": result} if isinstance(result, PointwiseLoo) else result
        if isinstance(parts, Mapping) and parts and all(isinstance(one, PointwiseLoo) for one in parts.values()):
            return dict(parts)
    return {}


def _masks(terms: Terms, values: Mapping[str, Any], arrays: Any) -> dict[str, np.ndarray]:
    """Return a mask of the observations of each variable whose distribution has one, from the first draw."""
    masked = [name for name, v in terms.met.items() if v.observed and v.distribution is not None and is_masked(v)]
    if not masked:
        return {}
    first = {name: np.asarray(value[:1, :1])[0, 0] for name, value in values.items()}
    masks = jax.jit(lambda *operands: Terms(terms.model, counted)(*operands))(first, key_of(0, 0, 0), arrays)
    return {name: np.asarray(masks[name]) for name in masked if name in masks}


def _efficiency(draws: Mapping[str, np.ndarray]) -> float:
    """Return the mean effective sample size of all variables per draw, as ArviZ does; 1 for a single chain."""
    chains, length = next(iter(draws.values())).shape[:2]
    if chains == 1 or length < 4:
        return 1.0
    sizes = []
    for value in draws.values():
        array = np.asarray(value, np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            sizes.append(np.ravel((array.std((0, 1), ddof=1) / mcse(array)) ** 2))
    effective = np.concatenate(sizes)
    effective = effective[np.isfinite(effective)]
    return float(effective.mean()) / (chains * length) if len(effective) else 1.0


def _batch_by_batch(draw_batches: Iterator[Batch], tail: int) -> dict[str, PointwiseLoo]:
    """Return the results from the largest ratios of each observation, with tails of so many."""
    reducer = loo_reducer(tail)
    states: dict[str, Any] = {}
    waiting: dict[str, list[np.ndarray]] = {}

    def merge() -> None:
        for name, parts in waiting.items():
            later = ratios_of(np.concatenate(parts), tail)
            states[name] = reducer.merge(states[name], later) if name in states else later
        waiting.clear()

    for batch in draw_batches:
        for name, values in batch.outputs.items():
            chains, draws = batch.repeated
            fresh = to_host(values).reshape(*batch.sizes, *values.shape[1:])[chains:, draws:]
            waiting.setdefault(name, []).append(fresh.reshape(-1, *values.shape[1:]))
        if sum(map(len, next(iter(waiting.values())))) > tail // 3:  # merging costs as much for fewer
            merge()
    merge()
    return {name: reducer.finalize(state) for name, state in states.items()}


def _by_weights(terms: Mapping[str, np.ndarray], log_weights: np.ndarray) -> dict[str, PointwiseLoo]:
    """Return the results of draws with importance weights: an observation is left out by weight / density."""
    results = {}
    log_weights = np.where(np.isnan(log_weights), -np.inf, log_weights)
    log_weights, draws = log_weights - log_weights.max(), len(log_weights)
    smooth_weights = smooth(log_weights).log_weights
    length = min(tail_length(len(log_weights)), len(log_weights) - 1)
    for name, values in terms.items():
        flat = values.reshape(draws, -1).astype(np.float64)
        lppd = np.logaddexp.reduce(flat + smooth_weights[:, None]) - np.logaddexp.reduce(smooth_weights)
        ratios = (log_weights[:, None] - flat).T
        order = np.argsort(ratios, axis=1)
        sorted_ratios = np.take_along_axis(ratios, order, axis=1)
        elpd, k = left_out(sorted_ratios, np.full(len(sorted_ratios), -np.inf), length, draws, log_weights[order])
        k[are_equal(sorted_ratios[:, draws - length - 1], sorted_ratios[:, -1], values.dtype)] = -np.inf
        results[name] = PointwiseLoo(draws, *(part.reshape(values.shape[2:]) for part in (elpd, lppd, k)))
    return results


def _by_arviz(terms: Mapping[str, np.ndarray], efficiency: float) -> dict[str, PointwiseLoo]:
    """Return the results of ArviZ's `loo`, variable by variable."""
    arviz = require("arviz")
    results = {}
    for name, values in terms.items():
        wide = values.astype(np.float64)
        draws = math.prod(wide.shape[:2])
        shape = wide.shape[2:]
        flat = wide.reshape(*wide.shape[:2], -1)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # the verdict reports large k
            result = arviz.loo(_container(arviz, flat), pointwise=True, reff=efficiency)
        elpd = result.loo_i if "loo_i" in dir(result) else result.elpd_i
        lppd = np.logaddexp.reduce(flat.reshape(draws, -1), axis=0) - math.log(draws)
        # ArviZ fits no tail to equal weights, and returns infinity as for weights of which too few are finite
        equal = are_equal(-flat.max((0, 1)), -flat.min((0, 1)), values.dtype)
        parts = (np.asarray(elpd), lppd, np.where(equal, -np.inf, np.asarray(result.pareto_k)))
        results[name] = PointwiseLoo(draws, *(part.reshape(shape) for part in parts))
    return results


def _container(arviz: Any, terms: np.ndarray) -> Any:
    """Return log densities in ArviZ's container."""
    array = require("xarray").DataArray(terms, dims=("chain", "draw", "observation"))
    groups = {"log_likelihood": array.to_dataset(name="observations")}
    groups["posterior"] = array[:, :, :1].to_dataset(name="unused")
    if arviz.__version__.startswith("0."):
        return arviz.InferenceData(**groups)
    return require("xarray").DataTree.from_dict(groups)
