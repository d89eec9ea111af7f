"""Blocks of a stream: draws that the caller receives one block after the other, and that are not kept.

Blocks end at multiples of their length from the first draw on, also where a stream continues from a checkpoint, so that
rounds of reduced draws are those of a stream that was never interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from phalanx.posterior.posterior import Posterior
from phalanx.run.loop import Run
from phalanx.run.results import RunResults

if TYPE_CHECKING:
    from jaxtyping import Int

STREAM_DRAWS = 1024
"""Draws of each chain in a block of a stream that stores none."""


class StreamBlock(dict[str, Any]):
    """Block of a stream: draws `(chain, draw, ...)` by variable, and results by reducer.

    Attributes:
        first: number of draws of each chain in all blocks before it.
        chains: numbers of the chains in it; in a run of several processes those of the process.
    """

    def __init__(self, entries: Mapping[str, Any], first: int, chains: Int[np.ndarray, "held"]):
        super().__init__(entries)
        self.first = first
        self.chains = chains


jax.tree_util.register_pytree_node(
    StreamBlock,
    lambda block: (tuple(block.values()), tuple(block)),
    lambda names, values: dict(zip(names, values, strict=True)),  # pyright: ignore[reportArgumentType]  # a plain dict
)


@dataclass
class RunStream:
    """Stream in progress.

    A block counts as received once the caller asks for the next; until then its draws are part of the state.

    Attributes:
        run: the run, after warm-up.
        num_draws: draws of each chain in all; infinity without end.
        received: draws of each chain that the caller has received.
    """

    run: Run
    num_draws: float
    received: int = 0

    @classmethod
    def of(cls, run: Run, num_samples: int | None, thin: int, before: Posterior | None) -> RunStream:
        """Return the stream of a run of so many iterations, or what is left of one.

        Raises:
            ValueError: when the stream before has made more.
        """
        received = 0 if before is None else before.record.num_samples
        if num_samples is not None and received > num_samples:
            raise ValueError(
                f"stream: the stream in the checkpoint has made {received} iterations, and num_samples={num_samples} "
                f"are asked for. Ask for at least {received}, or name another folder."
            )
        return cls(run, math.inf if num_samples is None else num_samples // thin, received // thin)

    def blocks(self) -> Iterator[StreamBlock]:
        """Yield the blocks that are left; Ctrl-C ends a block early, and then the stream."""
        run = self.run
        executables = run.engine.executables
        length = executables.blocks.slots if executables.stores_draws else STREAM_DRAWS
        while self.received < self.num_draws and not run.interrupted:
            end = min(length * (self.received // length + 1), self.num_draws)
            with run.interrupts.held():
                if self.draws_made < end:
                    run.sample(int(end - self.draws_made) * run.state.arguments.thin, None)
            if self.draws_made > self.received:
                results = RunResults.of(run)
                yield StreamBlock(
                    {**results.draws, **results.reduced}, self.received, executables.blocks.held_chains.numbers
                )
            stored_draws = run.state.stored
            self.received = self.draws_made
            run.state = run.state._replace(
                stored=stored_draws.surplus._replace(counts=stored_draws.counts - stored_draws.count, moved=0)
            )

    @property
    def draws_made(self) -> int:
        """Draws that every chain has made."""
        state = self.run.state
        return self.received + state.stored.count if self.run.engine.executables.stores_draws else state.reduced.draws
