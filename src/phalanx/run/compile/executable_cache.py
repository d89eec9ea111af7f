"""LRU cache of executables, keyed by the canonical jaxpr of what is compiled and by JAX's configuration.

Executables depend on the model, the shapes of its data, the kernel, the reducers and JAX's configuration. A function
may read global variables when it is traced, so that the key contains its trace: the model's trace from every call, and
those of a user's kernels and reducers. A program whose trace does not determine it, such as one with a callback to the
host, has no key and is compiled in every call.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct
from jax.sharding import Mesh

from phalanx.density.density import Density
from phalanx.inputs.arguments import Arguments
from phalanx.jaxprs.canonical import PLAIN, form_of, is_of_a_library
from phalanx.kernels.protocol.adapter import KernelAdapter
from phalanx.kernels.protocol.kernel import Kernel, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.compatibility import jax_internals
from phalanx.mesh.random_numbers import Keys
from phalanx.mesh.specs import PyTree
from phalanx.mesh.total import Total
from phalanx.programs.closure_key import captured, captured_words
from phalanx.programs.traced_program import TracedProgram
from phalanx.reducers.reducer import density_name
from phalanx.reducers.reductions import Reductions
from phalanx.run.compile.lru_cache import LRUCache
from phalanx.run.device.tiles import given_tile

EXECUTABLES: LRUCache[Any] = LRUCache(8, of_programs=True)
"""Compiled programs of this process: `Executables` of runs of chains, and `Programs` of particles."""


def key_of(
    whole: TracedProgram, kernel: Kernel, reductions: Reductions, mesh: Mesh, arguments: Arguments, *rest: Hashable
) -> Hashable | None:
    """Return the key of compiled blocks; None if a trace does not determine them.

    Args:
        whole: the model's trace on all data.
        kernel: the kernel.
        reductions: the reducers.
        mesh: the devices.
        arguments: the data, of which only layout, names, sharding and shapes matter.
        *rest: further values that the blocks depend on.
    """
    if not whole.position:
        return None  # a model without latent variables raises an error later
    parts = (
        captured(whole, kernel.machine.uses_gradient),
        kernel if is_ours(kernel) else _trace_of_kernel(kernel, whole),
        reductions if is_ours(reductions) else _trace_of_reductions(reductions, whole),
    )
    if any(part is None for part in parts):
        return None
    of_data = arguments.layout, arguments.names, arguments.shardings, arguments.local_shapes()
    return *parts, _shapes(kernel.tuning), settings(), mesh, *of_data, given_tile(), *rest


def trace_words(whole: TracedProgram, kernel: Kernel, reductions: Reductions) -> dict[str, str]:
    """Return digests of the traces of a model, of a user's kernel, and of reducers, equal in all processes and meshes.

    The digest of a trace that cannot be compared is empty.
    """
    traces = {} if is_ours(kernel) else {"the kernel": _trace_of_kernel(kernel, whole)}
    for name, entry in reductions.stateful:
        traces[f"the reducer {name!r}"] = _trace_of_reductions(Reductions(((name, entry),)), whole)
    return {"the model": captured_words(whole), **{name: _words(trace) for name, trace in traces.items()}}


def settings() -> Hashable:
    """Return JAX's settings in this thread, without those of its cache, which do not change programs."""
    of_jax = {name: value for name, value in jax_internals.settings().items() if "cache" not in name}
    return tuple((name, value if isinstance(value, Hashable) else repr(value)) for name, value in of_jax.items())


def is_ours(value: object) -> bool:
    """Return True if equality determines a value's program: if it has only plain values and functions of Phalanx."""
    if isinstance(value, PLAIN):
        return True
    if isinstance(value, tuple):
        return (type(value) is tuple or _is_record_of_ours(value)) and all(map(is_ours, value))
    if is_dataclass(value) and _is_record_of_ours(value):
        return all(is_ours(getattr(value, field.name)) for field in fields(value) if field.compare)
    return is_of_a_library(value)


def _is_record_of_ours(value: object) -> bool:
    return type(value).__module__.startswith("phalanx.")


def _trace_of_kernel(kernel: Kernel, whole: TracedProgram) -> tuple[Any, ...] | None:
    """Return a key for a user's kernel: the trace of one of its draws on one device."""
    position = {name: ShapeDtypeStruct((1, *leaf.shape), leaf.dtype) for name, leaf in whole.position.items()}
    value = ShapeDtypeStruct((1,), jnp.result_type(*whole.position.values()))
    bits = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    machine = KernelAdapter(kernel.machine)
    gradient = position if kernel.machine.uses_gradient else {}

    def draw(arrays: PyTree, position: PyTree, total: Total, gradient: PyTree, bits: PyTree, tuning: PyTree) -> PyTree:
        density = Density(whole.program, whole.layout, arrays, whole.sites())
        target = LaneTarget(density, 1)
        keys = Keys(bits)
        at = Point(target.layout.vector(position), total, target.layout.vector(gradient))
        underway = machine.init(at, jnp.int32(1), keys, target)
        return underway, machine.step(underway, jnp.ones(1, bool), keys, target, tuning)

    # the trace contains the machine; the other fields are compared
    plain = [getattr(kernel, f.name) for f in fields(kernel) if f.compare and f.name != "machine"]
    plain += [getattr(kernel.machine, name) for name in ("makes_whole_draws", "knows_mesh", "least_coordinates")]
    tuning = jax.tree.map(np.asarray, kernel.tuning)
    operands: Any = whole.shapes, position, Total(value, value), gradient, bits, tuning
    form = form_of(jax.make_jaxpr(draw, axis_env=whole.axis_env)(*operands))
    return None if form is None else (form, *plain)


def _trace_of_reductions(reductions: Reductions, whole: TracedProgram) -> tuple[Any, ...] | None:
    """Return a key for a user's reducers: the traces of `init` and `update`; the others are not compiled."""
    densities = {density_name(name): whole.terms[name, "density"] for name in whole.observed}
    leaves = {**whole.values, **densities}
    values = {name: ShapeDtypeStruct((1, *leaf.shape), leaf.dtype) for name, leaf in leaves.items()}

    def see(values: Mapping[str, Any], where: PyTree) -> PyTree:
        states = reductions.init(values)
        return states, reductions.update(states, values, where)

    jaxpr, states = jax.make_jaxpr(see, axis_env=whole.axis_env, return_shape=True)(values, np.ones(1, bool))
    form = form_of(jaxpr)
    return None if form is None else (form, jax.tree.structure(states))


def _words(trace: tuple[Any, ...] | None) -> str:
    return "" if trace is None else trace[0].digest.hex()


def _shapes(tree: PyTree) -> Hashable:
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, tuple((np.shape(leaf), leaf.dtype) for leaf in map(np.asarray, leaves))
