"""Evaluation of a function at every draw, compiled once and run in batches, so that memory stays bounded.

The key of a draw depends only on the seed, the chain and the draw, so that batches and devices change no number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax import Array, random
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from phalanx.mesh.agreement import check_same
from phalanx.mesh.compatibility.jax_release import check_jax
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.processes import to_devices, to_host
from phalanx.store.stored_array import StoredArray

STREAM = 0x70726564
"""Folded into these keys, so that they differ from those of a run with the same seed."""

OfDraw = Callable[[dict[str, Any], Array, Any], Any]
"""Function from the values of one draw, its key and the arrays that all draws share to a pytree of arrays."""


def over_draws(
    fn: OfDraw, draws: Mapping[str, np.ndarray], sizes: tuple[int, int], *, seed: int, batch_size: int,
    given: Any = (), mesh: Mesh | None = None,
) -> Any:  # fmt: skip
    """Evaluate `fn` at every draw.

    Args:
        fn: maps the values of one draw, its key and `given` to a pytree of arrays.
        draws: arrays of shape `(chain, draw, ...)` by name; may be empty.
        sizes: chains, and draws of each.
        seed: source of the keys.
        batch_size: draws evaluated at a time.
        given: arrays that all draws share.
        mesh: devices; the draws of a batch are sharded along its chain axis.

    Returns:
        The pytree with arrays of shape `(chain, draw, ...)`.
    """
    check_jax()
    if mesh is not None and len({device.process_index for device in mesh.devices.flat}) > 1:
        check_same("posterior.predictive")
    chains, length = sizes
    count = chains * length
    flat = {
        name: value if isinstance(value, StoredArray) else value.reshape(count, *value.shape[2:])
        for name, value in draws.items()
    }
    numbers = [number.astype(np.uint32) for number in np.divmod(np.arange(count), length)]

    def of_draw(values: dict[str, Any], chain: Array, draw: Array, given: Any) -> Any:
        return fn(values, key_of(seed, chain, draw), given)

    batched = jax.jit(jax.vmap(of_draw, in_axes=(0, 0, 0, None)))
    batch_size = min(batch_size, count)
    outputs: list[np.ndarray] = []
    structure = None
    for start in range(0, count, batch_size):
        # The last batch starts earlier, so that all batches have one size and share one compilation.
        first = min(start, count - batch_size)
        rows = slice(first, first + batch_size)
        values = {
            name: value.rows(rows.start, rows.stop) if isinstance(value, StoredArray) else value[rows]
            for name, value in flat.items()
        }
        batch = _placed((values, *(n[rows] for n in numbers)), mesh)
        leaves, structure = jax.tree.flatten(batched(*batch, given))
        outputs = outputs or [np.empty((count, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        for output, leaf in zip(outputs, leaves, strict=True):
            output[rows] = to_host(leaf)
    assert structure is not None  # there is at least one draw
    return jax.tree.unflatten(structure, [output.reshape(chains, length, *output.shape[1:]) for output in outputs])


def key_of(seed: int, chain: Array | int, draw: Array | int) -> Array:
    """Return the key of one draw of one chain."""
    # Among JAX's generators, threefry gives a draw in a batch the same numbers as the draw alone.
    key = random.fold_in(random.key(np.uint32(seed), impl="threefry2x32"), STREAM)
    return random.fold_in(random.fold_in(key, chain), draw)


def _placed(batch: Any, mesh: Mesh | None) -> Any:
    if mesh is None or mesh.size == 1:
        return batch
    rows = len(jax.tree.leaves(batch)[0])
    spec = PartitionSpec() if rows % mesh.shape[CHAIN] else PartitionSpec(CHAIN)
    return jax.tree.map(lambda leaf: to_devices(leaf, NamedSharding(mesh, spec)), batch)
