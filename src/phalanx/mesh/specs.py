"""Layout of a pytree of arrays over a mesh: one spec for each array, from a tree or from a rule by path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec
from jax.tree_util import tree_map_with_path

Rule = Callable[[str, tuple[int, ...]], Any]
"""Function from the path and shape of an array to a spec or a tuple of axes; None keeps the known spec."""

Spec = Any
"""A rule, or a tree of specs like the arrays; None keeps the known specs."""


def path_of(path: Sequence[Any]) -> str:
    """Return the path of an array in a tree as text, such as "layers.0.kernel"."""
    return ".".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)


def specs_of(like: Any, spec: Spec, known: Any, what: str) -> Any:
    """Return the specs of arrays, from `spec` or else from the `known` specs; None if both are None.

    Raises:
        ValueError: when a tree of specs does not match the arrays, or a spec has more dimensions than its array.
    """
    if spec is None and known is None:
        return None
    known = jax.tree.map(lambda _: PartitionSpec(), like) if known is None else known
    if not callable(spec):
        return known if spec is None else _checked(like, spec, what)

    def of(path: Any, leaf: Any, before: Any) -> Any:
        found: Any = spec(path_of(path), leaf.shape)
        found = before if found is None else found
        return found if isinstance(found, PartitionSpec) else PartitionSpec(*found)

    return _checked(like, tree_map_with_path(of, like, known), what)


def _checked(like: Any, specs: Any, what: str) -> Any:
    if jax.tree.structure(specs, is_leaf=_is_spec) != jax.tree.structure(like):
        raise ValueError(
            f"{what}: spec= must be a function of an array's path and shape, or a tree like its value with a "
            f"jax.sharding.PartitionSpec for each; got {jax.tree.structure(specs, is_leaf=_is_spec)}, and the value "
            f"is {jax.tree.structure(like)}."
        )

    def check(path: Any, leaf: Any, spec: Any) -> None:
        if not _is_spec(spec) or len(spec) > len(leaf.shape):
            raise ValueError(
                f"{what}: spec= of {path_of(path)!r}, which has shape {leaf.shape}, must be a "
                f"jax.sharding.PartitionSpec of at most {len(leaf.shape)} dimensions; got {spec!r}."
            )

    tree_map_with_path(check, like, specs)
    return specs


def _is_spec(node: Any) -> bool:
    return isinstance(node, PartitionSpec)
