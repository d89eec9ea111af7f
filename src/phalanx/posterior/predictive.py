"""Predictive draws: runs of the model at every draw that sample its observed variables anew.

Each draw has noise of its own from a key of (seed, chain, draw), see `over_draws`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import Distribution

from phalanx.density.target import Target
from phalanx.inputs.known_data import KnownData
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Forward, Program
from phalanx.posterior.criticism.model_at_draws import ModelAtDraws
from phalanx.posterior.over_draws import over_draws
from phalanx.programs.unconstrained import refuse_parameter

KINDS = ("posterior", "prior")


def predictive(
    model: Program | None,
    data: Mapping[str, Any] | None,
    kind: str,
    *,
    target: Target | None,
    latents: Sequence[str],
    draws: Mapping[str, np.ndarray],
    sizes: tuple[int, int],
    seed: int,
    known: KnownData | None = None,
) -> dict[str, np.ndarray]:
    """Sample the observed variables at every draw; see `Posterior.predictive`.

    Args:
        model: the program; None for that of `target`.
        data: its keyword arguments; None for those of `target`.
        kind: "posterior" or "prior".
        target: the model and data of the run, if known.
        latents: names of the variables that the run inferred.
        draws: their draws, `(chain, draw, ...)` by name.
        sizes: chains, and draws of each.
        seed: source of the draws' keys.
        known: names in the run's data, and arguments that fill in; None without a run.

    Returns:
        Arrays of shape `(chain, draw, ...)` by name.
    """
    if kind not in KINDS:
        raise ValueError(f"predictive: kind must be 'posterior' or 'prior'; got {kind!r}.")
    if not math.prod(sizes):
        raise ValueError(f"predictive: there are no draws to predict at: {sizes[0]} chains of {sizes[1]} draws.")
    at = latents if kind == "posterior" else ()
    program = ModelAtDraws.of("predictive", model, data, target=target, known=known, inferred=latents, at=at)
    values = {name: array for name, array in draws.items() if name in at}
    again = _Again(program)
    size = program.batch_size(program.shapes(again, values))
    return over_draws(
        again, values, sizes, seed=seed, batch_size=size, given=program.place_arrays(), mesh=program.mesh
    )  # fmt: skip


@dataclass(frozen=True)
class _Again:
    """Program evaluated at one draw, with its observed variables sampled anew."""

    model: ModelAtDraws

    def __call__(self, values: Mapping[str, Array], key: Array, arrays: Sequence[Array]) -> dict[str, Array]:
        """Return the sampled variables and the deterministic values."""

        def give(variable: RandomVariable, forward: Forward) -> RandomVariable:
            refuse_parameter(variable)
            if variable.distribution is None:
                return forward(variable)
            _check_can_be_drawn(variable)
            if variable.name in self.model.latents:
                return self.model.at(variable, values, forward)
            if variable.value is None or variable.observed:
                return forward(_to_draw(variable))
            return forward(variable)  # set by the program itself

        return self.model.run(arrays, give, self._drawn, key)

    def _drawn(self, variables: Mapping[str, RandomVariable]) -> dict[str, Array]:
        met = {n: v for n, v in variables.items() if v.parameter is None}
        drawn = {n: v.value for n, v in met.items() if n not in self.model.latents or v.is_computed}
        if not drawn:
            raise ValueError(
                f"predictive: the model has no observed variable to draw; its variables are "
                f"{', '.join(map(repr, variables)) or 'none'}. Use posterior.predict(fn) for functions of the draws."
            )
        return drawn


def _check_can_be_drawn(variable: RandomVariable) -> None:
    assert variable.distribution is not None
    if variable.observed and tuple(variable.distribution.event_shape) == (0,):  # NumPyro's Unit, masked or not
        raise ValueError(
            f"predictive: {variable.name!r} is a factor, a term of the log density without a value to draw. "
            f"Draw with posterior.predict(fn), fn(draw, key); or, if it concerns only latent variables, leave it out: "
            f"predictive(model=phx.block(model, [{variable.name!r}]))."
        )


def _to_draw(variable: RandomVariable) -> RandomVariable:
    """Return the variable without its value: sampled with a key of this draw, in the shape of the value."""
    distribution = variable.distribution
    assert distribution is not None
    if variable.value is not None:
        shape = jnp.shape(variable.value)
        distribution = _repeated(distribution, shape[: len(shape) - len(distribution.event_shape)])
    return replace(variable, distribution=distribution, value=None, key=None)


def _repeated(distribution: Distribution, batch: tuple[int, ...]) -> Distribution:
    return distribution if batch == tuple(distribution.batch_shape) else distribution.expand(batch)
