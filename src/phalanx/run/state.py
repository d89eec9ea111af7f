"""State of a run: everything that later draws depend on, except the model, its data and the kernel.

`phalanx.run.engine.Engine.advance` returns the state after one more block. The state does not contain unfinished
trajectories: keys are functions of (seed, chain, draw), so a chain repeats a draw exactly from the draw's number and
starting position. While a run advances, chains and sinks are arrays on the devices. `Engine.fetched` converts the state
to arrays by variable that depend on no mesh and can be written to a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from phalanx.adaptation.tuner import Sums
from phalanx.adaptation.warm_up import WarmUpState
from phalanx.mesh.chains import HeldChains
from phalanx.mesh.random_numbers import is_key
from phalanx.mesh.specs import PyTree
from phalanx.run.device.advance import SinkState
from phalanx.run.device.blocks import ChainState
from phalanx.run.device.rounds import RoundsResult
from phalanx.run.host.window import Window
from phalanx.store.lazy_array import StoredArray

if TYPE_CHECKING:
    from jaxtyping import Integer, Shaped

DrawsByName = Mapping[str, np.ndarray | StoredArray]
"""Arrays `(chain, draw, ...)` by name, in memory or in a store."""


class Work(NamedTuple):
    """Work done: ticks of each lane, and gradient evaluations in completed trajectories, over all chains."""

    ticks: int = 0
    evaluations: int = 0

    def more(self, ticks: int = 0, evaluations: int = 0) -> Work:
        """Return the work including that of another block."""
        return Work(self.ticks + ticks, self.evaluations + evaluations)


class Reduced(NamedTuple):
    """States of the reducers on the host, and totals over the draws that were reduced.

    Attributes:
        states: by reducer name and variable.
        failed: reasons why reducers failed, by reducer name.
        draws: draws of each chain that were reduced.
        divergences, evaluations: totals of those draws over all chains; 0 if draws are stored.
        accepted, transitions: sum of the acceptance rates of those draws before thinning, and their number; 0 likewise.
    """

    states: Mapping[str, Any] = {}
    failed: Mapping[str, str] = {}
    draws: int = 0
    divergences: int = 0
    evaluations: int = 0
    accepted: float = 0.0
    transitions: int = 0

    @property
    def acceptance_rate(self) -> float | None:
        """Mean acceptance rate of all draws; None before the first draw."""
        return self.accepted / self.transitions if self.transitions else None


class LateCopy:
    """Copy of one block's draws to their places, which the host makes while the devices make the next block.

    Args:
        copy: makes the copy; a second call makes the same again.
    """

    def __init__(self, copy: Callable[[], None]):
        self._copy: Callable[[], None] | None = copy

    def finish(self) -> None:
        """Make the copy, unless it is made."""
        if self._copy is not None:
            self._copy()
            self._copy = None  # not earlier, so that Ctrl-C leaves it for the next call


class Stored(NamedTuple):
    """Stored draws on the host.

    Attributes:
        draws, stats: arrays `(chain, draw, ...)` by name. While a run of several processes advances, those of the
            chains that the process holds.
        counts: draws of each of all chains; the arrays may have room for more.
        divergences: number of divergent draws.
        moved: number of draws of each chain that are in a store already; the arrays begin after them.
        late: pending copy of the last block's draws into the arrays, made before anything reads them.
    """

    draws: Mapping[str, Shaped[np.ndarray, "chains draws *shape"]]
    stats: Mapping[str, Shaped[np.ndarray, "chains draws"]]
    counts: Integer[np.ndarray, "chains"]
    divergences: int = 0
    moved: int = 0
    late: LateCopy | None = None

    @classmethod
    def nothing(cls, num_chains: int) -> Stored:
        """Return stored draws of `num_chains` chains that have not made any."""
        return cls({}, {}, np.zeros(num_chains, np.int64))

    @property
    def count(self) -> int:
        """Number of draws that every chain has."""
        return int(self.counts.min())

    @property
    def ahead(self) -> int:
        """Difference between the largest and the smallest number of draws of a chain."""
        return int(self.counts.max() - self.count)

    @property
    def common_draws(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The draws that every chain has and that are not in a store, `moved` to `count`, and their statistics."""
        return self._cut(self.moved, self.count)

    @property
    def without_room(self) -> Stored:
        """The same draws in arrays that end with the last draw of the chain that has most."""
        draws, stats = self._cut(0, int(self.counts.max()))
        return self._replace(draws=draws, stats=stats, late=None)

    @property
    def surplus(self) -> Stored:
        """The draws after the first `count`, which only some chains have."""
        draws, stats = self._cut(self.count, int(self.counts.max()))
        return self._replace(draws=draws, stats=stats, moved=self.count, late=None)

    def copy_draws(self) -> Stored:
        """Return a copy of the draws, so that the memory of shared arrays can be freed."""
        return self._mapped(np.copy)

    def selected(self, draws: Integer[np.ndarray, "draws"]) -> Stored:
        """Return some of the draws of every chain, by their numbers."""
        few = self._mapped(lambda values: values[:, draws])
        return few._replace(counts=np.full(len(self.counts), len(draws)))

    def gathered(self, held_chains: HeldChains) -> Stored:
        """Return the draws of all chains, given those that this process holds; all must call it together."""
        return self if held_chains.is_whole else self._mapped(held_chains.gathered)

    def part(self, held_chains: HeldChains) -> Stored:
        """Return the draws of the chains that this process holds, given those of all chains."""
        return self if held_chains.is_whole else self._mapped(held_chains.part)

    def _mapped(self, change: Callable[[np.ndarray], np.ndarray]) -> Stored:
        """Return the draws with every array changed."""
        self.settle()
        draws, stats = ({name: change(values) for name, values in kind.items()} for kind in (self.draws, self.stats))
        return self._replace(draws=draws, stats=stats, late=None)

    def with_first_draws(self, draws: DrawsByName, stats: DrawsByName) -> Stored:
        """Return the draws that had this `surplus`, given the first draws of every chain and their statistics."""

        def joined(first: DrawsByName, later: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {name: np.concatenate([np.asarray(first[name]), v], axis=1) for name, v in later.items()}

        return self._replace(draws=joined(draws, self.draws), stats=joined(stats, self.stats), moved=0)

    def settle(self) -> None:
        """Make the copy of the last block's draws."""
        if self.late is not None:
            self.late.finish()

    def _cut(self, begin: int, end: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        self.settle()
        columns = slice(begin - self.moved, end - self.moved)
        draws, stats = ({name: values[:, columns] for name, values in of.items()} for of in (self.draws, self.stats))
        return draws, stats


class RunArguments(NamedTuple):
    """Arguments of a run that its record contains.

    Attributes:
        num_warmup: iterations of warm-up.
        thin: draws of the kernel per stored draw.
        init: description of the initial positions.
        superchains: number of groups of chains with a common initial position; 0 without groups.
        save_warmup: true if the draws of warm-up are kept.
    """

    num_warmup: int = 0
    thin: int = 1
    init: str = ""
    superchains: int = 0
    save_warmup: bool = False


class WarmingState(NamedTuple):
    """State of the warm-up between two blocks.

    A round with more draws than the sinks have slots is made in parts.

    Attributes:
        schedule: state of the schedule before the current round.
        window: draws of the current window that were moved out of the sinks.
        filled: draws of each chain in the sinks that belong to earlier rounds or parts.
        goal: draws of each chain in the sinks at the end of the current part.
        left: draws of each chain in the later parts of the current round.
        sums: sums over the earlier parts of the current round; None in the first part.
        result: result of a block's rounds, until the tuners have it.
    """

    schedule: WarmUpState
    window: Window
    filled: int = 0
    goal: int = 0
    left: int = 0
    sums: Sums | None = None
    result: RoundsResult | None = None


class RunState(NamedTuple):
    """State of a run between two blocks, from which `Posterior.continue_run` continues.

    Attributes:
        seed: seed of the run.
        arguments: those that the record of the run contains.
        chains: states of the chains.
        tuning: current hyperparameters of the kernel.
        mean_steps: mean ticks per draw; of kernels that make whole draws, gradient evaluations.
        warming: state of the warm-up; None after warm-up.
        sinks: draws of the current round on the devices, which tuners or reducers have not received; None without.
        goal: draws of each chain in the current round of reduced draws or, between two rounds, in the next one; 0 after
            the last round, and in runs that store draws.
        stored: draws on the host.
        reduced: states of the reducers on the host.
        next_look: draws of each chain at which `until` is evaluated next; 0 without `until`.
        stopped: true if the condition of `until` is met.
        warmup, sampling: work done in each phase.
        relocations: for each relocated chain: the chain, the chain at whose position it continues, and an upper bound
            on the logarithm of the fraction of the posterior mass that lies in the region that it left.
        rounds: entries of the warm-up record, one for each round.
        centring: of the partially centred variables, to which the chains' positions belong.
        warmed: draws of a warm-up that is not complete; None if they are discarded.
        settling: a few draws of an early part of the last window of warm-up, with which later ones are compared; None
            unless chains start in superchains.
    """

    seed: int
    arguments: RunArguments
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
    centring: Mapping[str, Any] = {}
    warmed: Stored | None = None
    settling: Stored | None = None

    @property
    def slots(self) -> int:
        """Number of slots that the recorded draws of the current round take; 0 without recorded draws.

        A device with more of the chains, or of the rows of each, has fewer slots.
        """
        if self.sinks is None or len(self.sinks.states) > 1:
            return 0
        return max(int(np.max(self.sinks.count)), 0 if self.warming is None else self.warming.goal)

    @property
    def in_warm_up(self) -> bool:
        """True until warm-up is complete."""
        return self.warming is not None

    @property
    def warmup_record(self) -> dict[str, Shaped[np.ndarray, "rounds"]]:
        """Statistics of the warm-up rounds by name."""
        names = self.rounds[0] if self.rounds else ()
        return {name: np.array([entry[name] for entry in self.rounds]) for name in names}

    @property
    def plain(self) -> RunState:
        """The state as dicts, tuples, numbers and arrays, which a file can hold."""
        return _plain(self)


def _plain(node: PyTree) -> PyTree:
    """Return a tree without the classes of users, which a file cannot restore: as tuples of arrays, keys as numbers."""
    if isinstance(node, dict):
        return {name: _plain(value) for name, value in node.items()}
    if isinstance(node, tuple | list):
        items = map(_plain, node)
        return type(node)(*items) if hasattr(node, "_fields") else type(node)(items)
    if is_key(node):
        return np.asarray(jax.random.key_data(node))
    leaves = jax.tree.leaves(node)
    return node if node is None or (len(leaves) == 1 and leaves[0] is node) else tuple(map(_plain, leaves))
