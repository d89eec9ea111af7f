"""Values at every draw, batch by batch: stored for some variables, and accumulated by reducers.

States of reducers are on the devices, and merged on the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from phalanx.errors.names import hint
from phalanx.mesh.processes import to_host
from phalanx.posterior.criticism.model_at_draws import ModelAtDraws
from phalanx.posterior.over_draws import Batch, OfDraw, StoredResults, batches
from phalanx.reducers.reducer import Reduce, Reducer
from phalanx.reducers.reductions import WHOLE, Reductions, States

MOST_DRAWS = 2**16
"""Draws of a chain after which states are merged in float64, as in a run."""


class ValuesAtDraws(dict[str, np.ndarray]):
    """Arrays of shape `(chain, draw, ...)` by variable, with the results of reducers as `reduced`.

    Attributes:
        reduced: results by reducer, and by variable if a reducer covers several.
    """

    reduced: Mapping[str, Any]

    def __init__(self, values: Mapping[str, np.ndarray], results: Mapping[str, Any]):
        super().__init__(values)
        self.reduced = results


def evaluate(
    program: ModelAtDraws,
    fn: OfDraw,
    draws: Mapping[str, np.ndarray],
    sizes: tuple[int, int],
    *,
    seed: int,
    keep: str | Sequence[str] | None,
    reducers: Mapping[str, Reducer | Reduce] | None,
    numbers: np.ndarray | None = None,
) -> ValuesAtDraws:
    """Evaluate `fn` at every draw in batches that fit into the memory.

    Args:
        program: the model with its data.
        fn: function of the values of one draw, its key and the data that runs the model, to values by name.
        draws: arrays `(chain, draw, ...)` by name.
        sizes: chains, and draws of each that are used.
        seed: source of the draws' keys.
        keep: names of the values to return, or one name; None for all.
        reducers: reducers by name, which receive the draws, too.
        numbers: numbers of these draws in their chains; None for the first ones.
    """
    shapes, largest = program.shapes(fn, draws)
    names = _names_to_return(program.asked, keep, shapes, bool(reducers))

    def of_names(values: dict[str, Array], key: Array, arrays: Any) -> dict[str, Array]:
        results = fn(values, key, arrays)
        return {name: results[name] for name in names}

    if reducers:
        function = fn
    else:
        function = of_names
        shapes = {name: shapes[name] for name in names}
    stored_results = StoredResults(sizes)
    reducer_results = ReducedResults(Reductions.of(reducers, names or list(shapes))) if reducers else None
    size = program.batch_size(shapes, largest)
    for batch in batches(
        function,
        draws,
        sizes,
        seed=seed,
        batch_size=size,
        given=program.place_arrays(),
        mesh=program.mesh,
        numbers=numbers,
        all_chains=reducer_results is not None,
    ):
        stored_results.add(batch, {name: batch.outputs[name] for name in names})
        if reducer_results is not None:
            reducer_results.add(batch, {**batch.values, **batch.outputs})
    return ValuesAtDraws(stored_results.arrays, {} if reducer_results is None else reducer_results.finalize())


def _names_to_return(
    caller: str, keep: str | Sequence[str] | None, shapes: Mapping[str, Any], reduces: bool
) -> list[str]:
    """Return the names of the values to return; there may be no name if reducers have the draws."""
    names = list(shapes) if keep is None else [keep] if isinstance(keep, str) else list(keep)
    if not names and not reduces:
        raise ValueError(f"{caller}: keep=[] returns no variable; name some, or give reducers=.")
    if unknown := [name for name in names if name not in shapes]:
        raise ValueError(
            f"{caller}: keep has {', '.join(map(repr, unknown))}, which the model does not "
            f"{'draw or compute' if caller == 'predictive' else 'observe'} here; it has "
            f"{', '.join(map(repr, shapes))}.{hint(unknown, shapes)}"
        )
    return names


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
        values_by_name = {name: value.reshape(chains, draws, *value.shape[1:]) for name, value in values.items()}
        self._on_device = self._update(self._on_device, values_by_name, np.int32(batch.repeated[1]))
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
        def init(before: Array) -> States:
            zeros = {name: jnp.zeros(shape.shape, shape.dtype) for name, shape in example.items()}
            return self._reductions.init(zeros, jnp.full(len(next(iter(zeros.values()))), before))

        return jax.jit(init)(np.int32(self._before))

    @cached_property
    def _update(self) -> Any:
        return jax.jit(self._with_draws, donate_argnums=0)

    def _with_draws(self, states: States, values: Mapping[str, Array], repeated: Array) -> States:
        by_draw = {name: jnp.swapaxes(value, 0, 1) for name, value in values.items()}
        draws, chains = next(iter(by_draw.values())).shape[:2]

        def one(states: States, numbered_draw: tuple[dict[str, Array], Array]) -> tuple[States, None]:
            draw, number = numbered_draw
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
