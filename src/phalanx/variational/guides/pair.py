"""A guide beside a model, as objectives see them: draws, and their log densities under both."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.extend.core import ClosedJaxpr
from jax.sharding import NamedSharding, PartitionSpec

from phalanx.diagnostics import Finding
from phalanx.distributions.constraint_text import kind_of
from phalanx.language.parameters import Parameter, given
from phalanx.mesh.devices import CHAIN
from phalanx.programs.unconstrained import Evaluation, refuse_point, to_unconstrained, transform_of
from phalanx.programs.validity import VALUE, Doubt, doubts_of
from phalanx.run.compile.executable_cache import is_ours
from phalanx.variational.guides.coordinates import Latents, size_of
from phalanx.variational.guides.guide import Alignment, ByWidths, Guide, ReadsData, WithDensity
from phalanx.variational.guides.learned import Learned, Params, begun_with
from phalanx.variational.guides.start import Beginning, Start
from phalanx.variational.problem import Problem, Values


@dataclass(frozen=True)
class Pair:
    """A guide and the model that it is for. Methods with data among their arguments are traced.

    Attributes:
        problem: the model and its data.
        guide: the guide.
        weights: how often terms of the model count, by variable, where that is not once.
    """

    problem: Problem
    guide: Guide
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the guide."""
        return self.guide.name

    @property
    def identity(self) -> Hashable | None:
        """Key that pairs share which compute the same; None where only the traces of its methods can say."""
        if isinstance(self.guide, ReadsData) or self.weights or not is_ours(self.guide):
            return None
        known = self.problem.identity
        return None if known is None else (known, self.guide)

    def key_of(self, *what: Hashable) -> Hashable | None:
        """Return the key of a program that is made of this pair; None where only its trace can say."""
        return None if self.identity is None else (self.identity, *what)

    @cached_property
    def latents(self) -> Latents:
        """The latent variables that the guide is made from; none of a guide that names its own."""
        return () if isinstance(self.guide, ReadsData) else self.problem.latents

    @property
    def of_model(self) -> dict[str, Parameter]:
        """The model's own parameters."""
        return self.problem.parameters

    def model_parameters(self) -> list[str]:
        """Return the names of the model's own parameters."""
        return list(self.of_model)

    @cached_property
    def learned(self) -> Learned:
        """The parameters of both."""
        mine = self.guide.parameters(self.latents)
        if clash := mine.keys() & self.of_model.keys():
            raise ValueError(
                f"The model has a parameter {min(clash)!r}, and so has the guide {self.name}: rename the model's."
            )
        return Learned({**mine, **self.of_model})

    @property
    def has_draws(self) -> bool:
        """Whether there is a guide to draw from; else the model is fitted by maximum likelihood."""
        return self.guide.traits.has_draws

    @property
    def reads_data(self) -> bool:
        """Whether the guide takes any rows, and draws values; others draw unconstrained ones."""
        return isinstance(self.guide, ReadsData)

    @cached_property
    def alignment(self) -> Alignment:
        """What is known of the guide beside the model; a density on the real line leaves nothing out."""
        if isinstance(self.guide, ReadsData):
            return self.guide.alignment
        return Alignment(described={latent.name: f"{latent.support} {latent.shape}" for latent in self.latents})

    @property
    def scored(self) -> Sequence[str]:
        """The guide's variables whose draws cannot be differentiated through."""
        return self.alignment.scored

    @property
    def left_out(self) -> Sequence[Finding]:
        """A finding, where the guide can never draw what the model has."""
        return self.alignment.left_out

    def check(self) -> None:
        """Refuse a model without coordinates to be fitted to, or with variables that no transform of normals is."""
        whole = self.problem.whole
        for variable in whole.variables.values():
            refuse_point(variable)
        for name in whole.without_bijection:
            variable = whole.variables[name]
            support = getattr(variable.distribution, "support", None)
            if support is not None and support.is_discrete:
                kind = kind_of(variable.distribution)
                raise ValueError(
                    f"Variable {name!r} is discrete ({kind}), and the guide {self.name} is a density of continuous "
                    f"variables. Sum it out of the model, for instance with "
                    f"numpyro.distributions.MixtureSameFamily; or write a guide that draws it from a {kind} with "
                    f"phx.param(...), and learn from all rows at once."
                )
            transform_of(variable)  # says why there is none
        model = getattr(self.problem.model, "__name__", "model")
        if not any(variable.is_latent for variable in whole.variables.values()):
            raise ValueError(f"The model {model} has no latent variables: there is nothing to fit a guide to.")
        if not size_of(self.latents):
            raise ValueError(
                f"The model {model} has no coordinates to learn: its latent variables have no free element."
            )

    def for_steps(self) -> Pair:
        """Return the pair as steps see it: where they see minibatches, terms of rows count for all rows."""
        minibatch = self.problem.minibatch
        if minibatch is None:
            return self
        names = minibatch.terms_of_rows(self.problem.at_start, self.problem.arguments, "model")
        weights = dict.fromkeys(sorted(names), minibatch.weight)
        if isinstance(self.guide, ReadsData):
            return replace(self, guide=self.guide.weighed(names, self.problem), weights=weights)
        if local := [latent.name for latent in self.latents if latent.name in names]:
            raise ValueError(
                f"{minibatch.argument}: variable {local[0]!r} has an element for each row, and {self.name} has "
                f"parameters for all of them. Write a guide that computes them from the rows (an amortised one), or "
                f"give all rows at once."
            )
        return replace(self, weights=weights)

    def moved(self, free: Params, change: Params) -> dict[str, Any]:
        """Return the parameters after a change: those of the guide by its widths, so that rates are in its own units.

        Both are on the real line; a change of zero changes nothing.
        """
        if not isinstance(self.guide, ByWidths):
            return jax.tree.map(jnp.add, dict(free), dict(change))
        own = self._own_moved(self.guide, free, change)
        return {**self.learned.only(own).free(own), **self._model_moved(free, change)}

    def values_moved(self, free: Params, change: Params) -> dict[str, Any]:
        """Return the values of `moved`: those of the guide without a way back and forth."""
        if not isinstance(self.guide, ByWidths):
            return self.learned.constrain(self.moved(free, change))
        of_model = self.learned.only(self.of_model).constrain(self._model_moved(free, change))
        return {**self._own_moved(self.guide, free, change), **of_model}

    def _own_moved(self, guide: ByWidths, free: Params, change: Params) -> dict[str, Any]:
        return dict(guide.moved(self.learned.constrain(free), change, self.latents))

    def _model_moved(self, free: Params, change: Params) -> dict[str, Any]:
        return {name: jax.tree.map(jnp.add, free[name], change[name]) for name in self.of_model}

    def begin(self, key: Array, data: Values, init: Mapping[str, Any]) -> Beginning:
        """Return initial values of the parameters."""
        start = Start(self.problem, data, key, init)
        begun = self.guide.begin(start)
        if self.reads_data:
            return begun
        own = begun.values if self.guide.traits.is_solved else begun_with(init, begun.values)
        return Beginning({**own, **start.of_model}, {**start.misfits, **begun.misfits})

    def noise(self, key: Array) -> Any:
        """Return what a draw is made of, besides parameters: random numbers, or the key itself."""
        return self.guide.noise(key, self.latents)

    def draw(self, params: Params, noise: Any, data: Values) -> dict[str, Array]:
        """Return a draw from the guide, which its parameters can be differentiated through."""
        return self._reading(data).draw(params, noise, self.latents)

    def draw_weighed(self, params: Params, noise: Any, data: Values, held: bool = False) -> tuple[Any, Array]:
        """Return the same draw and its log density under the guide, from how it was made where that takes less.

        With the parameters held, the density is a function of the draw alone.
        """
        guide = self._reading(data)
        if isinstance(guide, WithDensity) and (made := guide.draw_with_density(params, noise, self.latents, held)):
            return made
        draw = guide.draw(params, noise, self.latents)
        return draw, guide.log_prob(lax.stop_gradient(params) if held else params, draw, self.latents)

    def log_guide(self, params: Params, draw: Any, data: Values) -> Array:
        """Return the log density of a draw under the guide."""
        return self._reading(data).log_prob(params, draw, self.latents)

    def log_score(self, params: Params, draw: Any, data: Values) -> Array | None:
        """Return the part of that of variables that cannot be differentiated through; None where there are none."""
        guide = self._reading(data)
        return guide.log_score(params, draw) if isinstance(guide, ReadsData) and self.scored else None

    def log_model(self, params: Params, draw: Any, data: Values) -> dict[str, Array]:
        """Return the log density of a draw, with the data, under the model: the term of each variable.

        Of unconstrained values the Jacobian of each transform is with its variable.
        """
        run = self._run(params, draw, data)
        totals: dict[str, Array] = {}
        for name, variable in run.variables.items():
            if variable.distribution is not None:
                total = variable.total_log_prob().value
                if name in run.log_dets:
                    total = total + jnp.sum(run.log_dets[name])
                totals[name] = self.weights.get(name, 1.0) * total
        return totals

    def values(self, params: Params, draw: Any, data: Values) -> dict[str, Array]:
        """Return the latent variables, and the model's deterministic values, at a draw."""
        return self._run(params, draw, data).values()

    def position(self, params: Params, draw: Any, data: Values) -> dict[str, Array]:
        """Return the unconstrained values of a draw's latent variables."""
        return to_unconstrained(given(self.problem.model, params), draw, data) if self.reads_data else draw

    def log_weight(self, params: Params, run: Evaluation, data: Values) -> Array:
        """Return the log importance weight at the position of a run of the model."""
        values = {name: v.value for name, v in run.variables.items() if v.is_latent}
        draw = values if self.reads_data else run.position
        return run.log_density(jacobian=not self.reads_data) - self.log_guide(params, draw, data)

    def improper(self, params: Params, key: Array, data: Values) -> dict[tuple[str, str], Doubt]:
        """Return the parameters of the guide's distributions, with which of them these cannot have."""
        guide = self._reading(data)
        if not isinstance(guide, ReadsData):
            return {}
        doubts = doubts_of(Evaluation(guide.variables(params, key), {}, {}))
        return {key: doubt for key, doubt in doubts.items() if key[1] != VALUE}

    @property
    def guide_trace(self) -> ClosedJaxpr | None:
        """The draw of a guide that reads data, as a function of a key and all rows, at initial parameters."""
        if not self.reads_data:
            return None
        arguments = self.problem.arguments

        def draw(key: Array, arrays: Any) -> Any:
            guide: Any = self._reading(arguments.layout.join(arrays))
            return [variable.value for variable in guide.variables(None, key).values()]

        return jax.make_jaxpr(lambda key, arrays: self.problem.alone(lambda: draw(key, arrays)))(
            random.key(0), arguments.whole_shapes()
        )

    def _reading(self, data: Values) -> Guide:
        return self.guide.reading(data) if isinstance(self.guide, ReadsData) else self.guide

    def _run(self, params: Params, draw: Any, data: Values) -> Evaluation:
        """Run the model at a draw."""
        run = self.problem.at_values if self.reads_data else self.problem.at_position
        return run(params, draw, data)


