r"""Missing entries of observed variables as latent variables: the program of `missing="impute"`, and its data.

Let $y$ be an observed variable, of which the entries $y_m$ are missing. The program samples $y_m$ as the variable
`y_missing`, puts its values into $y$, and observes $y$ as before: the density of $y$ is that of all entries, given and
missing, so `y_missing` itself adds none. Each row of $y$ looks its missing entries up by number, which keeps rows
apart: on a mesh `y_missing` is replicated, and the rows may be sharded.

Missing entries of a discrete variable are summed out, if nothing else in the program uses them: their probabilities add
up to one, so the density leaves them out.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, constraints

from phalanx.density.finite_data import find_not_finite
from phalanx.density.given_entries import WHERE_MISSING
from phalanx.density.missing_entries import MissingEntries, missing_name, support_of_entries
from phalanx.distributions.supports import entrywise
from phalanx.errors.message_text import count
from phalanx.inputs.arguments import Arguments, split_arguments
from phalanx.inputs.missing import mark_missing
from phalanx.inputs.placement import mesh_of, shard
from phalanx.language.handlers import under, with_keyword
from phalanx.language.messages import Forward
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program
from phalanx.mesh.devices import axes_but_chain
from phalanx.mesh.processes import to_host
from phalanx.mesh.specs import PyTree

MOST_NAMED = 10_000
"""Most imputed entries of a variable that are named by their indices."""


class Imputed(NamedTuple):
    """A program whose missing entries are latent, its data, and sentences on what is missing."""

    program: Program
    data: Any
    said: tuple[str, ...] = ()


def check_missing(missing: object) -> None:
    """Raise unless `missing` is None or "impute"."""
    if missing not in (None, "impute"):
        raise ValueError(f'missing: expected "impute", or None, which refuses missing entries; got {missing!r}.')


def impute(model: Program, data: object, mesh: Mesh | None = None) -> Imputed:
    """Return a program in which the missing entries of observed variables are latent, and the data for it.

    Args:
        model: a program.
        data: its keyword arguments, with missing entries.
        mesh: the devices, unless the data are placed on a mesh.

    Returns:
        The program and its data; the model itself if no observed variable has a missing entry.

    Raises:
        ValueError: if missing entries cannot be imputed; see `MissingEntries`.
    """
    data, masks = mark_missing(model, {} if data is None else data)
    arguments = split_arguments(model, data)
    if not masks and not find_not_finite(arguments.arrays):
        return Imputed(model, data)
    mesh = mesh_of(arguments.arrays) or mesh
    axes = ("data", "model") if mesh is None else tuple(axes_but_chain(mesh))
    entries = MissingEntries(model, arguments, masks, axes)
    missing = entries.look()
    if not missing:
        return Imputed(model, data)
    numbers_of: dict[str, Any] = {}
    for name, mask in missing.items():
        if missing_name(name) in entries.seen:
            raise ValueError(f"Variable {missing_name(name)!r}: imputed entries of {name!r} get this name; rename it.")
        numbers = np.where(mask, np.cumsum(mask.ravel()).reshape(mask.shape) - 1, -1).astype(np.int32)
        mesh_axes = entries.axes_of(mask)
        numbers_of[name] = shard(numbers, mesh, mesh_axes) if mesh_axes and mesh is not None else numbers
    counts = {name: int(mask.sum()) for name, mask in missing.items()}
    sentences = tuple(_describe_missing(name, counts[name], name in entries.discrete) for name in missing)
    return Imputed(_program(model, counts, entries.discrete), {**data, WHERE_MISSING: numbers_of}, sentences)


def impute_again(program: Program, data: object) -> Any:
    """Return other data for a compiled program; if it imputes entries, the data must miss as many.

    Raises:
        ValueError: if the number of missing entries differs.
    """
    counts = getattr(program, "counts_of_missing", None)
    if counts is None:
        return data
    again = impute(inspect.unwrap(program, stop=lambda f: not hasattr(f, "counts_of_missing")), data)
    counts_again = getattr(again.program, "counts_of_missing", {})
    for name in {**counts, **counts_again}:
        if counts.get(name, 0) != counts_again.get(name, 0):
            raise ValueError(
                f"data: variable {name!r} has {_entries(counts_again.get(name, 0))}, and the compiled program has "
                f"{counts.get(name, 0)}. Compile again, with phx.mcmc or phx.compile."
            )
    return again.data


def names_of_missing(program: Program, arguments: Arguments) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Return the names of imputed entries by variable: their indices in the observed one, such as `17` or `4,1`."""
    counts = getattr(program, "counts_of_missing", {})
    return {
        missing_name(name): (tuple(",".join(map(str, index)) for index in np.argwhere(mask).tolist()),)
        for name, mask in masks_of_missing(arguments).items()
        if counts.get(name, MOST_NAMED + 1) <= MOST_NAMED
    }


