"""Checks of a run's arguments, each with a message that says what to change."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import Mesh, PartitionSpec

from phalanx.density.finite_data import check_finite_data
from phalanx.density.target import Target
from phalanx.errors.names import hint
from phalanx.inputs.arguments import Arguments
from phalanx.inputs.held_contents import held_contents
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.mesh.agreement import check_same
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.forks import refuse_fork
from phalanx.mesh.processes import to_host
from phalanx.programs.validity import find_invalid, nan_hint
from phalanx.run.find_finite_start import FARTHER_ATTEMPTS

if TYPE_CHECKING:
    from phalanx.run.device.blocks import Blocks, InitResult


Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


RUN_ARGUMENTS = (
    "seed",
    "num_warmup",
    "num_samples",
    "thin",
    "until",
    "init",
    "tuning",
    "on_block",
    "checkpoint",
    "store",
    "save_warmup",
    "progress",
)
"""Arguments of `sampler.run` that `phx.compile` does not take."""


def data_in_one_dict(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Wrap a function, so that a call with unknown arguments raises an error that shows how to pass them."""
    signature = inspect.signature(function)
    name = f"phx.{function.__name__}"

    @wraps(function)
    def called(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        refuse_fork()
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            if name == "phx.compile" and (
                of_a_run := [argument_name for argument_name in RUN_ARGUMENTS if argument_name in kwargs]
            ):
                raise TypeError(
                    f"{name}: {' and '.join(of_a_run)} {'belongs' if len(of_a_run) == 1 else 'belong'} to "
                    f"sampler.run(...), since changing them does not recompile: sampler = {name}(model, data), then "
                    f"sampler.run({', '.join(f'{argument_name}=...' for argument_name in of_a_run)})."
                ) from None
            before_data = list(takewhile(lambda argument_name: argument_name != "data", signature.parameters))
            raise TypeError(
                f"{name}: {error}. The data go in one dict, by the names of the model's arguments, as in "
                f"{name}({', '.join(before_data)}, {{'x': x, 'y': y}}); after it come options by name, such as "
                f"{'num_chains=4' if name == 'phx.compile' else 'seed=0'}."
            ) from None
        return function(*args, **kwargs)

    return called


def check_not_traced(call: str, data: object) -> None:
    """Raise inside of a function that JAX traces, since `call`, such as "phx.mcmc", needs concrete numbers."""
    # under jit new arrays are traced, too; under vmap only mapped arguments are
    if any(isinstance(leaf, Tracer) for leaf in (jnp.zeros(()), *jax.tree.leaves(data))):
        runs = "sampler = phx.compile(...), then sampler.run(seed, data) for each"
        many = f" For many data sets of one shape: {runs}." if call in ("phx.mcmc", "phx.compile") else ""
        raise ValueError(
            f"{call} was called inside of a function that JAX traces, such as one under jax.jit, jax.vmap, "
            f"jax.shard_map or phx.spmd. Call it outside: it compiles its programs itself, and shards its work over "
            f"devices itself (data by phx.shard).{many}"
        )


def check_types(wide: bool) -> None:
    """Raise if `jax_enable_x64` has another value than when the sampler was compiled."""
    if bool(jax.config.jax_enable_x64) != wide:  # pyright: ignore[reportAttributeAccessIssue]
        was, now = ("float64", "float32") if wide else ("float32", "float64")
        raise ValueError(
            f"The sampler was compiled for {was}, and JAX now computes in {now}. Set it back, by "
            f"jax.config.update('jax_enable_x64', {wide}), or compile again; to use the draws so far, start a new run "
            f"with init=posterior."
        )


def check_alone(name: str, **others: object) -> None:
    """Raise if arguments are given that cannot be given together with the argument `name`."""
    for other, value in others.items():
        if value is not None and value != {}:
            raise ValueError(
                f"{other}: a run with {name}= does not take {other}=. Leave it out; or run phx.mcmc on one data set "
                f"after the other."
            )


def check_chains(num_chains: int, mesh: Mesh, kernel: Kernel) -> None:
    """Raise if the mesh's chain axis does not divide the number of chains, or a tuner needs more."""
    for tuner in kernel.tuners:
        tuner.check(kernel.name, num_chains)
    check_even("num_chains", num_chains, "chains", mesh)


def check_even(argument: str, number: int, things: str, mesh: Mesh) -> None:
    """Raise unless the mesh's chain axis divides a number of chains or particles."""
    groups = mesh.shape[CHAIN]
    if number % groups:
        lower = number // groups * groups
        fits = f"{lower} or {lower + groups}" if lower else f"{groups}"
        raise ValueError(
            f"{argument}={number} cannot be split evenly over {groups} devices along the mesh's {CHAIN!r} axis; "
            f"use {fits} {things}, or another mesh."
        )


def check_kernel(kernel: Kernel, target: Target) -> None:
    """Raise if a kernel for one device is given sharded variables."""
    latents = {latent.name: latent for latent in target.sites.latents}
    sharded_names = [name for name, latent in latents.items() if latent.sharding.axes]
    if sharded_names and not kernel.machine.knows_mesh:
        raise ValueError(
            f"{kernel.name}: this algorithm is written for one device, and {', '.join(map(repr, sharded_names))} is "
            f"sharded over {latents[sharded_names[0]].sharding.axes}. Use phx.hmc or phx.rwmh, or data that are not "
            f"sharded."
        )


def check_coordinates(kernel: Kernel, coordinates: int) -> None:
    """Raise if a kernel needs more coordinates."""
    least = kernel.machine.least_coordinates
    if coordinates < least:
        raise ValueError(
            f"{kernel.name} needs a model of at least {least} coordinates, and this model has {coordinates}. Use "
            f"phx.nuts()."
        )


MOST_STORED = 10_000
"""Maximal elements of a deterministic value that is stored by default: one value for each row of large data is not."""


def stored_by_default(latents: Iterable[str], deterministic: Mapping[str, Any]) -> tuple[tuple[str, ...], list[str]]:
    """Return the variables to store by default, and a sentence for each deterministic value that is too large.

    Args:
        latents: names of the latent variables.
        deterministic: the deterministic values, arrays or their shapes, by name.
    """
    sizes = {name: math.prod(np.shape(value)) for name, value in deterministic.items()}
    large = {name: size for name, size in sizes.items() if size > MOST_STORED}
    sentences = [
        f"phalanx: the deterministic value {name!r} has {size:,} elements, and its draws are not stored: name it in "
        f"keep= to store a value of more than {MOST_STORED:,} elements."
        for name, size in large.items()
    ]
    return (*latents, *(name for name in deterministic if name not in large)), sentences


def check_names(keep: Sequence[str], target: Target) -> tuple[str, ...]:
    """Return the variables to store; raise if the model lacks one."""
    if unknown := [name for name in keep if name not in target.value_names()]:
        raise ValueError(
            f"keep: the model has no variable {', '.join(map(repr, unknown))}; it has "
            f"{', '.join(map(repr, target.value_names()))}.{hint(unknown, target.value_names())}"
        )
    return tuple(keep)


def check_arrays(compiled_arguments: Arguments, new_arguments: Arguments) -> None:
    """Raise unless data have the structure, shapes and constants that a sampler was compiled for, in all processes."""
    check_same("sampler.run", lambda: held_contents(new_arguments))
    if differing := compiled_arguments.differing_constants(new_arguments):
        raise ValueError(
            f"data: {differing[0]} has other values than the sampler was compiled for. They are compiled in, since a "
            f"size or a branch of the model depends on them. Compile again for other values."
        )
    if new_arguments.layout != compiled_arguments.layout or new_arguments.names != compiled_arguments.names:
        raise ValueError(
            f"data: the sampler was compiled for the arrays {', '.join(compiled_arguments.names)}; got "
            f"{', '.join(new_arguments.names) or 'no arrays'} (numbers, strings and functions in the data must be the "
            f"same, too). Compile again for other data."
        )
    pairs = zip(
        compiled_arguments.names,
        compiled_arguments.whole_shapes(),
        new_arguments.whole_shapes(),
        compiled_arguments.shardings,
        new_arguments.shardings,
        strict=True,
    )
    for name, compiled_shape, shape, sharding, given_sharding in pairs:
        if compiled_shape != shape or sharding != given_sharding:
            raise ValueError(
                f"data: the sampler was compiled for {name} of shape {compiled_shape.shape} and type "
                f"{compiled_shape.dtype}, sharded over {sharding.axes or 'nothing'}; got {shape.shape} {shape.dtype}, "
                f"sharded over {given_sharding.axes or 'nothing'}. Compile again for other shapes."
            )


def check_beginning(
    blocks: Blocks, result: InitResult, arrays: Sequence[Array], given_names: Sequence[str] = ()
) -> None:
    """Raise if the log density is not finite at the start, or observations are outside of their support."""
    finite = to_host(result.finite)
    invalid = any(int(count) for count in result.invalid.values())
    target = blocks.target.with_arrays(arrays)
    if invalid or not finite.all():
        uses_gradient = blocks.kernel.machine.uses_gradient
        check_finite_data(target.program, target.arguments, target.sizes, gradient=uses_gradient)
    if invalid:
        for (name, parameter), wrong in find_invalid(target.program, target.arguments, target.mesh, arrays).items():
            raise ValueError(wrong.said(name, parameter, nan_hint(target.arguments.names, arrays)))
    if finite.all():
        return
    chain = int(np.argmin(finite))
    in_specs = blocks.target.array_specs(), blocks.chain_specs()
    contributions = jax.jit(blocks.on_mesh(blocks.contributions, in_specs, PartitionSpec(CHAIN)))
    values = {name: float(to_host(v)[chain]) for name, v in contributions(arrays, result.chains).items()}
    guilty = {name: value for name, value in values.items() if not np.isfinite(value)}
    where = "at 21 random positions ever closer to zero on the unconstrained scale"
    if given_names:
        where = f"with the values of {', '.join(map(repr, given_names))} that init= gives"
    if not guilty:
        farther = "" if given_names else f", and at {FARTHER_ATTEMPTS} farther from it"
        raise ValueError(
            f"Chain {chain}: the log density is finite but its gradient is not, {where}{farther}. Look for "
            f"sqrt, log, abs or norms at points without a derivative, among {', '.join(map(repr, values))}."
        )
    sites = ", ".join(f"{name!r} ({value})" for name, value in guilty.items())
    raise ValueError(
        f"Chain {chain}: the log density is not finite at the start, {where}. The variables responsible: {sites}"
        f"{nan_hint(target.arguments.names, arrays)}. Check their data, and priors under which the likelihood of a "
        f"start is zero."
    )
