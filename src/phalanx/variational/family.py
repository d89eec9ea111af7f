r"""Guides made from a model: a family of distributions over the unconstrained values of its latent variables.

$u \sim q_\phi$ on the real line, and $x = T(u)$ with the model's own bijections, which may depend on variables
before. Densities are compared at $u$, where the model's has the Jacobian of $T$.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec

from phalanx.diagnostics import Finding
from phalanx.mesh.placement import partition_spec
from phalanx.programs.bounds import kind_of
from phalanx.programs.parameters import Parameter, given, meeting
from phalanx.programs.shares import Latent
from phalanx.programs.tracing import Program
from phalanx.programs.unconstrained import Evaluation, at_values, refuse_point, run_unconstrained, transform_of
from phalanx.run.kept import is_ours
from phalanx.variational.ascent import LogDensity, Place, good_place
from phalanx.variational.coordinates import is_local
from phalanx.variational.learned import Learned, Params, begun_with
from phalanx.variational.pair import Beginning
from phalanx.variational.problem import Problem, Values

CANDIDATES, RADIUS = 8, 2.0
"""Positions tried for a start, uniform on (-2, 2) in every coordinate and ever closer to zero."""

TOP = "the top"
"""Where a solved family's climb ends, among what may not fit: no variable's name has to be this."""

NARROW = 0.1
"""Standard deviations to begin with where values are given, and not where a good place is."""

Latents = Sequence[Latent]


class Family(Protocol):
    """A family of distributions over positions: a dict of unconstrained values by variable."""

    @property
    def name(self) -> str:
        """How the user wrote it."""
        ...

    def parameters(self, latents: Latents) -> dict[str, Parameter]:
        """Its parameters: constraints, and how they are laid out."""
        ...

    @property
    def is_solved(self) -> bool:
        """Whether nothing is learned by steps.

        It then has, in place of `begin` and `moved`, `num_paths`; `solve(log_density, positions, key)` from as many
        positions to parameters, and whether they are any good; and `unsolved`, what to say where they are not.
        """
        ...

    @property
    def init_scale(self) -> float | None:
        """Standard deviations to begin with; None for those that the curvature of the model tells."""
        ...

    def begin(self, place: Place, latents: Latents) -> dict[str, Array]:
        """Values of the parameters that put it about a place."""
        ...

    def moved(self, params: Params, change: Params, latents: Latents) -> dict[str, Array]:
        """Values of the parameters after a change, which is measured by the family's own widths; none at zero."""
        ...

    @property
    def is_linear(self) -> bool:
        """Whether a draw is linear in its noise, which is standard normals."""
        ...

    @property
    def is_antithetic(self) -> bool:
        """Whether steps draw in pairs of opposite noise, as likely as any: what is odd in it adds nothing to gradients.

        The noise of a mean is odd where the posterior is normal; that of a covariance is even, and half as many
        directions show less of it.
        """
        ...

    def noise(self, key: Array, latents: Latents) -> Any:
        """What a draw is made of, besides parameters."""
        ...

    def draw(self, params: Params, noise: Any, latents: Latents) -> dict[str, Array]:
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
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the guide is called."""
        return self.family.name

    @cached_property
    def latents(self) -> tuple[Latent, ...]:
        """The model's latent variables, and where their rows lie."""
        shardings = self.problem.shardings
        return tuple(replace(v, sharding=shardings.get(v.name, v.sharding)) for v in self.problem.whole.latents())

    @property
    def scored(self) -> list[str]:
        """None: every draw can be differentiated through."""
        return []

    @property
    def is_antithetic(self) -> bool:
        """As the family is."""
        return self.family.is_antithetic

    @property
    def identity(self) -> Hashable | None:
        """The problem, and the family where it is ours."""
        known = self.problem.identity if is_ours(self.family) and not self.weights else None
        return None if known is None else (known, self.family)

    @property
    def of_model(self) -> dict[str, Parameter]:
        """The model's own parameters."""
        return self.problem.parameters

    @property
    def learned(self) -> Learned:
        """The parameters of both."""
        return self._learned

    @cached_property
    def _learned(self) -> Learned:
        mine = self.family.parameters(self.latents)
        if clash := mine.keys() & self.of_model.keys():
            raise ValueError(
                f"The model has a parameter {min(clash)!r}, and so has the guide {self.name}: rename the model's."
            )
        return Learned({**mine, **self.of_model})

    def check(self) -> None:
        """Refuse a model in which there is nothing to be fitted to, or what no transform of normals is."""
        for variable in self.problem.whole.variables.values():
            refuse_point(variable)
        for name in self.problem.whole.without_bijection:
            variable = self.problem.whole.variables[name]
            support = getattr(variable.distribution, "support", None)
            if support is not None and support.is_discrete:
                kind = kind_of(variable.distribution)
                raise ValueError(
                    f"Variable {name!r} is discrete ({kind}), and the guide {self.name} is a density of continuous "
                    f"variables. Sum it out of the model, for instance with "
                    f"numpyro.distributions.MixtureSameFamily; or write a guide that draws it from a {kind} with "
                    f"phx.param(...), and learn from all rows at once."
                )
            transform_of(variable)  # says why there is none
        model = getattr(self.problem.model, "__name__", "model")
        if not any(variable.is_latent for variable in self.problem.whole.variables.values()):
            raise ValueError(f"The model {model} has no latent variables: there is nothing to fit a guide to.")
        if not any(math.prod(latent.unconstrained_shape) for latent in self.latents):
            raise ValueError(
                f"The model {model} has no coordinates to learn: its latent variables have no free element."
            )

    def for_steps(self) -> FamilyPair:
        """The pair as steps see it: where they see minibatches, terms of rows count for all rows."""
        minibatch = self.problem.minibatch
        if minibatch is None:
            return self
        names = minibatch.terms_of_rows(self.problem.at_start, self.problem.arguments, "model")
        if local := [latent.name for latent in self.latents if latent.name in names]:
            raise ValueError(
                f"{minibatch.argument}: variable {local[0]!r} has an element for each row, and {self.name} has "
                f"parameters for all of them. Write a guide that computes them from the rows (an amortised one), or "
                f"give all rows at once."
            )
        return replace(self, weights=dict.fromkeys(sorted(names), minibatch.weight))

    def moved(self, free: Params, change: Params) -> dict[str, Any]:
        """The parameters after a change: the family's own by its widths, so that rates are in standard deviations."""
        of_family = self._family_moved(free, change)
        return {**self.learned.only(of_family).free(of_family), **self._model_moved(free, change)}

    def values_moved(self, free: Params, change: Params) -> dict[str, Any]:
        """The values that they have there: the family's own without a way back and forth."""
        of_model = self.learned.only(self.of_model).constrain(self._model_moved(free, change))
        return {**self._family_moved(free, change), **of_model}

    def _family_moved(self, free: Params, change: Params) -> dict[str, Any]:
        return dict(self.family.moved(self.learned.constrain(free), change, self.latents))

    def _model_moved(self, free: Params, change: Params) -> dict[str, Any]:
        return {name: jax.tree.map(jnp.add, free[name], change[name]) for name in self.of_model}

    def begin(self, key: Array, data: Values, init: Mapping[str, Any]) -> Beginning:
        """Initial values: about the position of highest density among a few, or about the values given."""
        met: dict[str, tuple[Parameter, Any]] = {}
        run_unconstrained(meeting(self.problem.model, random.fold_in(key, 1), met), None, data)
        of_model = begun_with(init, {name: value for name, (_, value) in met.items()})
        names = {latent.name for latent in self.latents}
        values = {name: value for name, value in init.items() if name in names}
        start = Start(self.latents, given(self.problem.model, of_model), data)
        position, misfits = start.best(random.fold_in(key, 2), {**(self.problem.start or {}), **values})
        if self.family.is_solved:
            first, again = flat(position)[0], random.fold_in(key, 4)
            others = jax.vmap(start.anywhere)(random.split(again, self.family.num_paths)[1:])
            positions = jnp.concatenate([first[None], others])
            begun, reached = self.family.solve(start.log_density(position), positions, again)
            return Beginning({**begun, **of_model}, {**misfits, TOP: ~reached})
        if self.family.init_scale is None and not values:
            place = start.climbed(random.fold_in(key, 3), position)
        else:
            vector = flat(position)[0]
            place = Place(vector, jnp.full_like(vector, self.family.init_scale or NARROW))
        begun = self.family.begin(place, self.latents)
        return Beginning({**begun_with(init, begun), **of_model}, misfits)

    def misfit(self, name: str) -> str:
        """What does not fit of a variable."""
        if name == TOP:
            return f"guide: {self.name} {self.family.unsolved}"
        return f"init: the value of variable {name!r} lies outside of its support, or on its edge. Give a value inside."

    def noise(self, key: Array) -> Any:
        """What a draw is made of."""
        return self.family.noise(key, self.latents)

    def draw(self, params: Params, noise: Any, data: Values) -> dict[str, Array]:
        """A position."""
        return self.family.draw(params, noise, self.latents)

    def draw_weighed(self, params: Params, noise: Any, data: Values) -> tuple[Any, Array]:
        """A draw, and its log density."""
        draw = self.draw(params, noise, data)
        return draw, self.log_guide(params, draw, data)

    def draw_along(self, params: Params, noise: Any, data: Values) -> tuple[Any, Array]:
        """A draw, and its log density at parameters that are held."""
        if made := getattr(self.family, "draw_along", None):
            return made(params, noise, self.latents)
        draw = self.draw(params, noise, data)
        return draw, self.log_guide(lax.stop_gradient(params), draw, data)

    def log_guide(self, params: Params, draw: Any, data: Values) -> Array:
        """Its log density under the guide."""
        return self.family.log_prob(params, draw, self.latents)

    def log_score(self, params: Params, draw: Any, data: Values) -> None:
        """There is nothing that cannot be differentiated through."""

    def log_model(self, params: Params, draw: Any, data: Values) -> dict[str, Array]:
        """Its log density under the model, the Jacobian of each transform with its variable."""
        run = self.problem.at_position(params, draw, data)
        totals: dict[str, Array] = {}
        for name, variable in run.variables.items():
            if variable.distribution is not None:
                jacobian = jnp.sum(run.log_dets[name]) if name in run.log_dets else 0.0
                totals[name] = self.weights.get(name, 1.0) * (variable.total_log_prob().value + jacobian)
        return totals

    def values(self, params: Params, draw: Any, data: Values) -> dict[str, Array]:
        """The latent variables, and the model's deterministic values, at a draw."""
        return self.problem.at_position(params, draw, data).values()

    def coordinates(self, draw: Any) -> dict[str, Array]:
        """The position itself."""
        return draw

    def position(self, params: Params, draw: Any, data: Values) -> dict[str, Array]:
        """Return the draw, which is a position."""
        return draw

    def log_weight(self, params: Params, run: Evaluation, data: Values) -> Array:
        """Return the log importance weight at the position of a run of the model."""
        return run.log_density() - self.log_guide(params, run.position, data)

    @property
    def left_out(self) -> list[Finding]:
        """Nothing: normals on the real line are wherever the model can be."""
        return []

    def model_parameters(self) -> list[str]:
        """Names of the parameters that are the model's own."""
        return list(self.of_model)

    def described(self) -> dict[str, str]:
        """A line about each latent variable."""
        return {latent.name: f"{latent.support} {latent.shape}" for latent in self.latents}