def masks_of_missing(arguments: Arguments) -> dict[str, np.ndarray]:
    """Return masks of the missing entries of observed variables by name, from the data of an imputing program."""
    masks: dict[str, np.ndarray] = {}
    for name, array, sharding in zip(arguments.names, arguments.arrays, arguments.shardings, strict=True):
        if name.startswith(f"{WHERE_MISSING}["):
            whole = sharding.trim(to_host(array))
            masks[name.removeprefix(f"{WHERE_MISSING}['").removesuffix("']")] = np.asarray(whole) >= 0
    return masks


def _describe_missing(name: str, number: int, is_discrete: bool) -> str:
    if is_discrete:
        return f"missing: {_entries(number)} of {name!r}, which is discrete: the density leaves them out."
    return f"missing: {_entries(number)} of {name!r}, imputed as {missing_name(name)!r}."


def _entries(number: int) -> str:
    return count(number, "missing entry")


def _program(model: Program, counts: Mapping[str, int], discrete: frozenset[str]) -> Program:
    """Return the model with an argument `where_missing`; without it, it is the model itself."""

    @wraps(model)
    def program(*args: Any, where_missing: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
        numbers_of = {} if where_missing is None else where_missing

        def complete(variable: RandomVariable, forward: Forward) -> RandomVariable:
            if variable.name not in numbers_of or not variable.observed or variable.distribution is None:
                return forward(variable)
            where = jnp.asarray(numbers_of[variable.name])
            if variable.name in discrete:
                return forward(replace(variable, distribution=entrywise(variable.distribution).mask(where < 0)))
            latent = LatentEntries(variable.distribution, where, counts[variable.name])
            missing_values = forward(RandomVariable(missing_name(variable.name), latent)).value
            full = jnp.where(where >= 0, missing_values[jnp.maximum(where, 0)], jnp.asarray(variable.value))
            return forward(replace(variable, value=full))

        return under(model, complete)(*args, **kwargs)

    return with_keyword(program, model, WHERE_MISSING, counts_of_missing=dict(counts))


class LatentEntries(Distribution):
    """Distribution of the missing entries of an observed variable.

    Its log density is zero, since the variable's own density contains these entries; draws are entries of a draw of the
    whole variable.

    Args:
        distribution: distribution of the whole variable.
        where: number of each missing entry, and -1 for given ones, in the shape of the variable's value.
        count: number of missing entries.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}  # pyright: ignore[reportIncompatibleVariableOverride]
    support: Any = constraints.dependent  # that of an object, as NumPyro's ImproperUniform has it
    pytree_data_fields = ("distribution", "where", "support")
    pytree_aux_fields = ("count",)

    def __init__(self, distribution: Distribution, where: Array, count: int):
        self.distribution = distribution
        self.where = where
        self.count = count
        support = support_of_entries(distribution)
        self.support = jax.tree.map(self._of_missing, support) if jax.tree.leaves(support) else support
        super().__init__((count,), (), validate_args=False)

    def log_prob(self, value: ArrayLike, intermediates: PyTree = None) -> Array:
        """Return zeros."""
        return jnp.zeros(jnp.shape(value))

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw the whole variable, and return its missing entries."""
        batch = self.where.shape[: self.where.ndim - len(self.distribution.event_shape)]
        draws = jnp.asarray(self.distribution.expand(batch).sample(key, sample_shape))
        return draws.reshape(*sample_shape, -1)[..., self._missing]

    @property
    def _missing(self) -> Array:
        return jnp.nonzero(self.where.ravel() >= 0, size=self.count)[0]

    def _of_missing(self, bound: Any) -> Any:
        """Return a bound of the support at the missing entries; one that they share is unchanged."""
        if jnp.size(bound) == 1:
            return jnp.reshape(bound, ())
        return jnp.broadcast_to(bound, self.where.shape).ravel()[self._missing]
