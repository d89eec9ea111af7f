"""A run as a value: all that its draws to come depend on, but for the model, its data and the kernel.

`phalanx.run.engine.Engine.advance` moves it by one block. Keys are functions of (seed, chain, draw): from the position
where its draw begins, and the number of that draw, a chain makes the draws it would have made, and the value contains
nothing of a trajectory under way. While a run moves, its chains and sinks are arrays on the devices. As a value of no
mesh, see `Engine.fetched`, it holds whole arrays by variable, and can be written to a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from phalanx.adaptation.tuner import Sums
from phalanx.adaptation.warm_up import WarmUpState
from phalanx.mesh.keys import is_key
from phalanx.run.device.advance import SinkState
from phalanx.run.device.blocks import ChainState
from phalanx.run.host.window import Window


class Work(NamedTuple):
    """What has been computed: ticks of a lane, and gradient evaluations in trajectories that ended, over all chains."""

    ticks: int = 0
    evaluations: int = 0

    def more(self, ticks: int = 0, evaluations: int = 0) -> Work:
        """Return the sum with that of another block."""
        return Work(self.ticks + ticks, self.evaluations + evaluations)


class Reduced(NamedTuple):
    """States of the reducers on the host, and the number of draws that they contain.

    Attributes:
        states: by the name of a reducer, and by variable.
        failed: reducers that have failed, and why.
        draws: of each chain, that were not stored.
        divergences, evaluations: of those draws, over all chains.
        accepted, made: sum of the acceptance rates of all draws, and how many these are.
    """

    states: Mapping[str, Any] = {}
    failed: Mapping[str, str] = {}
    draws: int = 0
    divergences: int = 0
    evaluations: int = 0
    accepted: float = 0.0
    made: int = 0

    @property
    def acceptance_rate(self) -> float | None:
        """Mean over all draws; None before the first."""
        return self.accepted / self.made if self.made else None


class Stored(NamedTuple):
    """Draws on the host: arrays `(chain, draw, ...)` by name, of which each chain has filled as many as `counts`."""

    draws: Mapping[str, np.ndarray]
    stats: Mapping[str, np.ndarray]
    counts: np.ndarray
    divergences: int = 0

    @classmethod
    def nothing(cls, num_chains: int) -> Stored:
        """Return no draws of so many chains."""
        return cls({}, {}, np.zeros(num_chains, np.int64))

    @property
    def count(self) -> int:
        """Draws that every chain has."""
        return int(self.counts.min())

    @property
    def ahead(self) -> int:
        """Draws that some chains have more than others."""
        return int(self.counts.max() - self.count)

    @property
    def whole(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Draws that every chain has, and their statistics."""
        return self._cut(0, self.count)

    @property
    def rest(self) -> Stored:
        """The draws that not every chain has."""
        draws, stats = self._cut(self.count, int(self.counts.max()))
        return self._replace(draws=draws, stats=stats)

    def after(self, draws: Mapping[str, np.ndarray], stats: Mapping[str, np.ndarray]) -> Stored:
        """Return the inverse of `rest`, given the draws that every chain has."""

        def joined(first: Mapping[str, np.ndarray], later: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {name: np.concatenate([first[name], values], axis=1) for name, values in later.items()}

        return self._replace(draws=joined(draws, self.draws), stats=joined(stats, self.stats))

    def _cut(self, begin: int, end: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        draws, stats = ({name: v[:, begin:end] for name, v in of.items()} for of in (self.draws, self.stats))
        return draws, stats


class Aim(NamedTuple):
    """What a run was asked for.

    Attributes:
        num_warmup: iterations of warm-up.
        thin: draws of the kernel per stored draw.
        init: what the record says of where chains begin.
        superchains: in how many groups they begin together; 0 where all begin apart.
    """

    num_warmup: int = 0
    thin: int = 1
    init: str = ""
    superchains: int = 0


class WarmingState(NamedTuple):
    """Warm-up of a run between two blocks.

    Attributes:
        schedule: between two rounds, before the round under way.
        window: draws of the window that the sinks no longer hold.
        filled: draws of each chain in the sinks that belong to earlier rounds.
        goal: draws of each chain in the sinks when this part of the round is over.
        left: draws of the round after these.
        sums: over the round's draws before these; None of none.
    """

    schedule: WarmUpState
    window: Window
    filled: int = 0
    goal: int = 0
    left: int = 0
    sums: Sums | None = None


class RunState(NamedTuple):
    """A run between two blocks: `Posterior.continue_run` goes on from here.

    Attributes:
        seed: of the run.
        aim: what was asked for.
        chains: where the draws under way begin, and what chains did since the last draw kept.
        tuning: hyperparameters in use.
        mean_steps: ticks of a draw, on average.
        warming: warm-up; None when it is over.
        sinks: draws on the devices that are not yet stored, folded or learned from; None without any.
        goal: draws of each chain in the round of folded draws under way; 0 between two rounds.
        stored: draws on the host.
        reduced: states of the reducers.
        next_look: draws of each chain at the next look of `until`; 0 where none is due.
        stopped: whether there are enough draws.
        warmup, sampling: what has been computed.
        relocations: chains that warm-up has put beside others: chain, beside which, and the logarithm of its share.
        rounds: how warm-up went, for the record.
    """

    seed: int
    aim: Aim
    chains: ChainState
    tuning: Any
    mean_steps: float
    warming: WarmingState | None
    sinks: SinkState | None
    goal: int
    stored: Stored
    reduced: Reduced
    next_look: int
    stopped: bool
    warmup: Work
    sampling: Work
    relocations: tuple[tuple[int, int, float], ...] = ()
    rounds: tuple[dict[str, Any], ...] = ()

    @property
    def in_warm_up(self) -> bool:
        """Whether warm-up is not over."""
        return self.warming is not None

    @property
    def warmup_record(self) -> dict[str, np.ndarray]:
        """How warm-up went, by name: an array `(round,)`."""
        names = self.rounds[0] if self.rounds else ()
        return {name: np.array([noted[name] for noted in self.rounds]) for name in names}

    @property
    def plain(self) -> RunState:
        """The same as dicts, tuples, numbers and arrays, as a file can hold it."""
        return _plain(self)


def _plain(node: Any) -> Any:
    """Return records of others, whose classes a file does not know, as tuples of their arrays; keys as numbers."""
    if isinstance(node, dict):
        return {name: _plain(value) for name, value in node.items()}
    if isinstance(node, tuple | list):
        items = map(_plain, node)
        return type(node)(*items) if hasattr(node, "_fields") else type(node)(items)
    if is_key(node):
        return np.asarray(jax.random.key_data(node))
    leaves = jax.tree.leaves(node)
    return node if node is None or (len(leaves) == 1 and leaves[0] is node) else tuple(map(_plain, leaves))
