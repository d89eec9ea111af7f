"""Layout of a pytree of arrays over a mesh: one spec for each array, from a tree or from a rule by path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import Array
from jax.sharding import PartitionSpec
from jax.tree_util import tree_map_with_path

from phalanx.errors import message_text

PyTree = Any
"""A tree of arrays, as `jax.tree` takes it: nested dicts, lists, tuples and registered classes."""

Rule = Callable[[str, tuple[int, ...]], Any]
"""Function from the path and shape of an array to a spec or a tuple of axes; None keeps the known spec."""

Spec = Any
"""A rule, or a tree of specs like the arrays; None keeps the known specs."""


def path_of(path: Sequence[object]) -> str:
    """Return the path of an array in a tree as text, such as "layers.0.kernel"."""
    return ".".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)


def one_spec(axes: object, what: str) -> PartitionSpec:
    """Return the spec of an array, given as one, or as a tuple of the mesh axis of each dimension.

    Raises:
        TypeError: when `axes` is neither, naming `what`.
        ValueError: when an axis is named twice.
    """
    entries = tuple(axes) if isinstance(axes, PartitionSpec | tuple | list) else ("",)
    names = [name for entry in entries if entry is not None for name in (entry if _is_several(entry) else (entry,))]
    if not all(isinstance(name, str) and name for name in names):
        instead = f" Write spec=({axes!r},) to shard the first dimension." if isinstance(axes, str) else ""
        if isinstance(axes, Mapping):
            instead = " For a tree of arrays give a tree like it, with a jax.sharding.PartitionSpec for each array."
        raise TypeError(
            f"{what}: spec= must be a jax.sharding.PartitionSpec, or a tuple with a mesh axis or None for each "
            f"dimension, such as ('model', None); got {axes!r}.{instead}"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(
            f"{what}: spec={tuple(entries)!r} names the mesh axis {twice[0]!r} twice. An axis shards one dimension of "
            f"an array: name it once."
        )
    return PartitionSpec(*entries)


def axes_within(entry: Any) -> tuple[str, ...]:
    """Return the mesh axes that divide one dimension, given its entry in a partition."""
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def layout_of(like: PyTree, spec: Spec, what: str) -> PyTree:
    """Return a tree of specs like these arrays: one spec is that of every array, and None replicates all.

    Raises:
        ValueError: as `specs_of`.
    """
    if spec is None or is_spec(spec):
        spec = jax.tree.map(lambda _: spec or PartitionSpec(), like)
    return specs_of(like, spec, None, what)


def specs_of(like: PyTree, spec: Spec, default: PyTree, what: str) -> PyTree:
    """Return the specs of arrays, from `spec` or else from the `known` specs; None if both are None.

    Raises:
        ValueError: when a tree of specs does not match the arrays, or a spec has more dimensions than its array.
    """
    if spec is None and default is None:
        return None
    default = jax.tree.map(lambda _: PartitionSpec(), like) if default is None else default
    if not callable(spec):
        return default if spec is None else _check_specs(like, spec, what)

    def of(path: Sequence[object], leaf: Array, before: Any) -> Any:
        spec_of_leaf: Any = spec(path_of(path), leaf.shape)
        return before if spec_of_leaf is None else one_spec(spec_of_leaf, f"{what}: {path_of(path)!r}")

    return _check_specs(like, tree_map_with_path(of, like, default), what)


def _check_specs(like: PyTree, specs: PyTree, what: str) -> PyTree:
    if jax.tree.structure(specs, is_leaf=is_spec) != jax.tree.structure(like):
        raise ValueError(
            f"{what}: spec= must be a function of an array's path and shape, or a tree like its value with a "
            f"jax.sharding.PartitionSpec for each; got {jax.tree.structure(specs, is_leaf=is_spec)}, and the value "
            f"is {jax.tree.structure(like)}."
        )

    def check(path: Sequence[object], leaf: Array, spec: Any) -> None:
        of = repr(path_of(path)) if path else "its value"
        if not is_spec(spec) or len(spec) > len(leaf.shape):
            raise ValueError(
                f"{what}: spec= of {of}, which has shape {leaf.shape}, must be a jax.sharding.PartitionSpec of at most "
                f"{message_text.count(len(leaf.shape), 'dimension')}; got {spec!r}."
            )
        one_spec(spec, f"{what}: {of}" if path else what)

    tree_map_with_path(check, like, specs)
    return specs


def _is_several(entry: object) -> bool:
    """Return whether an entry of a spec shards one dimension over several axes."""
    return isinstance(entry, tuple | list)


def is_spec(node: object) -> bool:
    """Return whether a node of a tree is a spec."""
    return isinstance(node, PartitionSpec)
