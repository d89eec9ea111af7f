"""Target of inference: a model and its data as a log density of unconstrained positions, on a mesh.

A mean with the prior N(0, 10) of three rows y = [1, 2, 3] with the density N(mean, 1), on two devices, at mean = 2:

    prior, the same on both devices    log N(2; 0, 10)                              -3.2415
    device 0 has rows 0 and 1          log N(1; 2, 1) + log N(2; 2, 1)              -2.3379
    device 1 has row 2 and a copy      log N(3; 2, 1), the copy times zero          -1.4189
    one all-reduce of the rows         -3.2415 - 2.3379 - 1.4189                    -6.9983
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from phalanx.density.data_check import DataCheck
from phalanx.density.density import Density
from phalanx.density.derivatives import DensityFunctions, differentiable
from phalanx.density.labels import check_labels
from phalanx.density.minibatch import Minibatch
from phalanx.density.model_on_mesh import ModelOnMesh
from phalanx.density.site_shardings import read_sites
from phalanx.inputs.arguments import ArgumentLayout, Arguments, check_outcome_named, columns_left_out, split_arguments
from phalanx.inputs.dataframe_input import UserData
from phalanx.inputs.needed_values import trace_with_values
from phalanx.inputs.placement import mesh_of
from phalanx.language.tracing import Program
from phalanx.mesh.devices import CHAIN, axes_but_chain, make_mesh, with_auto_axes
from phalanx.mesh.forks import refuse_fork
from phalanx.mesh.position import ByVariable
from phalanx.mesh.processes import to_devices
from phalanx.mesh.row_sharding import GLOBAL, RowSharding
from phalanx.mesh.specs import PyTree
from phalanx.placements import Message
from phalanx.programs.closure_key import check_function
from phalanx.programs.sites import Sites
from phalanx.programs.traced_program import TracedProgram, check_latents


def choose_mesh(arguments: Arguments, mesh: Mesh | None) -> Mesh:
    """Return the given mesh, else the mesh of the data, else one device.

    Raises:
        ValueError: when data are on several meshes or on another than the given one, or it has no axis `chain`.
    """
    sharded_arrays = [array for array, s in zip(arguments.arrays, arguments.shardings, strict=True) if s.axes]
    meshes = {with_auto_axes(one) for array in sharded_arrays if (one := mesh_of(array)) is not None}
    if len(meshes) > 1:
        shapes = " and ".join(sorted(str(dict(one.shape)) for one in meshes))
        raise ValueError(
            f"data: arrays were placed with phx.shard on different meshes, of shapes {shapes}. Use one for all."
        )
    mesh_of_data = next(iter(meshes), mesh_of(arguments.arrays))
    if mesh is None:
        mesh = mesh_of_data if mesh_of_data is not None else make_mesh(chain=1, devices=jax.devices()[:1])
    mesh = with_auto_axes(mesh)
    if meshes and mesh_of_data is not None and mesh_of_data != mesh:
        raise ValueError(
            f"mesh: the data were placed with phx.shard on a mesh of shape {dict(mesh_of_data.shape)}, but the run has "
            f"{dict(mesh.shape)}. Use one mesh for both."
        )
    if CHAIN not in mesh.axis_names:
        raise ValueError(f"mesh: needs an axis {CHAIN!r}; it has {mesh.axis_names}. Make it with phx.make_mesh.")
    _check_all_processes(mesh)
    return mesh


def _check_all_processes(mesh: Mesh) -> None:
    """Raise if some process has no device in the mesh: it would wait for the others for ever."""
    if jax.process_count() > 1 and len({device.process_index for device in mesh.devices.flat}) < jax.process_count():
        raise ValueError(
            f"mesh: there are {jax.process_count()} processes, and the mesh of shape {dict(mesh.shape)} has no devices "
            f"of some of them. Give a mesh with devices of each process: phx.make_mesh() takes all devices."
        )


class Target(ModelOnMesh):
    r"""A model with its data as the log density of an unconstrained position.

    Constrained values $x$ and the position $u$ are related by $x = T(u)$, `numpyro.distributions.biject_to` of each
    support, and $\log \pi(u) = \log p(T(u), \text{data}) + \log|\det T'(u)|$. Supports may depend on other variables.
    An angle, as of `VonMises`, is that of a point in the plane, so that its $u$ has a last dimension of size 2; the log
    density of the point's radius replaces the determinant.

    A pickle, which contains the model as Python pickles a function, is traced again on one device where it is read.

    Args:
        model: a program whose keyword arguments are the data.
        data: the keyword arguments. Arrays placed with `phx.shard` are sharded, and so are variables that depend on
            them.
        mesh: the devices; by default those of the data, or one.

    Raises:
        TypeError: when `data` is not a dict or does not fit the model.
        ValueError: when the model has no latent variables, an array is empty, or the sharding contradicts the model.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions as dist, phalanx as phx
        >>> target = phx.Target(lambda: phx.sample("scale", dist.LogNormal(0.0, 1.0)))
        >>> round(float(target.log_density({"scale": jnp.zeros(())})), 4)
        -0.9189
    """

    def __init__(
        self,
        model: Program,
        data: UserData | None = None,
        *,
        mesh: Mesh | None = None,
    ):
        arguments = split_arguments(model, {} if data is None else data)
        self._fill(model, arguments, choose_mesh(arguments, mesh))
        if not self.observes:
            check_outcome_named(model, columns_left_out(model, data))

    @classmethod
    def of(cls, model: Program, arguments: Arguments, mesh: Mesh, whole: TracedProgram | None = None) -> Target:
        """Return the target of a model and its split arguments; `whole` is its trace, if there is one."""
        target = cls.__new__(cls)
        target._fill(model, arguments, mesh, whole)
        return target

    def _fill(self, model: Program, arguments: Arguments, mesh: Mesh, whole: TracedProgram | None = None) -> None:
        if whole is None:  # a caller that passes `whole` has checked the indices
            sizes = axes_but_chain(mesh)
            arguments, whole = trace_with_values(arguments, lambda a: TracedProgram.of_whole(model, a, sizes))
            check_labels(whole, arguments)
            DataCheck.of(whole).check_or_warn(arguments)
        super().__init__(model, arguments, mesh)
        check_latents(model, whole)
        check_function(whole)
        self.sites: Sites = read_sites(arguments, self.sizes, whole)
        self.minibatch: Minibatch | None = None
        self.per_lane_data: tuple[int, ...] = ()
        """Numbers of the arrays of which each group of chains has its own, by a leading dimension on the devices."""
        self.groups = 1

    def __copy__(self) -> Target:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __deepcopy__(self, memo: object) -> Target:
        return copy.copy(self)  # model, data and traces are never changed

    def __reduce__(self) -> tuple[Any, ...]:
        if self.mesh.size > 1:
            raise TypeError(
                f"A phx.Target on a mesh of shape {dict(self.mesh.shape)} cannot be pickled: the devices belong to its "
                f"process. Pickle the model and the data, and call phx.Target(model, data, mesh=...) there."
            )
        return _on_one_device, (self.program, self.arguments)

    @property
    def observes(self) -> bool:
        """True if the log density has terms besides the priors."""
        return bool(self.sites.of_likelihood)

    def with_arguments(self, arguments: Arguments) -> Target:
        """Return the target with other data of the same shapes, without tracing."""
        (other := copy.copy(self)).arguments = arguments
        return other

    def in_batches(self, batch_size: object) -> Target:
        """Return the target with a log density that can also be estimated from `batch_size` rows.

        Raises:
            ValueError: when there are fewer rows, a term of the log density neither adds up over rows nor is
                independent of them, or a variable has an element for each row.
        """
        other = copy.copy(self)
        minibatch = Minibatch.of(batch_size, self.arguments, self.mesh)
        other.minibatch = minibatch.estimating(self.program, self.arguments, self.sites.positions)
        return other

    def with_arrays(self, arrays: Sequence[Array]) -> Target:
        """Return the target with these arrays, which have been checked, instead of its data."""
        (other := copy.copy(self)).arguments = self.arguments.with_arrays(arrays)
        return other

    def without_arrays(self) -> Target:
        """Return the target without its data."""
        (other := copy.copy(self)).arguments = self.arguments.without_arrays()
        return other

    def of_program(self, program: Program) -> Target:
        """Return the target of another program whose trace is the same."""
        (other := copy.copy(self)).program = program
        return other

    def of_groups(self, per_lane_data: Sequence[int], groups: int) -> Target:
        """Return the target of groups of chains, each of which has its own arrays with the numbers in `own`."""
        other = copy.copy(self)
        other.per_lane_data = tuple(per_lane_data)
        other.groups = groups
        return other

    def array_specs(self) -> tuple[PartitionSpec, ...]:
        """Return the partition of each array of the data; a device has the arrays of its groups of chains."""
        specs = super().array_specs()
        return tuple(
            PartitionSpec(CHAIN) if number in self.per_lane_data else spec for number, spec in enumerate(specs)
        )

    def local_shapes(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Return the shapes of the arrays on one device."""
        here = self.groups // self.mesh.shape[CHAIN]
        return tuple(
            jax.ShapeDtypeStruct((here, *shape.shape), shape.dtype) if number in self.per_lane_data else shape
            for number, shape in enumerate(self.arguments.local_shapes())
        )

    @property
    def layout(self) -> ArgumentLayout:
        """Structure of the data, which is compiled in."""
        return self.arguments.layout

    def on_device(self, arrays: Sequence[Array], lanes: int = 1) -> Density:
        """Return the density on one device, for `lanes` chains at once. Call it inside `shard_map`.

        A power of the likelihood may follow the data's arrays. It is an argument of compiled programs, so that one
        program serves all temperatures.
        """
        count = len(self.arguments.shardings)
        temperature = arrays[count] if len(arrays) > count else None
        return Density(self.program, self.layout, arrays[:count], self.sites, lanes, self.minibatch, temperature)

    def messages(self) -> list[Message]:
        """Return the messages of an evaluation of the log density and its gradient, traced but not run."""
        messages: list[Message] = []
        if not self.sites.is_divided:
            return messages

        def evaluate(arrays: Sequence[Array], position: dict[str, Array]) -> Any:
            density = replace(self.on_device(arrays), messages=messages)
            if self.minibatch is not None:
                density = density.of_rows(self.minibatch.rows(jax.random.key(0)))
            return density.value_and_grad(position)

        shapes = list(self.arguments.local_shapes()), self.sites.layout.shapes()
        jax.make_jaxpr(evaluate, axis_env=list(self.sites.sizes.items()))(*shapes)
        return messages

    def sharding(self, name: str) -> RowSharding:
        """Return the sharding of a latent or deterministic variable."""
        return self.sites.values.get(name, GLOBAL)

    def position_specs(self, *leading: str | None) -> dict[str, PartitionSpec]:
        """Return the partition of positions whose first dimensions are `leading`, such as that of the chains."""
        return {name: sharding.spec(*leading) for name, sharding in self.sites.positions.items()}

    def log_density(self, position: Mapping[str, ArrayLike]) -> Array:
        """Return the log density at a position, a dict of whole, unpadded, unconstrained values: a scalar.

        It may be differentiated twice, forward or in reverse.
        """
        refuse_fork()
        value = self._whole(lambda density, u: density.total(u).value, PartitionSpec())
        product = self._whole(Density.hessian_product, self.position_specs())

        def hessian_product(_: None, *operands: ByVariable) -> ByVariable:
            return {name: self.trim(name, leaf) for name, leaf in product(*operands).items()}

        evaluations = DensityFunctions(
            lambda _, position: value(position),
            lambda _, position: self.value_and_grad(position),
            hessian_product,
        )
        return differentiable(evaluations, None)({name: jnp.asarray(values) for name, values in position.items()})

    def value_and_grad(self, position: Mapping[str, ArrayLike]) -> tuple[Array, dict[str, Array]]:
        """Return the log density and its gradient at a position."""
        total, gradient = self._whole(
            lambda density, u: density.value_and_grad(u), (PartitionSpec(), self.position_specs())
        )(position)
        return total.value, {name: self.trim(name, leaf) for name, leaf in gradient.items()}

    def constrain(self, position: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """Return the values of the latent and deterministic variables at a position."""
        specs = {name: self.sharding(name).spec() for name in self.value_names()}
        values = self._whole(lambda density, u: density.constrain(u), specs)(position)
        return {name: self.trim(name, leaf) for name, leaf in values.items()}

    def unconstrain(self, values: Mapping[str, Any]) -> dict[str, Array]:
        """Return the position at which the latent variables have these values.

        Raises:
            ValueError: when a latent variable has no value.
        """
        position = self._whole(lambda density, x: density.unconstrain(x), self.position_specs())(dict(values))
        return {name: self.trim(name, leaf) for name, leaf in position.items()}

    def initial_position(self, key: Array) -> dict[str, Array]:
        """Return a random position, uniform on (-2, 2) in every unconstrained coordinate."""
        position = self._whole(lambda density, _: density.initial_position(key), self.position_specs())({})
        return {name: self.trim(name, leaf) for name, leaf in position.items()}

    def value_names(self) -> list[str]:
        """Return the names of the latent variables, then of the deterministic ones."""
        return list(self.sites.values)

    def trim(self, name: str, values: PyTree, leading: int = 0) -> PyTree:
        """Return whole `values` of a variable without padded rows; rows follow `leading` dimensions."""
        return self.sharding(name).trim(values, leading)

    def _whole(self, f: Callable[..., Any], out_specs: PyTree) -> Callable[..., Any]:
        """Return `f(density, *trees)` as a function of whole arrays by name, whose rows are padded."""

        def call(*trees: Mapping[str, Any]) -> Any:
            refuse_fork()
            specs = [{name: self.sharding(name).spec() for name in tree} for tree in trees]
            device_trees = [
                {name: self._placed(name, jnp.asarray(leaf), spec[name]) for name, leaf in tree.items()}
                for tree, spec in zip(trees, specs, strict=True)
            ]

            def on_device(arrays, *trees):
                return f(self.on_device(arrays), *trees)

            in_specs = (self.array_specs(), *specs)
            run = jax.shard_map(on_device, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
            return jax.jit(run)(self.place_arrays(), *device_trees)

        return call

    def _placed(self, name: str, leaf: Array, spec: PartitionSpec) -> Array:
        """Return padded values on the mesh; traced ones are placed by the program that uses them."""
        padded_leaf = self._pad(name, leaf)
        return (
            padded_leaf if isinstance(padded_leaf, Tracer) else to_devices(padded_leaf, NamedSharding(self.mesh, spec))
        )

    def _pad(self, name: str, leaf: Array) -> Array:
        sharding = self.sharding(name)
        if not sharding.axes:
            return leaf
        missing = sharding.local_rows * int(np.prod([self.mesh.shape[a] for a in sharding.axes])) - leaf.shape[0]
        return jnp.concatenate([leaf, jnp.repeat(leaf[-1:], missing, axis=0)]) if missing else leaf


def _on_one_device(model: Program, arguments: Arguments) -> Target:
    """Return the target that a pickle holds, on the first device of this process."""
    return Target.of(model, arguments, choose_mesh(arguments, None))
