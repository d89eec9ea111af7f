"""The compiled block of a fit: many steps of an optimiser in one call, data, seed and what is learned as arguments."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.sharding import NamedSharding, PartitionSpec

from phalanx.jaxprs.canonical import form_of
from phalanx.jaxprs.group_sums import with_group_sums
from phalanx.mesh.compatibility.workarounds import Workaround
from phalanx.run.compile.executable_cache import is_ours
from phalanx.variational.guides.learned import Params
from phalanx.variational.guides.pair import Pair, antithetic_noise_of, log_weights, noise_of, particles
from phalanx.variational.objective import Objective

ROOM = 1024
"""The most steps of a block."""

AHEAD = 2**18
"""Random numbers of a block's steps up to which they are drawn before the first of them."""

SMALL = 512
"""Bytes of arrays of which XLA, on a CPU, runs a program operation by operation; where one is longer, they are handed
to threads, which takes as long as a small step."""

PATIENCE = 10
"""Steps in a row without a finite gradient after which a fit gives up."""


class State(NamedTuple):
    """A fit under way, as a value.

    Attributes:
        step: steps made.
        free: the parameters, on the real line.
        optimizer: what the optimiser keeps.
        mean: the average of `free` since it was last begun anew, and over how many steps; empty where none is taken.
        averaged: that number.
        failed: steps that were left out because their loss or its gradient was not finite, and how many of them in a
            row at the end.
        failing: that number.
    """

    step: Array
    free: dict[str, Any]
    optimizer: Any
    mean: Any
    averaged: Array
    failed: Array
    failing: Array

    @classmethod
    def of(cls, free: dict[str, Any], optimizer: Any, averages: bool = True) -> State:
        """A fit that begins, with an average of its steps or without."""
        zero = jnp.int32(0)
        return cls(zero, free, optimizer, free if averages else (), zero, zero, zero)

    @property
    def averages(self) -> bool:
        """Whether an average is taken."""
        return self.mean != ()


class Order(NamedTuple):
    """What a block is told: how many steps, the factor on the optimiser's changes, whether averaging begins anew."""

    count: Any
    rate: Any
    anew: Any


class Made(NamedTuple):
    """What the steps of a block have found, `(ROOM,)`: the bound, and its Monte-Carlo error."""

    bound: Array
    error: Array


