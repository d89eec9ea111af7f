"""Sensitivity of a posterior to its prior and its likelihood, by raising each to powers close to one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.diagnostics.elements import Names, element_names
from phalanx.diagnostics.psis import smooth
from phalanx.errors.names import hint
from phalanx.inputs.dataframe_input import UserData
from phalanx.language.observations import check_unscaled, term_of
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program
from phalanx.posterior.criticism.log_likelihood import PriorTerms, observations
from phalanx.posterior.criticism.model_at_draws import ModelAtDraws, RunDraws
from phalanx.posterior.over_draws import over_draws

if TYPE_CHECKING:
    from jaxtyping import Float, Float64
    from pandas import DataFrame

POWER = 1.01
"""The power that a density is raised to, and its inverse: so close to one that importance weights are nearly equal."""

SENSITIVE = 0.05
"""Sensitivity from which on a density counts as informative; that of a mean which moves by a tenth of a standard
deviation where the power doubles."""

MOST_NUMBERS = 2**22
"""Most numbers, draws times elements, that are sorted at once."""


@dataclass(frozen=True)
class PriorAndLikelihood(PriorTerms):
    """Log densities of all latent variables and of all observations at one draw."""

    def results(self, variables: Mapping[str, RandomVariable]) -> dict[str, Array]:
        """Return the two sums."""
        outcomes = observations(variables, self.model.asked)
        return {
            "prior": sum(map(jnp.sum, super().results(variables).values()), jnp.zeros(())),
            "likelihood": sum((jnp.sum(term_of(v)) for v in outcomes.values()), jnp.zeros(())),
        }


def sensitivity(
    model: Program | None,
    data: UserData | None,
    run: RunDraws,
    draws: Mapping[str, np.ndarray],
    labels: Names,
    log_weights: np.ndarray | None,
    names: str | Sequence[str] | None,
) -> DataFrame:
    """Evaluate the sensitivity of draws; see `Posterior.sensitivity`."""
    wanted_names = list(draws) if names is None else [names] if isinstance(names, str) else list(names)
    if unknown := [name for name in wanted_names if name not in draws]:
        raise ValueError(
            f"sensitivity: there are no draws of {', '.join(map(repr, unknown))}; there are of "
            f"{', '.join(map(repr, draws)) or 'no variable'}.{hint(unknown, draws)}"
        )
    if not math.prod(run.sizes):
        raise ValueError("sensitivity: there are no draws to evaluate. Store some: keep=None.")
    if log_weights is not None and np.ptp(log_weights) != 0:
        raise ValueError(
            "sensitivity: the draws of a guide have importance weights of their own. Choose draws by their weights, "
            "phx.importance(model, guide, data, init=fit).posterior(n), or run phx.mcmc."
        )
    program = ModelAtDraws.of("sensitivity", model, data, run, run.latents)
    terms = PriorAndLikelihood(program)
    values = run.of_latents()
    shapes, largest = program.shapes(terms, values)
    check_unscaled({n: v for n, v in terms.met.items() if v.observed and v.distribution is not None}, "sensitivity")
    size = program.batch_size(shapes, largest)
    how: dict[str, Any] = {"given": program.place_arrays(), "mesh": program.mesh}
    totals = over_draws(terms, values, run.sizes, seed=0, batch_size=size, **how)
    weights = {name: _weights(np.asarray(total, np.float64).ravel()) for name, total in totals.items()}
    from phalanx.diagnostics.table import SummaryTable  # imports pandas, as slow as all of Phalanx

    rows = []
    index = []
    for name in wanted_names:
        shape = draws[name].shape[2:]
        flat = np.asarray(draws[name], np.float64).reshape(math.prod(run.sizes), -1)
        of_element = {part: _of_elements(flat, both) for part, both in weights.items()}
        index += element_names(name, shape, labels)
        rows += [
            {"prior": prior, "likelihood": likelihood, "diagnosis": diagnosis(prior, likelihood)}
            for prior, likelihood in zip(of_element["prior"], of_element["likelihood"], strict=True)
        ]
    return SummaryTable(rows, index=index, columns=["prior", "likelihood", "diagnosis"])


def diagnosis(prior: float, likelihood: float) -> str:
    """Return what two sensitivities say together; empty where the prior hardly matters."""
    if not prior >= SENSITIVE:
        return ""
    if likelihood >= SENSITIVE:
        return "the prior and the data may disagree"
    return "the prior is strong, or the data say little"


def _weights(log_density: Float64[np.ndarray, "draw"]) -> list[Float64[np.ndarray, "draw"]]:
    """Return the weights of draws where a density is raised to the power, and to its inverse."""
    weights = []
    for power in (1.0 / POWER, POWER):
        log = smooth(np.where(np.isnan(log_density), -np.inf, (power - 1.0) * log_density)).log_weights
        relative = np.exp(log - log.max())
        weights.append(relative / relative.sum())
    return weights


def _of_elements(
    draws: Float64[np.ndarray, "draw element"], weights: Sequence[Float64[np.ndarray, "draw"]]
) -> list[float]:
    """Return the mean distance of weighted draws from the draws, for each doubling of the power."""
    width = max(MOST_NUMBERS // len(draws), 1)
    distances = []
    for first in range(0, draws.shape[1], width):
        part = draws[:, first : first + width]
        both = np.stack([np.maximum(distance(part, one), distance(-part, one)) for one in weights])
        distances += (both.mean(0) / math.log2(POWER)).tolist()
    return distances


def distance(
    draws: Float[np.ndarray, "draw element"], weights: Float64[np.ndarray, "draw"]
) -> Float64[np.ndarray, "element"]:
    r"""Return the cumulative Jensen-Shannon distance between draws and weighted draws; NaN of a constant.

    With the distribution functions $P$ of the draws and $Q$ of the weighted draws, and $M = (P + Q) / 2$, it is the
    root of $\int P \log_2 (P / M) + Q \log_2 (Q / M)$, in parts of its largest value $\int P + Q$.

    Source: Nguyen, Vreeken (2015), Non-parametric Jensen-Shannon divergence.
    """
    order = np.argsort(draws, axis=0)
    widths = np.diff(np.take_along_axis(draws, order, axis=0), axis=0)
    count = len(draws)
    p = np.broadcast_to((np.arange(1, count) / count)[:, None], widths.shape)
    q = np.cumsum(weights[order], axis=0)[:-1]
    log_middle = np.log2((p + q) / 2.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        of_p = p * (np.log2(p) - log_middle)
        of_q = np.where(q > 0, q * (np.log2(q) - log_middle), 0.0)
        divergence = (widths * (of_p + of_q)).sum(0)
        return np.sqrt(np.maximum(divergence, 0.0) / (widths * (p + q)).sum(0))
