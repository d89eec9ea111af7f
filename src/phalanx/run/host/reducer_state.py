"""What the reducers of a run know, on the host: stretch by stretch, in float64."""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import jax
import numpy as np

from phalanx.diagnostics import Finding
from phalanx.diagnostics.judging.folded import named_elements
from phalanx.mesh.processes import to_host
from phalanx.run.device.advance import Sunk
from phalanx.run.device.reducing import Reducing
from phalanx.run.device.reductions import WHOLE, Reductions
from phalanx.run.device.state_layout import split_pooled
from phalanx.run.state import Reduced

MOST_DRAWS = 2**16
"""Draws of a chain, at most, after which states go to the host: of so many, sums in float32 are good to some 1e-5."""

LEAST_DRAWS = 2**10
"""Draws of a chain, at least, after which they go, so that adding up states takes no time to speak of."""

ENOUGH_DRAWS = 2**26
"""Draws of all chains after which they go: a number of draws and not a time, so that equal runs give equal answers."""


class Unfinished(NamedTuple):
    """What is there in place of a result where a reducer of yours has failed: why, and the state it was in."""

    reason: str
    state: Any


class HostFold:
    """States of the reducers after all draws so far, and how many there are.

    A reducer that fails here, after hours perhaps, takes nothing with it: its state is kept as it was, the run goes on,
    and the verdict says so.
    """

    def __init__(self, reductions: Reductions, places: Any, known: Reduced | None = None):
        known = known or Reduced()
        self._reductions, self._places = reductions, places
        self._states, self._failed = dict(known.states), dict(known.failed)
        for name, entry in reductions.stateful:
            if name in self._states and name not in self._failed:
                self._merge(name, entry, self._states.pop(name))
        self.tells = reductions.tells
        self.draws, self.divergences, self.evaluations = known.draws, known.divergences, known.evaluations
        self._accepted, self._made = known.accepted, known.made
        self.ahead = 0
        """Draws that some chains made more than others, where a run that stores draws has been interrupted."""

    @classmethod
    def of(cls, reducing: Reducing, known: Reduced | None = None) -> HostFold:
        """Of a run."""
        return cls(reducing.reductions, reducing.places, known)

    def stretch(self, num_chains: int) -> int:
        """Draws of each chain after which its states come here."""
        return min(MOST_DRAWS, max(LEAST_DRAWS, ENOUGH_DRAWS // num_chains))

    def add(self, sunk: Sunk) -> None:
        """Take in a round, of which all chains have made the draws."""
        count, (counts, states) = to_host(sunk.count), sunk.states
        counts = jax.tree.map(to_host, counts)
        self.add_states(states)
        self.draws += int(count.min())
        self.evaluations += int(counts.num_steps.sum(dtype=np.int64))
        self.divergences += int(counts.diverging.sum(dtype=np.int64))
        self._made += int(counts.draws.sum(dtype=np.int64))
        self._accepted += float(counts.acceptance.sum(dtype=np.float64))

    @property
    def known(self) -> Reduced:
        """All of it, as a value."""
        return Reduced(
            dict(self._states), dict(self._failed), self.draws, self.divergences, self.evaluations, self._accepted,
            self._made,
        )  # fmt: skip

    @property
    def acceptance_rate(self) -> float | None:
        """Mean over all draws; None before the first."""
        return self._accepted / self._made if self._made else None

    def add_states(self, states: Any) -> None:
        """Merge states of later draws."""
        states = jax.tree.map(lambda place, leaf: place.trim(to_host(leaf)), self._places, states)
        for name, entry in self._reductions.stateful:
            if name not in self._failed:
                self._merge(name, entry, states[name])

    def _merge(self, name: str, entry: Any, later: Any) -> None:
        """Merge the state of a stretch, of each device by itself where devices pool their chains."""
        places, before = self._places[name], self._states.get(name, {})
        try:
            merged = {
                part: reduce(entry.reducer.merge, ([before[part]] if before else []) + _of_devices(places[part], state))
                for part, state in later.items()
            }
        except Exception as error:  # of a reducer that the user wrote: anything
            self._failed[name], merged = _reason("merging", error), before or later
        self._states[name] = merged

    def finalize(self) -> dict[str, Any]:
        """What was learned so far: by reducer name, and by variable where a reducer had several."""
        keepers = self._reductions.keepers
        return {
            name: self._finalized(keepers[name], entry)
            for name, entry in self._reductions.entries
            if keepers[name] in self._states
        }

    def _finalized(self, keeper: str, entry: Any) -> Any:
        parts = self._states[keeper]
        if keeper not in self._failed:
            try:
                parts = {part: entry.reducer.finalize(state) for part, state in parts.items()}
            except Exception as error:
                reason = _reason("finalizing", error)
            else:
                return parts[WHOLE] if set(parts) == {WHOLE} else parts
        else:
            reason = self._failed[keeper]
        return Unfinished(reason, jax.tree.map(np.asarray, parts))

    @property
    def constant(self) -> tuple[str, ...]:
        """Elements that are constant, as reducers know that the verdict reads."""
        found: dict[str, None] = {}
        for name, entry in self._reductions.entries:
            keeper, constant = self._reductions.keepers[name], entry.reducer.constant
            if constant is None or keeper not in self._states or keeper in self._failed:
                continue
            flags = {part: constant(state) for part, state in self._states[keeper].items()}
            result = flags[WHOLE] if set(flags) == {WHOLE} else flags
            found |= {element: None for element, flag in named_elements(name, result) if flag}
        return tuple(found)

    def findings(self, reduced: dict[str, Any]) -> tuple[Finding, ...]:
        """What failed of what was reduced, and whether it weighs chains alike."""
        failed = tuple(
            Finding(
                "failed reducer",
                f"reducers[{name!r}] failed: {result.reason}. Its state is kept as reduced[{name!r}].state.",
                "to mend its merge or finalize, and to finalize this state",
            )
            for name, result in reduced.items()
            if isinstance(result, Unfinished)
        )
        return (*failed, uneven(self.ahead)) if self.ahead and reduced else failed


def uneven(ahead: int) -> Finding:
    """Chains are ahead where their trajectories are short, and what reducers know leans to these places."""
    return Finding(
        "uneven chains",
        f"The run was interrupted when some chains were {ahead:,} draws ahead of others, which reducers have seen: "
        "they lean to where trajectories are short.",
        "the stored draws, of which every chain has as many, or until=phx.until(seconds=...), for which chains wait",
    )


def _of_devices(places: Any, state: Any) -> list[Any]:
    """Return the states of devices; what has been merged already is one state."""
    is_of_stretch = jax.tree.structure(places) == jax.tree.structure(state)
    return split_pooled(places, state) if is_of_stretch else [state]


def _reason(when: str, error: Exception) -> str:
    return f"{when}, {type(error).__name__}: {error}"
