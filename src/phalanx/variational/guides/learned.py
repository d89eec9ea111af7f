"""Learned parameters by name: their values, their points on the real line where optimisers move them, their layout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import keystr, tree_map_with_path
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint
from numpyro.distributions.transforms import Transform

from phalanx.distributions.bijections import bijection_onto
from phalanx.language.parameters import Parameter
from phalanx.mesh.specs import PyTree, layout_of

if TYPE_CHECKING:
    from jaxtyping import Bool

Params = Mapping[str, Any]
"""Values of parameters, each an array or a pytree of arrays."""


@dataclass(frozen=True)
class Learned:
    """The parameters of a guide and a model.

    Attributes:
        parameters: constraint and layout of each; `init` plays no part here.
    """

    parameters: Mapping[str, Parameter]

    def constrain(self, free: Params) -> dict[str, Any]:
        """Return the values at points of the real line."""
        return {name: self._each(name, lambda t, x: t(x), free[name]) for name in self.parameters}

    def free(self, values: Params) -> dict[str, Any]:
        """Return the points of the real line that have these values."""
        return {name: self._each(name, lambda t, x: t.inv(x), values[name]) for name in self.parameters}

    def only(self, names: Collection[str]) -> Learned:
        """Return the parameters of these names."""
        return Learned({name: p for name, p in self.parameters.items() if name in names})

    def misfits(self, values: Params, free: Params) -> dict[tuple[str, str], Bool[Array, ""]]:
        """Return flags of values that do not satisfy their constraint or lie on its edge, by name and sentence.

        A value on the edge is at infinity on the real line, or nearly so: learning never reaches it.
        """
        misfits = {}
        for name, parameter in self.parameters.items():
            constraint = parameter.constraint
            leaves = jax.tree.leaves(values[name])
            outside = ~jnp.all(jnp.array([jnp.all(constraint(leaf)) for leaf in leaves]))
            its = f"Parameter {name!r}: its initial value"
            misfits[name, f"{its} does not satisfy its constraint {constraint}."] = outside
            on_edge = (
                f"{its} lies on the edge of its constraint {constraint}, which is "
                f"learned from inside and never reached. Give a value inside."
            )
            misfits[name, on_edge] = _any_on_edge(constraint, values[name], free[name])
        return misfits

    def shardings(self, mesh: Mesh, free: Params) -> dict[str, Any]:
        """Return the layout of points of the real line; a spec of more dimensions than an array has is an error."""
        return {name: self._laid_out(mesh, name, free[name]) for name in self.parameters}

    def _laid_out(self, mesh: Mesh, name: str, value: PyTree) -> PyTree:
        return tree_map_with_path(
            lambda path, leaf, spec: _sharding(mesh, f"{name!r}{keystr(path)}", spec, leaf),
            value,
            layout_of(value, self.parameters[name].spec, f"Parameter {name!r}"),
        )

    def _each(self, name: str, apply: Callable[[Transform, Array], ArrayLike], value: PyTree) -> PyTree:
        transform = bijection_onto(self.parameters[name].constraint)
        return jax.tree.map(lambda leaf: jnp.asarray(apply(transform, leaf)), value)


def _any_on_edge(constraint: Constraint, value: Any, free: Any) -> Bool[Array, ""]:
    inside = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(free)]
    if constraint is constraints.simplex:  # its bijection replaces zeros by the least number
        inside += [jnp.all(leaf > 0) for leaf in jax.tree.leaves(value)]
    return ~jnp.all(jnp.array(inside))


def begun_with(init: Params, values: Params) -> dict[str, Any]:
    """Return initial values: the user's where there are any, else the programs' own.

    Raises:
        ValueError: when a given value has another shape, or another tree structure; naming the parameter.
    """
    for name, first in values.items():
        form = _form(init.get(name, first))
        learned_form = _form(first)
        if form != learned_form:
            raise ValueError(
                f"init: the value of parameter {name!r} is {form}, and where it is learned {learned_form}."
            )
    return {name: init.get(name, value) for name, value in values.items()}


def _form(value: PyTree) -> str:
    """Return the structure of a value, in words."""
    leaves, tree = jax.tree.flatten(jax.tree.map(lambda leaf: f"of shape {jnp.shape(leaf)}", value))
    return leaves[0] if jax.tree_util.treedef_is_leaf(tree) else str(jax.tree.unflatten(tree, leaves))


def _sharding(mesh: Mesh, name: str, spec: PartitionSpec, leaf: Array | jax.ShapeDtypeStruct) -> NamedSharding:
    for axis in jax.tree.leaves(tuple(spec)):
        if axis not in mesh.axis_names:
            raise ValueError(
                f"Parameter {name}: spec={spec} names the axis {axis!r}, and the mesh has "
                f"{', '.join(map(repr, mesh.axis_names))}. Name one of these, or None for a dimension that is whole on "
                f"every device."
            )
    sharding = NamedSharding(mesh, spec)
    try:
        sharding.shard_shape(leaf.shape)
    except ValueError:
        raise ValueError(
            f"Parameter {name} of shape {leaf.shape} cannot be laid out as spec={spec} on a mesh of shape "
            f"{dict(mesh.shape)}: each of its dimensions must divide over its axis. Leave spec= out, or choose "
            f"another size."
        ) from None
    return sharding
