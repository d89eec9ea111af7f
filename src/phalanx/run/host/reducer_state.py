"""States of a run's reducers on the host, merged stretch by stretch in float64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import jax
import numpy as np

from phalanx.diagnostics import Finding
from phalanx.diagnostics.judging.folded import named_elements
from phalanx.mesh.processes import to_host
from phalanx.run.device.advance import SinkState
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


@dataclass(frozen=True)
class HostReducers:
    """Keeper of the reducers' states on the host, in float64.

    A reducer that fails here, after hours perhaps, takes nothing with it: its state is kept as it was, the run goes on,
    and the verdict says so.

    Attributes:
        reductions: the reducers.
        places: where every array of their states lives.
    """

    reductions: Reductions
    places: Any

    @classmethod
    def of(cls, reducing: Reducing) -> HostReducers:
        """Return the keeper of a run."""
        return cls(reducing.reductions, reducing.places)

    def stretch(self, num_chains: int) -> int:
        """Return the draws of each chain after which its states are copied to the host."""
        return min(MOST_DRAWS, max(LEAST_DRAWS, ENOUGH_DRAWS // num_chains))

    def with_round(self, reduced: Reduced, sinks: SinkState) -> Reduced:
        """Return the states with a round, of which all chains have made the draws."""
        counts, states = sinks.states
        counts = jax.tree.map(to_host, counts)
        return self.with_states(reduced, states)._replace(
            draws=reduced.draws + int(to_host(sinks.count).min()),
            evaluations=reduced.evaluations + int(counts.num_steps.sum(dtype=np.int64)),
            divergences=reduced.divergences + int(counts.diverging.sum(dtype=np.int64)),
            made=reduced.made + int(counts.draws.sum(dtype=np.int64)),
            accepted=reduced.accepted + float(counts.acceptance.sum(dtype=np.float64)),
        )

    def with_states(self, reduced: Reduced, states: Any) -> Reduced:
        """Return the states merged with those of later draws."""
        states = jax.tree.map(lambda place, leaf: place.trim(to_host(leaf)), self.places, states)
        for name, entry in self.reductions.stateful:
            if name not in reduced.failed:
                reduced = self._merged(reduced, name, entry, states[name])
        return reduced

    def pooled(self, reduced: Reduced) -> Reduced:
        """Return states that were read from a file, those of several devices merged where devices pool their chains."""
        for name, entry in self.reductions.stateful:
            if name in reduced.states and name not in reduced.failed:
                others = {other: parts for other, parts in reduced.states.items() if other != name}
                reduced = self._merged(reduced._replace(states=others), name, entry, reduced.states[name])
        return reduced

    def _merged(self, reduced: Reduced, name: str, entry: Any, later: Any) -> Reduced:
        """Merge the state of a stretch, of each device by itself where devices pool their chains."""
        places, before = self.places[name], reduced.states.get(name, {})
        try:
            merged = {
                part: reduce(entry.reducer.merge, ([before[part]] if before else []) + _of_devices(places[part], state))
                for part, state in later.items()
            }
        except Exception as error:  # of a reducer that the user wrote: anything
            reduced = reduced._replace(failed={**reduced.failed, name: _reason("merging", error)})
            merged = before or later
        return reduced._replace(states={**reduced.states, name: merged})

    def finalize(self, reduced: Reduced) -> dict[str, Any]:
        """Return the results so far: by reducer name, and by variable where a reducer had several."""
        keepers = self.reductions.keepers
        return {
            name: self._finalized(reduced, keepers[name], entry)
            for name, entry in self.reductions.entries
            if keepers[name] in reduced.states
        }

    def _finalized(self, reduced: Reduced, keeper: str, entry: Any) -> Any:
        parts = reduced.states[keeper]
        if keeper not in reduced.failed:
            try:
                parts = {part: entry.reducer.finalize(state) for part, state in parts.items()}
            except Exception as error:
                reason = _reason("finalizing", error)
            else:
                return parts[WHOLE] if set(parts) == {WHOLE} else parts
        else:
            reason = reduced.failed[keeper]
        return Unfinished(reason, jax.tree.map(np.asarray, parts))

    def constant(self, reduced: Reduced) -> tuple[str, ...]:
        """Return the elements that are constant, according to the reducers that the verdict reads."""
        found: dict[str, None] = {}
        for name, entry in self.reductions.entries:
            keeper, constant = self.reductions.keepers[name], entry.reducer.constant
            if constant is None or keeper not in reduced.states or keeper in reduced.failed:
                continue
            flags = {part: constant(state) for part, state in reduced.states[keeper].items()}
            result = flags[WHOLE] if set(flags) == {WHOLE} else flags
            found |= {element: None for element, flag in named_elements(name, result) if flag}
        return tuple(found)


def findings(results: dict[str, Any], ahead: int) -> tuple[Finding, ...]:
    """Return the reducers that failed, and a finding if their results weigh some chains more than others.

    Args:
        results: of `HostReducers.finalize`.
        ahead: draws that some chains made more than others, where a run that stores draws has been interrupted.
    """
    failed = tuple(
        Finding(
            "failed reducer",
            f"reducers[{name!r}] failed: {result.reason}. Its state is kept as reduced[{name!r}].state.",
            "to mend its merge or finalize, and to finalize this state",
        )
        for name, result in results.items()
        if isinstance(result, Unfinished)
    )
    return (*failed, uneven(ahead)) if ahead and results else failed


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
