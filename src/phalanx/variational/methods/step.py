"""The compiled block of a fit: many steps of an optimiser in one call; data, seed and parameters are arguments."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from phalanx.jaxprs.canonical import form_of
from phalanx.jaxprs.group_sums import with_group_sums
from phalanx.mesh.compatibility.workarounds import Workaround
from phalanx.mesh.specs import PyTree
from phalanx.placements import add_together
from phalanx.run.compile.executable_cache import is_ours
from phalanx.variational.guides.guide_and_model import Pair, antithetic_noise_of, key_of, moved, noise_of, values_moved
from phalanx.variational.guides.learned import Params
from phalanx.variational.objective import Objective, log_weights, particles
from phalanx.variational.problem import Values

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

ROOM = 1024
"""The most steps of a block."""

AHEAD = 2**18
"""Random numbers of all steps of a block up to which they are drawn before the first step."""

SMALL = 512
"""Bytes of each array up to which XLA, on a CPU, runs a program in one thread; handing larger ones to other threads
takes as long as a small step."""

PATIENCE = 10
"""Steps in a row without a finite gradient after which a fit gives up."""


class FitState(NamedTuple):
    """State of a fit on the devices.

    Attributes:
        step: steps made.
        free: the parameters, on the real line.
        optimizer: state of the optimiser.
        mean: the average of `free` over the last steps; empty if averages are not computed.
        averaged: number of steps in the average.
        failed: steps that were left out because their loss or its gradient was not finite.
        failing: how many of the last steps, in a row, were left out.
    """

    step: Int[Array, ""]
    free: dict[str, Any]
    optimizer: Any
    mean: Any
    averaged: Int[Array, ""]
    failed: Int[Array, ""]
    failing: Int[Array, ""]

    @classmethod
    def of(cls, free: dict[str, Any], optimizer: Any, averages: bool = True) -> FitState:
        """Return the first state of a fit, with an average of its steps or without."""
        zero = jnp.int32(0)
        return cls(zero, free, optimizer, free if averages else (), zero, zero, zero)

    @property
    def averages(self) -> bool:
        """True if the steps are averaged."""
        return self.mean != ()


class StepOrder(NamedTuple):
    """Arguments of a block: the number of steps, the factor on the optimiser's changes, whether averages start anew."""

    count: ArrayLike
    rate: ArrayLike
    anew: ArrayLike


class StepBounds(NamedTuple):
    """The bound at each step of a block, and its Monte-Carlo error."""

    bound: Float[Array, "step"]
    error: Float[Array, "step"]


class Losses(NamedTuple):
    """The bound at each step, a mean over particles in nats, and its Monte-Carlo error; NaN if a step was left out."""

    elbo: Float[np.ndarray, "step"]
    error: Float[np.ndarray, "step"]

    @property
    def mean(self) -> tuple[float, float]:
        """The bound averaged over steps that were not left out, and its error; NaN if all were."""
        finite = np.isfinite(self.elbo)
        if not finite.any():
            return np.nan, np.nan
        return float(self.elbo[finite].mean()), float(np.sqrt(np.square(self.error[finite]).sum()) / finite.sum())

    @classmethod
    def of(cls, blocks: Sequence[StepBounds] = ()) -> Losses:
        """Return the bounds of all blocks of steps."""
        return cls(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)) if blocks else (np.zeros(0),) * 2)


