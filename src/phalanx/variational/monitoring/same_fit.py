"""Whether a checkpoint is of the fit that is to go on with it; where it is not, what differs.

Programs and optimisers are told by their traces, which show all that they read, as the rate of an optimiser. Another
release of a library may write the same down in another way, so that they are compared under the same releases alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import numpy as np
from jax import random

from phalanx.inputs.arguments import Arguments
from phalanx.inputs.known_data import names_of
from phalanx.jaxprs.canonical import form_of
from phalanx.learning.batches import Batches
from phalanx.mesh.compatibility.jax_internals import live
from phalanx.variational.guides.pair import particles
from phalanx.variational.methods.step import State, Steps
from phalanx.variational.problem import Problem

TRACED_BY = ("jax", "numpyro", "optax", "flax", "equinox", "phalanx")
"""Libraries whose releases may change a trace."""

WORDS = {
    "data": "the data, or the order of their batches",
    "held_out": "the held-out rows",
    "model": "the model",
    "guide": "the guide",
    "objective": "the objective",
    "optimizer": "the optimizer (its kind, its rate, or the steps that its schedule is for)",
}
"""What digests are of."""

_UNTOLD = object()
"""The trace where JAX cannot say which part is needed; it has no digest."""

ALONE = "optimizer_alone"
"""The optimiser on parameters that are those of no fit, to compare it where guides or models differ."""

WORDS[ALONE] = WORDS["optimizer"]


def described(
    steps: Steps, state: State, seed: int, rate: float, precision: str, held_out: Mapping[str, Any] | Batches | None
) -> dict[str, Any]:
    """What tells a fit from others, as JSON has it: what can be said, and digests of the rest."""
    problem = steps.pair.problem
    minibatch = problem.minibatch
    said = {
        "seed": int(seed), "num_particles": steps.num_particles, "matmul_precision": precision,
        "batch_size": None if minibatch is None else minibatch.size,
        "num_rows": None if minibatch is None else minibatch.total,
        "data": ", ".join(map(_shaped, problem.arguments.names, problem.arguments.whole_shapes())),
    }  # fmt: skip
    contents = {"data": content_of(problem.arguments), "held_out": _held_out(problem, held_out)}
    traces = {name: _digest(trace) for name, trace in _traces(steps, state, rate).items()}
    return {"said": said, "contents": contents, "traces": traces, "releases": _releases()}


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """What differs between two fits, in words; empty where nothing does."""
    said = [
        f"{name} is {there['said'][name]} there, and {value} here"
        for name, value in here["said"].items()
        if there["said"][name] != value
    ]
    if said:  # from which the rest follows: another size of batch makes another trace
        return "; ".join(said)
    kinds = ["contents"] + ["traces"] * (there["releases"] == here["releases"])
    others = [
        name
        for kind in kinds
        for name, digest in here[kind].items()
        if None not in (digest, there[kind].get(name)) and digest != there[kind][name]
    ]
    if "model" in others or "guide" in others:  # of other parameters an optimiser's trace is another, too
        others = [name for name in others if name != "optimizer"]
    words = dict.fromkeys(WORDS[name] for name in others)
    return f"it differs in {' and in '.join(words)}" if words else ""


def not_compared(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """What of two fits could not be compared, and why, in words; empty where all was."""
    if there["releases"] != here["releases"]:
        changed = [
            f"{name} {there['releases'].get(name, '(none)')} there and {here['releases'].get(name, '(none)')} here"
            for name in TRACED_BY
            if there["releases"].get(name) != here["releases"].get(name)
        ]
        what = " and ".join(dict.fromkeys(WORDS[name] for name in here["traces"]))
        return f"{what}, because programs are written down by {', '.join(changed)}"
    untold = [
        WORDS[name]
        for name, digest in here["traces"].items()
        if name != ALONE and None in (digest, there["traces"][name])
    ]
    return f"{' and '.join(untold)}, of which some function's content cannot be told" if untold else ""


def content_of(arguments: Arguments) -> str:
    """A digest of data: of all there are, or of the first batch."""
    found = hashlib.sha256()
    names = names_of(arguments)
    for name, array, sharding in zip(arguments.names, arguments.arrays, arguments.shardings, strict=True):
        whole = np.ascontiguousarray(array)[: sharding.rows] if sharding.axes else np.ascontiguousarray(array)
        found.update(f"{name} {whole.dtype} {whole.shape} {names.get(name, '')}".encode())
        found.update(whole.tobytes())
    return found.hexdigest()


def _held_out(problem: Problem, data: Mapping[str, Any] | Batches | None) -> str | None:
    if data is None:
        return None
    first = next(data.in_order()) if isinstance(data, Batches) else data
    return content_of(problem.known_data.split(problem.model, first))


def _shaped(name: str, like: Any) -> str:
    return f"{name} {like.dtype} {like.shape}"


def _traces(steps: Steps, state: State, rate: float) -> dict[str, Any]:
    """Traces of what a step is made of, as they are on any mesh."""
    pair, free = steps.pair, state.free
    shapes, minibatch = list(pair.problem.arguments.whole_shapes()), pair.problem.minibatch
    if minibatch is not None:
        shapes = [
            jax.ShapeDtypeStruct((minibatch.size, *like.shape[1:]), like.dtype) if of_rows else like
            for like, of_rows in zip(shapes, minibatch.of_rows, strict=True)
        ]
    key = random.key(0)

    def guide(free: Any, key: Any, arrays: Any) -> Any:
        data = pair.problem.arguments.layout.join(arrays)
        return pair.problem.alone(lambda: pair.draw_weighed(pair.learned.constrain(free), pair.noise(key), data))

    def model(params: Any, arrays: Any) -> Any:
        data = pair.problem.arguments.layout.join(arrays)
        return pair.problem.alone(lambda: pair.problem.at_zero(params, data).terms())

    def parts(free: Any, key: Any, arrays: Any) -> Any:
        data = pair.problem.arguments.layout.join(arrays)
        return particles(pair, pair.learned.constrain(free), steps.noise(key), data, steps.objective.parts)

    return {
        "model": _trace(model, pair.problem.parameter_types, shapes),
        "guide": _trace(guide, free, key, shapes),
        "objective": _trace(steps.objective.loss, jax.eval_shape(parts, free, key, shapes)),
        "optimizer": (rate, _trace(steps.optimizer.update, free, state.optimizer, free)),
        ALONE: _optimizer_alone(steps.optimizer, rate),
    }


def _optimizer_alone(optimizer: Any, rate: float) -> Any:
    """The optimiser on one parameter; nothing that compares where it goes by the parameters' names."""
    like = {"x": np.zeros(3, np.float32)}
    try:
        return rate, _trace(optimizer.update, like, optimizer.init(like), like)
    except Exception:  # whatever an optimiser raises that knows its parameters
        return None


def _trace(f: Callable[..., Any], *arguments: Any) -> Any:
    """Trace the part of `f` that its outputs need: the rest may be there at the first of several traces alone."""
    trace = live(jax.make_jaxpr(f)(*arguments))
    return _UNTOLD if trace is None else trace


def _digest(trace: Any) -> str | None:
    """A digest of a trace; None where what it holds cannot be told by content, and so not compared."""
    form = form_of(trace)
    return None if form is None else form.digest.hex()


def _releases() -> dict[str, str]:
    found = {}
    for name in TRACED_BY:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
