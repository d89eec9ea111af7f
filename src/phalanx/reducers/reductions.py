"""Reducers of a run: from the values of all variables to one state for each reduced array."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

from phalanx.errors.model_errors import model_errors
from phalanx.errors.names import hint
from phalanx.mesh.specs import PyTree
from phalanx.reducers.reducer import Partial, Reduce, Reducer, density_name

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

WHOLE = ""
"""Name of the result of a function that returns an array instead of a dict."""

States = dict[str, dict[str, Any]]
"""States by reducer name and by name of the reduced array."""


@dataclass(frozen=True)
class Reductions:
    """Reducers of a run; equal ones compile to one program.

    Attributes:
        entries: names, with a function of a draw and a reducer each.
    """

    entries: tuple[tuple[str, Reduce], ...]

    @classmethod
    def of(cls, reducers: Any, names: Sequence[str], observed_names: Sequence[str] = ()) -> Reductions:
        """Return the user's reducers; one without a function is applied to each of the variables `names`.

        A reducer of observations is applied to the log densities of each of the variables in `observed_names`.

        Raises:
            TypeError: when `reducers` is not a dict of reducers.
            ValueError: when one is of observations, and there are no observations.
        """
        if not isinstance(reducers, Mapping):
            raise TypeError(f'reducers must be a dict, such as {{"m": phx.reducers.moments()}}; got {reducers!r}.')
        for name, reducer in reducers.items():
            if not isinstance(name, str) or not isinstance(reducer, Reducer | Reduce):
                raise TypeError(
                    f"reducers[{name!r}] must be a reducer with a name, such as phx.reducers.moments() or "
                    f"phx.reduce(fn, ...); got {type(reducer).__name__}."
                )
        return cls(tuple((name, _entry(name, reducer, names, observed_names)) for name, reducer in reducers.items()))

    def init(
        self,
        values: Mapping[str, Array],
        before: Int[Array, "chains"] | None = None,
        chain: Int[Array, "chains"] | None = None,
    ) -> States:
        """Return states without draws.

        Args:
            values: arrays `(chains, ...)` by variable, of which only shapes and types are used.
            before: number of earlier draws of each chain; None for 0.
            chain: number of each chain in the run; None if these are all chains.
        """
        chains = jnp.arange(len(next(iter(values.values()))), dtype=jnp.int32)
        before = jnp.zeros_like(chains) if before is None else before
        chain = chains if chain is None else chain
        return {
            name: {
                part: _begun(name, part, entry, array, before, chain)
                for part, array in parts_of(name, entry, values).items()
            }
            for name, entry in self.stateful
        }

    def update(self, states: States, values: Mapping[str, Array], where: Bool[Array, "chains"]) -> States:
        """Return the states after a draw of the chains for which `where` is true."""
        return {
            name: {
                part: entry.reducer.update(states[name][part], array, where)
                for part, array in parts_of(name, entry, values).items()
            }
            for name, entry in self.stateful
        }

    @property
    def keepers(self) -> dict[str, str]:
        """By reducer name, the name of the first reducer with the same states of the same arrays, which they share."""
        return {
            name: next(first for first, other in self.entries if _same_states(entry, other))
            for name, entry in self.entries
        }

    @property
    def stateful(self) -> tuple[tuple[str, Reduce], ...]:
        """Entries with a state of their own; `moments()` and `rhat()`, which differ in `finalize`, share one."""
        keepers = set(self.keepers.values())
        return tuple((name, entry) for name, entry in self.entries if name in keepers)

    @property
    def of_observations(self) -> bool:
        """True if a reducer reads the log densities of observations."""
        of_run = [entry for _, entry in self.entries if isinstance(entry.fn, Partial)]
        return any(entry.reducer.of_observations for entry in of_run)

    def check_superchains(self, superchains: int) -> None:
        """Raise if a reducer compares groups of chains, and chains do not start in as many groups."""
        for name, entry in self.entries:
            if entry.reducer.superchains not in (0, superchains):
                starts = f"start in {superchains} groups" if superchains else "start separately"
                raise ValueError(
                    f"reducers[{name!r}]: {entry.reducer} compares groups of chains with a common start, and these "
                    f"chains {starts}: the groups would agree even if they depend on their starts. Give "
                    f"init=phx.superchains({entry.reducer.superchains}), or use rhat()."
                )

    @property
    def statistics(self) -> dict[str, str]:
        """Statistics that a verdict reads, by reducer name."""
        return {name: entry.reducer.statistic for name, entry in self.entries if entry.reducer.statistic}


def _entry(name: str, reducer: Reduce | Reducer, names: Sequence[str], observed_names: Sequence[str]) -> Reduce:
    if isinstance(reducer, Reduce):
        return reducer
    if not reducer.of_observations:
        return Reduce(Partial(_values_of, (tuple(names),)), reducer)
    if not observed_names:
        raise ValueError(
            f"reducers[{name!r}]: {reducer} reduces the log density of each observation, and there is no observed "
            f"variable here: the model has none; or its likelihood is a phx.factor, which does not identify the "
            f"observations; or they share discrete variables that phx.marginalize sums out, and have no term each. "
            f"Observe values by phx.sample(name, distribution, obs=values); or reduce log densities that you compute, "
            f"with phx.reduce(fn, {reducer})."
        )
    return Reduce(Partial(_densities_of, (tuple(observed_names),)), reducer)


def _values_of(names: tuple[str, ...], values: Mapping[str, Array]) -> dict[str, Array]:
    return {name: values[name] for name in names}


def _densities_of(observed_names: tuple[str, ...], values: Mapping[str, Array]) -> dict[str, Array]:
    return {name: values[density_name(name)] for name in observed_names}


def _same_states(a: Reduce, b: Reduce) -> bool:
    def made(entry: Reduce) -> tuple[Any, ...]:
        return entry.fn, entry.reducer.init, entry.reducer.begin, entry.reducer.update, entry.reducer.merge

    return a is b or made(a) == made(b)


def _begun(
    name: str, part: str, entry: Reduce, array: Array, before: Int[Array, "chains"], chain: Int[Array, "chains"]
) -> PyTree:
    try:
        return entry.reducer.begun(array, before, chain)
    except (TypeError, ValueError) as error:
        what = f"{entry.reducer} of {part!r}" if part else f"{entry.reducer}"
        raise type(error)(f"reducers[{name!r}]: {what}: {error}") from error


def _called(fn: Callable[..., Any], values: dict[str, Array]) -> PyTree:
    with model_errors(fn, arguments=values):
        return fn(values)


def parts_of(name: str, entry: Reduce, values: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays, of all chains, that an entry reduces."""
    try:
        results = jax.vmap(lambda values: _called(entry.fn, values))(dict(values))
    except KeyError as error:
        if error.args and error.args[0] in values:
            raise  # the variable exists: the error is of the user's code
        raise ValueError(
            f"reducers[{name!r}]: there is no variable {error} to reduce; there are {', '.join(map(repr, values))}."
            f"{hint(map(str, error.args), values)}"
        ) from error
    parts = results if isinstance(results, dict) else {WHOLE: results}
    for part, array in parts.items():
        if not hasattr(array, "shape"):
            raise ValueError(
                f"reducers[{name!r}]: the function must return an array or a dict of arrays, got {type(array).__name__}"
                f" for {part!r}."
            )
    return parts
