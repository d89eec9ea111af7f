"""Checks of the arguments of ensembles: functions, states, rows and labels."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import keystr, tree_leaves_with_path
from jax.typing import ArrayLike

from phalanx.density.finite_data import find_not_finite, locate, mend
from phalanx.learning.batches import ORDERS
from phalanx.mesh.specs import PyTree

NAMED = 4
"""Greatest number of arrays that a message names."""

RETURNS = "as in `return state, {'loss': loss}`"


def count_rows(what: str, tree: PyTree) -> int:
    """Return the number of leading rows of the arrays of a tree.

    Raises:
        ValueError: when arrays differ in it, or there are no rows.
    """
    shapes = {keystr(path): np.shape(leaf) for path, leaf in tree_leaves_with_path(tree)}
    counts = {shape[0] if shape else 0 for shape in shapes.values()}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(
            f"{what} must be arrays with one leading row for each example, equally many and at least 1; got "
            f"{_list_items(f'{name} {shape}'.strip() for name, shape in shapes.items()) or 'no arrays'}."
        )
    return counts.pop()


def check_order(order: object) -> None:
    """Raise unless `order` is one of `ORDERS`."""
    if order not in ORDERS:
        raise ValueError(f"ensemble.train: order must be one of {', '.join(map(repr, ORDERS))}; got {order!r}.")


def check_labelled(what: str, data: object) -> None:
    """Raise unless data are inputs and labels, which the accuracy of the ensemble is computed from."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise ValueError(
            f"ensemble.train: with apply= the {what} must be a pair, (inputs, labels); got {type(data).__name__}. "
            f"Leave it out, and ask ensemble.predict(apply, inputs).scores(labels)."
        )


def check_held_out(held_out: object, apply: object) -> None:
    """Raise unless held-out rows are inputs and labels, and there is a function that predicts."""
    if apply is None:
        raise ValueError(
            "ensemble.train: held_out= needs apply=, the logits of one network, such as that of phx.ensembles.learner."
        )
    check_labelled("held-out rows", held_out)
    count_rows("ensemble.train: held_out", held_out)


def check_log(log: object) -> None:
    """Raise unless a log, where given, is the path of a file."""
    if log is not None and not isinstance(log, str | os.PathLike):
        raise TypeError(f"ensemble.train: log must be a path, such as 'out/log'; got {log!r}.")
    if log is not None and os.path.isdir(log):
        raise ValueError(f"ensemble.train: log={os.fspath(log)!r} is a folder. Name a CSV file, which may lie in it.")


def check_functions(init: Callable[..., Any], update: Callable[..., Any]) -> None:
    """Raise unless `init` and `update` are functions of their arguments."""
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
    """Raise a ValueError that names the axis of a collective over the members: `what` is the code of one network."""
    try:
        yield
    except NameError as error:
        if "unbound axis name" not in str(error):
            raise
        axis = str(error).split("unbound axis name:")[-1].split(".")[0].strip()
        raise ValueError(
            f"phx.ensemble: {what} asks for the axis {axis!r}, as in jax.lax.pmean(x, {axis!r}), which does not "
            f"exist: it is the code of one network, which does not see the others. Average over the members outside of "
            f"it, what `update` measures or `ensemble.map(f)` returns."
        ) from error


def check_begun(state: PyTree) -> None:
    """Raise unless a state is a tree of arrays."""
    leaves = tree_leaves_with_path(state)
    if not leaves:
        raise ValueError("phx.ensemble: init must return a tree of arrays; there is no array in what it returned.")
    for path, leaf in leaves:
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
            raise TypeError(
                f"phx.ensemble: init must return a tree of arrays; {keystr(path) or 'it'} is {type(leaf).__name__}. "
                f"Keep other values out of the state (eqx.partition takes the arrays of an Equinox module)."
            )


def check_step(returned: object, state: PyTree) -> tuple[Any, Mapping[str, Any]]:
    """Return the state and the scalars that an update of `state` has returned, after checking both."""
    if type(returned) is not tuple or len(returned) != 2:
        raise TypeError(
            f"phx.ensemble: update must return the new state and a dict of measured scalars, {RETURNS}; got "
            f"{type(returned).__name__}."
        )
    new, scalars = returned
    before = describe(state)
    after = describe(new)
    if before != after:
        differing = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        raise TypeError(
            f"phx.ensemble: update must return a state of the same arrays as it was given, {RETURNS}; "
            + _list_items(
                f"{name or 'it'} was {_describe_array(before, name)} and is {_describe_array(after, name)}"
                for name in differing
            )
            + "."
        )
    if not isinstance(scalars, Mapping):
        raise TypeError(
            f"phx.ensemble: update must return, after the state, a dict of measured scalars, {RETURNS}; got "
            f"{type(scalars).__name__}."
        )
    for name, shape in ((keystr(path), np.shape(leaf)) for path, leaf in tree_leaves_with_path(scalars)):
        if shape:
            raise ValueError(f"phx.ensemble: update must measure scalars, and {name} has shape {shape}; take its mean.")
    return new, scalars


def check_finite(step: Callable[[Any, Any], Any], begin: Callable[[], Any], data: PyTree, size: int) -> None:
    """Raise if NaN or infinite numbers in the data make the first step of a network not finite.

    Args:
        step: `step(state, batch)`, a step of one network.
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
    def is_finite(state: PyTree, leaves: list[Array]) -> jax.Array:
        leaves_after = jax.tree.leaves(step(state, jax.tree.unflatten(tree, leaves)))
        floats = [leaf for leaf in leaves_after if jnp.issubdtype(leaf.dtype, jnp.floating)]
        return jnp.stack([jnp.isfinite(leaf).all() for leaf in floats]).all() if floats else jnp.bool_(True)

    state = begin()
    mended = [mend(leaf) if i in suspects else leaf for i, leaf in enumerate(leaves)]
    for i in suspects:
        place = locate(leaves[i])
        first = max(min(place.index[0], len(leaves[i]) - size), 0)
        first_state, right = (
            [leaf[first : first + size] for leaf in some]
            for some in ([*mended[:i], leaves[i], *mended[i + 1 :]], mended)
        )
        if not is_finite(state, first_state) and is_finite(state, right):
            name = f"data{keystr(paths[i][0])}"
            raise ValueError(
                f"ensemble.train: {place.describe(name)}, and with it a step is not finite: every member would be NaN "
                f"from then on. Drop such rows from all arrays; or put finite numbers in their place, and give update "
                f"a mask that leaves them out."
            )


def check_logits(logits: ArrayLike, rows: int) -> None:
    """Raise unless logits have the shape `(rows, classes)`."""
    shape = np.shape(logits)
    if len(shape) != 2 or shape[0] != rows or shape[1] < 2:
        raise ValueError(
            f"ensemble.predict: apply must return logits (rows, classes), of at least 2 classes; for {rows} rows it "
            f"returned shape {shape}. (Make two of one logit z for each row: jnp.stack([jnp.zeros_like(z), z], -1).)"
        )


def describe(tree: PyTree) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape and dtype of every array of a tree, by name."""
    return {keystr(path): (np.shape(leaf), str(jnp.result_type(leaf))) for path, leaf in tree_leaves_with_path(tree)}


def _describe_array(descriptions: Mapping[str, tuple[tuple[int, ...], str]], name: str) -> str:
    return "{1} {0}".format(*descriptions[name]) if name in descriptions else "missing"


def _list_items(items: Iterable[str]) -> str:
    items = list(items)
    return ", ".join(items[:NAMED]) + (f" and {len(items) - NAMED} more" if len(items) > NAMED else "")
