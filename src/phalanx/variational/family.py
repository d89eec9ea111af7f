"""Guides made from a model: a family of distributions over the unconstrained values of its latent variables.

$u \\sim q_\\phi$ on the real line, and $x = T(u)$ with the model's own bijections, which may depend on variables before.
Densities are compared at $u$, where the model's has the Jacobian of $T$.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.sharding import PartitionSpec

from phalanx.mesh.placement import spread_spec
from phalanx.mesh.space import Spread
from phalanx.programs.parameters import Parameter, given, meeting
from phalanx.programs.shares import Latent
from phalanx.programs.tracing import Program
from phalanx.programs.unconstrained import at_values, run_unconstrained
from phalanx.variational.learned import Learned, Params
from phalanx.variational.pair import Beginning
from phalanx.variational.problem import Problem, Values

CANDIDATES, RADIUS = 8, 2.0
"""Positions tried for a start, uniform on (-2, 2) in every coordinate and ever closer to zero."""

Latents = Sequence[Latent]


class Family(Protocol):
    """A family of distributions over positions: a dict of unconstrained values by variable."""

    @property
    def name(self) -> str:
        """How the user wrote it."""
        ...

    def parameters(self, latents: Latents, spreads: Mapping[str, Spread]) -> dict[str, Parameter]:
        """Its parameters: constraints, and how they are laid out."""
        ...

    def begin(self, position: Mapping[str, Array]) -> dict[str, Array]:
        """Values of the parameters that put it about a position."""
        ...

    def draw(self, params: Params, key: Array, latents: Latents) -> dict[str, Array]:
        """A position."""
        ...

    def log_prob(self, params: Params, position: Mapping[str, Array], latents: Latents) -> Array:
        """The log density of a position."""
        ...


@dataclass(frozen=True)
class FamilyPair:
    """A family, and the model it was made from."""

    problem: Problem
    family: Any

    @property
    def name(self) -> str:
        """What the guide is called."""
        return self.family.name

    @cached_property
    def latents(self) -> tuple[Latent, ...]:
        """The model's latent variables."""
        return self.problem.whole.latents()

    @cached_property
    def of_model(self) -> dict[str, Parameter]:
        """The model's own parameters."""
        met: dict[str, tuple[Parameter, Any]] = {}
        shapes = self.problem.arguments.whole_shapes()
        program = meeting(self.problem.model, random.key(0), met)

        def run(arrays: Any) -> None:
            run_unconstrained(program, None, self.problem.arguments.layout.join(arrays))

        jax.eval_shape(lambda arrays: self.problem.alone(lambda: run(arrays)), shapes)
        return {name: parameter for name, (parameter, _) in met.items()}

    @cached_property
    def learned(self) -> Learned:
        """The parameters of both."""
        mine = self.family.parameters(self.latents, self.problem.spreads)
        if clash := mine.keys() & self.of_model.keys():
            raise ValueError(
                f"The model has a parameter {min(clash)!r}, and so has the guide {self.name}: rename the model's."
            )
        return Learned({**mine, **self.of_model})

    def check(self) -> None:
        """Refuse a model in which there is nothing to be fitted to."""
        model = getattr(self.problem.model, "__name__", "model")
        if not any(variable.is_latent for variable in self.problem.whole.variables.values()):
            raise ValueError(f"The model {model} has no latent variables: there is nothing to fit a guide to.")
        if not any(math.prod(latent.unconstrained_shape) for latent in self.latents):
            raise ValueError(f"The model {model} has no coordinates to learn: its latent variables have no free element.")

    def begin(self, key: Array, data: Values, init: Mapping[str, Any]) -> Beginning:
        """Initial values: about the position of highest density among a few, or about the values given."""
        met: dict[str, tuple[Parameter, Any]] = {}
        run_unconstrained(meeting(self.problem.model, random.fold_in(key, 1), met), None, data)
        of_model = {name: init.get(name, value) for name, (_, value) in met.items()}
        names = {latent.name for latent in self.latents}
        values = {name: value for name, value in init.items() if name in names}
        start = _Start(self.latents, given(self.problem.model, of_model), data)
        position, misfits = start.best(random.fold_in(key, 2), {**(self.problem.start or {}), **values})
        begun = self.family.begin(position)
        return Beginning({**{name: init.get(name, value) for name, value in begun.items()}, **of_model}, misfits)

    def misfit(self, name: str) -> str:
        """What does not fit of a variable."""
        return (
            f"init: the value of variable {name!r} lies outside of its support, or on its edge. Give a value inside."
        )

    def draw(self, params: Params, key: Array, data: Values) -> dict[str, Array]:
        """A position."""
        return self.family.draw(params, key, self.latents)

    def log_guide(self, params: Params, draw: Any, data: Values) -> Array:
        """Its log density under the guide."""
        return self.family.log_prob(params, draw, self.latents)

    def log_model(self, params: Params, draw: Any, data: Values) -> dict[str, Array]:
        """Its log density under the model, the Jacobian of each transform with its variable."""
        run = self.problem.at_position(params, draw, data)
        totals: dict[str, Array] = {}
        for name, variable in run.variables.items():
            if variable.distribution is not None:
                jacobian = jnp.sum(run.log_dets[name]) if name in run.log_dets else 0.0
                totals[name] = variable.total_log_prob() + jacobian
        return totals

    def values(self, params: Params, draw: Any, data: Values) -> dict[str, Array]:
        """The latent variables, and the model's deterministic values, at a draw."""
        return self.problem.at_position(params, draw, data).values()

    def coordinates(self, draw: Any) -> dict[str, Array]:
        """The position itself."""
        return draw

    def model_parameters(self) -> list[str]:
        """Names of the parameters that are the model's own."""
        return list(self.of_model)

    def described(self) -> dict[str, str]:
        """A line about each latent variable."""
        return {latent.name: f"{latent.support} {latent.shape}" for latent in self.latents}


