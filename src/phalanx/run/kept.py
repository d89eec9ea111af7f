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

from phalanx.kernels.driver import Driver, Start
from phalanx.kernels.kernel import Kernel
from phalanx.kernels.lanes import Lanes
from phalanx.mesh.keys import Keys
from phalanx.mesh.total import Total
from phalanx.programs.canonical import PLAIN, form_of, is_of_a_library
from phalanx.programs.captured import captured
from phalanx.programs.target import Density
from phalanx.programs.traced_program import TracedProgram
from phalanx.run.executables import Executables
from phalanx.run.recent import Recent
from phalanx.run.reductions import Reductions

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
        captured(whole, kernel.uses_gradient),
        kernel if is_ours(kernel) else _trace_of_kernel(kernel, whole),
        reductions if is_ours(reductions) else _trace_of_reductions(reductions, whole),
    )
    return None if any(part is None for part in parts) else (*parts, _shapes(kernel.tuning), settings(), *rest)


def settings() -> Hashable:
    """What JAX is set to, as it holds in this thread; where programs are cached changes none."""
    known = jax.config.values.items()
    found = {name: getattr(jax.config, name, value) for name, value in known if "cache" not in name}
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
    start: Any = Start(position, Total(value, value), position if kernel.uses_gradient else {})  # pyright: ignore[reportArgumentType]
    words = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    machine = Driver(kernel.machine)

    def draw(arrays: Any, start: Start, words: Any, tuning: Any) -> Any:
        lanes, keys = Lanes(Density(whole.program, whole.layout, arrays, whole.undivided()), 1), Keys(words)
        underway = machine.start(lanes, start, keys, jnp.int32(1))
        return underway, machine.tick(underway, jnp.ones(1, bool), lanes, tuning, keys)

    # the machine is what is traced; the rest is compared
    plain = [getattr(kernel, f.name) for f in fields(kernel) if f.compare and f.name != "machine"]
    tuning = jax.tree.map(np.asarray, kernel.tuning)
    form = form_of(jax.make_jaxpr(draw, axis_env=whole.axis_env)(whole.shapes, start, words, tuning))
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
