"""Results of reducers over values at every draw, batch by batch: states are on the devices, and merged on the host."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from phalanx.mesh.processes import to_host
from phalanx.posterior.over_draws import Batch
from phalanx.reducers.reductions import WHOLE, Reductions, States

MOST_DRAWS = 2**16
"""Draws of a chain after which states are merged in float64, as in a run."""


class ReducedResults:
    """Results of reducers; every batch has draws of all chains."""

    def __init__(self, reductions: Reductions):
        reductions.check_superchains(0)
        self._reductions = reductions
        self._on_device: States | None = None
        self._on_host: States = {}
        self._count = self._before = 0

    def add(self, batch: Batch, values: Mapping[str, Array]) -> None:
        """Accumulate values of a batch, `(chains * draws, ...)` by variable."""
        chains, draws = batch.sizes
        if self._on_device is None:
            example = {n: jax.ShapeDtypeStruct((chains, *v.shape[1:]), v.dtype) for n, v in values.items()}
            self._on_device = self._init(example)
        shaped = {name: value.reshape(chains, draws, *value.shape[1:]) for name, value in values.items()}
        self._on_device = self._update(self._on_device, shaped, np.int32(batch.repeated[1]))
        self._count += draws - batch.repeated[1]
        if self._count >= MOST_DRAWS:
            self._merge()

    def finalize(self) -> dict[str, Any]:
        """Return results by reducer, and by variable if a reducer has several."""
        self._merge()
        keepers = self._reductions.keepers
        results = {
            name: {part: entry.reducer.finalize(state) for part, state in self._on_host[keepers[name]].items()}
            for name, entry in self._reductions.entries
        }
        return {name: parts[WHOLE] if set(parts) == {WHOLE} else parts for name, parts in results.items()}

    def _init(self, example: Mapping[str, Any]) -> States:
        before = np.int32(self._before)

        def init(before: Array) -> States:
            zeros = {name: jnp.zeros(shape.shape, shape.dtype) for name, shape in example.items()}
            chains = len(next(iter(zeros.values())))
            return self._reductions.init(zeros, jnp.full(chains, before))

        return jax.jit(init)(before)

    @cached_property
    def _update(self) -> Any:
        return jax.jit(self._with_draws, donate_argnums=0)

    def _with_draws(self, states: States, values: Mapping[str, Array], repeated: Array) -> States:
        by_draw = {name: jnp.swapaxes(value, 0, 1) for name, value in values.items()}
        draws, chains = next(iter(by_draw.values())).shape[:2]

        def one(states: States, drawn: tuple[dict[str, Array], Array]) -> tuple[States, None]:
            draw, number = drawn
            return self._reductions.update(states, draw, jnp.full(chains, number >= repeated)), None

        return lax.scan(one, states, (by_draw, jnp.arange(draws)))[0]

    def _merge(self) -> None:
        if self._on_device is None:
            return
        later = jax.tree.map(to_host, self._on_device)
        self._on_host = {
            name: {part: entry.reducer.merge(self._on_host[name][part], state) for part, state in later[name].items()}
            if self._on_host
            else later[name]
            for name, entry in self._reductions.stateful
        }
        self._on_device, self._before, self._count = None, self._before + self._count, 0