@dataclass(frozen=True)
class Steps:
    """Steps of a fit, which a block makes.

    Attributes:
        optimizer: an optimiser of optax; None if a rule replaces it.
        rule: the step as a function of particles, `rule(pair, state, noise, data, rate)`, which returns the parameters
            and the bound of each particle; None for a step along the gradient of the objective.
    """

    pair: Pair
    objective: Objective
    optimizer: Any
    num_particles: int
    rule: Callable[..., tuple[Params, Array]] | None = None

    def init_state(self, free: dict[str, Any], averages: bool = True) -> FitState:
        """Return the state before the first step from these parameters; `averages` keeps an average of the steps."""
        return FitState.of(free, self.optimizer.init(free), averages)

    def identity(self, state: FitState) -> Hashable | None:
        """Return the key of a block of these steps; None where only its trace determines what it computes."""
        pair = key_of(self.pair)
        if pair is None or not is_ours(self.objective):
            return None
        update = None if self.optimizer is None else jax.make_jaxpr(self.optimizer.update)
        optimizer = form_of(None if update is None else update(state.free, state.optimizer, state.free))
        return None if optimizer is None else ("steps", optimizer, pair, self.objective, self.num_particles, self.rule)

    def block(
        self, state: FitState, seed: Array, arrays: Sequence[Array], order: StepOrder
    ) -> tuple[FitState, StepBounds]:
        """Make steps from a state."""
        empty = StepBounds(jnp.full(ROOM, jnp.nan), jnp.full(ROOM, jnp.nan))
        state = state._replace(averaged=jnp.where(order.anew, 0, state.averaged))
        keys = step_key(seed, state.step + jnp.arange(ROOM))
        # drawn in the loop, random numbers would take longer than a small model's gradient
        ahead = jax.vmap(self.noise)(keys) if ROOM * self._num_random(keys[0]) <= AHEAD else None

        def go_on(carry: tuple[Array, FitState, StepBounds]) -> Bool[Array, ""]:
            return (carry[0] < order.count) & (carry[1].failing < PATIENCE)

        def step(carry: tuple[Array, FitState, StepBounds]) -> tuple[Array, FitState, StepBounds]:
            number, state, bounds = carry
            key = keys[number]
            mine = self.noise(key) if ahead is None else jax.tree.map(lambda leaf: leaf[number], ahead)
            data = self.pair.problem.step_data(arrays, key)

            move = partial(self.one, noise=mine, data=data, rate=order.rate)
            apart = ahead is not None and self._is_small((state, mine, arrays))
            state, losses = _in_branch(move, number < order.count, state) if apart else move(state)
            return number + 1, state, jax.tree.map(lambda all_, one: all_.at[number].set(one), bounds, losses)

        _, state, bounds = lax.while_loop(go_on, step, (jnp.int32(0), state, empty))
        return state, bounds

    def single(
        self, state: FitState, seed: Array, arrays: Sequence[Array], order: StepOrder
    ) -> tuple[FitState, StepBounds]:
        """Make one step, without a loop, which would copy its state: of a large network that takes long."""
        key = step_key(seed, state.step)
        state = state._replace(averaged=jnp.where(order.anew, 0, state.averaged))
        state, bounds = self.one(state, self.noise(key), self.pair.problem.step_data(arrays, key), order.rate)
        return state, jax.tree.map(lambda part: part[None], bounds)

    def _error(self, bound: Float[Array, "estimate"]) -> Float[Array, ""]:
        """Return the Monte-Carlo error of the mean of a step's bounds; NaN where it is not known."""
        if self.is_antithetic:
            bound = bound.reshape(-1, 2).mean(1)  # a pair is one draw
        is_estimable = bound.size > 1 and self.pair.problem.minibatch is None  # particles of one batch share its noise
        return jnp.std(bound, ddof=1) / jnp.sqrt(bound.size) if is_estimable else jnp.full((), jnp.nan)

    def noise(self, key: Array) -> PyTree:
        """Return the noise of the particles of a step."""
        noise = antithetic_noise_of if self.is_antithetic else noise_of
        odd = self.num_particles % 2
        return noise(self.pair, key, self.num_particles + (odd if self.rule else 0))

    @property
    def is_antithetic(self) -> bool:
        """True if particles come in pairs of opposite noise: two pairs at least, as an error of the bound needs."""
        in_pairs = self.num_particles >= 4 and self.num_particles % 2 == 0
        return self.rule is not None or (in_pairs and self.objective.averages and self.pair.guide.traits.is_antithetic)

    def _is_small(self, arrays: PyTree) -> bool:
        """Return whether a step on these arrays is faster in one thread, which XLA must be made to choose."""
        mesh = self.pair.problem.mesh
        on_cpu = mesh.size == 1 and mesh.devices.flat[0].platform == "cpu"
        small = all(leaf.size * leaf.dtype.itemsize <= SMALL for leaf in jax.tree.leaves(arrays))
        return on_cpu and small and Workaround.STEPS_IN_BRANCHES.is_on

    def _num_random(self, key: Array) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self.noise, key)))

    def one(self, state: FitState, noise: PyTree, data: Values, rate: ArrayLike) -> tuple[FitState, StepBounds]:
        """Make one step with particles of this noise; the bound is a scalar, and so is its error."""
        if self.rule is not None:
            free, bound = self.rule(self.pair, state, noise, data, rate)
            return self._stepped(state, free, state.optimizer, all_finite((free, bound)), bound)
        loss, bound, gradient = self._loss_and_gradient(state.free, noise, data)
        finite = all_finite((loss, gradient))
        change, optimizer = self.optimizer.update(gradient, state.optimizer, state.free)
        change = jax.tree.map(lambda x, d: (rate * d).astype(x.dtype), state.free, change)
        free = moved(self.pair, state.free, change)
        return self._stepped(state, free, optimizer, finite, bound)

    def _stepped(
        self,
        state: FitState,
        free: Params,
        optimizer: Any,
        finite: Bool[Array, ""],
        bound: Float[Array, "estimate"],
    ) -> tuple[FitState, StepBounds]:
        """Return the state after a step to `free`, which is left out if it is not finite, and the mean bound."""
        num_averaged = state.averaged + 1
        mean = jax.tree.map(lambda m, x: m + (x - m) / num_averaged, state.mean, free) if state.averages else ()
        stepped = FitState(state.step, dict(free), optimizer, mean, num_averaged, state.failed, jnp.int32(0))
        stayed = state._replace(failed=state.failed + 1, failing=state.failing + 1)
        state = jax.tree.map(lambda a, b: jnp.where(finite, a, b), stepped, stayed)
        bound = jnp.where(finite, bound, jnp.nan)
        return state._replace(step=state.step + 1), StepBounds(bound.mean(), self._error(bound))

    def _loss_and_gradient(
        self, free: Params, noise: PyTree, data: Values
    ) -> tuple[Float[Array, ""], Float[Array, "estimate"], dict[str, Any]]:
        """Return the loss, the bound of each particle, and the gradient by a change of the parameters, at zero.

        The gradient by the parameters' values is pulled back to the change, so that the change itself is not computed.
        """

        def loss_of(params: Params) -> tuple[Float[Array, ""], Float[Array, "estimate"]]:
            parts = particles(self.pair, params, noise, data, self.objective.parts)
            return self.objective.loss(parts), self.objective.bound(log_weights(parts))

        with_gradient = with_group_sums(jax.value_and_grad(loss_of, has_aux=True))
        params = self.pair.learned.constrain(free)
        (loss, bound), by_value = with_gradient(params)
        loss, by_value = add_together((loss, by_value), (loss, params))
        still = jax.tree.map(jnp.zeros_like, free)
        (gradient,) = jax.vjp(lambda change: values_moved(self.pair, free, change), still)[1](by_value)
        return loss, bound, gradient

    def gradient(
        self, free: Params, key: Array, arrays: Sequence[Array]
    ) -> tuple[dict[str, Any], Float[Array, "estimate"]]:
        """Return the gradient that a step with this key follows, in its units, and the bound of each particle."""
        _, bound, gradient = self._loss_and_gradient(free, self.noise(key), self.pair.problem.step_data(arrays, key))
        return gradient, bound