@dataclass(frozen=True)
class Steps:
    """The block, and what it is made of.

    Attributes:
        optimizer: of optax; None where a rule needs none.
        rule: how a step is made of particles, `rule(pair, state, noise, data, rate)`, which gives the parameters and
            the bound of each particle; None for a step along the gradient of the objective.
    """

    pair: Pair
    objective: Objective
    optimizer: Any
    num_particles: int
    rule: Callable[..., tuple[Params, Array]] | None = None

    def identity(self, state: State) -> Hashable | None:
        """What tells a block of these steps from others; None where only its trace can. An optimiser's is short."""
        pair = self.pair.identity
        if pair is None or not is_ours(self.objective):
            return None
        update = None if self.optimizer is None else jax.make_jaxpr(self.optimizer.update)
        optimizer = form_of(None if update is None else update(state.free, state.optimizer, state.free))
        kind = pair, self.objective, self.num_particles, self.rule
        return None if optimizer is None else (type(self).__name__, optimizer, *kind)

    def block(self, state: State, seed: Array, arrays: Sequence[Array], order: Order) -> tuple[State, Made]:
        """Steps from a state on."""
        empty = Made(jnp.full(ROOM, jnp.nan), jnp.full(ROOM, jnp.nan))
        state = state._replace(averaged=jnp.where(order.anew, 0, state.averaged))
        keys = step_key(seed, state.step + jnp.arange(ROOM))
        # all at once, where they are not too many: in a loop they take longer than a small model's gradient
        ahead = jax.vmap(self.noise)(keys) if ROOM * self._num_random(keys[0]) <= AHEAD else None

        def go_on(carry: tuple[Array, State, Made]) -> Array:
            return (carry[0] < order.count) & (carry[1].failing < PATIENCE)

        def step(carry: tuple[Array, State, Made]) -> tuple[Array, State, Made]:
            number, state, made = carry
            key = keys[number]
            mine = self.noise(key) if ahead is None else jax.tree.map(lambda leaf: leaf[number], ahead)
            data = self.pair.problem.step_data(arrays, key)

            def move(state: State) -> tuple[State, Made]:
                state, bound = self.one(state, mine, data, order.rate)
                return state, Made(bound.mean(), self._error(bound))

            apart = ahead is not None and self._is_small((state, mine, arrays))
            state, found = _in_branch(move, number < order.count, state) if apart else move(state)
            return number + 1, state, jax.tree.map(lambda all_, one: all_.at[number].set(one), made, found)

        _, state, made = lax.while_loop(go_on, step, (jnp.int32(0), state, empty))
        return state, made

    def single(self, state: State, seed: Array, arrays: Sequence[Array], order: Order) -> tuple[State, Made]:
        """One step as a block: what is carried round in a loop is copied, which of large networks takes a while."""
        key = step_key(seed, state.step)
        state = state._replace(averaged=jnp.where(order.anew, 0, state.averaged))
        state, bound = self.one(state, self.noise(key), self.pair.problem.step_data(arrays, key), order.rate)
        return state, Made(bound.mean()[None], self._error(bound)[None])

    def _error(self, bound: Array) -> Array:
        if self.is_antithetic:
            bound = bound.reshape(-1, 2).mean(1)  # a pair is one draw
        known = bound.size > 1 and self.pair.problem.minibatch is None  # particles of one batch share its noise
        return jnp.std(bound, ddof=1) / jnp.sqrt(bound.size) if known else jnp.full((), jnp.nan)

    def noise(self, key: Array) -> Any:
        """What the particles of a step are made of."""
        made, odd = antithetic_noise_of if self.is_antithetic else noise_of, self.num_particles % 2
        return made(self.pair, key, self.num_particles + (odd if self.rule else 0))

    @property
    def is_antithetic(self) -> bool:
        """Whether particles come in pairs of opposite noise: of two pairs on, since one tells no error of the bound."""
        in_pairs = self.num_particles >= 4 and self.num_particles % 2 == 0
        return self.rule is not None or (in_pairs and self.objective.averages and self.pair.guide.traits.is_antithetic)

    def _is_small(self, arrays: Any) -> bool:
        """Whether XLA would run a step on them operation by operation, and has to be told."""
        mesh = self.pair.problem.mesh
        on_cpu = mesh.size == 1 and mesh.devices.flat[0].platform == "cpu"
        small = all(leaf.size * leaf.dtype.itemsize <= SMALL for leaf in jax.tree.leaves(arrays))
        return on_cpu and small and Workaround.STEPS_IN_BRANCHES.is_on

    def _num_random(self, key: Array) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self.noise, key)))

    def one(self, state: State, noise: Any, data: Any, rate: Any) -> tuple[State, Array]:
        """One step with particles made of this, and the bound of each."""
        if self.rule is not None:
            free, bound = self.rule(self.pair, state, noise, data, rate)
            return self._stepped(state, free, state.optimizer, all_finite((free, bound)), bound)
        loss, bound, gradient = self._loss_and_gradient(state.free, noise, data)
        finite = all_finite((loss, gradient))
        change, optimizer = self.optimizer.update(gradient, state.optimizer, state.free)
        change = jax.tree.map(lambda x, d: (rate * d).astype(x.dtype), state.free, change)
        free = self.pair.moved(state.free, change)
        return self._stepped(state, free, optimizer, finite, bound)

    def _stepped(self, state: State, free: Params, optimizer: Any, finite: Array, bound: Array) -> tuple[State, Array]:
        """The state after a step to `free`, which is left out where it is not finite."""
        averaged = state.averaged + 1
        mean = jax.tree.map(lambda m, x: m + (x - m) / averaged, state.mean, free) if state.averages else ()
        nothing = jnp.int32(0)
        moved = State(state.step, dict(free), optimizer, mean, averaged, state.failed, nothing)
        stayed = state._replace(failed=state.failed + 1, failing=state.failing + 1)
        state = jax.tree.map(lambda a, b: jnp.where(finite, a, b), moved, stayed)
        return state._replace(step=state.step + 1), jnp.where(finite, bound, jnp.nan)

    def _loss_and_gradient(self, free: Params, noise: Any, data: Any) -> tuple[Array, Array, dict[str, Any]]:
        """The loss, the bound of each particle, and the gradient by a change of the parameters that is none.

        It is taken by their values, and carried from there to the change, so that the change itself is not computed.
        """

        def loss_of(params: Params) -> tuple[Array, Array]:
            parts = particles(self.pair, params, noise, data, self.objective.parts)
            return self.objective.loss(parts), self.objective.bound(log_weights(parts))

        with_gradient = with_group_sums(jax.value_and_grad(loss_of, has_aux=True))
        (loss, bound), by_value = with_gradient(self.pair.learned.constrain(free))
        still = jax.tree.map(jnp.zeros_like, free)
        (gradient,) = jax.vjp(lambda change: self.pair.values_moved(free, change), still)[1](by_value)
        return loss, bound, gradient

    def gradient(self, free: Params, key: Array, arrays: Sequence[Array]) -> tuple[dict[str, Any], Array]:
        """The gradient that a step with this key follows, in the steps' own units, and the bound of each particle."""
        _, bound, gradient = self._loss_and_gradient(free, self.noise(key), self.pair.problem.step_data(arrays, key))
        return gradient, bound


