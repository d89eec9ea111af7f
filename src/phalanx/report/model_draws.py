"""Draws of a run's model for its report: the prior, and replicated data with the observed; few where data are large."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.errors.model_errors import model_errors
from phalanx.language.handlers import seed, substitute, trace
from phalanx.mesh.compatibility.numpyro_internals import unvalidated
from phalanx.report.posterior_protocol import Reported

if TYPE_CHECKING:
    from jaxtyping import Shaped

    from phalanx.density.target import Target

MOST_BYTES = 2**28
"""Memory for draws of all variables of the model."""

PRIOR_DRAWS = 2000
"""Most draws of the prior."""

REPLICATES = 200
"""Most replicates of the data."""

_LEAST_DRAWS = 50
"""Draws that must fit into `MOST_BYTES`; a larger model is not drawn."""


class ModelDraws(NamedTuple):
    """Draws of a model, and reasons for those that are missing.

    Attributes:
        prior: draws from the prior by variable, `(draw, ...)`; empty if it has none.
        observed: observed values by variable.
        replicated: values drawn anew at some draws of the posterior, `(draw, ...)` by observed variable.
        no_prior: why there is no prior, in words; empty if there is.
        no_replicates: why there are no replicates, in words; empty if there are.
    """

    prior: Mapping[str, Shaped[np.ndarray, "draw ..."]]
    observed: Mapping[str, Shaped[np.ndarray, "..."]]
    replicated: Mapping[str, Shaped[np.ndarray, "draw ..."]]
    no_prior: str = ""
    no_replicates: str = ""


def draw_from_model(posterior: Reported) -> ModelDraws:
    """Return draws from the prior, and replicated data, of a run whose model is known.

    Any error of a model here is a reason in words, since the report of the run does not depend on these draws.
    """
    target = posterior.target
    problem = _problem(posterior)
    if target is None or problem:
        return ModelDraws({}, {}, {}, problem, problem)
    try:
        latents = posterior.record.latents
        draw = {name: values[:1, :1][0, 0] for name, values in posterior.draws.items() if name in latents}
        observations, size = _observed_values(target, draw)
    except Exception as error:  # of the user's model, of any class
        return ModelDraws({}, {}, {}, *[f"the model cannot be traced: {_first_line(error)}"] * 2)
    most = MOST_BYTES // max(size, 1)
    if most < _LEAST_DRAWS:
        problem = f"a draw of all variables of the model takes {size / 2**20:,.0f} MB; use posterior.predictive()"
        return ModelDraws({}, {}, {}, problem, problem)
    prior, no_prior = _predictive(posterior, min(PRIOR_DRAWS, most), "prior")
    again = {}
    no_replicates = "the model has no observed variable"
    if observations:
        again, no_replicates = _predictive(posterior, min(REPLICATES, most), "posterior")
    return ModelDraws(prior, observations, {n: again[n] for n in observations if n in again}, no_prior, no_replicates)


def _problem(posterior: Reported) -> str:
    if posterior.target is None:
        return "the model is unknown: the posterior was read from a file, or assembled by hand"
    if jax.process_count() > 1:  # a report is written by one process, and predictive draws take all
        return "the run had several processes; call posterior.predictive() in all of them"
    return ""


def _predictive(posterior: Reported, most: int, kind: str) -> tuple[dict[str, np.ndarray], str]:
    """Return at most `most` predictive draws of each variable, `(draw, ...)`, or the reason in words."""
    chains = posterior.num_chains
    length = posterior.num_draws
    every = -(-chains * length // most)
    of_run: Any = posterior
    thinned = {
        name: np.asarray(values).reshape(1, chains * length, *values.shape[2:])[:, every // 2 :: every]
        for name, values in posterior.draws.items()
    }
    try:
        predictions = replace(of_run, draws=thinned, stats={}).predictive(kind=kind, given=[])
    except Exception as error:  # of the user's model, of any class
        return {}, _first_line(error)
    return {name: values[0] for name, values in predictions.items()}, ""


def _observed_values(target: Target, draw: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], int]:
    """Return the observed values by variable, and the bytes of a draw of all variables; `draw` is one of the latent."""
    arguments = target.arguments
    sizes = []

    def run(arrays: list[Any]) -> dict[str, Any]:
        data = arguments.join(arrays)
        with unvalidated(), model_errors(target.program, arguments=data):
            variables = trace(seed(substitute(target.program, draw), jax.random.key(0)))(**data)
        values = {
            name: jnp.asarray(variable.value) for name, variable in variables.items() if variable.value is not None
        }
        sizes.append(sum(value.size * value.dtype.itemsize for value in values.values()))
        # a factor is observed, too, and has no elements
        observed_names = {
            name for name, variable in variables.items() if variable.observed and variable.distribution is not None
        }
        return {name: value for name, value in values.items() if name in observed_names and value.size}

    def alone_on_device(arrays: list[Any]) -> dict[str, Any]:
        return target.alone(lambda: run(arrays))

    shapes = jax.eval_shape(alone_on_device, list(arguments.whole_shapes()))
    if sizes[0] > MOST_BYTES // _LEAST_DRAWS or not shapes:
        return {}, sizes[0]
    values = jax.jit(alone_on_device)(list(target.place_arrays()))
    return {name: np.asarray(value) for name, value in values.items()}, sizes[0]


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