@dataclass(frozen=True)
class _Start:
    """Positions to start from."""

    latents: Latents
    program: Program
    data: Values

    def best(self, key: Array, values: Values) -> tuple[dict[str, Array], dict[str, Array]]:
        """The one of highest density, and which of the `values` it is to have are misfits."""
        density, positions, misfits = lax.map(lambda i: self._candidate(key, i, values), jnp.arange(CANDIDATES + 1))
        best = jnp.argmax(density)
        return jax.tree.map(lambda leaf: leaf[best], (positions, misfits))

    def _candidate(self, key: Array, number: Array, values: Values) -> tuple[Array, dict[str, Array], dict[str, Array]]:
        radius = RADIUS * (1.0 - number / CANDIDATES)
        position = {
            v.name: radius * random.uniform(k, v.unconstrained_shape, v.dtype, -1.0, 1.0)
            for k, v in zip(random.split(random.fold_in(key, number), len(self.latents)), self.latents, strict=True)
        }
        misfits: dict[str, Array] = {}
        if values:
            full = {v.name: jnp.asarray(values.get(v.name, jnp.zeros(v.shape, v.dtype))) for v in self.latents}
            wanted = {v.name: jnp.bool_(v.name in values) for v in self.latents}
            position, misfits = at_values(self.program, position, full, wanted, self.data)
        density = sum(map(jnp.sum, run_unconstrained(self.program, position, self.data).terms().values()))
        return jnp.where(jnp.isfinite(density), density, -jnp.inf), position, misfits


def row_spec(spreads: Mapping[str, Spread], latent: Latent) -> PartitionSpec | None:
    """How a parameter is laid out that has an entry for each coordinate of a variable: as its rows are."""
    spread = spreads.get(latent.name)
    shape = latent.unconstrained_shape
    return spread_spec(spread) if spread is not None and shape and shape[0] == spread.rows else None
