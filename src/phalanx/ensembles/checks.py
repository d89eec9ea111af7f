"""What cannot be trained as an ensemble is refused, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_leaves_with_path

from phalanx.density.finite_data import find_not_finite, locate, mend
from phalanx.learning.batches import ORDERS

NAMED = 4
"""Arrays that a message names at most."""

RETURNS = "as in `return state, {'loss': loss}`"


def count_rows(what: str, tree: Any) -> int:
    """How many leading rows the arrays of a tree have, all of them."""
    shapes = {keystr(path): np.shape(leaf) for path, leaf in tree_leaves_with_path(tree)}
    counts = {shape[0] if shape else 0 for shape in shapes.values()}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(
            f"{what} must be arrays with one leading row for each example, equally many and at least 1; got "
            f"{_listed(f'{name} {shape}'.strip() for name, shape in shapes.items()) or 'no arrays'}."
        )
    return counts.pop()


def check_order(order: Any) -> None:
    """Refuse an order that is none."""
    if order not in ORDERS:
        raise ValueError(f"ensemble.train: order must be one of {', '.join(map(repr, ORDERS))}; got {order!r}.")


def check_labelled(data: Any) -> None:
    """Refuse data of which the ensemble's own accuracy cannot be told."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise ValueError(
            f"ensemble.train: with apply= the data must be a pair, (inputs, labels); got {type(data).__name__}. Leave "
            f"it out, and ask ensemble.predict(apply, inputs).scores(labels)."
        )


def check_functions(init: Any, update: Any) -> None:
    """Refuse pieces that are no functions, or take other arguments."""
    for name, f in (("init", init), ("update", update)):
        if not callable(f):
            raise TypeError(f"phx.ensemble: {name} must be a function, got {type(f).__name__}.")
    try:
        inspect.signature(init).bind(None)
    except TypeError:
        raise TypeError(
            f"phx.ensemble: init must take a key, as in init(key); got {inspect.signature(init)}."
        ) from None
    except ValueError:  # built-ins and some callables show no signature
        pass
    signature = inspect.signature(update)
    try:
        signature.bind(None, None, **({"key": None} if "key" in signature.parameters else {}))
    except TypeError:
        raise TypeError(
            f"phx.ensemble: update must take (state, batch), or (state, batch, key) by these names of the last; got "
            f"{signature}."
        ) from None


@contextmanager
def one_network(what: str) -> Iterator[None]:
    """For code of one network: a collective over the others in it is refused, by name."""
    try:
        yield
    except NameError as error:
        if "unbound axis name" not in str(error):
            raise
        axis = str(error).split("unbound axis name:")[-1].split(".")[0].strip()
        raise ValueError(
            f"phx.ensemble: {what} asks for the axis {axis!r}, as in jax.lax.pmean(x, {axis!r}), and there is none: it "
            f"is the code of one network, which does not see the others. Of all members take what `update` measures, "
            f"or `ensemble.map(f)`, and average it outside."
        ) from error


def check_begun(state: Any) -> None:
    """Refuse a state that is not made of arrays."""
    leaves = tree_leaves_with_path(state)
    if not leaves:
        raise ValueError("phx.ensemble: init must return a tree of arrays; there is no array in what it returned.")
    for path, leaf in leaves:
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
            raise TypeError(
                f"phx.ensemble: init must return a tree of arrays; {keystr(path) or 'it'} is {type(leaf).__name__}. "
                f"Keep what is no array out of the state (of an Equinox module, eqx.partition tells them apart)."
            )


def check_step(returned: Any, state: Any) -> tuple[Any, Mapping[str, Any]]:
    """What an update of `state` has returned, if that is a state of the same arrays, and scalars it measured."""
    if type(returned) is not tuple or len(returned) != 2:
        raise TypeError(
            f"phx.ensemble: update must return the new state and a dict of what it measured, {RETURNS}; got "
            f"{type(returned).__name__}."
        )
    new, measured = returned
    before, after = describe(state), describe(new)
    if before != after:
        differing = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        raise TypeError(
            f"phx.ensemble: update must return a state of the same arrays as it was given, {RETURNS}; "
            + _listed(f"{name or 'it'} was {_said(before, name)} and is {_said(after, name)}" for name in differing)
            + "."
        )
    if not isinstance(measured, Mapping):
        raise TypeError(
            f"phx.ensemble: update must return, after the state, a dict of what it measured, {RETURNS}; got "
            f"{type(measured).__name__}."
        )
    for name, shape in ((keystr(path), np.shape(leaf)) for path, leaf in tree_leaves_with_path(measured)):
        if shape:
            raise ValueError(
                f"phx.ensemble: what update measures must be scalars, and {name} has shape {shape}; take its mean."
            )
    return new, measured


def check_finite(step: Callable[[Any, Any], Any], begin: Callable[[], Any], data: Any, size: int) -> None:
    """Refuse data whose NaN or infinite numbers make the first step of a network anything but finite.

    Args:
        step: `step(state, batch)`, of one network.
        begin: makes the state of one network.
        data: a tree of arrays with a leading row for each example.
        size: rows of a batch.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(data)
    leaves = [leaf if isinstance(leaf, jax.Array) else np.asarray(leaf) for _, leaf in paths]
    suspects = find_not_finite(leaves)
    if not suspects:
        return

    @jax.jit
    def is_finite(state: Any, leaves: list[Any]) -> jax.Array:
        made = jax.tree.leaves(step(state, jax.tree.unflatten(tree, leaves)))
        floats = [leaf for leaf in made if jnp.issubdtype(leaf.dtype, jnp.floating)]
        return jnp.stack([jnp.isfinite(leaf).all() for leaf in floats]).all() if floats else jnp.bool_(True)

    state = begin()
    mended = [mend(leaf) if i in suspects else leaf for i, leaf in enumerate(leaves)]
    for i in suspects:
        found = locate(leaves[i])
        first = max(min(found.index[0], len(leaves[i]) - size), 0)
        given, right = (
            [leaf[first : first + size] for leaf in some]
            for some in ([*mended[:i], leaves[i], *mended[i + 1 :]], mended)
        )
        if not is_finite(state, given) and is_finite(state, right):
            name = f"data{keystr(paths[i][0])}"
            raise ValueError(
                f"ensemble.train: {found.describe(name)}, and with it a step is not finite: every member would be NaN "
                f"from there on. Drop such rows from all arrays; or put finite numbers in their place, and give update "
                f"a mask that leaves them out."
            )


def check_logits(logits: Any, rows: int) -> None:
    """Refuse what is no logit of each class for each row."""
    shape = np.shape(logits)
    if len(shape) != 2 or shape[0] != rows or shape[1] < 2:
        raise ValueError(
            f"ensemble.predict: apply must return logits (rows, classes), of at least 2 classes; for {rows} rows it "
            f"returned shape {shape}. (Of one logit z for each row make two: jnp.stack([jnp.zeros_like(z), z], -1).)"
        )


def describe(tree: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of every array of a tree, by name."""
    return {keystr(path): (np.shape(leaf), str(jnp.result_type(leaf))) for path, leaf in tree_leaves_with_path(tree)}


def _said(described: Mapping[str, tuple[tuple[int, ...], str]], name: str) -> str:
    return "{1} {0}".format(*described[name]) if name in described else "not there"


def _listed(items: Any) -> str:
    items = list(items)
    return ", ".join(items[:NAMED]) + (f" and {len(items) - NAMED} more" if len(items) > NAMED else "")
