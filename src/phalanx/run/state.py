"""A run as a value: all that its draws to come depend on, but for the model, its data and the kernel.

Keys are functions of (seed, chain, draw): from its position and the number of its next draw a chain makes the draws it
would have made, and nothing of a trajectory under way is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from phalanx.kernels.protocol.adapter import Rest
from phalanx.mesh.keys import is_key
from phalanx.run.device.thinning import SinceKept


class Work(NamedTuple):
    """What has been computed: ticks of a lane, and gradient evaluations in trajectories that ended, over all chains."""

    ticks: int = 0
    evaluations: int = 0

    def more(self, ticks: int, evaluations: int) -> Work:
        """With that of another block."""
        return Work(self.ticks + ticks, self.evaluations + evaluations)


class Reduced(NamedTuple):
    """What reducers know on the host, and of how many draws.

    Attributes:
        states: by the name of a reducer, and by variable.
        failed: reducers that have failed, and why.
        draws: of each chain, that were not stored.
        divergences, evaluations: of those draws, over all chains.
        accepted, made: sum of the acceptance rates of all draws, and how many these are.
    """

    states: Mapping[str, Any] = MappingProxyType({})
    failed: Mapping[str, str] = MappingProxyType({})
    draws: int = 0
    divergences: int = 0
    evaluations: int = 0
    accepted: float = 0.0
    made: int = 0


class Stored(NamedTuple):
    """Draws on the host: arrays `(chain, draw, ...)` by name, of which each chain has filled as many as `counts`."""

    draws: Mapping[str, np.ndarray]
    stats: Mapping[str, np.ndarray]
    counts: np.ndarray
    divergences: int = 0

    @property
    def count(self) -> int:
        """Draws that every chain has."""
        return int(self.counts.min())

    @property
    def rest(self) -> Stored:
        """Without the draws that every chain has."""
        most = int(self.counts.max())
        draws, stats = (
            {name: values[:, self.count : most] for name, values in of.items()} for of in (self.draws, self.stats)
        )
        return self._replace(draws=draws, stats=stats)

    def after(self, draws: Mapping[str, np.ndarray], stats: Mapping[str, np.ndarray]) -> Stored:
        """The inverse of `rest`, given the draws that every chain has."""

        def joined(first: Mapping[str, np.ndarray], later: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {name: np.concatenate([first[name], values], axis=1) for name, values in later.items()}

        return self._replace(draws=joined(draws, self.draws), stats=joined(stats, self.stats))


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


class RunState(NamedTuple):
    """A run between two blocks: `Posterior.continue_run` goes on from here.

    Attributes:
        seed: of the run.
        num_warmup: iterations of warm-up asked for.
        thin: draws of the kernel per stored draw.
        init: what the record says of where chains began.
        rest: where chains are: whole arrays by variable, of no mesh.
        since: draws of each chain since the last one kept.
        tuning: hyperparameters; of the metric, variances by variable.
        mean_steps: ticks of a draw, on average.
        stored: draws of chains that are ahead of others, and how many each chain has.
        reduced: what reducers know.
        warmup, sampling: what has been computed.
        relocations: chains that warm-up has put beside others: chain, beside which, and the logarithm of its share.
        rounds: how warm-up went, for the record.
        tuners: within warm-up, what it has learned, at the beginning of a window; None when it is over.
        superchains: in how many groups chains have begun together; 0 where all began apart.
    """

    seed: int
    num_warmup: int
    thin: int
    init: str
    rest: Rest
    since: SinceKept
    tuning: Any
    mean_steps: float
    stored: Stored
    reduced: Reduced
    warmup: Work
    sampling: Work
    relocations: tuple[tuple[int, int, float], ...]
    rounds: tuple[dict[str, Any], ...] = ()
    tuners: Any = None
    superchains: int = 0

    @property
    def in_warm_up(self) -> bool:
        """Whether warm-up is not over."""
        return self.tuners is not None

    @property
    def plain(self) -> RunState:
        """The same of nothing but dicts, tuples, numbers and arrays, as a file can hold it."""
        return _plain(self)


def _plain(node: Any) -> Any:
    """Records of others, whose classes a file does not know, as tuples of their arrays; keys as numbers."""
    if isinstance(node, dict):
        return {name: _plain(value) for name, value in node.items()}
    if isinstance(node, tuple | list):
        items = map(_plain, node)
        return type(node)(*items) if hasattr(node, "_fields") else type(node)(items)
    if is_key(node):
        return np.asarray(jax.random.key_data(node))
    leaves = jax.tree.leaves(node)
    return node if node is None or (len(leaves) == 1 and leaves[0] is node) else tuple(map(_plain, leaves))
