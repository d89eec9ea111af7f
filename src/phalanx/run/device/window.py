"""Draws of the window under way, on the devices until it ends: most of what tuners learn from are sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from phalanx.adaptation.tuner import Sample
from phalanx.run.device.advance import Sunk
from phalanx.run.device.recorder import RowLayout
from phalanx.run.host.draw_buffer import HostBlock

MOST_BYTES = 2**21
"""Memory of the devices for a window's draws; when they need more, they come to the host: without empty slots, and what
the devices have held before they take again sooner than new memory."""

MOST_NUMBERS = 2**24
"""Coordinates of all draws kept on the host; beyond, every other draw of each chain is forgotten."""


class Part(NamedTuple):
    """Draws on the host, and which draw of its chain each is."""

    sample: Sample
    number: np.ndarray


class Window:
    """Draws of a window.

    Args:
        layout: of a draw as a row.
        groups: of coordinates that are kept; None for all, 0 where nothing is learned from draws.
        every: one in so many chains is looked at.
    """

    def __init__(self, layout: RowLayout, groups: int | None, every: int):
        self._layout, self._groups, self._every_chain = layout, groups, every
        self._begin()

    def _begin(self) -> None:
        self._left: list[Sunk] = []
        self._bytes = 0
        self._parts: list[Part] = []
        self._made, self._every = np.zeros(1, int), 1

    def add(self, recorded: Sunk) -> None:
        """Take in what a block has recorded."""
        if self._groups == 0:
            return
        self._left.append(recorded)
        self._bytes += sum(leaf.nbytes for leaf in jax.tree.leaves(recorded))
        if self._bytes > MOST_BYTES:
            self._fetch()

    def take(self) -> Sample | None:
        """All draws, chain by chain, so that their order does not depend on the devices; and begin another window."""
        self._fetch()
        parts = [part.sample for part in self._parts]
        self._begin()
        return _together(parts) if parts else None

    def _fetch(self) -> None:
        for recorded in self._left:
            block = HostBlock.fetched(recorded, self._layout, self._groups, self._every_chain)
            before, self._made = self._made, self._made + block.count
            self._parts.append(self._kept(Part(block.sample(), (before[None] + block.numbers).T[block.filled.T])))
        self._left, self._bytes = [], 0
        while sum(part.size for one in self._parts for part in one.sample.position) > MOST_NUMBERS:
            self._every *= 2
            self._parts = list(map(self._kept, self._parts))

    def _kept(self, part: Part) -> Part:
        if self._every == 1:  # nothing to leave out
            return part
        kept = part.number % self._every == 0
        return jax.tree.map(lambda values: values[kept], part)


def _together(parts: Sequence[Sample]) -> Sample:
    together = jax.tree.map(lambda *values: np.concatenate(values), *parts)
    order = np.argsort(together.chain, kind="stable")
    return jax.tree.map(lambda values: values[order], together)
