"""Predictive draws: runs of the model at every draw that sample its observed variables anew.

Each draw has noise of its own from a key of (seed, chain, draw), see `over_draws`. The program is compiled once for all
devices and the whole data: rows stay where `phx.shard` put them, and the numbers do not depend on the placement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from numpyro.distributions import Distribution

from phalanx.density.imputation import PLACES
from phalanx.density.indices import IndexCheck
from phalanx.density.missing_entries import missing_name
from phalanx.density.target import Target, choose_mesh
from phalanx.errors.model_errors import model_errors
from phalanx.inputs.arguments import Arguments, split_arguments
from phalanx.inputs.known_data import KnownData
from phalanx.inputs.placement import partition_spec
from phalanx.language.handlers import seed, trace, under
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Forward, Program
from phalanx.mesh.compatibility.numpyro_internals import unvalidated
from phalanx.mesh.devices import axes_but_chain
from phalanx.mesh.processes import to_devices
from phalanx.mesh.virtual_mesh import alone
from phalanx.posterior.over_draws import key_of, over_draws
from phalanx.posterior.record import RunRecord
from phalanx.programs.unconstrained import refuse_parameter

BATCH_BYTES = 16 * 2**20
"""Bytes of device memory for the predictive draws of a batch."""

MOST_DRAWS = 1000
"""Largest batch of draws, since a model's intermediate values take memory too."""

KINDS = ("posterior", "prior")


def predictive(
    model: Program | None,
    data: Mapping[str, Any] | None,
    kind: str,
    *,
    target: Target | None,
    latents: Sequence[str],
    draws: Mapping[str, np.ndarray],
    sizes: tuple[int, int],
    seed: int,
    known: KnownData | None = None,
) -> dict[str, np.ndarray]:
    """Sample the observed variables at every draw; see `Posterior.predictive`.

    Args:
        model: the program; None for that of `target`.
        data: its keyword arguments; None for those of `target`.
        kind: "posterior" or "prior".
        target: the model and data of the run, if known.
        latents: names of the variables that the run inferred.
        draws: their draws, `(chain, draw, ...)` by name.
        sizes: chains, and draws of each.
        seed: source of the draws' keys.
        known: names in the run's data, and arguments that fill in; None without a run.

    Returns:
        Arrays of shape `(chain, draw, ...)` by name.
    """
    if kind not in KINDS:
        raise ValueError(f"predictive: kind must be 'posterior' or 'prior'; got {kind!r}.")
    if not math.prod(sizes):
        raise ValueError(f"predictive: there are no draws to predict at: {sizes[0]} chains of {sizes[1]} draws.")
    if model is None and target is None:
        raise ValueError(
            "predictive: a posterior that was read from a file, or assembled by hand, has no model. Pass one: "
            "posterior.predictive(data, model=model)."
        )
    program = _program(model, target)
    arguments, mesh = _arguments(program, data, target, known)
    of_posterior = kind == "posterior"
    observed = None if target is None else {name for name, _ in target.shares.terms} - set(latents)
    values = {name: array for name, array in draws.items() if name in latents} if of_posterior else {}
    again = _Again(program, arguments, mesh, frozenset(latents) if of_posterior else frozenset(), observed)
    arrays = again.place_arrays()
    example = again.check_indices(values)
    return over_draws(
        again, values, sizes, seed=seed, batch_size=_batch_size(example, mesh), given=arrays, mesh=mesh
    )  # fmt: skip


def known_data(target: Target | None, record: RunRecord) -> KnownData:
    """Return the state of a run's data that new data must agree with."""
    if target is None:
        return KnownData.of_record(record.names, record.scalars)
    return KnownData.of(target.arguments, record.names)


def _program(model: Program | None, target: Target | None) -> Program:
    if model is not None and not callable(model):
        raise TypeError(f"predictive: model must be a function; got {type(model).__name__}.")
    if model is None:
        assert target is not None  # checked above
        return target.program
    return model


def _arguments(
    program: Program, data: Mapping[str, Any] | None, target: Target | None, known: KnownData | None
) -> tuple[Arguments, Mesh]:
    if data is None and target is not None:
        return target.arguments, target.mesh
    data = {} if data is None else data
    arguments = split_arguments(program, data) if known is None else known.split(program, data)
    if target is not None:
        arguments = arguments.fixing(target.arguments.constants)
    placed = any(sharding.axes for sharding in arguments.shardings)
    return arguments, choose_mesh(arguments, None if placed or target is None else target.mesh)