def _in_branch(move: Callable[[State], tuple[State, Made]], always: Array, state: State) -> tuple[State, Made]:
    """What `move` gives, as a branch that is always taken: how a program is kept apart from what is about it."""
    _, made = jax.eval_shape(move, state)
    nothing = jax.tree.map(lambda part: jnp.full(part.shape, jnp.nan, part.dtype), made)
    return lax.cond(always, move, lambda state: (state, nothing), state)


def step_key(seed: Array, step: Array) -> Array:
    """The key of a step, or of several: of the seed and the step's number alone, however steps are cut into blocks."""
    key = random.key(seed)
    return jax.vmap(lambda step: random.fold_in(key, step))(step) if step.ndim else random.fold_in(key, step)


def all_finite(tree: Any) -> Array:
    """Whether all numbers are finite: nothing times each of them is nothing.

    Rows are multiplied by zeros, which on a CPU takes a third of the time that a sum over all does: the products' own
    code reads them. Sums multiplied by themselves are one operation, which is done once: what is put together from all
    leaves in steps would be done again wherever it is read, with every leaf's update.
    """
    sums = jnp.stack([jnp.sum(_nothing_of(leaf)).astype(jnp.float32) for leaf in jax.tree.leaves(tree)])
    return jnp.isfinite(sums @ sums)


def _nothing_of(leaf: Array) -> Array:
    if leaf.ndim < 2:
        return leaf * 0.0
    return leaf @ lax.optimization_barrier(jnp.zeros(leaf.shape[-1], leaf.dtype))  # known zeros may be left out


def laid_out(pair: Pair, optimizer: Any, state: State) -> State:
    """How a state is laid out over the mesh: parameters, and what the optimiser keeps of them, as their specs say."""
    from optax import tree_utils

    mesh = pair.problem.mesh
    everywhere = NamedSharding(mesh, PartitionSpec())
    free = pair.learned.shardings(mesh, state.free)
    replicated = jax.tree.map(lambda _: everywhere, state)
    if all(sharding.is_fully_replicated for sharding in jax.tree.leaves(free)):
        return replicated
    kept = tree_utils.tree_map_params(
        optimizer, lambda _, sharding: sharding, state.optimizer, free, transform_non_params=lambda _: everywhere
    )
    return replicated._replace(free=free, mean=free if state.averages else (), optimizer=kept)
