"""Identity of a fit: seeds and shapes, digests of data, and traces of model, guide, objective and optimiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array, random

from phalanx.inputs.arguments import Arguments
from phalanx.inputs.known_data import names_of
from phalanx.learning.batches import Batches
from phalanx.mesh.processes import to_host
from phalanx.store.identity import Comparison, Identity, digest_of, identity_of, trace
from phalanx.variational.guides.learned import Params
from phalanx.variational.methods.step import FitState, Steps
from phalanx.variational.objective import particles
from phalanx.variational.problem import Problem

if TYPE_CHECKING:
    import optax

ALONE = "optimizer_alone"
"""Key of the optimiser's trace on fixed parameters, compared if another guide or model changes its usual trace."""

_OPTIMIZER = "the optimizer (its kind, its rate, or the steps that its schedule is for)"

COMPARISON = Comparison(
    descriptions={
        "data": "the data, or the order of their batches",
        "held_out": "the held-out rows",
        "model": "the model",
        "guide": "the guide",
        "objective": "the objective",
        "optimizer": _OPTIMIZER,
        ALONE: _OPTIMIZER,
    },
    advice="Give what it was made with, or another folder.",
    follows={"optimizer": ("model", "guide")},
    spare=(ALONE,),
)
"""Comparison of two fits."""


def fit_identity(
    steps: Steps,
    state: FitState,
    seed: int,
    rate: float,
    precision: str,
    held_out: Mapping[str, Any] | Batches | None,
    more: Mapping[str, Any],
) -> Identity:
    """Return the identity of a fit, with more values that a message can show."""
    problem = steps.pair.problem
    minibatch = problem.minibatch
    settings = {
        "seed": int(seed),
        "num_particles": steps.num_particles,
        "matmul_precision": precision,
        "batch_size": None if minibatch is None else minibatch.size,
        "num_rows": None if minibatch is None else minibatch.total,
        "data": ", ".join(map(_describe_array, problem.arguments.names, problem.arguments.whole_shapes())),
        **more,
    }
    contents = {"data": content_of(problem.arguments), "held_out": _held_out(problem, held_out)}
    return identity_of(settings, contents, _traces(steps, state, rate))


def content_of(arguments: Arguments) -> str:
    """Return a digest of data: of all rows, or of the first batch."""
    whole = (
        sharding.trim(to_host(array)) for array, sharding in zip(arguments.arrays, arguments.shardings, strict=True)
    )
    return digest_of(zip(arguments.names, whole, strict=True), names_of(arguments))


def _held_out(problem: Problem, data: Mapping[str, Any] | Batches | None) -> str | None:
    if data is None:
        return None
    first = next(data.in_order()) if isinstance(data, Batches) else data
    return content_of(problem.known_data.split(problem.program, first))


def _describe_array(name: str, like: jax.ShapeDtypeStruct) -> str:
    return f"{name} {like.dtype} {like.shape}"


def _traces(steps: Steps, state: FitState, rate: float) -> dict[str, Any]:
    """Trace the parts of a step, as they are on any mesh."""
    pair = steps.pair
    free = state.free
    shapes = list(pair.problem.arguments.whole_shapes())
    minibatch = pair.problem.minibatch
    if minibatch is not None:
        shapes = [
            jax.ShapeDtypeStruct((minibatch.size, *like.shape[1:]), like.dtype) if of_rows else like
            for like, of_rows in zip(shapes, minibatch.of_rows, strict=True)
        ]
    key = random.key(0)

    def guide(free: Params, key: Array, arrays: Sequence[Array]) -> Any:
        data = pair.problem.arguments.layout.join(arrays)
        return pair.problem.alone(lambda: pair.draw_weighted(pair.learned.constrain(free), pair.noise(key), data))

    def model(params: Params, arrays: Sequence[Array]) -> Any:
        data = pair.problem.arguments.layout.join(arrays)
        return pair.problem.alone(lambda: pair.problem.at_zero(params, data).terms())

    def parts(free: Params, key: Array, arrays: Sequence[Array]) -> Any:
        data = pair.problem.arguments.layout.join(arrays)
        return particles(pair, pair.learned.constrain(free), steps.noise(key), data, steps.objective.parts)

    return {
        "model": trace(model, pair.problem.parameter_types, shapes),
        "guide": trace(guide, free, key, shapes),
        "objective": trace(steps.objective.loss, jax.eval_shape(parts, free, key, shapes)),
        "optimizer": (rate, trace(steps.optimizer.update, free, state.optimizer, free)),
        ALONE: _optimizer_alone(steps.optimizer, rate),
    }


def _optimizer_alone(optimizer: optax.GradientTransformationExtraArgs, rate: float) -> Any:
    """Trace the optimiser on one parameter; None where its state depends on the parameters' names."""
    like = {"x": np.zeros(3, np.float32)}
    try:
        return rate, trace(optimizer.update, like, optimizer.init(like), like)
    except Exception:  # optimisers that know their parameters raise errors of any kind
        return None
