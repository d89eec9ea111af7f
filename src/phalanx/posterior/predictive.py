"""Predictive draws: runs of the model at every draw that sample its observed variables anew.

Observed variables on which others depend, such as covariates that the model imputes, are held at their data; missing
entries of these are drawn. Each draw has noise of its own from a key of (seed, chain, draw), see `over_draws`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jax import Array

from phalanx.errors.names import hint
from phalanx.inputs.arguments import ADDED
from phalanx.inputs.axis_names import Labels as Names
from phalanx.inputs.dataframe_input import UserData
from phalanx.language.messages import Forward
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program
from phalanx.mesh.output import warn
from phalanx.posterior.criticism.dependence import VariableDependence, to_draw
from phalanx.posterior.criticism.held_values import HeldValues, with_held_value
from phalanx.posterior.criticism.model_at_draws import ModelAtDraws, RunDraws
from phalanx.posterior.criticism.reduced_results import ValuesAtDraws, evaluate
from phalanx.programs.unconstrained import refuse_parameter
from phalanx.reducers.reducer import Reduce, Reducer

KINDS = ("posterior", "prior")


class PredictiveDraws(ValuesAtDraws):
    """Predictive draws by variable, with the results of reducers as `reduced` and the names of entries as `labels`."""

    def __init__(self, draws: Mapping[str, np.ndarray], results: Mapping[str, Any], names: Callable[[], Names] = dict):
        super().__init__(draws, results)
        self._names = names

    @cached_property
    def labels(self) -> Names:
        """By variable, the names of its entries along each axis, or None for an axis without names."""
        return self._names()  # traces the model, which most callers do not need

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "labels": self.labels, "_names": dict}


def predictive(
    model: Program | None,
    data: UserData | None,
    kind: str,
    run: RunDraws,
    *,
    seed: int,
    given: str | Sequence[str] | None = (),
    numbers: np.ndarray | None = None,
    keep: str | Sequence[str] | None = None,
    reducers: Mapping[str, Reducer | Reduce] | None = None,
) -> PredictiveDraws:
    """Sample the observed variables at every draw; see `Posterior.predictive`.

    `numbers` are the numbers of these draws in their chains; None for the first ones.
    """
    check_kind(kind)
    chains, length = run.sizes
    if not chains * length:
        raise ValueError(f"predictive: there are no draws to predict at: {chains} chains of {length} draws.")
    at = run.latents if kind == "posterior" else ()
    program = ModelAtDraws.of("predictive", model, data, run, at)
    values = run.of_latents() if at else {}
    is_own = model is None and data is None
    dependence = VariableDependence.of(program, values, run.observed)
    other = None if is_own else run.target
    held_values = HeldValues.of(program, _held_names(dependence, given), dependence, values, other, is_own)
    again = _PredictedDraw(program, held_values.stale if at and not is_own else frozenset(), held_values.missing)
    results = evaluate(program, again, values, run.sizes, seed=seed, keep=keep, reducers=reducers, numbers=numbers)
    _warn_of_largest(results, held_values.missing)
    of_latents = run.of_latents().items()
    lasting = [dim for name, values in of_latents for dim in run.axes.dims_of(name, values.ndim - 2)]

    def labels() -> Names:
        # rows of other data are not those of the run, but the entries of its latent variables are
        here, there = (run.axes, run.axes) if is_own else (program.axis_names(), run.axes.of_dims(lasting))
        shapes = {name: array.shape[2:] for name, array in results.items()}
        both = {name: zip(here.labels_of(name, s), there.labels_of(name, s), strict=True) for name, s in shapes.items()}
        return {name: tuple(ours or theirs for ours, theirs in axes) for name, axes in both.items()}

    return PredictiveDraws(results, results.reduced, labels)


def _warn_of_largest(draws: Mapping[str, np.ndarray], held_names: Collection[str]) -> None:
    """Warn of draws at the ends of int32, to which JAX moves numbers beyond."""
    ends = np.iinfo(np.int32)
    for name, values in draws.items():
        if values.dtype != np.int32 or name in held_names:
            continue
        if count := int(np.count_nonzero((values == ends.max) | (values == ends.min))):
            warn(
                f"predictive: {count:,} of {values.size:,} numbers drawn of {name!r} are the largest or smallest that "
                f"int32 holds, {ends.max:,} or {ends.min:,}, in place of those beyond. Turn on 64 bits before JAX "
                f"computes, jax.config.update('jax_enable_x64', True), or count in a larger unit."
            )


def _held_names(dependence: VariableDependence, given: str | Sequence[str] | None) -> frozenset[str]:
    """Return the names of the observed variables that are held at their data."""
    if given is None:
        return dependence.held()
    names = [given] if isinstance(given, str) else list(given)
    if unknown := [name for name in names if name not in dependence.given]:
        having = ", ".join(map(repr, sorted(dependence.given)))
        raise ValueError(
            f"predictive: given has {', '.join(map(repr, unknown))}, which these data do not observe; "
            f"{f'they observe {having}' if having else 'they observe no variable'}.{hint(unknown, dependence.given)} "
            f"Give its values in data, or set it with model=phx.do(model, {{{unknown[0]!r}: value}})."
        )
    return frozenset(names)


def check_kind(kind: str) -> None:
    """Raise unless `kind` is one of `KINDS`."""
    if kind not in KINDS:
        raise ValueError(f"predictive: kind must be 'posterior' or 'prior'; got {kind!r}.")


def chosen(num_draws: int | None, kind: str, of: int) -> np.ndarray:
    """Return the numbers of the draws of each chain to predict at.

    Args:
        num_draws: how many; None for all.
        kind: "posterior", which takes draws evenly from the chain, or "prior", which draws any number.
        of: draws of each chain.
    """
    if num_draws is None:
        return np.arange(of)
    check_num_draws(num_draws)
    if kind == "prior":
        return np.arange(num_draws)
    if of and num_draws > of:
        raise ValueError(
            f"predictive: num_draws={num_draws} of each chain, and there are {of}. Draw longer, with "
            f"posterior.continue_run({num_draws - of}); more noise at the same draws comes from another seed=."
        )
    return np.arange(num_draws) * of // num_draws


def check_num_draws(num_draws: object) -> None:
    """Raise unless a number of draws is a whole number, at least 1."""
    if isinstance(num_draws, bool) or not isinstance(num_draws, int | np.integer) or num_draws < 1:
        raise ValueError(f"predictive: num_draws must be a whole number, at least 1; got {num_draws!r}.")


@dataclass(frozen=True)
class _PredictedDraw:
    """Program evaluated at one draw, with its observed variables sampled anew.

    Attributes:
        model: the program with its data.
        stale: latent variables that are sampled anew, too.
        held: by observed variable that keeps its data, a mask of the entries that are missing and drawn; None without.
    """

    model: ModelAtDraws
    stale: frozenset[str] = frozenset()
    held: Mapping[str, np.ndarray | None] = field(default_factory=dict)

    def __call__(self, values: Mapping[str, Array], key: Array, arrays: Sequence[Array]) -> dict[str, Array]:
        """Return the sampled variables and the deterministic values."""

        def give(variable: RandomVariable, forward: Forward) -> RandomVariable:
            refuse_parameter(variable)
            if variable.distribution is None:
                return forward(variable)
            _check_can_be_drawn(variable)
            if variable.name in self.model.latents and (variable.name not in self.stale or variable.observed):
                return self.model.at(variable, values, forward)
            if variable.name in self.held:
                return with_held_value(variable, self.held[variable.name], forward)
            if variable.value is None or variable.observed:
                return forward(to_draw(variable))
            return forward(variable)  # set by the program itself

        return self.model.run(arrays, give, self._drawn, key)

    def _drawn(self, variables: Mapping[str, RandomVariable]) -> dict[str, Array]:
        variables_of_model = {n: v for n, v in variables.items() if v.parameter is None and not n.startswith(ADDED)}
        names_with_draws = self.model.latents - self.stale
        values = {n: v.value for n, v in variables_of_model.items() if n not in names_with_draws or v.is_computed}
        if not values:
            raise ValueError(
                f"predictive: the model has no observed variable to draw; its variables are "
                f"{', '.join(map(repr, variables)) or 'none'}. Use posterior.predict(fn) for functions of the draws."
            )
        return values


def _check_can_be_drawn(variable: RandomVariable) -> None:
    assert variable.distribution is not None
    if variable.observed and tuple(variable.distribution.event_shape) == (0,):  # NumPyro's Unit, masked or not
        raise ValueError(
            f"predictive: {variable.name!r} is a factor, a term of the log density without a value to draw. "
            f"Draw with posterior.predict(fn), fn(draw, key); or, if it concerns only latent variables, leave it out: "
            f"predictive(model=phx.block(model, [{variable.name!r}]))."
        )
