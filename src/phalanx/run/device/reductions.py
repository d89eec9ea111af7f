"""The reducers of a run, side by side: from the values of all variables to one state for each thing that is reduced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import Array

from phalanx.errors.model_errors import model_errors
from phalanx.errors.names import hint
from phalanx.reducers.reducer import Reduce, Reducer, per_variable

WHOLE = ""
"""The name of what a function returns that returns one array and not a dict."""

States = dict[str, dict[str, Any]]
"""A state for each array that is reduced, by reducer name and by the array's name."""


@dataclass(frozen=True)
class Reductions:
    """What a run reduces; two equal ones compile to one program.

    Attributes:
        entries: names, and what is reduced how.
    """

    entries: tuple[tuple[str, Reduce], ...]

    @classmethod
    def of(cls, reducers: Mapping[str, Any], names: Sequence[str]) -> Reductions:
        """The user's reducers; one that names no function is applied to each of the variables `names`.

        Raises:
            TypeError: when something is no reducer.
        """
        if not isinstance(reducers, Mapping):
            raise TypeError(f'reducers must be a dict, such as {{"m": phx.reducers.moments()}}; got {reducers!r}.')
        for name, reducer in reducers.items():
            if not isinstance(name, str) or not isinstance(reducer, Reducer | Reduce):
                raise TypeError(
                    f"reducers[{name!r}] must be a reducer with a name, such as phx.reducers.moments() or "
                    f"phx.reduce(fn, ...); got {type(reducer).__name__}."
                )
        whole = tuple(names)
        return cls(
            tuple(
                (name, reducer if isinstance(reducer, Reduce) else per_variable(whole, reducer))
                for name, reducer in reducers.items()
            )
        )

    def init(self, values: Mapping[str, Array], before: Array | None = None) -> States:
        """States of no draws; `values` are `(chains, ...)`, of which shapes and types count.

        Chains have made `before` draws, `(chains,)`; None means none.
        """
        return {
            name: {
                part: _begun(name, part, entry, array, before) for part, array in parts_of(name, entry, values).items()
            }
            for name, entry in self.stateful
        }

    def update(self, states: States, values: Mapping[str, Array], where: Array) -> States:
        """States after a draw of those chains `where` there is one."""
        return {
            name: {
                part: entry.reducer.update(states[name][part], array, where)
                for part, array in parts_of(name, entry, values).items()
            }
            for name, entry in self.stateful
        }

    @property
    def keepers(self) -> dict[str, str]:
        """By name, who keeps its state: the first of those that make the same states of the same arrays."""
        return {
            name: next(first for first, other in self.entries if _same_states(entry, other))
            for name, entry in self.entries
        }

    @property
    def stateful(self) -> tuple[tuple[str, Reduce], ...]:
        """Entries that keep a state. So `moments()` and `rhat()`, which differ in what they tell, add up once."""
        keepers = set(self.keepers.values())
        return tuple((name, entry) for name, entry in self.entries if name in keepers)

    def check_superchains(self, superchains: int) -> None:
        """Refuse what compares groups of chains, if chains do not begin together in as many."""
        for name, entry in self.entries:
            if entry.reducer.superchains not in (0, superchains):
                raise ValueError(
                    f"reducers[{name!r}]: {entry.reducer} compares groups of chains that begin at one point each, and "
                    f"here they begin apart: their groups would agree whether or not they have forgotten where. Let "
                    f"them begin together, with init=phx.superchains({entry.reducer.superchains}); or use rhat()."
                )

    @property
    def tells(self) -> dict[str, str]:
        """Which of them a verdict reads, and as what."""
        return {name: entry.reducer.statistic for name, entry in self.entries if entry.reducer.statistic}


def _same_states(a: Reduce, b: Reduce) -> bool:
    def made(entry: Reduce) -> tuple[Any, ...]:
        return entry.fn, entry.reducer.init, entry.reducer.begin, entry.reducer.update, entry.reducer.merge

    return a is b or made(a) == made(b)


def _begun(name: str, part: str, entry: Reduce, array: Array, before: Array | None) -> Any:
    try:
        return entry.reducer.begun(array, before)
    except (TypeError, ValueError) as error:
        what = f"{entry.reducer} of {part!r}" if part else f"{entry.reducer}"
        raise type(error)(f"reducers[{name!r}]: {what}: {error}") from error


def _called(fn: Callable[..., Any], values: dict[str, Array]) -> Any:
    with model_errors(fn, arguments=values):
        return fn(values)


def parts_of(name: str, entry: Reduce, values: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays an entry reduces, of all chains."""
    try:
        made = jax.vmap(lambda values: _called(entry.fn, values))(dict(values))
    except KeyError as error:
        if error.args and error.args[0] in values:
            raise  # of a dict of the user's own
        raise ValueError(
            f"reducers[{name!r}]: there is no variable {error} to reduce; there are {', '.join(map(repr, values))}."
            f"{hint(map(str, error.args), values)}"
        ) from error
    parts = made if isinstance(made, dict) else {WHOLE: made}
    for part, array in parts.items():
        if not hasattr(array, "shape"):
            raise ValueError(
                f"reducers[{name!r}]: the function must return an array or a dict of arrays, got {type(array).__name__}"
                f" for {part!r}."
            )
    return parts
