"""The compiled blocks of a run: start, warm-up, sampling.

Each is one `shard_map` over the mesh, compiled ahead of time. Data, seed, tuning and the number of draws are
arguments, so that neither a new seed nor new data of the same shape nor another length of run needs a compilation.
Nothing in a block calls back to the host, and adaptation is in the warm-up block only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.sharding import PartitionSpec

from phalanx.adaptation import dual_averaging
from phalanx.kernels.kernel import Info, Kernel
from phalanx.mesh.chains import lane_chains, over_lanes, pooled_mean, pooled_sum
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.keys import INITIAL_POSITION, chain_key, draw_key
from phalanx.mesh.placement import spread_spec
from phalanx.programs.target import INITIAL_RADIUS, Density, Target

ATTEMPTS = 20
"""How often a chain whose initial log density is not finite is started anew, ever closer to zero."""


# Their fields are Any: the same records hold arrays, their shapes, and how they are laid out over the mesh.


class Begun(NamedTuple):
    """Where chains begin, and what is wrong there if anything is."""

    state: Any
    finite: Any
    contributions: Any
    outside_support: Any


class WarmedUp(NamedTuple):
    """Where chains are during warm-up. The totals count since the block began, over all chains."""

    state: Any
    tuning: Any
    adaptation: Any
    acceptance_rate: Any
    divergences: Any
    num_steps: Any


class Sampled(NamedTuple):
    """Draws and statistics of a block, of shape (draw, chain, ...); rows past the number asked for are empty."""

    state: Any
    draws: Any
    stats: Any


@dataclass(frozen=True)
class Blocks:
    """The functions of a run, ready to be compiled.

    Attributes:
        target: the model and the shapes of its data.
        kernel: the Markov kernel.
        num_chains: chains in all.
        names: variables to store.
        thin: steps per stored draw.
        size: the most draws one call of the sampling block returns.
    """

    target: Target
    kernel: Kernel
    num_chains: int
    names: tuple[str, ...]
    thin: int
    size: int

    @property
    def lanes(self) -> int:
        """Chains per device."""
        return self.num_chains // self.target.mesh.shape[CHAIN]

    # -- what runs on a device ----------------------------------------------------------------------------------

    def begin(self, seed: Array, arrays: Sequence[Array]) -> Begun:
        """A finite initial position and state for every chain."""
        density = self.target.on_device(arrays)
        keys = self._keys(seed)(jnp.int32(INITIAL_POSITION))
        find = over_lanes(partial(_finite_position, density, self.kernel.uses_gradient), self.lanes)
        position, finite = find(keys)
        state = over_lanes(lambda key, u: self.kernel.init(key, u, density), self.lanes)(keys, position)
        contributions = over_lanes(density.contributions, self.lanes)(position)
        return Begun(state, finite, contributions, density.outside_support())

    def warm_up(
        self, seed: Array, arrays: Sequence[Array], tuned_steps: Array, first: Array, count: Array, before: WarmedUp
    ) -> WarmedUp:
        """`count` warm-up iterations, the step size tuned in those below number `tuned_steps`."""
        step, keys = self._step(self.target.on_device(arrays)), self._keys(seed)

        def iteration(i: Array, now: WarmedUp) -> WarmedUp:
            state, info = step(keys(first + i), now.state, now.tuning)
            acceptance_rate = pooled_mean(info.acceptance_rate)
            tuning, adaptation = now.tuning, now.adaptation
            if self.kernel.target_acceptance is not None:
                adaptation, step_size = dual_averaging.tune(
                    adaptation, acceptance_rate, self.kernel.target_acceptance, first + i, tuned_steps
                )
                tuning = tuning._replace(step_size=step_size)
            return WarmedUp(
                state,
                tuning,
                adaptation,
                now.acceptance_rate + acceptance_rate,
                now.divergences + pooled_sum(info.diverging.astype(jnp.int32)),
                now.num_steps + pooled_sum(info.num_steps),
            )

        cleared = before._replace(
            acceptance_rate=jnp.zeros_like(before.acceptance_rate),
            divergences=jnp.zeros_like(before.divergences),
            num_steps=jnp.zeros_like(before.num_steps),
        )
        return lax.fori_loop(0, count, iteration, cleared)

    def sample(
        self, seed: Array, arrays: Sequence[Array], tuning: Any, first: Array, count: Array, state: Any
    ) -> Sampled:
        """`count` draws of every chain, the first of them number `first`."""
        density = self.target.on_device(arrays)
        step, keys = self._step(density), self._keys(seed)

        def several(state: Any, draw: Array) -> tuple[Any, Info]:
            state, info = step(keys(draw), state, tuning)
            if self.thin == 1:
                return state, info

            def again(j: Array, carry: tuple[Any, Info]) -> tuple[Any, Info]:
                state, before = carry
                state, info = step(keys(draw + j), state, tuning)
                return state, info._replace(
                    num_steps=info.num_steps + before.num_steps, diverging=info.diverging | before.diverging
                )

            return lax.fori_loop(1, self.thin, again, (state, info))

        def record(state: Any, info: Info) -> tuple[dict[str, Array], dict[str, Array]]:
            values = over_lanes(density.constrain, self.lanes)(state.position) if self.names else {}
            stats = {**info._asdict(), "log_density": state.log_density}
            return {name: values[name] for name in self.names}, stats

        def draw(i: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            state, buffers = carry
            state, info = several(state, first + i * self.thin)
            row = record(state, info)
            return state, jax.tree.map(lambda b, r: lax.dynamic_update_index_in_dim(b, r, i, 0), buffers, row)

        shapes = jax.eval_shape(lambda: record(*several(state, first)))
        buffers = jax.tree.map(lambda a: jnp.zeros((self.size, *a.shape), a.dtype), shapes)
        state, (draws, stats) = lax.fori_loop(0, count, draw, (state, buffers))
        return Sampled(state, draws, stats)

    def _step(self, density: Density) -> Callable[[Array, Any, Any], tuple[Any, Info]]:
        """One step of every lane. The tuning is shared: it is closed over, not mapped."""

        def step(keys: Array, state: Any, tuning: Any) -> tuple[Any, Info]:
            lane = over_lanes(lambda key, s: self.kernel.step(key, s, density, tuning), self.lanes)
            new, info = lane(keys, state)
            info = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.lanes,)), info)
            return jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), new, state), info

        return step

    def _keys(self, seed: Array) -> Callable[[Array], Array]:
        """The function from the number of a draw to every lane's key for it."""
        chains = jax.vmap(lambda chain: chain_key(seed, chain))(lane_chains(self.lanes))
        return lambda draw: jax.vmap(lambda chain: draw_key(chain, draw))(chains)

    # -- how it is laid out over the mesh ---------------------------------------------------------------------

    def on_mesh(self, f: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """`f` on every device.

        Types are not checked: ordinary models break under the check, and the share rule keeps collectives out of what
        is differentiated.
        """
        return jax.shard_map(f, mesh=self.target.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    def per_chain(self, tree: Any) -> Any:
        """Layout of something with a leading chain dimension; a dict by variable is laid out as positions are."""
        return self._specs(tree, PartitionSpec(CHAIN), self.target.position_specs(CHAIN))

    def shared(self, tree: Any) -> Any:
        """Layout of something all chains share, such as a tuning."""
        return self._specs(tree, PartitionSpec(), self.target.position_specs())

    def state_specs(self) -> Any:
        """Layout of the kernel's states. Where nothing is spread out, one layout does for all they hold."""
        if not any(latent.spread.axes for latent in self.target.shares.latents):
            return PartitionSpec(CHAIN)
        axis_env = list(self.target.mesh.shape.items())
        shapes = self.target.arguments.local_shapes()
        _, begun = jax.make_jaxpr(self.begin, axis_env=axis_env, return_shape=True)(np.uint32(0), shapes)
        return self.per_chain(begun.state)

    def sampled_specs(self, state_specs: Any) -> Sampled:
        """Layout of a block of draws."""
        return Sampled(state_specs, self.draw_specs(), PartitionSpec(None, CHAIN))

    def draw_specs(self) -> dict[str, PartitionSpec]:
        """Layout of stored draws, (draw, chain, ...)."""
        return {name: spread_spec(self.target.spread(name), None, CHAIN) for name in self.names}

    def _specs(self, tree: Any, spec: PartitionSpec, position: Mapping[str, PartitionSpec]) -> Any:
        def is_position(node: Any) -> bool:
            return isinstance(node, dict) and set(node) == set(position)

        return jax.tree.map(lambda node: dict(position) if is_position(node) else spec, tree, is_leaf=is_position)


def _finite_position(density: Density, needs_gradient: bool, key: Array) -> tuple[Any, Array]:
    """A random position with finite log density (and gradient), and whether one was found."""

    def look(attempt: Array) -> tuple[Any, Array]:
        # The radius shrinks from 2 towards 0, where every constrained value is moderate.
        radius = INITIAL_RADIUS * (1 - attempt / ATTEMPTS)
        position = density.initial_position(random.fold_in(key, attempt), radius)
        if not needs_gradient:
            return position, jnp.isfinite(density.log_density(position))
        value, gradient = density.value_and_grad(position)
        return position, jnp.isfinite(value) & jnp.isfinite(density.space.dot(gradient, gradient) * 0)

    def missed(carry: tuple[Array, Any, Array]) -> Array:
        attempt, _, finite = carry
        return ~finite & (attempt < ATTEMPTS)

    def again(carry: tuple[Array, Any, Array]) -> tuple[Array, Any, Array]:
        attempt, _, _ = carry
        return (attempt + 1, *look(attempt))

    _, position, finite = lax.while_loop(missed, again, (jnp.int32(1), *look(jnp.int32(0))))
    return position, finite


def bytes_per_draw(target: Target, names: Sequence[str]) -> int:
    """Bytes that one stored draw of one chain takes, statistics included."""
    shapes = {latent.name: latent.shape for latent in target.shares.latents}
    stored = sum(4 * int(np.prod(shapes.get(name, ()))) for name in names)
    return stored + 4 * len((*Info._fields, "log_density"))
