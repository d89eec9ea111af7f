"""Starting points of guides made from a model: positions of high density, or the user's values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from phalanx.distributions.row_sums import total_of
from phalanx.language.parameters import Parameter, initialized, with_parameters
from phalanx.language.tracing import Program
from phalanx.learning.ascent import Densities, LogDensity, StartingPoint, find_starting_point
from phalanx.mesh.total import Total
from phalanx.programs.unconstrained import at_values, run_unconstrained
from phalanx.variational.guides.coordinates import Latents, by_name, dtype_of, flat, size_of
from phalanx.variational.guides.learned import begun_with
from phalanx.variational.problem import Problem, Values

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

CANDIDATES = 8
"""Number of random positions that are evaluated for a start, beside zero."""

RADIUS = 2.0
"""Range of the first random position, uniform on (-2, 2); it shrinks to zero from one position to the next."""

NARROW = 0.1
"""Initial standard deviations about the user's values."""

TOP = "the top"
"""Key of a solved guide's climb among misfits, which are otherwise keyed by variable."""


class Beginning(NamedTuple):
    """Initial values of a fit.

    Attributes:
        values: the parameters.
        misfits: flags that are true where a value is refused, by name and the sentence that says why.
    """

    values: dict[str, Any]
    misfits: Mapping[tuple[str, str], Array] = {}


@dataclass(frozen=True)
class ModelStart:
    """A model with its data, as the start of guides and climbs.

    Attributes:
        problem: the model.
        data: its arguments.
        key: key of all random numbers.
        init: values by parameter or variable that the user gave.
    """

    problem: Problem
    data: Values
    key: Array
    init: Mapping[str, Any] = field(default_factory=dict)

    @property
    def latents(self) -> Latents:
        """The model's latent variables."""
        return self.problem.latents

    @cached_property
    def of_model(self) -> dict[str, Any]:
        """Initial values of the model's own parameters."""
        if not self.problem.parameters:
            return {}
        parameters: dict[str, tuple[Parameter, Any]] = {}
        run_unconstrained(initialized(self.problem.program, self._key(1), parameters), None, self.data)
        return begun_with(self.init, {name: value for name, (_, value) in parameters.items()})

    @cached_property
    def vector(self) -> Float[Array, "coordinate"]:
        """The position of highest density among a few, or that of the user's values, as a vector."""
        return flat(self._best[0])[0]

    @property
    def misfits(self) -> dict[tuple[str, str], Array]:
        """Flags of the variables whose given values do not fit."""
        return {(name, misfit_words(name)): bad for name, bad in self._best[1].items()}

    def point(self, init_scale: float | None) -> StartingPoint:
        """Return a point for a normal with these standard deviations; None climbs, and takes the curvature's."""
        if init_scale is None and not self._values:
            return find_starting_point(self.log_density(), self.vector, self._key(3))
        return StartingPoint(self.vector, jnp.full_like(self.vector, init_scale or NARROW))

    def anywhere(self, key: Array) -> Float[Array, "coordinate"]:
        """Return a random position, as a vector."""
        return RADIUS * random.uniform(key, (size_of(self.latents),), dtype_of(self.latents), -1.0, 1.0)

    def log_density(self, position: Mapping[str, Array] | None = None, jacobian: bool = True) -> LogDensity:
        """Return the log density as a function of a vector laid out like `position`.

        Without the Jacobians of transforms it is the density of the variables' values.
        """
        _, back = flat(self._best[0] if position is None else position)
        program = self._program  # traced here, outside of the transformations of the returned function

        def log_density(vector: Float[Array, "coordinate"]) -> Float[Array, ""]:
            return run_unconstrained(program, back(vector), self.data).log_density(jacobian)

        return log_density

    def densities(self, position: Mapping[str, Array]) -> Densities:
        """Return the log density of each variable's values, and of radii, as a function of a vector like `position`."""
        _, back = flat(position)

        def densities(vector: Float[Array, "coordinate"]) -> list[Total]:
            run = run_unconstrained(self._program, back(vector), self.data)
            return [*run.densities(), *map(total_of, run.log_radii.values())]

        return densities

    def best(self, key: Array, values: Values) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the position of highest density that has these `values`, and flags of those that do not fit."""
        program = self._program
        density, positions, misfits = lax.map(
            lambda i: self._candidate(program, key, i, values), jnp.arange(CANDIDATES + 1)
        )
        best = jnp.argmax(density)
        return jax.tree.map(lambda leaf: leaf[best], (positions, misfits))

    @cached_property
    def _best(self) -> tuple[dict[str, Array], dict[str, Bool[Array, ""]]]:
        return self.best(self._key(2), {**(self.problem.whole.start or {}), **self._values})

    @property
    def _values(self) -> dict[str, Any]:
        names = {latent.name for latent in self.latents}
        return {name: value for name, value in self.init.items() if name in names}

    @cached_property
    def _program(self) -> Program:
        return with_parameters(self.problem.program, self.of_model)

    def _key(self, number: int) -> Array:
        return random.fold_in(self.key, number)

    def _candidate(
        self, program: Program, key: Array, number: Array, values: Values
    ) -> tuple[Float[Array, ""], dict[str, Array], dict[str, Bool[Array, ""]]]:
        nearer = 1.0 - number / CANDIDATES
        position = by_name(nearer * self.anywhere(random.fold_in(key, number)), self.latents)
        misfits: dict[str, Array] = {}
        if values:
            full = {v.name: jnp.asarray(values.get(v.name, jnp.zeros(v.shape, v.dtype))) for v in self.latents}
            is_wanted = {v.name: jnp.bool_(v.name in values) for v in self.latents}
            position, misfits = at_values(program, position, full, is_wanted, self.data)
        density = run_unconstrained(program, position, self.data).log_density()
        return jnp.where(jnp.isfinite(density), density, -jnp.inf), position, misfits


def misfit_words(name: str) -> str:
    """Return the message about a variable whose given value does not fit."""
    return f"init: the value of variable {name!r} lies outside of its support, or on its edge. Give a value inside."
