"""Message about a fit whose gradients are no longer finite: the variable, the parameter, and the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from phalanx.language.parameters import with_parameters
from phalanx.mesh.specs import PyTree
from phalanx.programs.unconstrained import Evaluation, run_unconstrained
from phalanx.programs.validity import VALUE, ValueChecks, improper_parameters, nan_hint, value_checks_of
from phalanx.variational.guides.guide_and_model import Pair
from phalanx.variational.guides.learned import Params
from phalanx.variational.methods.step import FitState, Steps, all_finite, step_key

LOOK_FOR = (
    "Look for values that the guide draws outside of what the model can compute, such as exp or log of large numbers; "
    "give init=, a guide that begins narrower (init_scale=), or a lower rate (optimizer=0.01)"
)
"""Advice if no cause is found."""

FARTHEST_STEP = 1.0
"""Longest step of parameters on the real line, on average, at a rate that is not too large."""


@dataclass(frozen=True)
class Blame:
    """Failed steps; `str` makes the message about them.

    Attributes:
        steps: the steps.
        state: the state after them.
        begun: the parameters that the fit began with; None if they were not kept.
        rate: factor on the optimiser's changes.
    """

    steps: Steps
    state: FitState
    seed: np.uint32
    arrays: tuple[Array, ...]
    begun: dict[str, Any] | None
    rate: float

    def __str__(self) -> str:
        parts, gradients = jax.jit(self._not_finite)(self.state, self.seed, self.arrays)
        sites = [repr(name) if name else "the guide" for name, count in parts.items() if int(count)]
        params = [name for name, bad in gradients.items() if bool(bad)]
        where = f"The log density is not finite of {', '.join(sites)}" if sites else "All log densities are finite"
        which = f"the gradient of parameters {', '.join(map(repr, params))} is not" if params else "so are gradients"
        first = int(self.state.step) - int(self.state.failing) + 1
        pair = self.steps.pair
        names = pair.problem.arguments.names
        advice = self._improper_guide() or self._too_fast() or improper_model(pair, self.state.free, self.arrays)
        return (
            f"fit: in step {first:,} and those after it the loss or its gradient is not finite. "
            f"{where}, and {which}{nan_hint(names, self.arrays)}. {advice or LOOK_FOR}. The error's .fit is the fit "
            f"before."
        )

    def _not_finite(self, state: FitState, seed: Array, arrays: Sequence[Array]) -> tuple[dict[str, Array], ...]:
        """Return counts of log densities that are not finite in the last step, by variable, and flags of gradients."""
        key = step_key(seed, state.step - 1)
        pair = self.steps.pair
        data = pair.problem.step_data(arrays, key)
        params = pair.learned.constrain(state.free)

        def one(noise: PyTree) -> dict[str, Array]:
            draw = pair.draw(params, noise, data)
            return {**pair.log_model(params, draw, data), "": pair.log_guide(params, draw, data)}

        noise = self.steps.noise(key)
        parts = pair.problem.alone(lambda: jax.vmap(one)(noise))
        gradient, _ = self.steps.gradient(state.free, key, arrays)
        bad = {name: ~all_finite(leaf) for name, leaf in gradient.items()}
        return {name: jnp.sum(~jnp.isfinite(part)) for name, part in parts.items()}, bad

    def _improper_guide(self) -> str:
        """Return a sentence about a distribution of the guide whose parameter is out of range; or an empty one."""
        pair = self.steps.pair
        if not (program := pair.program_guide):
            return ""

        def look(free: Params, arrays: Sequence[Array]) -> ValueChecks:
            params = pair.learned.constrain(free)
            data = pair.problem.step_data(arrays, random.key(0))

            def flags() -> ValueChecks:
                variables = replace(program, data=data).variables(params, random.key(0))
                checks = value_checks_of(Evaluation(variables, {}, {}))
                return {key: check.any() for key, check in checks.items() if key[1] != VALUE}

            return pair.problem.alone(flags)

        for (name, parameter), check in jax.jit(look)(self.state.free, self.arrays).items():
            if check.bad:
                return (
                    f"Variable {name!r} of the guide {pair.guide.name}: its {parameter} must be {check.allowed} for a "
                    f"{check.distribution}, and steps have led out of there. Give its phx.param a constraint, such as "
                    f"numpyro.distributions.constraints.positive"
                )
        return ""

    def _too_fast(self) -> str:
        """Return a sentence about the rate, if steps have moved parameters farther than a guide is wide; or ""."""
        num_good = int(self.state.step) - int(self.state.failed)
        if not num_good or self.begun is None:
            return ""
        differences = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b), initial=0.0), self.state.free, self.begun)
        farthest_step = float(max(map(float, jax.tree.leaves(differences)), default=0.0)) / num_good
        if not farthest_step > FARTHEST_STEP:
            return ""
        rate = "the optimiser's rate" if self.rate == 1.0 else f"the rate, {abs(self.rate):g},"
        return (
            f"The {num_good:,} steps before moved parameters by up to {farthest_step:,.3g} each: {rate} is too large. "
            f"Give a lower one, such as optimizer=0.05 or optax.adam(1e-2)"
        )


def improper_model(pair: Pair, free: Params, arrays: Sequence[Array]) -> str:
    """Return a sentence about a distribution of the model with a parameter that latent variables take out of range.

    The sentence is empty if all parameters stay within their range.
    """
    problem = pair.problem
    params = pair.learned.constrain(free)

    def look(arrays: Sequence[Array], params: Params) -> ValueChecks:
        data = problem.step_data(arrays, random.key(0))

        def run(position: Mapping[str, Array] | None) -> Evaluation:
            return run_unconstrained(with_parameters(problem.program, params), position, data, any_latent=True)

        return problem.alone(lambda: improper_parameters(run))

    of_model = {name: params[name] for name in problem.parameters}
    for (name, parameter), check in jax.jit(look)(list(arrays), of_model).items():
        if np.any(check.bad):
            return (
                f"Variable {name!r}: its {parameter} must be {check.allowed} for a {check.distribution}, but at some "
                f"values of the latent variables that it is computed from it is not. Give these a prior with the right "
                f"support, such as HalfNormal or LogNormal for a scale and Beta for a probability, or a phx.param a "
                f"constraint; or transform it, a scale by jnp.exp, a probability by jax.nn.sigmoid"
            )
    return ""
