"""Evaluation of a function at every draw, compiled once and run in batches, so that memory stays bounded.

The key of a draw depends only on the seed, the chain and the draw, so that batches and devices change no number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, random
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from phalanx.mesh.agreement import check_same
from phalanx.mesh.compatibility.jax_release import check_jax
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.forks import refuse_fork
from phalanx.mesh.processes import to_devices, to_host

STREAM = 0x70726564
"""Folded into these keys, so that they differ from those of a run with the same seed."""

OfDraw = Callable[[dict[str, Any], Array, Any], Any]
"""Function from the values of one draw, its key and the arrays that all draws share to a pytree of arrays."""


class Batch(NamedTuple):
    """Draws that are evaluated at once.

    Attributes:
        chains, draws: the chains, and the places of their draws among those that are evaluated.
        values: values of the draws on the devices, chain by chain, `(chains * draws, ...)` by variable.
        outputs: the results, in the same order.
        repeated: numbers of chains, and of draws of each, the first ones, that an earlier batch had.
    """

    chains: slice
    draws: slice
    values: dict[str, Any]
    outputs: Any
    repeated: tuple[int, int]

    @property
    def sizes(self) -> tuple[int, int]:
        """Chains, and draws of each."""
        return self.chains.stop - self.chains.start, self.draws.stop - self.draws.start


def over_draws(fn: OfDraw, draws: Mapping[str, np.ndarray], sizes: tuple[int, int], **how: Any) -> Any:
    """Evaluate `fn` at every draw, and return the pytree with arrays of shape `(chain, draw, ...)`; see `batches`."""
    stored = StoredResults(sizes)
    for batch in batches(fn, draws, sizes, **how):
        stored.add(batch, batch.outputs)
    return stored.arrays


class StoredResults:
    """Results at every draw, as arrays of shape `(chain, draw, ...)`."""

    def __init__(self, sizes: tuple[int, int]):
        self._sizes, self._structure, self._arrays = sizes, None, []

    def add(self, batch: Batch, outputs: Any) -> None:
        """Copy results of a batch to the host."""
        leaves, self._structure = jax.tree.flatten(outputs)
        self._arrays = self._arrays or [np.empty((*self._sizes, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        for array, leaf in zip(self._arrays, leaves, strict=True):
            array[batch.chains, batch.draws] = to_host(leaf).reshape(*batch.sizes, *leaf.shape[1:])

    @property
    def arrays(self) -> Any:
        """The pytree of arrays; there was at least one draw."""
        assert self._structure is not None
        return jax.tree.unflatten(self._structure, self._arrays)


def batches(
    fn: OfDraw, draws: Mapping[str, np.ndarray], sizes: tuple[int, int], *, seed: int, batch_size: int,
    given: Any = (), mesh: Mesh | None = None, numbers: np.ndarray | None = None, all_chains: bool = False,
    chain_numbers: np.ndarray | None = None,
) -> Iterator[Batch]:  # fmt: skip
    """Evaluate `fn` batch by batch.

    Args:
        fn: maps the values of one draw, its key and `given` to a pytree of arrays.
        draws: arrays of shape `(chain, draw, ...)` by name; may be empty.
        sizes: chains, and draws of each that are evaluated.
        seed: source of the keys.
        batch_size: draws evaluated at a time.
        given: arrays that all draws share.
        mesh: devices; the draws of a batch are sharded along its chain axis.
        numbers: numbers of these draws in their chain, ascending; None for the first ones.
        all_chains: True if each batch must have draws of every chain, however many there are.
        chain_numbers: numbers of these chains in the run; None for the first ones.
    """
    check_jax()
    if mesh is not None and len({device.process_index for device in mesh.devices.flat}) > 1:
        check_same("posterior.predictive")
    chains, length = sizes
    places = np.arange(length) if numbers is None else numbers
    chain_places = np.arange(chains) if chain_numbers is None else chain_numbers
    groups = 1 if mesh is None else mesh.shape[CHAIN]
    deep = min(length, max(batch_size // chains, 1) if all_chains else batch_size)
    deep = -(-length // -(-length // deep))  # batches of equal sizes
    deep = min(length, -(-deep // groups) * groups)
    wide = chains if all_chains else min(max(batch_size // deep, 1), chains)

    def of_draw(values: dict[str, Any], chain: Array, draw: Array, given: Any) -> Any:
        return fn(values, key_of(seed, chain, draw), given)

    batched = jax.jit(jax.vmap(of_draw, in_axes=(0, 0, 0, None)))
    for chain, known_chains in _spans(chains, wide):
        for draw, known_draws in _spans(length, deep):
            at = places[draw]
            values = {name: _flat(value, chain, at) for name, value in draws.items()}
            coordinates = np.meshgrid(chain_places[chain], at, indexing="ij")
            flat = (number.ravel().astype(np.uint32) for number in coordinates)
            values, *keys = _placed((values, *flat), mesh)
            yield Batch(chain, draw, values, batched(values, *keys, given), (known_chains, known_draws))


def key_of(seed: int, chain: Array | int, draw: Array | int) -> Array:
    """Return the key of one draw of one chain."""
    refuse_fork()  # a key is often the first array
    # Among JAX's generators, threefry gives a draw in a batch the same numbers as the draw alone.
    key = random.fold_in(random.key(np.uint32(seed), impl="threefry2x32"), STREAM)
    return random.fold_in(random.fold_in(key, chain), draw)


def _spans(count: int, size: int) -> Iterator[tuple[slice, int]]:
    """Yield spans of `size`, so that they share one compilation: the last begins earlier, and repeats some."""
    for start in range(0, count, size):
        first = min(start, count - size)
        yield slice(first, first + size), start - first


def _flat(value: Any, chains: slice, numbers: np.ndarray) -> np.ndarray:
    """Return these draws of these chains, one chain after the other; from a store only those are read."""
    first, last = int(numbers[0]), int(numbers[-1]) + 1
    part = value[chains, first:last]
    part = part if part.shape[1] == len(numbers) else part[:, numbers - first]
    return part.reshape(-1, *part.shape[2:])


def _placed(batch: Any, mesh: Mesh | None) -> Any:
    if mesh is None or mesh.size == 1:
        return batch
    rows = len(jax.tree.leaves(batch)[0])
    spec = PartitionSpec() if rows % mesh.shape[CHAIN] else PartitionSpec(CHAIN)
    return jax.tree.map(lambda leaf: to_devices(leaf, NamedSharding(mesh, spec)), batch)
