"""Evaluation of a function at every draw, compiled once and run in batches, so that memory stays bounded.

The key of a draw depends only on the seed, the chain and the draw, so that batches and devices change no number.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, random
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from phalanx.errors.model_errors import model_errors
from phalanx.errors.names import hint
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
        repeated: number of the first chains, and of the first draws of each, that an earlier batch has evaluated, too.
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
    results = StoredResults(sizes)
    for batch in batches(fn, draws, sizes, **how):
        results.add(batch, batch.outputs)
    return results.arrays


class StoredResults:
    """Results at every draw, as arrays of shape `(chain, draw, ...)`."""

    def __init__(self, sizes: tuple[int, int]):
        self._sizes = sizes
        self._structure = None
        self._arrays = []

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
    fn: OfDraw,
    draws: Mapping[str, np.ndarray],
    sizes: tuple[int, int],
    *,
    seed: int,
    batch_size: int,
    given: Any = (),
    mesh: Mesh | None = None,
    numbers: np.ndarray | None = None,
    all_chains: bool = False,
    chain_numbers: np.ndarray | None = None,
) -> Iterator[Batch]:
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
            values, *keys = _place_batch((values, *flat), mesh)
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
    first = int(numbers[0])
    last = int(numbers[-1]) + 1
    part = value[chains, first:last]
    part = part if part.shape[1] == len(numbers) else part[:, numbers - first]
    return part.reshape(-1, *part.shape[2:])


def _place_batch(batch: Any, mesh: Mesh | None) -> Any:
    if mesh is None or mesh.size == 1:
        return batch
    rows = len(jax.tree.leaves(batch)[0])
    spec = PartitionSpec() if rows % mesh.shape[CHAIN] else PartitionSpec(CHAIN)
    return jax.tree.map(lambda leaf: to_devices(leaf, NamedSharding(mesh, spec)), batch)


def predict(
    fn: Callable[..., Any],
    draws: Mapping[str, np.ndarray],
    *,
    seed: int,
    batch_size: int,
    not_kept: Sequence[str] = (),
    chains: np.ndarray | None = None,
) -> Any:
    """Evaluate `fn` at every draw; see `Posterior.predict`.

    `chains` are the numbers of these chains in the run, None for the first ones, and `not_kept` the variables of the
    model without draws, for the message about an unknown name.
    """
    sizes = _check(fn, draws, batch_size)
    takes_key = _takes_key(fn)

    def of_draw(values: dict[str, Any], key: Array, _: Any) -> Any:
        return _evaluate(fn, values, (key,) if takes_key else (), not_kept)

    return over_draws(of_draw, draws, sizes, seed=seed, batch_size=batch_size, chain_numbers=chains)


def _check(fn: object, draws: Mapping[str, np.ndarray], batch_size: int) -> tuple[int, int]:
    """Return the number of chains and of draws, after checking the arguments."""
    if not callable(fn):
        raise TypeError(f"predict: fn must be a function of a dict of one draw's values; got {type(fn).__name__}.")
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ValueError(f"predict: batch_size must be at least 1; got {batch_size!r}.")
    if not draws:
        raise ValueError("predict: there are no variables to give to fn; keep some when running (keep=None).")
    chains, length = next(iter(draws.values())).shape[:2]
    if chains * length == 0:
        raise ValueError(f"predict: there are no draws to evaluate fn at: {chains} chains of {length} draws.")
    return chains, length


def _takes_key(fn: Callable[..., Any]) -> bool:
    """Return whether `fn` takes a key: a second argument without a default, or one called `key`."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # built-ins and some callables have no signature
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 and (positional[1].default is inspect.Parameter.empty or positional[1].name == "key")


class _NoSuchVariable(KeyError):
    """Lookup of a variable that a draw does not have."""


class _Draw(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        raise _NoSuchVariable(name)


def _evaluate(fn: Callable[..., Any], values: dict[str, Any], key: tuple[Array, ...], not_kept: Sequence[str]) -> Any:
    """Return what `fn` returns for one draw, after checking that it is a pytree of arrays."""
    try:
        with model_errors(fn, arguments=values):
            output = fn(values, *key)
    except KeyError as error:
        _check_asked(fn, values, key, error, not_kept)
        raise
    leaves = jax.tree.leaves(output)
    if not leaves:
        raise ValueError("predict: fn returned no value; it must return an array or a pytree of arrays.")
    for leaf in leaves:
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
            raise TypeError(
                f"predict: fn must return a pytree of arrays; one of its leaves is a {type(leaf).__name__}."
            )
    return output


def _check_asked(
    fn: Callable[..., Any], values: dict[str, Any], key: tuple[Array, ...], error: KeyError, not_kept: Sequence[str]
) -> None:
    """Raise if the missing key is a variable; a `KeyError` from a dict of the user's own is left as it is."""
    try:
        fn(_Draw(values), *key)
    except _NoSuchVariable as missing:
        available = ", ".join(map(repr, values))
        wrong = hint(map(str, missing.args), values, not_kept)
        message = f"predict: fn asks for {missing}, which is not among the draws; they hold: {available}.{wrong}"
        raise ValueError(message) from error
    except Exception:
        return