def _batch_size(example: Mapping[str, Any], mesh: Mesh) -> int:
    width = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in example.values())
    size = min(max(BATCH_BYTES // max(width, 1), 1), MOST_DRAWS)
    groups = mesh.shape["chain"]
    return max(size // groups, 1) * groups


@dataclass(frozen=True)
class _Again:
    """Program evaluated at one draw, with its observed variables sampled anew.

    Attributes:
        program, arguments, mesh: the model, its data and their mesh.
        latents: names of the variables that take the values of the draw; all others are sampled.
        observed: names of the variables that the run observed, if known.
    """

    program: Program
    arguments: Arguments
    mesh: Mesh
    latents: frozenset[str]
    observed: set[str] | None

    def place_arrays(self) -> tuple[Array, ...]:
        """Return the data, placed on the mesh."""
        pairs = zip(self.arguments.arrays, self.arguments.shardings, strict=True)
        return tuple(to_devices(a, NamedSharding(self.mesh, partition_spec(s))) for a, s in pairs)

    def check_indices(self, draws: Mapping[str, Any]) -> dict[str, Any]:
        """Return the shapes of the sampled variables, after checking that indices in the data are within bounds."""
        values = {name: jax.ShapeDtypeStruct(array.shape[2:], array.dtype) for name, array in draws.items()}
        program, shapes = jax.make_jaxpr(self, return_shape=True)(
            values, key_of(0, 0, 0), self.arguments.whole_shapes()
        )
        IndexCheck(program, unknown=len(values) + 1).check_or_warn(self.arguments)
        return shapes

    def __call__(self, values: Mapping[str, Array], key: Array, arrays: Sequence[Array]) -> dict[str, Array]:
        """Return the sampled variables and the deterministic values."""
        whole = [a[: s.rows] if s.axes else a for a, s in zip(arrays, self.arguments.shardings, strict=True)]
        data = self.arguments.layout.join(whole)
        if not self.latents:  # from the prior, missing entries are those of the variable itself
            data.pop(PLACES, None)

        def run() -> dict[str, Array]:
            with unvalidated(), model_errors(self.program, arguments=data):
                return self._drawn(trace(seed(under(self.program, self._give(values)), key))(**data))

        return alone(run, axes_but_chain(self.mesh))  # a model may sum over these axes

    def _drawn(self, variables: Mapping[str, RandomVariable]) -> dict[str, Array]:
        self._check_met(variables)
        met = {n: v for n, v in variables.items() if v.parameter is None}
        drawn = {n: v.value for n, v in met.items() if n not in self.latents or v.is_computed}
        if not drawn:
            raise ValueError(
                f"predictive: the model has no observed variable to draw; its variables are "
                f"{', '.join(map(repr, variables)) or 'none'}. Use posterior.predict(fn) for functions of the draws."
            )
        return drawn

    def _give(self, values: Mapping[str, Array]) -> Callable[[RandomVariable, Forward], RandomVariable]:
        def give(variable: RandomVariable, forward: Forward) -> RandomVariable:
            refuse_parameter(variable)
            if variable.distribution is None:
                return forward(variable)
            _check_can_be_drawn(variable)
            if variable.name in self.latents:
                return forward(replace(variable, value=self._value(variable, values)))
            if variable.value is None or variable.observed:
                return forward(_to_draw(variable))
            return forward(variable)  # set by the program itself

        return give

    def _value(self, variable: RandomVariable, values: Mapping[str, Array]) -> Array:
        name, distribution = variable.name, variable.distribution
        assert distribution is not None
        if variable.observed:
            raise ValueError(
                f"predictive: variable {name!r} was inferred in the run, and these data observe it. Leave its data "
                f"out, or set it by intervention: predictive(data, model=phx.do(model, {{{name!r}: value}}))."
            )
        if name not in values:
            raise ValueError(
                f"predictive: the draws of variable {name!r} were not kept; they hold "
                f"{', '.join(map(repr, values)) or 'none'}. Run with keep=None, or name it in keep=."
            )
        expected, value = tuple(distribution.shape()), values[name]
        if value.shape != expected:
            raise ValueError(
                f"predictive: variable {name!r} was inferred with shape {value.shape}, and on these data it has shape "
                f"{expected}: it belongs to the rows or groups of the run's data. Give data of these; or sample it "
                f"anew with posterior.predict(fn) and fn(draw, key) as in docs/predictive.md."
            )
        return value

    def _check_met(self, variables: Mapping[str, RandomVariable]) -> None:
        """Raise if the program seems to have renamed a variable of the run: one is missing and another is new."""
        imputed = set(map(missing_name, variables))  # other data have other missing entries, or none
        lost = [name for name in self.latents - imputed if name not in variables]
        known = self.latents | (self.observed or set())
        new = [n for n, v in variables.items() if n not in known and v.distribution is not None and not v.observed]
        if lost and (new or len(lost) == len(self.latents - imputed)):
            raise ValueError(
                f"predictive: the model has no variable {', '.join(map(repr, sorted(lost)))}, which the run inferred; "
                f"it has {', '.join(map(repr, variables)) or 'none'}. Give the model of the run, or one with the same "
                f"names."
            )


def _check_can_be_drawn(variable: RandomVariable) -> None:
    assert variable.distribution is not None
    if variable.observed and tuple(variable.distribution.event_shape) == (0,):  # NumPyro's Unit, masked or not
        raise ValueError(
            f"predictive: {variable.name!r} is a factor, a term of the log density without a value to draw. "
            f"Draw with posterior.predict(fn), fn(draw, key); or, if it concerns only latent variables, leave it out: "
            f"predictive(model=phx.block(model, [{variable.name!r}]))."
        )


def _to_draw(variable: RandomVariable) -> RandomVariable:
    """Return the variable without its value: sampled with a key of this draw, in the shape of the value."""
    distribution = variable.distribution
    assert distribution is not None
    if variable.value is not None:
        shape = jnp.shape(variable.value)
        distribution = _repeated(distribution, shape[: len(shape) - len(distribution.event_shape)])
    return replace(variable, distribution=distribution, value=None, key=None)


def _repeated(distribution: Distribution, batch: tuple[int, ...]) -> Distribution:
    return distribution if batch == tuple(distribution.batch_shape) else distribution.expand(batch)
