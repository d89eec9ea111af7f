"""A guide and the model that it is fitted to: draws, their log densities under both, and the parameters of both."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array, random

from phalanx.language.parameters import with_parameters
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.specs import PyTree
from phalanx.placements import divide
from phalanx.programs.unconstrained import Evaluation, to_unconstrained
from phalanx.run.compile.executable_cache import is_ours
from phalanx.variational.guides.aligned import Alignment, ProgramGuide
from phalanx.variational.guides.coordinates import Latents
from phalanx.variational.guides.guide import Guide
from phalanx.variational.guides.learned import Learned, Params, begun_with
from phalanx.variational.guides.start import Beginning, ModelStart
from phalanx.variational.problem import Problem, Values

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped, UInt32


@dataclass(frozen=True)
class Pair:
    """A guide and the model that it is fitted to.

    A guide that is made from the model, such as `phx.guides.mean_field()`, draws unconstrained values and reads no
    data. A guide that is a program draws values of the model's variables, and may read data. The methods hide the
    difference: they evaluate what `draw` returns. Methods that take data are called while JAX traces.

    Attributes:
        problem: the model and its data.
        guide: the guide.
        weights: factors on the terms of the log densities, by variable; 1 if left out.
    """

    problem: Problem
    guide: Guide
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def program_guide(self) -> ProgramGuide | None:
        """The guide if it is a program, or None if it was made from the model."""
        return self.guide if isinstance(self.guide, ProgramGuide) else None

    @cached_property
    def learned(self) -> Learned:
        """The parameters of guide and model together, all of which the fit learns."""
        mine = self.guide.parameters(self.problem)
        of_model = self.problem.parameters
        if clash := mine.keys() & of_model.keys():
            raise ValueError(
                f"The model has a parameter {min(clash)!r}, and so has the guide {self.guide.name}: rename the model's."
            )
        return Learned({**mine, **of_model})

    def noise(self, key: Array) -> PyTree:
        """Return the random numbers of a draw, or the key itself."""
        return self.guide.noise(key, self._latents)

    def draw(self, params: Params, noise: PyTree, data: Values) -> dict[str, Array]:
        """Return a draw from the guide, a differentiable function of the parameters."""
        return self._at(data).draw(params, noise, self._latents)

    def draw_weighted(
        self, params: Params, noise: PyTree, data: Values, is_constant: bool = False
    ) -> tuple[dict[str, Array], Shaped[Array, ""]]:
        """Return the same draw and its log density under the guide, of constant parameters if `is_constant`."""
        return self._at(data).draw_with_density(params, noise, self._latents, is_constant)

    def log_guide(self, params: Params, draw: Mapping[str, Array], data: Values) -> Shaped[Array, ""]:
        """Return the log density of a draw under the guide; 0 if the guide has no variables."""
        return self._at(data).log_prob(params, draw, self._latents)

    def log_model(self, params: Params, draw: Mapping[str, Array], data: Values) -> dict[str, Float[Array, ""]]:
        """Return the log density of a draw, with the data, under the model: the term of each variable.

        The term of an unconstrained value includes the Jacobian of its transform.
        """
        run = run_model(self, params, draw, data)
        totals: dict[str, Array] = {}
        for name, variable in run.variables.items():
            if variable.distribution is not None:
                total = variable.total_log_prob().value
                if name in run.log_dets:
                    total = total + jnp.sum(run.log_dets[name])
                totals[name] = self.weights.get(name, 1.0) * total
        return totals

    @property
    def _latents(self) -> Latents:
        """The latent variables that the guide is made from; empty for a program, which names its own variables."""
        return () if self.program_guide else self.problem.latents

    def _at(self, data: Values) -> Guide:
        """Return the guide with these data and the weights, if it is a program; other guides read no data."""
        return replace(self.program_guide, data=data, weights=self.weights) if self.program_guide else self.guide


def key_of(pair: Pair, *what: Hashable) -> Hashable | None:
    """Return the key of a program made of a pair; None where only its trace determines what it computes."""
    if pair.program_guide or pair.weights or not is_ours(pair.guide):
        return None
    identity = pair.problem.identity
    return None if identity is None else (identity, pair.guide, *what)


def alignment_of(pair: Pair) -> Alignment:
    """Return what the traces of guide and model show about each other.

    A guide that is made from the model draws from the whole real line, so that it leaves out no part of a support.
    """
    if pair.program_guide:
        return pair.program_guide.alignment
    return Alignment(described={latent.name: f"{latent.support} {latent.shape}" for latent in pair.problem.latents})


def bound_name(pair: Pair | None) -> str:
    """Return the name of the mean log weight of a fit."""
    return "ELBO" if pair is None or pair.guide.traits.has_draws else "log likelihood"


def init_parameters(pair: Pair, key: Array, data: Values, init: Mapping[str, Any]) -> Beginning:
    """Return initial values of the parameters of guide and model: those in `init`, where it has some."""
    start = ModelStart(pair.problem, data, key, init)
    start_params = pair.guide.begin(start)
    if pair.program_guide:
        return start_params
    values = start_params.values if pair.guide.traits.is_solved else begun_with(init, start_params.values)
    return Beginning({**values, **start.of_model}, {**start.misfits, **start_params.misfits})


def for_steps(pair: Pair) -> Pair:
    """Return the pair that steps evaluate: terms of the rows of a minibatch are weighted to represent all rows."""
    problem = pair.problem
    minibatch = pair.problem.minibatch
    if minibatch is None:
        return pair
    names = minibatch.terms_of_rows(problem.at_start, problem.arguments, "model")
    if pair.program_guide:
        pair.program_guide.check_rows(names, problem)
    elif local := [latent.name for latent in problem.latents if latent.name in names]:
        raise ValueError(
            f"{minibatch.argument}: variable {local[0]!r} has an element for each row, and {pair.guide.name} has "
            f"parameters for all of them. Write a guide that computes them from the rows (an amortised one), or "
            f"give all rows at once."
        )
    return replace(pair, weights=dict.fromkeys(sorted(names), minibatch.weight))


def moved(pair: Pair, free: Params, change: Params) -> dict[str, Any]:
    """Return the parameters after a change: the guide's in units of its widths, so that rates have no other units.

    Both are on the real line; a change of zero changes nothing.
    """
    if not pair.guide.traits.by_widths:
        return jax.tree.map(jnp.add, dict(free), dict(change))
    values = pair.guide.moved(pair.learned.constrain(free), change, pair.problem.latents)
    return {**pair.learned.only(values).free(values), **_model_moved(pair, free, change)}


def values_moved(pair: Pair, free: Params, change: Params) -> dict[str, Any]:
    """Return the values of `moved`, without taking the guide's to the real line and back."""
    if not pair.guide.traits.by_widths:
        return pair.learned.constrain(moved(pair, free, change))
    values = pair.guide.moved(pair.learned.constrain(free), change, pair.problem.latents)
    return {**values, **pair.learned.only(pair.problem.parameters).constrain(_model_moved(pair, free, change))}