def noise_of(pair: Pair, key: Array, count: int) -> Any:
    """Return what `count` particles are made of."""
    return jax.vmap(lambda i: pair.noise(random.fold_in(key, i)))(numbered(pair, count))


def antithetic_noise_of(pair: Pair, key: Array, count: int) -> Any:
    """Return noise in pairs, one after the other, of opposite signs. Both of a pair draw it: none is sent."""

    def one(number: Array) -> Any:
        noise = pair.noise(random.fold_in(key, number // 2))
        return jax.tree.map(lambda part: jnp.where(number % 2 == 0, part, -part), noise)

    return jax.vmap(one)(numbered(pair, count))


def numbered(pair: Pair, count: int) -> Array:
    """Return the numbers of `count` particles, which are sharded over the mesh's `chain` axis where it divides them."""
    index = jnp.arange(count, dtype=jnp.uint32)
    mesh = pair.problem.mesh
    if mesh.shape[CHAIN] > 1 and count % mesh.shape[CHAIN] == 0:
        index = lax.with_sharding_constraint(index, NamedSharding(mesh, PartitionSpec(CHAIN)))
    return index


def particles(pair: Pair, params: Params, noise: Any, data: Values, wanted: Sequence[str]) -> dict[str, Any]:
    """Return the parts that objectives are made of, for draws from the guide: `(particle,)` each.

    Args:
        pair: guide and model.
        params: values of the parameters.
        noise: what each draw is made of.
        data: the model's arguments.
        wanted: which parts; see `Objective`.
    """
    held = lax.stop_gradient(params)

    def log_p(at: Params, draw: Any) -> Array:
        return jnp.asarray(sum(pair.log_model(at, draw, data).values()))

    def one(noise: Any) -> dict[str, Any]:
        log_q = None
        if "log_q_drawn" in wanted or "log_q_path" in wanted:
            draw, log_q = pair.draw_weighed(params, noise, data, held="log_q_drawn" not in wanted)
        else:
            draw = pair.draw(params, noise, data)
        fixed = lax.stop_gradient(draw)
        parts = {
            "log_p": lambda: log_p(params, draw),
            "log_p_path": lambda: log_p(held, draw),
            "log_p_fixed": lambda: log_p(params, fixed),
            "log_q_drawn": lambda: log_q,
            "log_q": lambda: pair.log_guide(params, draw, data),
            "log_q_path": lambda: log_q,
            "log_q_fixed": lambda: pair.log_guide(params, fixed, data),
            "score": lambda: pair.log_score(params, draw, data),
            "draws": lambda: draw,
        }
        return {name: parts[name]() for name in wanted}

    return pair.problem.alone(lambda: _of_each(one, noise))


def _of_each(one: Callable[[Any], Any], noise: Any) -> Any:
    """Map over noise; a single one without a batch, in which products of matrices take longer."""
    if len(jax.tree.leaves(noise)[0]) == 1:
        return jax.tree.map(lambda leaf: leaf[None], one(jax.tree.map(lambda leaf: leaf[0], noise)))
    return jax.vmap(one)(noise)


def log_weights(parts: dict[str, Any]) -> Array:
    """Return the particles' log weights, from whichever parts there are."""
    log_p, log_q = (
        next(value for name, value in parts.items() if name.startswith(kind)) for kind in ("log_p", "log_q")
    )
    return lax.stop_gradient(log_p - log_q)
