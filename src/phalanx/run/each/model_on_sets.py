"""A model traced on one of many data sets, with the arrays of all, after all checks that need no compiling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from phalanx.density.data_check import DataCheck
from phalanx.density.given_names import GivenNames
from phalanx.density.naming import Naming
from phalanx.density.target import Target, choose_mesh
from phalanx.inputs.arguments import Arguments, split_arguments
from phalanx.inputs.needed_values import trace_with_values
from phalanx.language.parameters import at_initial_values
from phalanx.language.tracing import Program
from phalanx.mesh.devices import CHAIN, axes_but_chain, default_mesh, make_mesh, use_every_core
from phalanx.mesh.processes import to_host
from phalanx.programs.traced_program import TracedProgram
from phalanx.run import checks
from phalanx.run.describe import names_in_record
from phalanx.run.each.data_sets import DataSets, Each
from phalanx.run.each.ragged import REAL, check_ragged, real_rows, with_real_rows
from phalanx.run.options import SamplerOptions
from phalanx.run.traced_call import TracedCall


@dataclass(frozen=True, kw_only=True)
class ModelOnSets(TracedCall):
    """A model on many data sets, each of which has a group of chains.

    Its arguments are those of one data set. If data sets differ in their numbers of rows, `model` leaves out rows which
    only fill up, and copies of the last data set fill up the devices.

    Attributes:
        of_user: the user's model.
        sets: the data sets.
        arrays: the arrays of all data sets, in the order of the arguments.
        by_row: names of the deterministic values with an element for each row, if data sets differ in their numbers.
    """

    of_user: Program
    sets: DataSets
    arrays: tuple[Any, ...]
    by_row: frozenset[str]

    @classmethod
    def of_sets(
        cls,
        model: Program,
        data: object,
        each: Each,
        mesh: Mesh | None,
        given_names: GivenNames,
        learns: bool = False,
        evenly: bool = False,
    ) -> ModelOnSets:
        """Divide the data, and trace the model on one data set.

        Args:
            model: the program.
            data: a table, or the keyword arguments of the program.
            each: the column or the axes that divide the data.
            mesh: the devices; None for as many as there are, or as divide the number of data sets.
            given_names: names that the user gives.
            learns: true if the model may have parameters (`phx.param`).
            evenly: true if each device must have as many data sets.

        Raises:
            TypeError, ValueError: when data, model, mesh and `each` do not fit; the message names the argument.
        """
        sets = DataSets.of(model, {} if data is None else data, each)
        notices = [sets.notice]
        if mesh is None:
            notices = [use_every_core(), sets.notice]
            mesh = default_mesh(sets.count) if evenly else make_mesh(chain=min(sets.count, len(jax.devices())))
        checks.check_not_traced("phx.fit" if learns else "phx.mcmc", data)
        program = model
        by_row = frozenset()
        checked_model = at_initial_values(model) if learns else model
        if sets.rows is not None:
            program = with_real_rows(model, sets.most)
            alone = checked_model
            checked_model = with_real_rows(checked_model, sets.most)
            by_row = check_ragged(alone, checked_model, sets)
        arguments = split_arguments(program, _padded_data(sets, 0))
        mesh = choose_mesh(arguments, mesh)
        _check_mesh(mesh, sets, evenly)
        sizes = axes_but_chain(mesh)
        varies = dict.fromkeys((*sets.per_set, REAL), "it differs by data set")
        arguments, whole = trace_with_values(
            arguments, lambda a: TracedProgram.of_whole(checked_model, a, sizes, learns), varies
        )
        arrays, per_set = _arrays(arguments, sets)
        indices = DataCheck(whole.at_zero, len(whole.position))
        if not learns:  # fits check indices with the values, see `fit_each`
            _check_indices(indices, arguments, arrays, per_set, sets)
            notices += indices.check_indices(arguments)
        naming = Naming.of(whole, arguments, given_names)
        return cls(
            model=program,
            arguments=arguments,
            whole=whole,
            as_written=whole,
            mesh=mesh,
            naming=naming,
            names=names_in_record(naming, arguments),
            indices=indices,
            notices=tuple(filter(None, notices)),
            per_lane_data=per_set,
            groups=-(-sets.count // mesh.shape[CHAIN]) * mesh.shape[CHAIN],
            of_user=model,
            sets=sets,
            arrays=arrays,
            by_row=by_row,
        )

    @property
    def filled(self) -> dict[str, Any]:
        """The data of the first data set, with the rows that fill it up."""
        return _padded_data(self.sets, 0)

    def arrays_of(self, number: int) -> list[Array]:
        """Return the arrays of one data set."""
        return [array[number] if place in self.per_lane_data else array for place, array in enumerate(self.arrays)]

    def place_arrays(self, target: Target) -> tuple[Array, ...]:
        """Return the arrays on the mesh: a device has those of its data sets."""
        assert self.groups is not None
        numbers = np.minimum(np.arange(self.groups), self.sets.count - 1)
        fills = self.groups > self.sets.count
        whole = [x[numbers] if fills and number in self.per_lane_data else x for number, x in enumerate(self.arrays)]
        return target.with_arrays(whole).place_arrays()

    def target_of(self, number: int, num_chains: int) -> Target:
        """Return the model with the data of one data set."""
        return Target(self.of_user, self.sets.one(number, with_padding=False), mesh=default_mesh(num_chains))

    def stored(self, options: SamplerOptions) -> tuple[tuple[str, ...], list[str]]:
        """Return the variables to store, and a sentence for each deterministic value that is not.

        Raises:
            ValueError: when `keep=` names a variable that cannot be stored.
        """
        stored_names = options.stored(self.of_user)
        if stored_names is None:
            latents = [latent.name for latent in self.whole.latents()]
            names, sentences = checks.stored_by_default(latents, self.whole.deterministic)
            sentences += [
                f"phalanx: the deterministic value {name!r} has an element for each row, and is not stored, since the "
                f"data sets differ in their numbers of rows: posteriors.of(name).predictive() computes it."
                for name in sorted(self.by_row)
            ]
            return tuple(name for name in names if name not in self.by_row), sentences
        if rows := [name for name in stored_names if name in self.by_row]:
            raise ValueError(
                f"keep: {rows[0]!r} has an element for each row, and the data sets differ in their numbers of rows. "
                f"Leave it out, and compute it by posteriors.of(name).predictive()."
            )
        return stored_names, []


def _padded_data(sets: DataSets, number: int) -> dict[str, Any]:
    """Return the data of one data set, with the rows that fill it up."""
    real = {} if sets.rows is None else {REAL: real_rows(sets, number)}
    return sets.one(number, with_padding=True) | real


def _arrays(arguments: Arguments, sets: DataSets) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Return the arrays of all data sets, and the numbers of those of which each data set has its own entry."""
    per_set = dict(sets.per_set) if sets.rows is None else {**sets.per_set, REAL: real_rows(sets, slice(None))}
    numbers = tuple(number for number, name in enumerate(arguments.names) if name in per_set)
    whole = tuple(
        jnp.asarray(per_set[name], array.dtype) if name in per_set else array
        for name, array in zip(arguments.names, arguments.arrays, strict=True)
    )
    return whole, numbers


