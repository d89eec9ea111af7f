"""States of a run's reducers on the host, merged in float64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import jax
import numpy as np

from phalanx.diagnostics import Finding
from phalanx.diagnostics.judging.reduced import named_elements
from phalanx.mesh.processes import to_host
from phalanx.reducers.reducer import Reduce
from phalanx.reducers.reductions import WHOLE, Reductions, States
from phalanx.run.device.advance import SinkState
from phalanx.run.device.reducing import Reducing
from phalanx.run.device.state_layout import StatePlacements, split_pooled
from phalanx.run.state import Reduced

MOST_DRAWS = 2**16
"""Maximal draws of a chain per batch: sums of so many in float32 have relative errors of 1e-5."""

LEAST_DRAWS = 2**10
"""Minimal draws of a chain per batch, so that merging states takes little time."""

ENOUGH_DRAWS = 2**26
"""Draws of all chains per batch: a number rather than a time, so that equal runs give equal results."""


class Unfinished(NamedTuple):
    """Placeholder for the result of a user's reducer that failed: the reason and the reducer's state."""

    reason: str
    state: Any


@dataclass(frozen=True)
class HostReducers:
    """Merges of reducers' states on the host, in float64.

    If a user's reducer fails here, its state is kept, the run continues, and the verdict reports the failure.

    Attributes:
        reductions: the reducers.
        placements: placement of every array of their states.
        groups: number of groups of chains, each of which has its own results; None if all chains have one.
    """

    reductions: Reductions
    placements: StatePlacements
    groups: int | None = None

    @classmethod
    def of(cls, reducing: Reducing) -> HostReducers:
        """Return the merges of a run."""
        return cls(reducing.reductions, reducing.placements, reducing.blocks.groups)

    def batch_length(self, num_chains: int) -> int:
        """Return the draws of each chain in a batch, after which states are merged on the host."""
        return min(MOST_DRAWS, max(LEAST_DRAWS, ENOUGH_DRAWS // num_chains))

    def with_round(self, reduced_state: Reduced, sinks: SinkState) -> Reduced:
        """Return the states and totals after a round that all chains have completed."""
        counts, states = sinks.states
        counts = jax.tree.map(to_host, counts)
        return self.with_states(reduced_state, states)._replace(
            draws=reduced_state.draws + int(to_host(sinks.count).min()),
            evaluations=reduced_state.evaluations + int(counts.num_steps.sum(dtype=np.int64)),
            divergences=reduced_state.divergences + int(counts.diverging.sum(dtype=np.int64)),
            transitions=reduced_state.transitions + int(counts.draws.sum(dtype=np.int64)),
            accepted=reduced_state.accepted + float(counts.acceptance.sum(dtype=np.float64)),
        )

    def with_states(self, reduced_state: Reduced, states: States) -> Reduced:
        """Return the states merged with the states of later draws."""
        states = jax.tree.map(lambda placement, leaf: placement.trim(to_host(leaf)), self.placements, states)
        for name, entry in self.reductions.stateful:
            if name not in reduced_state.failed:
                reduced_state = self._merged(reduced_state, name, entry, states[name])
        return reduced_state

    def pooled(self, reduced_state: Reduced) -> Reduced:
        """Return states read from a file, with the entries of several devices merged if they have one per device."""
        for name, entry in self.reductions.stateful:
            if name in reduced_state.states and name not in reduced_state.failed:
                others = {other: parts for other, parts in reduced_state.states.items() if other != name}
                reduced_state = self._merged(
                    reduced_state._replace(states=others), name, entry, reduced_state.states[name]
                )
        return reduced_state

    def _merged(self, reduced_state: Reduced, name: str, entry: Reduce, later: dict[str, Any]) -> Reduced:
        """Merge the state of a batch, device by device if each device has one state for all of its chains."""
        placements = self.placements[name]
        before = reduced_state.states.get(name, {})
        try:
            merged_parts = {
                part: reduce(
                    entry.reducer.merge, ([before[part]] if before else []) + _of_devices(placements[part], state)
                )
                for part, state in later.items()
            }
        except Exception as error:  # a user's reducer may raise anything
            reduced_state = reduced_state._replace(failed={**reduced_state.failed, name: _reason("merging", error)})
            merged_parts = before or later
        return reduced_state._replace(states={**reduced_state.states, name: merged_parts})

    def finalize(self, reduced_state: Reduced) -> dict[str, Any]:
        """Return the results so far by reducer name, and by variable for reducers of several.

        They have a leading dimension of groups of chains, if there are groups.
        """
        if self.groups is None:
            return self._results(reduced_state)

        def of_group(number: int) -> dict[str, Any]:
            def own(leaf: np.ndarray) -> np.ndarray:
                count = len(leaf) // groups
                return leaf[number * count : (number + 1) * count]

            return self._results(reduced_state._replace(states=jax.tree.map(own, reduced_state.states)))

        groups = self.groups
        return jax.tree.map(lambda *results: np.stack(results), *map(of_group, range(groups)))

    def _results(self, reduced_state: Reduced) -> dict[str, Any]:
        """Return the results of all chains, or of those of a group."""
        keepers = self.reductions.keepers
        return {
            name: self._finalized(reduced_state, keepers[name], entry)
            for name, entry in self.reductions.entries
            if keepers[name] in reduced_state.states
        }

    def _finalized(self, reduced_state: Reduced, keeper: str, entry: Reduce) -> Any:
        parts = reduced_state.states[keeper]
        if keeper not in reduced_state.failed:
            try:
                parts = {part: entry.reducer.finalize(state) for part, state in parts.items()}
            except Exception as error:
                reason = _reason("finalizing", error)
            else:
                return parts[WHOLE] if set(parts) == {WHOLE} else parts
        else:
            reason = reduced_state.failed[keeper]
        return Unfinished(reason, jax.tree.map(np.asarray, parts))

    def constant(self, reduced_state: Reduced) -> tuple[str, ...]:
        """Return the names of constant elements, according to reducers that detect them."""
        elements: dict[str, None] = {}
        for name, entry in self.reductions.entries:
            keeper = self.reductions.keepers[name]
            constant = entry.reducer.constant
            if constant is None or keeper not in reduced_state.states or keeper in reduced_state.failed:
                continue
            flags = {part: constant(state) for part, state in reduced_state.states[keeper].items()}
            result = flags[WHOLE] if set(flags) == {WHOLE} else flags
            elements |= {element: None for element, flag in named_elements(name, result) if flag}
        return tuple(elements)


def findings(results: dict[str, Any], num_lost: int) -> tuple[Finding, ...]:
    """Return findings on reducers that failed, and on results without the last draws.

    Args:
        results: results of `HostReducers.finalize`.
        num_lost: stored draws of each chain that reducers did not receive.
    """
    failures = tuple(
        Finding(
            "failed reducer",
            f"reducers[{name!r}] failed: {result.reason}. Its state is kept as reduced[{name!r}].state.",
            "to correct its merge or finalize, and to finalize this state",
        )
        for name, result in results.items()
        if isinstance(result, Unfinished)
    )
    return (*failures, _without(num_lost)) if num_lost else failures


def _without(num_lost: int) -> Finding:
    return Finding(
        "draws not reduced",
        f"A second Ctrl-C ended the run within a block. Results of reducers lack the last {num_lost:,} stored draws "
        f"of each chain.",
        "the stored draws, or another run; one Ctrl-C ends it at the end of a block, with all draws reduced",
    )


def _of_devices(placements: Any, state: Any) -> list[Any]:
    """Return one state for each device; a single state if it was merged before."""
    has_every_device = jax.tree.structure(placements) == jax.tree.structure(state)
    return split_pooled(placements, state) if has_every_device else [state]


def _reason(when: str, error: Exception) -> str:
    return f"{when}, {type(error).__name__}: {error}"
