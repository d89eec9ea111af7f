"""Random-walk Metropolis, all lanes at once.

A draw costs one evaluation of the log density, and for a density of a few operations the random numbers are most of
the work. They come from one hash for each coordinate: the two words of Threefry under the chain's key, with the numbers
of the draw and of the coordinate as counter. The first word makes the proposal; the second, of the first coordinate,
decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from phalanx.kernels.acceptance import metropolis
from phalanx.kernels.kernel import Ended, Info, Kernel, Rest, Start, hyperparameter, positive, share, start_of
from phalanx.kernels.lanes import Columns, Lanes, groups_of
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.keys import Keys
from phalanx.mesh.random_numbers import Words, key_words, threefry, uniforms_from
from phalanx.mesh.space import Position
from phalanx.programs.target import Density, Target

DECIDES = 0xFFFFFFFF
"""The number under which the word that decides is made, where no coordinate has one to spare."""


class State(NamedTuple):
    """A position with its log density."""

    position: Position
    log_density: Array


class Tuning(NamedTuple):
    """Hyperparameters: the standard deviation of a proposal."""

    step_size: Array


class Walk(NamedTuple):
    """Where every lane is, lanes last.

    Attributes:
        draw: number of the next draw.
        position, log_density: of the last.
        moves, uniform: standard normals for the next proposal, and a uniform on [0, 1) that decides on it. They are
            made one draw ahead: what enters the next tick as an argument is computed once, and not again in every
            operation it is fused into.
    """

    draw: Any
    position: Any
    log_density: Any
    moves: Any
    uniform: Any


def walk(at: Walk, lanes: Lanes, tuning: Tuning, key: Words) -> tuple[Walk, Info]:
    """A draw of every lane: propose a normal step, accept or stay."""
    proposal = tuple(x + tuning.step_size * z for x, z in zip(at.position, at.moves, strict=True))
    log_density = lanes.value(proposal)
    wrong = ~jnp.isfinite(log_density)
    accepted, acceptance_rate = metropolis(at.uniform, log_density - at.log_density)
    position = tuple(jnp.where(accepted, a, b) for a, b in zip(proposal, at.position, strict=True))
    log_density = jnp.where(accepted, log_density, at.log_density)
    new = Walk(at.draw + 1, position, log_density, *_random(lanes, key, at.draw + 1))
    one = jnp.ones(lanes.count, jnp.int32)
    return new, Info(acceptance_rate, wrong, one, -log_density)


def _random(lanes: Lanes, key: Words, draw: Array) -> tuple[Columns, Array]:
    """Standard normals for a proposal, and a uniform on [0, 1)."""
    words = lanes.words(key, draw)
    if lanes.dtype == jnp.float32:  # a normal in float64 needs both words
        # the first coordinate's second word, which a device that does not hold that coordinate makes for itself
        held = not lanes.latents[0].spread.axes
        decides = words[0][1][0] if held else threefry(key, draw.astype(jnp.uint32), jnp.uint32(0))[1]
        words = [(first, jnp.zeros_like(first)) for first, _ in words]
    else:
        decides = threefry(key, draw.astype(jnp.uint32), jnp.uint32(DECIDES))[0]
    return lanes.normals_of(words), uniforms_from((decides, jnp.zeros_like(decides)), jnp.float32)


@dataclass(frozen=True)
class Walkers:
    """Random-walk Metropolis as a machine; see `phalanx.kernels.kernel.Machine`. A tick is a draw of every lane."""

    skips: ClassVar[int] = 0

    def start(self, lanes: Lanes, start: Start, keys: Keys, draw: Array) -> Walk:
        """Lanes at rest at positions."""
        position = tuple(part.T for part in lanes.flatten(start.position))
        draws = jnp.broadcast_to(draw, (lanes.count,))
        return Walk(draws, position, start.log_density, *_random(lanes, keys.chain, draws))

    def tick(
        self, underway: Walk, active: Array, abandon: Array, lanes: Lanes, tuning: Any, keys: Keys
    ) -> tuple[Walk, Ended]:
        """One draw of every lane."""
        new, info = walk(underway, lanes, tuning, keys.chain)
        done = jnp.ones(lanes.count, bool)
        return new, Ended(done, tuple(part.T for part in new.position), (), new.log_density, info)

    def moved(self, underway: Walk, take: Callable[[Array, int], Array]) -> Walk:
        """Lanes that go on at others' positions."""
        position = tuple(take(part, -1) for part in underway.position)
        return underway._replace(position=position, log_density=take(underway.log_density, 0))

    def rest(self, lanes: Lanes, underway: Walk) -> Rest:
        """Where lanes are that are between two draws."""
        return Rest(underway.draw, start_of(lanes, underway.position, underway.log_density))

    def resume(self, lanes: Lanes, rest: Rest, keys: Keys) -> Walk:
        """Lanes that make the very same draws."""
        return self.start(lanes, rest.state, keys, rest.draw)

    def layout(self, target: Target, underway: Callable[[], Any]) -> Walk:
        """How it is laid out over the mesh."""
        lane, groups = PartitionSpec(CHAIN), groups_of(target.shares.latents)
        vectors = tuple(PartitionSpec(axes or None, CHAIN) for axes in groups)
        return Walk(lane, vectors, lane, vectors, lane)


