"""Draws of all chains, gathered from the processes that hold them when they are used, and not kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from phalanx.mesh.chains import HeldChains
from phalanx.store.lazy_array import LazyArray

if TYPE_CHECKING:
    from jaxtyping import Shaped

Arrays = Mapping[str, np.ndarray]
"""Arrays `(chain, draw, ...)` by name."""


class GatheredArray(LazyArray):
    """Draws of one variable `(chain, draw, ...)`; all processes must use them at the same places.

    Args:
        own: the draws of the chains that this process holds.
        held: the chains that each process holds.
    """

    def __init__(self, own: Shaped[np.ndarray, "held draws *shape"], held: HeldChains):
        super().__init__((held.num_chains, *own.shape[1:]), own.dtype)
        self._own, self._held = own, held

    def _read(self, index: tuple[slice, ...]) -> np.ndarray:
        chains, *others = index
        return self._held.gathered(self._own[(slice(None), *others)], chains)


class _Gathered(Mapping[str, np.ndarray]):
    """Arrays by name, each gathered when it is taken."""

    def __init__(self, own: Arrays, held: HeldChains):
        self._own, self._held = own, held

    def __getitem__(self, name: str) -> np.ndarray:
        return self._held.gathered(self._own[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


def of_all_chains(draws: Arrays, stats: Arrays, held: HeldChains) -> tuple[Arrays, Arrays]:
    """Return draws and statistics of all chains, given those that this process holds; each is gathered when taken."""
    return (draws, stats) if held.is_whole else (_Gathered(draws, held), _Gathered(stats, held))
