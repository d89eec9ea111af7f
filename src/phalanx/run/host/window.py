"""Draws of the current warm-up window; they stay on the devices as long as possible, since few tuners need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from phalanx.adaptation.tuner import Sample
from phalanx.run.device.advance import SinkState
from phalanx.run.device.recorder import RowLayout
from phalanx.run.host.recorded import HostBlock

if TYPE_CHECKING:
    from jaxtyping import Int, Integer

MOST_BYTES = 2**21
"""Memory of the devices for a window's draws. Beyond it they are copied to the host without empty slots, since reusing
memory is faster than allocating more."""

MOST_NUMBERS = 2**24
"""Maximal coordinates of all draws on the host; beyond it, every other draw of each chain is dropped."""


class Part(NamedTuple):
    """Draws on the host, and the number of each draw in its chain."""

    sample: Sample
    number: Int[np.ndarray, "draws"]


class Window(NamedTuple):
    """Draws of a window.

    Attributes:
        groups: number of groups of coordinates to keep; None for all, 0 if no tuner learns from draws.
        every_chain: every `every_chain`-th chain is kept.
        left: draws that are still on the devices, as states of the recorder; they follow those in `parts`.
        parts: draws on the host.
        num_draws: number of draws of each chain before those in `left`; a single 0 at the beginning.
        every: every `every`-th draw of a chain is kept.
    """

    groups: int | None
    every_chain: int
    left: tuple[SinkState, ...] = ()
    parts: tuple[Part, ...] = ()
    num_draws: Integer[np.ndarray, "chains"] = np.zeros(1, int)
    every: int = 1

    def with_draws(self, block: SinkState, layout: RowLayout) -> Window:
        """Return the window with the recorder's draws of a block."""
        if self.groups == 0:
            return self
        window = self._replace(left=(*self.left, block))
        num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(window.left))
        return window.fetched(layout) if num_bytes > MOST_BYTES else window

    def sample(self, layout: RowLayout) -> Sample | None:
        """Return all draws in order of chains, which does not depend on the devices; None without draws."""
        parts = self.fetched(layout).parts
        if not parts:
            return None
        together: Sample = jax.tree.map(lambda *values: np.concatenate(values), *(part.sample for part in parts))
        order = np.argsort(together.chain, kind="stable")
        return jax.tree.map(lambda values: values[order], together)

    def fetched(self, layout: RowLayout) -> Window:
        """Return the window with all draws on the host; the time of the copy does not affect the sample."""
        parts = self.parts
        num_draws = self.num_draws
        every = self.every
        for sinks in self.left:
            block = HostBlock.fetched(sinks, layout, self.groups, self.every_chain)
            slots = np.broadcast_to(np.arange(len(block.filled))[:, None], block.filled.shape)
            numbers = (num_draws[None] + slots).T[block.filled.T]
            parts = (*parts, _every_draw(Part(block.sample(), numbers), every))
            num_draws = num_draws + block.count
        while _numbers(parts) > MOST_NUMBERS:
            every *= 2
            parts = tuple(_every_draw(part, every) for part in parts)
        return self._replace(left=(), parts=parts, num_draws=num_draws, every=every)

    def emptied(self) -> Window:
        """Return the window without draws."""
        return Window(self.groups, self.every_chain)


def _numbers(parts: Sequence[Part]) -> int:
    return sum(group.size for part in parts for group in part.sample.position)


def _every_draw(part: Part, every: int) -> Part:
    if every == 1:
        return part
    is_kept = part.number % every == 0
    return jax.tree.map(lambda values: values[is_kept], part)