def init(key: Array, position: Position, density: Density) -> State:
    """The state at a position."""
    return State(position, density.log_density(position))


def step(key: Array, state: State, density: Density, tuning: Tuning) -> tuple[State, Info]:
    """One draw of one lane, for code that steps a kernel by itself."""
    lanes, (first, second) = Lanes(density, 1), key_words(key)
    position = tuple(part[:, None] for part in lanes.flatten(state.position))
    words, draw = (first[None], second[None]), jnp.zeros(1, jnp.int32)
    at = Walk(draw, position, state.log_density[None], *_random(lanes, words, draw))
    new, info = walk(at, lanes, tuning, words)
    position = lanes.unflatten(tuple(part[:, 0] for part in new.position))
    return State(position, new.log_density[0]), jax.tree.map(lambda value: value[0], info)


def rwmh(
    step_size: float | None = None,
    *,
    initial_step_size: float = 0.1,
    target_acceptance: float = 0.234,
    relocate: bool = True,
) -> Kernel:
    r"""Random-walk Metropolis.

    Propose $x' = x + \epsilon z$ with $z \sim N(0, I)$; accept with probability $\min(1, \pi(x')/\pi(x))$.

    Args:
        step_size: standard deviation $\epsilon$ of a proposal on the unconstrained scale; None tunes it in warm-up.
        initial_step_size: where tuning starts.
        target_acceptance: the acceptance rate tuning aims at; 0.234 is best in many dimensions, 0.44 in one.
        relocate: whether a chain that has settled where the posterior has next to no mass goes on beside another,
            in warm-up; the verdict says when it has happened.

    Returns:
        A kernel for `phx.mcmc`.

    Raises:
        ValueError: when a hyperparameter is out of range.

    Example:
        >>> import phalanx as phx
        >>> kernel = phx.rwmh(step_size=0.1)

    Source:
        Metropolis et al. (1953), Equation of state calculations by fast computing machines; Roberts, Gelman, Gilks
        (1997), Weak convergence and optimal scaling of random walk Metropolis algorithms.
    """
    positive("rwmh", "initial_step_size", initial_step_size)
    if step_size is not None:
        positive("rwmh", "step_size", step_size)
    share("rwmh", "target_acceptance", target_acceptance)
    return Kernel(
        name=f"rwmh(step_size={step_size})",
        init=init,
        step=step,
        tuning=Tuning(hyperparameter(float(initial_step_size if step_size is None else step_size))),
        target_acceptance=target_acceptance if step_size is None else None,
        uses_gradient=False,
        machine=Walkers(),
        relocates=relocate,
    )
