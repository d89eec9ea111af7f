"""Draws of the window of warm-up under way, on the devices until it ends: tuners learn mostly from sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from phalanx.adaptation.tuner import Sample
from phalanx.run.device.advance import SinkState
from phalanx.run.device.recorder import RowLayout
from phalanx.run.host.recorded import HostBlock

MOST_BYTES = 2**21
"""Memory of the devices for a window's draws. Beyond, they are copied to the host: without empty slots, and the devices
reuse the memory sooner than they allocate more."""

MOST_NUMBERS = 2**24
"""Coordinates of all draws kept on the host; beyond, every other draw of each chain is forgotten."""


class Part(NamedTuple):
    """Draws on the host, and which draw of its chain each is."""

    sample: Sample
    number: np.ndarray


class Window(NamedTuple):
    """Draws of a window.

    Attributes:
        groups: of coordinates that are kept; None for all, 0 where nothing is learned from draws.
        every_chain: one in so many chains is kept.
        left: draws still on the devices, as the recorder left them.
        parts: draws on the host.
        made: draws of each chain in `parts`; one number before the first.
        every: one in so many draws of a chain is kept.
    """

    groups: int | None
    every_chain: int
    left: tuple[SinkState, ...] = ()
    parts: tuple[Part, ...] = ()
    made: np.ndarray = np.zeros(1, int)
    every: int = 1

    def with_draws(self, recorded: SinkState, layout: RowLayout) -> Window:
        """Return the window with what a block has recorded, as rows of a layout."""
        if self.groups == 0:
            return self
        window = self._replace(left=(*self.left, recorded))
        held = sum(leaf.nbytes for leaf in jax.tree.leaves(window.left))
        return window.fetched(layout) if held > MOST_BYTES else window

    def sample(self, layout: RowLayout) -> Sample | None:
        """Return all draws, chain by chain, so that their order does not depend on the devices; None of none."""
        parts = self.fetched(layout).parts
        if not parts:
            return None
        together: Sample = jax.tree.map(lambda *values: np.concatenate(values), *(part.sample for part in parts))
        order = np.argsort(together.chain, kind="stable")
        return jax.tree.map(lambda values: values[order], together)

    def fetched(self, layout: RowLayout) -> Window:
        """Return the window with all draws on the host. When they are copied makes no difference to the sample."""
        parts, made, every = self.parts, self.made, self.every
        for recorded in self.left:
            block = HostBlock.fetched(recorded, layout, self.groups, self.every_chain)
            numbers = (made[None] + block.numbers).T[block.filled.T]
            parts, made = (*parts, _kept(Part(block.sample(), numbers), every)), made + block.count
        while _numbers(parts) > MOST_NUMBERS:
            every *= 2
            parts = tuple(_kept(part, every) for part in parts)
        return self._replace(left=(), parts=parts, made=made, every=every)

    def emptied(self) -> Window:
        """Return the next window, before its first draw."""
        return Window(self.groups, self.every_chain)


def _numbers(parts: Sequence[Part]) -> int:
    return sum(group.size for part in parts for group in part.sample.position)


def _kept(part: Part, every: int) -> Part:
    if every == 1:  # nothing to leave out
        return part
    kept = part.number % every == 0
    return jax.tree.map(lambda values: values[kept], part)
