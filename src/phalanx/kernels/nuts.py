"""The No-U-Turn sampler, as a state machine that moves every lane by one leapfrog per tick.

Other vectorised NUTS run all chains in lock-step: each draw takes as long as the longest trajectory of any chain. Here
a lane that ends a draw starts its next in the following tick, whatever the others do. What a lane does depends on its
own keys and position alone, so the draws are those of lock-step NUTS, bit for bit. The tick is in `trips`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from phalanx.kernels.gradient_state import State, init
from phalanx.kernels.kernel import Ended, Kernel, Rest, Start, hyperparameter, one_of, positive, share, start_of, whole
from phalanx.kernels.lanes import Lanes, groups_of
from phalanx.kernels.low_rank import KINDS
from phalanx.kernels.trips import Info, Phase, Point, Trip, Tuning, rest, tick
from phalanx.kernels.u_turns import Corners
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.keys import Keys
from phalanx.mesh.random_numbers import key_words
from phalanx.programs.target import Density, Target

DEEPEST = 20
"""Doublings beyond which a trajectory is surely a mistake."""


@dataclass(frozen=True)
class Nuts:
    """NUTS as a machine; see `phalanx.kernels.kernel.Machine`. `max_depth` bounds the tuning's, and the memory."""

    max_depth: int
    skips: ClassVar[int] = 1

    def start(self, lanes: Lanes, start: Start, keys: Keys, draw: Array) -> Trip:
        """Lanes at rest at positions."""
        position, gradient = (tuple(part.T for part in lanes.flatten(x)) for x in (start.position, start.gradient))
        draws = jnp.broadcast_to(draw, (lanes.count,))
        now, then = keys.of_draw(draws), keys.of_draw(draws + 1)
        return rest(lanes, position, start.log_density, gradient, now, then, draws, self.max_depth)

    def tick(
        self, underway: Trip, active: Array, abandon: Array, lanes: Lanes, tuning: Tuning, keys: Keys
    ) -> tuple[Trip, Ended]:
        """One leapfrog of every lane."""
        trip, done, info = tick(underway, active, abandon, lanes, tuning, keys.of_draw)
        position, gradient = (tuple(part.T for part in x) for x in (trip.sample.position, trip.sample.gradient))
        return trip, Ended(done, position, gradient, trip.sample.log_density, info)

    def moved(self, underway: Trip, take: Callable[[Array, int], Array]) -> Trip:
        """Lanes that go on at others' draws."""
        return underway._replace(sample=jax.tree.map(lambda leaf: take(leaf, -1), underway.sample))

    def rest(self, lanes: Lanes, underway: Trip) -> Rest:
        """Where lanes are that are between two draws."""
        at = underway.sample
        return Rest(underway.draw, start_of(lanes, at.position, at.log_density, at.gradient))

    def resume(self, lanes: Lanes, rest: Rest, keys: Keys) -> Trip:
        """Lanes that make the very same draws."""
        return self.start(lanes, rest.state, keys, rest.draw)

    def layout(self, target: Target, underway: Callable[[], Any]) -> Trip:
        """How a trip is laid out over the mesh: lanes come last."""
        groups = groups_of(target.shares.latents)
        # the same records hold arrays and how they are laid out
        lane: Any = PartitionSpec(CHAIN)
        vector: Any = tuple(PartitionSpec(axes or None, CHAIN) for axes in groups)
        levels: Any = tuple(PartitionSpec(None, axes or None, CHAIN) for axes in groups)
        words, phase, point = (lane, lane), Phase(vector, vector, vector), Point(vector, vector, lane, lane)
        return Trip(
            lane, words, words, words, vector, lane, phase, phase, point, point, lane, lane, lane, lane, lane, lane,
            lane, lane, lane, Corners(levels, levels),
        )  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One draw of one lane from start to end: NUTS as one usually has it, where each draw waits for all lanes.

    It is the reference for the machine, and what code that steps a kernel by itself calls.
    """

    max_depth: int

    def __call__(self, key: Array, state: State, density: Density, tuning: Tuning) -> tuple[State, Info]:
        """A draw."""
        lanes, (first, second) = Lanes(density, 1), key_words(key)
        words = first[None], second[None]
        position, gradient = (
            tuple(part[:, None] for part in lanes.flatten(x)) for x in (state.position, state.gradient)
        )
        always = jnp.ones(1, bool)

        def on(carry: tuple[Trip, Array, Info]) -> tuple[Trip, Array, Info]:
            return tick(carry[0], always, ~always, lanes, tuning, lambda _: words)

        draw = jnp.zeros(1, jnp.int32)
        trip = rest(lanes, position, state.log_density[None], gradient, words, words, draw, self.max_depth)
        begun = on((trip, ~always, Info(*(always,) * len(Info._fields))))
        trip, _, info = lax.while_loop(lambda carry: ~carry[1][0], on, begun)
        position, gradient = (
            lanes.unflatten(tuple(part[:, 0] for part in x)) for x in (trip.sample.position, trip.sample.gradient)
        )
        state = State(position, trip.sample.log_density[0], gradient)
        return state, jax.tree.map(lambda value: value[0], info)


def nuts(
    max_depth: int = 10,
    step_size: float | None = None,
    *,
    initial_step_size: float = 0.1,
    target_acceptance: float = 0.8,
    metric: str = "auto",
    relocate: bool = True,
) -> Kernel:
    r"""The No-U-Turn sampler.

    A momentum $p \sim N(0, M)$ is drawn and the trajectory of $H(x, p) = -\log\pi(x) + \tfrac12 p^\top M^{-1} p$
    doubled, forwards or backwards in time at random, until it turns back on itself. The draw is one of its points, with
    probability proportional to $e^{-H}$ and a preference for the later doublings. No chain waits for another: each
    moves by one leapfrog at a time and starts its next draw when it has ended one.

    Args:
        max_depth: doublings at most; a trajectory has up to `2**max_depth - 1` leapfrogs.
        step_size: length of a leapfrog; None tunes it in warm-up, pooled over all chains.
        initial_step_size: where tuning starts.
        target_acceptance: the acceptance rate tuning aims at. A larger one makes smaller steps, which helps where
            trajectories diverge.
        metric: what warm-up learns of the posterior's covariance, pooled over all chains: "diagonal", a variance for
            every coordinate; "dense", correlations too; "auto", correlations where the draws show that they pay.
            With many coordinates correlations are learned along the few directions that matter most.
        relocate: whether a chain that has settled where the posterior has next to no mass goes on beside another,
            in warm-up; the verdict says when it has happened.

    Returns:
        A kernel for `phx.mcmc`.

    Raises:
        ValueError: when a hyperparameter is out of range.

    Example:
        >>> import phalanx as phx
        >>> kernel = phx.nuts(max_depth=8, target_acceptance=0.9)

    Source:
        Hoffman, Gelman (2014), The No-U-Turn Sampler; Betancourt (2017), A conceptual introduction to Hamiltonian Monte
        Carlo; Dance, Glaser, Orbanz, Adams (2025), Efficiently vectorized MCMC on modern accelerators, for the machine.
    """
    whole("nuts", "max_depth", max_depth)
    if max_depth > DEEPEST:
        raise ValueError(
            f"nuts: max_depth must be at most {DEEPEST}, got {max_depth}: 2**{max_depth} leapfrogs a draw."
        )
    positive("nuts", "initial_step_size", initial_step_size)
    if step_size is not None:
        positive("nuts", "step_size", step_size)
    share("nuts", "target_acceptance", target_acceptance)
    one_of("nuts", "metric", metric, KINDS)
    first = float(initial_step_size if step_size is None else step_size)
    return Kernel(
        name=f"nuts(max_depth={max_depth}, step_size={step_size})",
        init=init,
        step=Step(max_depth),
        machine=Nuts(max_depth),
        metric=metric,
        statistics=Info._fields,
        tuning=Tuning(hyperparameter(first), hyperparameter(max_depth), None),
        target_acceptance=target_acceptance if step_size is None else None,
        relocates=relocate,
    )