def _check_mesh(mesh: Mesh, sets: DataSets, evenly: bool) -> None:
    if jax.process_count() > 1:
        raise ValueError(
            "each: a run on many data sets has one process. Give each process some of the data sets, and leave out "
            "phx.initialize."
        )
    if wide := {axis: size for axis, size in axes_but_chain(mesh).items() if size > 1}:
        raise ValueError(
            f"mesh: with each= whole data sets are sharded over the axis {CHAIN!r}, and the mesh has {wide}. Give "
            f"mesh=phx.make_mesh(chain=...) without other axes."
        )
    if evenly and sets.count % mesh.shape[CHAIN]:
        raise ValueError(
            f"mesh: {sets.count} data sets cannot be divided evenly over {mesh.shape[CHAIN]} devices along {CHAIN!r}, "
            f"as store= needs. Use a number of devices that divides {sets.count}, or leave out mesh=."
        )


def _check_indices(
    indices: DataCheck, arguments: Arguments, arrays: Sequence[Array], per_set: Sequence[int], sets: DataSets
) -> None:
    """Raise if an index in the data of some data set is out of range."""
    if not indices.applies:
        return
    axes = [0 if number in per_set else None for number in range(len(arrays))]
    outside: Callable[..., Array] = jax.jit(
        jax.vmap(lambda *of_one: indices.any_outside(of_one, arguments.shardings), in_axes=axes)
    )
    for number in np.flatnonzero(to_host(outside(*arrays)))[:1]:
        of_one = [array[int(number)] if axis == 0 else array for array, axis in zip(arrays, axes, strict=True)]
        try:
            indices.check_indices(arguments.with_arrays(of_one))
        except ValueError as error:
            raise ValueError(f"each: data set {sets.text_of([number])}: {error}") from None
