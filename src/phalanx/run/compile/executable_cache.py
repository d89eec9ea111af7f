"""The last compiled blocks of the process, found again by what would be compiled, and by nothing else.

What is compiled follows from the model, its data's shapes, the kernel, the reducers and JAX's settings. Functions may
read anything when they are traced, so they are told by their traces: the model's in every call, and those of kernels
and reducers that users have written. What a trace cannot tell, such as a function that is called back on the host, is
compiled anew each time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct

from phalanx.density.target import Density
from phalanx.jaxprs.canonical import PLAIN, form_of, is_of_a_library
from phalanx.kernels.protocol.adapter import Driver
from phalanx.kernels.protocol.kernel import Kernel, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.compatibility import jax_internals
from phalanx.mesh.keys import Keys
from phalanx.mesh.total import Total
from phalanx.programs.closure_key import captured
from phalanx.programs.traced_program import TracedProgram
from phalanx.run.compile.lru_cache import Recent
from phalanx.run.device.executables import Executables
from phalanx.run.device.reductions import Reductions

EXECUTABLES: Recent[Executables] = Recent(8)
"""Compiled blocks."""


def key_of(whole: TracedProgram, kernel: Kernel, reductions: Reductions, *rest: Hashable) -> Hashable | None:
    """What tells compiled blocks from others; None where it cannot be told.

    Args:
        whole: the model's trace on the whole data.
        kernel: the kernel.
        reductions: what is reduced.
        *rest: what else is compiled in.
    """
    if not whole.position:
        return None  # a model of no latent variables is about to be refused
    parts = (
        captured(whole, kernel.machine.uses_gradient),
        kernel if is_ours(kernel) else _trace_of_kernel(kernel, whole),
        reductions if is_ours(reductions) else _trace_of_reductions(reductions, whole),
    )
    return None if any(part is None for part in parts) else (*parts, _shapes(kernel.tuning), settings(), *rest)


def settings() -> Hashable:
    """Return JAX's settings in this thread, but for those of its cache, which change no program."""
    found = {name: value for name, value in jax_internals.settings().items() if "cache" not in name}
    return tuple((name, value if isinstance(value, Hashable) else repr(value)) for name, value in found.items())


def is_ours(value: Any) -> bool:
    """Whether a value is told by what it is equal to: made of our own functions and of plain values all through."""
    if isinstance(value, PLAIN):
        return True
    if isinstance(value, tuple):
        return (type(value) is tuple or _is_record_of_ours(value)) and all(map(is_ours, value))
    if is_dataclass(value) and _is_record_of_ours(value):
        return all(is_ours(getattr(value, field.name)) for field in fields(value) if field.compare)
    return is_of_a_library(value)


def _is_record_of_ours(value: Any) -> bool:
    return type(value).__module__.startswith("phalanx.")


def _trace_of_kernel(kernel: Kernel, whole: TracedProgram) -> Hashable | None:
    """What a kernel reads, and does with the model, on one device."""
    position = {name: ShapeDtypeStruct((1, *leaf.shape), leaf.dtype) for name, leaf in whole.position.items()}
    value = ShapeDtypeStruct((1,), jnp.result_type(*whole.position.values()))
    words = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    machine, gradient = Driver(kernel.machine), position if kernel.machine.uses_gradient else {}

    def draw(arrays: Any, position: Any, total: Total, gradient: Any, words: Any, tuning: Any) -> Any:
        density = Density(whole.program, whole.layout, arrays, whole.undivided())
        target, keys = LaneTarget(density, 1), Keys(words)
        at = Point(target.layout.vector(position), total, target.layout.vector(gradient))
        underway = machine.start(target, at, keys, jnp.int32(1))
        return underway, machine.tick(underway, jnp.ones(1, bool), target, tuning, keys)

    # what the machine does is traced; the rest is compared
    plain = [getattr(kernel, f.name) for f in fields(kernel) if f.compare and f.name != "machine"]
    plain += [getattr(kernel.machine, name) for name in ("in_lock_step", "knows_mesh", "least_coordinates")]
    tuning = jax.tree.map(np.asarray, kernel.tuning)
    given: Any = whole.shapes, position, Total(value, value), gradient, words, tuning
    form = form_of(jax.make_jaxpr(draw, axis_env=whole.axis_env)(*given))
    return None if form is None else (form, *plain)


def _trace_of_reductions(reductions: Reductions, whole: TracedProgram) -> Hashable | None:
    """What reducers read when they see a draw. What they do on the host is not compiled."""
    values = {name: ShapeDtypeStruct((1, *leaf.shape), leaf.dtype) for name, leaf in whole.values.items()}

    def see(values: Mapping[str, Any], where: Any) -> Any:
        states = reductions.init(values)
        return states, reductions.update(states, values, where)

    jaxpr, states = jax.make_jaxpr(see, axis_env=whole.axis_env, return_shape=True)(values, np.ones(1, bool))
    form = form_of(jaxpr)
    return None if form is None else (form, jax.tree.structure(states))


def _shapes(tree: Any) -> Hashable:
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, tuple((np.shape(leaf), leaf.dtype) for leaf in map(np.asarray, leaves))
