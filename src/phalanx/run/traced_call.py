"""A model traced on the user's data, with all checks that need no compiling: what MCMC and particles have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax import Array
from jax.sharding import Mesh

from phalanx.density.data_check import DataCheck
from phalanx.density.given_names import GivenNames
from phalanx.density.imputation import impute
from phalanx.density.naming import Naming
from phalanx.density.target import Target, choose_mesh
from phalanx.inputs.arguments import (
    Arguments,
    check_outcome_named,
    columns_left_out,
    left_out_in_words,
    split_arguments,
)
from phalanx.inputs.dataframe_input import UserData
from phalanx.inputs.needed_values import IN_BATCHES, trace_with_values
from phalanx.inputs.placement import mesh_of
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.language.tracing import Program
from phalanx.mesh.agreement import check_same
from phalanx.mesh.devices import axes_but_chain, default_mesh, use_every_core
from phalanx.programs.centring import partly_centred
from phalanx.programs.closure_key import captured_words
from phalanx.programs.traced_program import TracedProgram
from phalanx.run import checks
from phalanx.run.describe import call_words, names_in_record


@dataclass(frozen=True)
class TracedCall:
    """A model traced on the data of a call.

    Attributes:
        model: the program, in which missing entries are latent and effects partly centred where that was asked for.
        arguments: the data, as arguments of the program.
        whole: the program traced on the whole data.
        as_written: the same before effects were partly centred, which depends on the mesh.
        mesh: the devices.
        naming: names of the axes of the variables.
        names: names of axes, levels and columns, as fields of a record.
        indices: check of the indices in the data.
        notices: sentences to show before the run.
        per_lane_data: numbers of the arrays of which each group of chains has its own, in a run on many data sets.
        groups: number of those groups, in the order of chains; None if all chains have the same data.
    """

    model: Program
    arguments: Arguments
    whole: TracedProgram
    as_written: TracedProgram
    mesh: Mesh
    naming: Naming
    names: dict[str, Any]
    indices: DataCheck
    notices: tuple[str, ...]
    per_lane_data: tuple[int, ...] = ()
    groups: int | None = None

    @classmethod
    def of(
        cls,
        call: str,
        model: Program,
        data: UserData | None,
        *,
        kernel: Kernel,
        mesh: Mesh | None,
        lanes: int,
        names: GivenNames,
        check_mesh: Callable[[Mesh], None],
        options: Callable[[], dict[str, Any]],
        missing: str | None = None,
    ) -> TracedCall:
        """Choose the mesh, check the data, and trace the model.

        Args:
            call: the function that the user called, for messages.
            model: the program.
            data: its keyword arguments.
            kernel: the kernel, which may need batches of rows or a centring.
            mesh: the devices that the user gave.
            lanes: number of chains or particles, over which the default mesh is laid out.
            names: names that the user gave.
            check_mesh: raises if lanes cannot be divided over a mesh.
            options: returns other arguments that the processes of a call must share.
            missing: what to do with missing entries.

        Raises:
            TypeError, ValueError: when data, model and mesh do not fit; the message names the argument.
        """
        data = {} if data is None else data
        notices: list[str | None] = []
        if mesh is None and mesh_of(data) is None:
            notices.append(use_every_core())
            mesh = default_mesh(lanes)
        checks.check_not_traced(call, data)  # after use_every_core, since it starts JAX
        left_out = columns_left_out(model, data)
        notices.append(left_out_in_words(left_out))
        if missing is not None:
            model, data, imputed = impute(model, data, mesh)
            notices.extend(imputed)
        arguments = split_arguments(model, data)
        mesh = choose_mesh(arguments, mesh)
        check_mesh(mesh)
        words = {"kernel": kernel.name, "mesh": dict(mesh.shape)}
        check_same(call, lambda: call_words(model, arguments, **words, **options()))
        sizes = axes_but_chain(mesh)
        varies = "" if kernel.batch_size is None else IN_BATCHES
        arguments, as_written = trace_with_values(
            arguments, lambda trial_arguments: TracedProgram.of_whole(model, trial_arguments, sizes), varies=varies
        )
        if not as_written.observes:
            check_outcome_named(model, left_out)
        whole = as_written
        if kernel.centring is not None:
            centred_model, data, notes = partly_centred(model, data, kernel.centring, whole, mesh)
            notices.extend(notes)
            arguments, whole = trace_with_values(
                split_arguments(centred_model, data),
                lambda trial_arguments: TracedProgram.of_whole(centred_model, trial_arguments, sizes),
            )
            model = centred_model
        check_same(call, lambda: {"the model, or a value that it reads,": captured_words(whole)})
        naming = Naming.of(whole, arguments, names)
        indices = DataCheck.of(whole)
        fields = names_in_record(naming, arguments)
        notices.extend(indices.check_indices(arguments))
        notes = tuple(filter(None, notices))
        return cls(model, arguments, whole, as_written, mesh, naming, fields, indices, notes)

    def place_arrays(self, target: Target) -> tuple[Array, ...]:
        """Return the data on the mesh."""
        return target.with_arguments(self.arguments).place_arrays()
