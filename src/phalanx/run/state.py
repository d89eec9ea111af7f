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

from phalanx.kernels.driver import Rest
from phalanx.kernels.low_rank import LowRank
from phalanx.kernels.whole import by_variable, is_by_variable, unconstrained_shapes
from phalanx.programs.target import Target
from phalanx.run.executables import Executables, first_tuning
from phalanx.run.record_draws import Partial


class Work(NamedTuple):
    """What has been computed: ticks of a lane, and gradient evaluations in trajectories that ended, over all chains."""

    ticks: int = 0
    evaluations: int = 0


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


class RunState(NamedTuple):
    """A run between two blocks of sampling: `Posterior.continue_run` goes on from here.

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
        moves: chains that warm-up has moved: chain, beside which, and the logarithm of its share.
    """

    seed: int
    num_warmup: int
    thin: int
    init: str
    rest: Rest
    since: Partial
    tuning: Any
    mean_steps: float
    stored: Stored
    reduced: Reduced
    warmup: Work
    sampling: Work
    moves: tuple[tuple[int, int, float], ...]


def in_classes_of(state: RunState, executables: Executables) -> RunState:
    """A state in the classes that compiled blocks take: read from a file, its records are new ones.

    Raises:
        ValueError: when it does not fit the blocks.
    """
    blocks, folding = executables.blocks, executables.folding
    tuning = first_tuning(blocks)
    if isinstance(metric := getattr(tuning, "metric", None), LowRank):
        tuning = tuning._replace(metric=metric._replace(variance=by_variable(blocks.target, metric.variance)))
    places = {name: folding.places[name] for name in state.reduced.states if name in folding.places}
    if len(places) < max(len(state.reduced.states), len(folding.places) if state.reduced.draws else 0):
        raise ValueError(f"it has the reducers {', '.join(map(repr, state.reduced.states))}")
    states = {name: _of_user(places[name], known) for name, known in state.reduced.states.items()}
    rest = Rest(*_like(blocks.rest_shapes, state.rest, "where chains are"))
    for node in jax.tree.leaves(rest, is_leaf=lambda node: isinstance(node, dict)):
        _check_shapes(node, blocks.target, blocks.num_chains)
    return RunState(*state)._replace(
        rest=rest,
        since=Partial(*state.since),
        tuning=_like(tuning, state.tuning, "what was tuned"),
        stored=Stored(*state.stored),
        reduced=Reduced(*state.reduced)._replace(states=states),
        warmup=Work(*state.warmup),
        sampling=Work(*state.sampling),
    )


def _like(template: Any, tree: Any, what: str) -> Any:
    leaves, wanted = jax.tree.leaves(tree), jax.tree.structure(template)
    if len(leaves) != wanted.num_leaves:
        raise ValueError(f"{what} has {len(leaves)} arrays, and {wanted.num_leaves} are expected")
    return jax.tree.unflatten(wanted, leaves)


def _of_user(template: Any, tree: Any) -> Any:
    """The state of a reducer that a user wrote, in its classes; ours are read as they were."""
    names = [[type(node).__name__ for node in x.values()] for x in (template, tree)]
    return jax.tree.unflatten(jax.tree.structure(template), jax.tree.leaves(tree)) if names[0] == names[1] else tree


def _check_shapes(node: Any, target: Target, num_chains: int) -> None:
    for name, shape in unconstrained_shapes(target).items() if is_by_variable(node, target) else ():
        if node[name].shape != (num_chains, *shape):
            raise ValueError(f"{name!r} has shape {node[name].shape}, and {(num_chains, *shape)} is expected")
