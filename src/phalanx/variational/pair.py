"""A guide and a model side by side, as objectives see them: what is drawn, and its log density under both."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.sharding import NamedSharding, PartitionSpec

from phalanx.diagnostics import Finding
from phalanx.mesh.devices import CHAIN
from phalanx.programs.unconstrained import Evaluation
from phalanx.variational.learned import Learned, Params
from phalanx.variational.problem import Problem, Values


class Beginning(NamedTuple):
    """Where a fit begins.

    Attributes:
        values: of the parameters.
        misfits: by variable, whether something of it does not fit; what it is the pair can say.
    """

    values: dict[str, Any]
    misfits: dict[str, Array]


class Pair(Protocol):
    """A guide aligned with a model. Every method is traced."""

    @property
    def problem(self) -> Problem:
        """The model and its data."""
        ...

    @property
    def learned(self) -> Learned:
        """The parameters of both."""
        ...

    @property
    def name(self) -> str:
        """What the guide is called."""
        ...

    @property
    def identity(self) -> Hashable | None:
        """What tells it from pairs that compute anything else; None where only the traces of its methods can."""
        ...

    def moved(self, free: Params, change: Params) -> dict[str, Any]:
        """The parameters, on the real line, after a change that an optimiser has asked for; none at zero."""
        ...

    def values_moved(self, free: Params, change: Params) -> dict[str, Any]:
        """The values that they have there."""
        ...

    @property
    def scored(self) -> list[str]:
        """The guide's variables whose draws cannot be differentiated through."""
        ...

    @property
    def is_antithetic(self) -> bool:
        """Whether the particles of a step are best drawn in pairs of opposite noise."""
        ...

    def for_steps(self) -> Pair:
        """The pair as steps see it: where they see minibatches, terms of rows count for all rows."""
        ...

    def begin(self, key: Array, data: Values, init: Mapping[str, Any]) -> Beginning:
        """Initial values of the parameters."""
        ...

    def misfit(self, name: str) -> str:
        """What does not fit of a variable that `begin` has found to be a misfit."""
        ...

    def noise(self, key: Array) -> Any:
        """What a draw is made of, besides parameters: random numbers, where the guide says which, or else the key."""
        ...

    def draw(self, params: Params, noise: Any, data: Values) -> Any:
        """One draw from the guide, which its parameters can be differentiated through."""
        ...

    def draw_weighed(self, params: Params, noise: Any, data: Values) -> tuple[Any, Array]:
        """The same draw, and its log density under the guide, from how it was made where that takes less."""
        ...

    def draw_along(self, params: Params, noise: Any, data: Values) -> tuple[Any, Array]:
        """The same draw, and its log density under the guide with the parameters held: a function of the draw alone."""
        ...

    def log_guide(self, params: Params, draw: Any, data: Values) -> Array:
        """Its log density under the guide."""
        ...

    def log_score(self, params: Params, draw: Any, data: Values) -> Array | None:
        """Of that, what belongs to variables that cannot be differentiated through; None where there are none."""
        ...

    def log_model(self, params: Params, draw: Any, data: Values) -> dict[str, Array]:
        """Its log density, with the data, under the model: what each variable adds."""
        ...

    def values(self, params: Params, draw: Any, data: Values) -> dict[str, Array]:
        """The latent variables, and the model's deterministic values, at a draw."""
        ...

    def coordinates(self, draw: Any) -> dict[str, Array]:
        """What a draw consists of, by latent variable."""
        ...

    def position(self, params: Params, draw: Any, data: Values) -> dict[str, Array]:
        """Return the unconstrained values of a draw's latent variables."""
        ...

    def log_weight(self, params: Params, run: Evaluation, data: Values) -> Array:
        """Return the log importance weight at the position of a run of the model."""
        ...

    @property
    def left_out(self) -> list[Finding]:
        """That there is what the guide can never draw and the model has; or nothing."""
        ...

    def model_parameters(self) -> list[str]:
        """Names of the parameters that are the model's own."""
        ...

    def described(self) -> dict[str, str]:
        """A line about each latent variable."""
        ...


def keys_of(pair: Pair, key: Array, count: int) -> Array:
    """A key for each of `count` particles."""
    return jax.vmap(lambda i: random.fold_in(key, i))(numbered(pair, count))


def noise_of(pair: Pair, key: Array, count: int) -> Any:
    """What `count` particles are made of."""
    return jax.vmap(pair.noise)(keys_of(pair, key, count))


def antithetic_noise_of(pair: Pair, key: Array, count: int) -> Any:
    """What they are made of in pairs, one after the other, of opposite noise. Both of a pair draw it: none is sent."""

    def one(number: Array) -> Any:
        noise = pair.noise(random.fold_in(key, number // 2))
        return jax.tree.map(lambda part: jnp.where(number % 2 == 0, part, -part), noise)

    return jax.vmap(one)(numbered(pair, count))


def numbered(pair: Pair, count: int) -> Array:
    """The numbers of `count` particles, which are spread over the mesh's `chain` axis where it divides them."""
    index = jnp.arange(count, dtype=jnp.uint32)
    mesh = pair.problem.mesh
    if mesh.shape[CHAIN] > 1 and count % mesh.shape[CHAIN] == 0:
        index = lax.with_sharding_constraint(index, NamedSharding(mesh, PartitionSpec(CHAIN)))
    return index


def particles(pair: Pair, params: Params, noise: Any, data: Values, wanted: Sequence[str]) -> dict[str, Any]:
    """What objectives are made of, for draws from the guide: `(particle,)` each.

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
        drawn = along = None
        if "log_q_drawn" in wanted:
            draw, drawn = pair.draw_weighed(params, noise, data)
        elif "log_q_path" in wanted:
            draw, along = pair.draw_along(params, noise, data)
        else:
            draw = pair.draw(params, noise, data)
        fixed = lax.stop_gradient(draw)
        parts = {
            "log_p": lambda: log_p(params, draw),
            "log_p_path": lambda: log_p(held, draw),
            "log_p_fixed": lambda: log_p(params, fixed),
            "log_q_drawn": lambda: drawn,
            "log_q": lambda: pair.log_guide(params, draw, data),
            "log_q_path": lambda: along,
            "log_q_fixed": lambda: pair.log_guide(params, fixed, data),
            "score": lambda: pair.log_score(params, draw, data),
            "draws": lambda: draw,
        }
        return {name: parts[name]() for name in wanted}

    return pair.problem.alone(lambda: _of_each(one, noise))


def _of_each(one: Callable[[Any], Any], noise: Any) -> Any:
    """What is made of each; of a single one without a batch, in which products of matrices take longer."""
    if len(jax.tree.leaves(noise)[0]) == 1:
        return jax.tree.map(lambda leaf: leaf[None], one(jax.tree.map(lambda leaf: leaf[0], noise)))
    return jax.vmap(one)(noise)


def log_weights(parts: dict[str, Any]) -> Array:
    """The particles' log weights, from whichever parts there are."""
    log_p, log_q = (
        next(value for name, value in parts.items() if name.startswith(kind)) for kind in ("log_p", "log_q")
    )
    return lax.stop_gradient(log_p - log_q)
