"""Draws on the host: filled block by block, in the order (chain, draw, ...)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jax import Array

from phalanx.programs.target import Target


class HostDraws:
    """Arrays for all draws of a run, and how many of them are filled."""

    def __init__(self, target: Target, num_chains: int, total: int):
        self._target, self._num_chains, self._total = target, num_chains, total
        self._draws: dict[str, np.ndarray] = {}
        self._stats: dict[str, np.ndarray] = {}
        self.count = 0
        self.divergences = 0

    def add(self, draws: Mapping[str, Array], stats: Mapping[str, Array], count: int) -> dict[str, np.ndarray]:
        """Store the first `count` rows of a block of shape (draw, chain, ...); returns the block's statistics."""
        kept = {name: np.asarray(values)[:count] for name, values in stats.items()}
        for name, values in draws.items():
            rows = self._target.trim(name, np.asarray(values)[:count], leading=2)
            self._store(self._draws, name, rows)
        for name, values in kept.items():
            self._store(self._stats, name, values)
        self.divergences += int(kept["diverging"].sum())
        self.count += count  # last: an interrupt before this line leaves a shorter, whole record
        return kept

    def finish(self, names: Sequence[str]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Draws so far of the variables `names`, in that order, and statistics; each (chain, draw, ...)."""
        draws = {name: self._draws[name][:, : self.count] for name in names}
        return draws, {name: values[:, : self.count] for name, values in self._stats.items()}

    def _store(self, arrays: dict[str, np.ndarray], name: str, rows: np.ndarray) -> None:
        if name not in arrays:
            arrays[name] = np.empty((self._num_chains, self._total, *rows.shape[2:]), rows.dtype)
        arrays[name][:, self.count : self.count + len(rows)] = np.swapaxes(rows, 0, 1)