def _model_moved(pair: Pair, free: Params, change: Params) -> dict[str, Any]:
    return {name: jax.tree.map(jnp.add, free[name], change[name]) for name in pair.problem.parameters}


def run_model(pair: Pair, params: Params, draw: Mapping[str, Array], data: Values) -> Evaluation:
    """Run the model at a draw of the guide: `.values()` are its latent variables and deterministic values."""
    run = pair.problem.at_values if pair.program_guide else pair.problem.at_position
    return run(params, draw, data)


def position_of(pair: Pair, params: Params, draw: Mapping[str, Array], data: Values) -> Mapping[str, Array]:
    """Return the unconstrained values of a draw's latent variables."""
    return to_unconstrained(with_parameters(pair.problem.program, params), draw, data) if pair.program_guide else draw


def log_weight(pair: Pair, params: Params, run: Evaluation, data: Values) -> Float[Array, ""]:
    """Return the log importance weight at the position of a run of the model."""
    draw = {name: v.value for name, v in run.variables.items() if v.is_latent} if pair.program_guide else run.position
    return run.log_density(jacobian=not pair.program_guide) - pair.log_guide(params, draw, data)


def log_score(pair: Pair, params: Params, draw: Mapping[str, Array], data: Values) -> Float[Array, ""] | None:
    """Return the log density of the guide's variables that cannot be differentiated through; None without any."""
    if pair.program_guide is None or not pair.program_guide.alignment.scored:
        return None
    return replace(pair.program_guide, data=data).log_score(params, draw)


def noise_of(pair: Pair, key: Array, count: int) -> PyTree:
    """Return the noise of `count` particles."""
    return jax.vmap(lambda i: pair.noise(random.fold_in(key, i)))(numbered(pair, count))


def antithetic_noise_of(pair: Pair, key: Array, count: int) -> PyTree:
    """Return noise in pairs of opposite signs, one after the other; both devices of a pair draw it."""

    def one(number: Array) -> Any:
        noise = pair.noise(random.fold_in(key, number // 2))
        return jax.tree.map(lambda part: jnp.where(number % 2 == 0, part, -part), noise)

    return jax.vmap(one)(numbered(pair, count))


def numbered(pair: Pair, count: int) -> UInt32[Array, "particle"]:
    """Return the numbers of `count` particles, which are sharded over the mesh's `chain` axis where it divides them."""
    index = jnp.arange(count, dtype=jnp.uint32)
    return divide(index, CHAIN) if count % pair.problem.mesh.shape[CHAIN] == 0 else index
