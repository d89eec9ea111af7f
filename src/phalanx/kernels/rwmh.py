"""Random-walk Metropolis, all lanes at once.

A draw costs one evaluation of the log density. For a density of a few operations most of the work is random numbers,
which come from one hash for each coordinate: the two words of Threefry under the chain's key, with the numbers of the
draw and of the coordinate as counter. The first word makes the proposal; the second word of the first coordinate
decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from phalanx.adaptation.step_size import StepSize
from phalanx.kernels.integrators.acceptance import metropolis
from phalanx.kernels.protocol.kernel import Info, Kernel, LaneState, Machine, Point
from phalanx.kernels.protocol.lane_target import DECISION_WORD, LaneTarget
from phalanx.kernels.protocol.options import step_size_of, without_none
from phalanx.mesh.position import Vector, choose
from phalanx.mesh.random_numbers import Bits, Keys, threefry, uniforms_from

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Integer


class Tuning(NamedTuple):
    """Hyperparameters: the standard deviation of a proposal."""

    step_size: Any


class Ahead(NamedTuple):
    """Random numbers of the next draw: standard normals for the proposal, and a uniform on [0, 1) that decides on it.

    They are made one draw ahead: XLA computes an argument of the next tick once, but would recompute it in every
    operation that it fuses it into.
    """

    normals: Vector
    uniform: Float[Array, "lanes"]


@dataclass(frozen=True)
class RandomWalk(Machine):
    """Random-walk Metropolis as a `phalanx.kernels.protocol.kernel.Machine`."""

    uses_gradient: ClassVar[bool] = False

    def init(self, now: LaneState, keys: Keys, target: LaneTarget) -> Ahead:
        """Return the first draw's random numbers."""
        return _random(target, keys.chain, now.draw)

    def step(
        self, now: LaneState, active: Bool[Array, "lanes"], keys: Keys, target: LaneTarget, tuning: Tuning
    ) -> tuple[LaneState, Bool[Array, "lanes"], Info]:
        """Make a draw of every lane: propose a normal step, accept or stay."""
        position = now.at.position + tuning.step_size * now.kernel_state.normals
        log_density = target.value(position)
        is_accepted, rate, broken = metropolis(now.kernel_state.uniform, log_density - now.at.log_density)
        at = choose(is_accepted, Point(position, log_density, now.at.gradient), now.at)
        one = jnp.ones(target.count, jnp.int32)
        info = Info(rate, broken, one, -at.log_density)
        draw = now.draw + 1
        return LaneState(draw, at, _random(target, keys.chain, draw)), jnp.ones(target.count, bool), info


def _random(target: LaneTarget, chain: Bits, draw: Integer[Array, "lanes"]) -> Ahead:
    """Return the random numbers of a draw, by one hash for each coordinate."""
    bits = target.bits(chain, draw)
    if target.dtype == jnp.float32:  # a normal in float64 needs both words
        # the first coordinate's second word; a device that does not hold that coordinate hashes it again
        is_replicated = not target.layout.variables[0].sharding.axes
        decides = bits[0][1][0] if is_replicated else threefry(chain, draw.astype(jnp.uint32), jnp.uint32(0))[1]
        bits = [(first, jnp.zeros_like(first)) for first, _ in bits]
    else:
        decides = threefry(chain, draw.astype(jnp.uint32), jnp.uint32(DECISION_WORD))[0]
    uniform = uniforms_from((decides, jnp.zeros_like(decides)), jnp.float32)
    return Ahead(target.normals_of(bits), uniform)


def rwmh(
    step_size: float | None = None,
    *,
    initial_step_size: float = 0.1,
    target_acceptance: float = 0.234,
    relocate: bool = True,
) -> Kernel:
    r"""Return a random-walk Metropolis kernel.

    Propose $x' = x + \epsilon z$ with $z \sim N(0, I)$; accept with probability $\min(1, \pi(x')/\pi(x))$.

    Args:
        step_size: standard deviation $\epsilon$ of a proposal on the unconstrained scale; None tunes it in warm-up.
        initial_step_size: the step size with which tuning starts.
        target_acceptance: the acceptance rate at which tuning aims; 0.234 is best in many dimensions, 0.44 in one.
        relocate: in warm-up, move a chain that is stuck in a region of negligible posterior mass to the position of
            another chain; the verdict reports each move.

    Returns:
        A kernel for `phx.mcmc`.

    Raises:
        ValueError: when a hyperparameter is out of range.

    Example:
        >>> import phalanx as phx
        >>> phx.rwmh(step_size=0.1).name
        'rwmh(step_size=0.1)'

    Source:
        Metropolis et al. (1953), Equation of state calculations by fast computing machines; Roberts, Gelman, Gilks
        (1997), Weak convergence and optimal scaling of random walk Metropolis algorithms.
    """
    return Kernel(
        name=f"rwmh(step_size={step_size})",
        machine=RandomWalk(),
        tuning=Tuning(step_size_of("rwmh", step_size, initial_step_size, target_acceptance)),
        tuners=without_none(StepSize(target_acceptance) if step_size is None else None),
        relocates=relocate,
    )