@dataclass(frozen=True)
class Start:
    """Positions to start from."""

    latents: Latents
    program: Program
    data: Values

    def best(self, key: Array, values: Values) -> tuple[dict[str, Array], dict[str, Array]]:
        """The one of highest density, and which of the `values` it is to have are misfits."""
        density, positions, misfits = lax.map(lambda i: self._candidate(key, i, values), jnp.arange(CANDIDATES + 1))
        best = jnp.argmax(density)
        return jax.tree.map(lambda leaf: leaf[best], (positions, misfits))

    def anywhere(self, key: Array) -> Array:
        """One at random, as a vector."""
        return RADIUS * random.uniform(key, (num_coordinates(self.latents),), dtype_of(self.latents), -1.0, 1.0)

    def climbed(self, key: Array, position: Mapping[str, Array]) -> Place:
        """Where a climb from a position finds a good place for a normal."""
        return good_place(self.log_density(position), flat(position)[0], key)

    def log_density(self, position: Mapping[str, Array], jacobian: bool = True) -> LogDensity:
        """The model's log density as a function of vectors such as that of `position`: there, or of the values."""
        _, back = flat(position)

        def log_density(vector: Array) -> Array:
            return run_unconstrained(self.program, back(vector), self.data).log_density(jacobian)

        return log_density

    def _candidate(self, key: Array, number: Array, values: Values) -> tuple[Array, dict[str, Array], dict[str, Array]]:
        nearer = 1.0 - number / CANDIDATES
        position = by_name(nearer * self.anywhere(random.fold_in(key, number)), self.latents)
        misfits: dict[str, Array] = {}
        if values:
            full = {v.name: jnp.asarray(values.get(v.name, jnp.zeros(v.shape, v.dtype))) for v in self.latents}
            wanted = {v.name: jnp.bool_(v.name in values) for v in self.latents}
            position, misfits = at_values(self.program, position, full, wanted, self.data)
        density = run_unconstrained(self.program, position, self.data).log_density()
        return jnp.where(jnp.isfinite(density), density, -jnp.inf), position, misfits


def flat(position: Mapping[str, Array]) -> tuple[Array, Any]:
    """A position as a vector, variables in the order of their names; and the way back."""
    return ravel_pytree(dict(position))


def by_name(vector: Array, latents: Latents) -> dict[str, Array]:
    """The inverse of `flat`."""
    found, begin = {}, 0
    for latent in sorted(latents, key=lambda latent: latent.name):
        size = math.prod(latent.unconstrained_shape)
        found[latent.name] = vector[begin : begin + size].reshape(latent.unconstrained_shape).astype(latent.dtype)
        begin += size
    return found


def num_coordinates(latents: Latents) -> int:
    """The length of a position as a vector."""
    return sum(math.prod(latent.unconstrained_shape) for latent in latents)


def dtype_of(latents: Latents) -> Any:
    """Of a position as a vector."""
    return jnp.result_type(*(latent.dtype for latent in latents))


def row_spec(latent: Latent) -> PartitionSpec | None:
    """How a parameter is laid out that has an entry for each coordinate of a variable: as its rows are."""
    shape = latent.unconstrained_shape
    return partition_spec(latent.sharding) if is_local(latent) and shape and shape[0] == latent.sharding.rows else None