def _in_branch(
    move: Callable[[FitState], tuple[FitState, StepBounds]], always: Bool[Array, ""], state: FitState
) -> tuple[FitState, StepBounds]:
    """Wrap `move` in an always-true cond, so that XLA compiles it separately."""
    _, shapes = jax.eval_shape(move, state)
    empty = jax.tree.map(lambda part: jnp.full(part.shape, jnp.nan, part.dtype), shapes)
    return lax.cond(always, move, lambda state: (state, empty), state)


def step_key(seed: Array, step: Int[Array, "..."]) -> Array:
    """Return the key of a step, or of several: a function of the seed and the step's number alone."""
    key = random.key(seed)
    return jax.vmap(lambda step: random.fold_in(key, step))(step) if step.ndim else random.fold_in(key, step)


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Return whether every number is finite (0 * x == 0).

    Rows are multiplied by zeros in a matrix product, which on a CPU takes a third of the time of a sum. The product of
    the sums is one operation, which XLA computes once; it would recompute elementwise operations in each consumer, with
    every leaf's update.
    """
    sums = jnp.stack([jnp.sum(_zeros_of(leaf)).astype(jnp.float32) for leaf in jax.tree.leaves(tree)])
    return jnp.isfinite(sums @ sums)


def _zeros_of(leaf: Float[Array, "..."]) -> Float[Array, "..."]:
    if leaf.ndim < 2:
        return leaf * 0.0
    return leaf @ lax.optimization_barrier(jnp.zeros(leaf.shape[-1], leaf.dtype))  # XLA may remove constant zeros


def laid_out(pair: Pair, optimizer: Any, state: FitState) -> FitState:
    """Return the layout of a state on the mesh: parameters, and the optimiser's state of them, follow their specs."""
    from optax import tree_utils

    mesh = pair.problem.mesh
    everywhere = NamedSharding(mesh, PartitionSpec())
    free = pair.learned.shardings(mesh, state.free)
    specs = jax.tree.map(lambda _: everywhere, state)
    if all(sharding.is_fully_replicated for sharding in jax.tree.leaves(free)):
        return specs
    optimizer_layout = tree_utils.tree_map_params(
        optimizer, lambda _, sharding: sharding, state.optimizer, free, transform_non_params=lambda _: everywhere
    )
    return specs._replace(free=free, mean=free if state.averages else (), optimizer=optimizer_layout)
