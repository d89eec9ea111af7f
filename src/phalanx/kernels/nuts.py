"""The No-U-Turn sampler: a tick moves every lane by one leapfrog, whatever draw the lane is in.

Other vectorised NUTS run all chains in lock-step: each draw takes as long as the longest trajectory of any chain. Here
a lane that ends a draw starts its next one in the following tick, whatever the others do. A lane depends on its own
keys and position alone, so that the draws are those of lock-step NUTS, bit for bit. The growth and the end of a
trajectory are in `integrators/tree.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from phalanx.adaptation.metric import Metric
from phalanx.adaptation.step_size import StepSize
from phalanx.kernels.integrators.acceptance import DIVERGENCE_THRESHOLD, broken_down
from phalanx.kernels.integrators.leapfrog import PhasePoint, leapfrog
from phalanx.kernels.integrators.tree import CROSS_CHECK_LEVELS, Ends, Tree, u_turn
from phalanx.kernels.protocol.kernel import Kernel, LaneState, Machine, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.kernels.protocol.options import (
    check_centring,
    check_integer,
    check_metric,
    hyperparameter,
    step_size_of,
    without_none,
)
from phalanx.mesh.position import Vector, choose
from phalanx.mesh.random_numbers import Bits, Keys, threefry
from phalanx.mesh.total import Total

if TYPE_CHECKING:
    from jaxtyping import Bool, Integer

DEEPEST = 20
"""The most doublings that `max_depth` may be: 2**20 leapfrogs a draw are surely a mistake."""

EARLY_DEPTH = 6
"""The most doublings until a metric is learned from draws: with a poor metric long trajectories do not pay."""

FEW_NORMALS = 2048
"""Numbers of normals, of all lanes, up to which drawing them in every tick costs less than a branch."""


class Tuning(NamedTuple):
    """Hyperparameters: the step size, the deepest trajectory (2**max_depth - 1 leapfrogs), and the metric."""

    step_size: Any
    max_depth: Any
    metric: Any


class Info(NamedTuple):
    """Statistics of one draw; see `phalanx.kernels.protocol.kernel.Info` for the first four."""

    acceptance_rate: Array
    diverging: Array
    num_steps: Array
    energy: Total | Array
    tree_depth: Array
    reached_max_depth: Array


class State(NamedTuple):
    """State of a trajectory in every lane, besides the last draw.

    Attributes:
        tree: the trajectory.
        num_steps: leapfrogs of the draw done; 0 for a lane whose draw is about to start.
        acceptance: sum of acceptance probabilities over them.
        key, next_key: the keys of this draw and of the next, as words.
        bits: random bits for the next leapfrog. Like `normals` they are made at the end of the tick before, and kept
            here: XLA would otherwise compute them again in every operation that it fuses them into.
        normals: standard normals for the momentum of the next draw to start.
        kinetic: half their sum of squares, the kinetic energy of that momentum.
    """

    tree: Tree
    num_steps: Array
    acceptance: Array
    key: Bits
    next_key: Bits
    bits: Bits
    normals: Vector
    kinetic: Array


@dataclass(frozen=True)
class Nuts(Machine):
    """NUTS as a `phalanx.kernels.protocol.kernel.Machine`; memory is for trees of up to `max_depth` doublings."""

    max_depth: int
    makes_whole_draws: ClassVar[bool] = False

    def init(self, now: LaneState, keys: Keys, target: LaneTarget) -> State:
        """Return the state of lanes that are about to start a draw."""
        key = keys.of_draw(now.draw)
        count = jnp.zeros(target.count, jnp.int32)
        normals = target.normal(key)
        return State(
            tree=Tree.none(now.at, self.max_depth),
            num_steps=count,
            acceptance=jnp.zeros_like(now.at.log_density.fine),
            key=key,
            next_key=keys.of_draw(now.draw + 1),
            bits=_bits(key, count),
            normals=normals,
            kinetic=0.5 * target.inner_product(normals, normals),
        )

    def step(
        self, now: LaneState, active: Bool[Array, "lanes"], keys: Keys, target: LaneTarget, tuning: Tuning
    ) -> tuple[LaneState, Bool[Array, "lanes"], Info]:
        """Make one leapfrog of every lane: start a draw if the lane is at rest, extend it, end it where that is due."""
        state: State = now.kernel_state
        tree, end = _extend(now, target, tuning)
        normals = _next_normals(state, active, target)
        leaf = _check(tree, end, normals, target, tuning)
        tree = tree.with_leaf(end, leaf.error, state.bits[0])._replace(turning_at_join=leaf.turning_at_join)
        tree, endings = _double(tree, leaf, now.at, active, state.bits[1], tuning)
        return _finish(now, tree, leaf, endings, active, normals, keys)


class Leaf(NamedTuple):
    """Checks of the leapfrog by which a tick extends the subtree.

    Attributes:
        error: energy less that of the start of the trajectory.
        diverging: true if the error is too large.
        turning: true if a part of the subtree that ends here has turned.
        turning_from_fixed_end: true if the trajectory has turned between its other end and this leaf.
        turning_from_join: true if the subtree has turned between the end of the tree that it joins and this leaf.
        turning_at_join: true if there is a U-turn between the fixed end and the first leaf of the subtree.
        next_kinetic: kinetic energy of the momentum with which the lane's next draw starts.
    """

    error: Array
    diverging: Array
    turning: Array
    turning_from_fixed_end: Array
    turning_from_join: Array
    turning_at_join: Array
    next_kinetic: Array


class Endings(NamedTuple):
    """True for lanes whose subtree has ended, whose draw has ended, and whose draw was cut off at the deepest tree."""

    subtree: Array
    draw: Array
    reached_max_depth: Array


def _extend(now: LaneState, target: LaneTarget, tuning: Tuning) -> tuple[Tree, PhasePoint]:
    """Return the tree, begun where no draw is under way, and the leapfrog that extends it."""
    state: State = now.kernel_state
    starts = state.num_steps == 0
    energy = state.kinetic - now.at.log_density
    momentum = tuning.metric.momentum(state.normals, starts)
    tree = state.tree.start(starts, now.at, momentum, energy, tuning.step_size).choose_direction(state.bits[1])
    return tree, leapfrog(tree.moving_end, tree.direction * tree.step_size, target, tuning.metric)


def _next_normals(state: State, active: Bool[Array, "lanes"], target: LaneTarget) -> Vector:
    """Return the normals for each lane's next draw: new ones where this draw starts in this tick."""
    starts = active & (state.num_steps == 0)

    def make(key: Bits) -> Vector:
        return choose(starts, target.normal(key), state.normals)

    # a branch costs more than drawing a few normals
    if sum(part.size for part in state.normals.parts) <= FEW_NORMALS:
        return make(state.next_key)
    return lax.cond(starts.any(), make, lambda _: state.normals, state.next_key)


def _check(tree: Tree, end: PhasePoint, normals: Vector, target: LaneTarget, tuning: Tuning) -> Leaf:
    """Return the checks of a leaf; all their inner products, with sharded coordinates, are one sum over devices."""
    fixed_end = Ends(tree.fixed_end.position, tree.fixed_end.momentum)
    checkpoints = tree.checkpoints
    kinetic, next_kinetic, *spans = target.inner_products(
        (end.momentum, tuning.metric.velocity(end.momentum)),
        (normals, normals),
        *checkpoints.starts.spans(end),
        *checkpoints.halves.spans(end),
        *fixed_end.spans(end),
        *tree.joint.spans(end),
    )
    from_starts, from_halves, from_fixed_end, from_join = zip(spans[::2], spans[1::2], strict=True)
    error = broken_down(0.5 * kinetic - end.log_density - tree.energy)
    turning_from_fixed_end = u_turn(*from_fixed_end, tree.direction)
    return Leaf(
        error=error,
        diverging=error > DIVERGENCE_THRESHOLD,
        turning=checkpoints.turning(from_starts, from_halves, tree.leaf, tree.direction),
        turning_from_fixed_end=turning_from_fixed_end,
        turning_from_join=u_turn(*from_join, tree.direction),
        turning_at_join=jnp.where(tree.leaf == 0, turning_from_fixed_end, tree.turning_at_join),
        next_kinetic=0.5 * next_kinetic,
    )


def _double(
    tree: Tree, leaf: Leaf, start: Point, active: Bool[Array, "lanes"], word: Array, tuning: Tuning
) -> tuple[Tree, Endings]:
    """Return the tree, doubled in lanes whose subtree has all its leaves, and the subtrees and draws that end."""
    has_all_leaves = tree.leaf + 1 == jnp.left_shift(1, tree.depth)
    doubles = has_all_leaves & ~leaf.turning & ~leaf.diverging & active
    tree = tree.join_subtree(doubles, start, word)
    across_halves = leaf.turning_at_join | leaf.turning_from_join
    at_max_depth = tree.depth >= tuning.max_depth
    turned = leaf.turning_from_fixed_end | across_halves & (tree.depth <= CROSS_CHECK_LEVELS + 1)
    subtree_ends = has_all_leaves | leaf.turning | leaf.diverging
    draw_ends = subtree_ends & (~doubles | turned | at_max_depth) & active
    return tree, Endings(subtree_ends, draw_ends, draw_ends & doubles & ~turned & at_max_depth)


def _finish(
    now: LaneState,
    tree: Tree,
    leaf: Leaf,
    endings: Endings,
    active: Bool[Array, "lanes"],
    normals: Vector,
    keys: Keys,
) -> tuple[LaneState, Bool[Array, "lanes"], Info]:
    """Return the lanes after the tick, which draws have ended, and their statistics."""
    state: State = now.kernel_state
    draw_ended = endings.draw
    num_steps = state.num_steps + 1
    acceptance = state.acceptance + jnp.minimum(1.0, jnp.exp(-leaf.error))
    energy = tree.energy + tree.sample_error
    info = Info(acceptance / num_steps, leaf.diverging, num_steps, energy, tree.depth, endings.reached_max_depth)

    at_rest = draw_ended | ~active
    draw = now.draw + draw_ended
    key = choose(draw_ended, state.next_key, state.key)
    steps = jnp.where(at_rest, 0, num_steps)
    state = state._replace(
        tree=tree.after(endings.subtree, at_rest),
        num_steps=steps,
        acceptance=jnp.where(at_rest, 0.0, acceptance),
        key=key,
        next_key=keys.of_draw(draw + 1),
        bits=_bits(key, steps),
        normals=normals,
        kinetic=leaf.next_kinetic,
    )
    return LaneState(draw, choose(draw_ended, tree.sample, now.at), state), draw_ended, info


def _bits(key: Bits, num_steps: Integer[Array, "lanes"]) -> Bits:
    """Return random bits for a leapfrog; the first word of their counter is 1, and 0 for those of the momentum."""
    number = num_steps.astype(jnp.uint32)
    return threefry(key, jnp.ones_like(number), number)


def nuts(
    max_depth: int = 10,
    *,
    step_size: float | None = None,
    initial_step_size: float = 0.1,
    target_acceptance: float = 0.8,
    metric: str = "auto",
    relocate: bool = True,
    centring: str | Sequence[str] | None = None,
) -> Kernel:
    r"""Return a kernel of the No-U-Turn sampler.

    A momentum $p \sim N(0, M)$ is drawn and the trajectory of $H(x, p) = -\log\pi(x) + \tfrac12 p^\top M^{-1} p$
    doubled, forwards or backwards in time at random, until it turns back on itself. The draw is one of its points, with
    probability proportional to $e^{-H}$ and a preference for the later doublings. No chain waits for another: each
    moves by one leapfrog at a time and starts its next draw when it has ended one.

    Args:
        max_depth: the most doublings; a trajectory has up to `2**max_depth - 1` leapfrogs.
        step_size: length of a leapfrog; None tunes it in warm-up, pooled over all chains.
        initial_step_size: the step size with which tuning starts.
        target_acceptance: the acceptance rate at which tuning aims. A higher rate leads to smaller steps, which helps
            where trajectories diverge.
        metric: the form of the covariance that warm-up learns, pooled over all chains: "diagonal", a variance for
            every coordinate; "dense", correlations too; "auto", correlations where the draws show that they pay.
            With many coordinates correlations are learned along the few directions that matter most.
        relocate: in warm-up, move a chain that is stuck in a region of negligible posterior mass to the position of
            another chain; the verdict reports each move.
        centring: variables whose position warm-up chooses between centred and non-centred, element by element: their
            names, or "auto" for all latent variables of location-scale families whose location or scale depends on
            other latent variables. None leaves the model as it is written. Draws are on the model's scale in any case.

    Returns:
        A kernel for `phx.mcmc`.

    Raises:
        ValueError: when a hyperparameter is out of range.

    Example:
        >>> import phalanx as phx
        >>> phx.nuts(max_depth=8, target_acceptance=0.9).name
        'nuts(max_depth=8, step_size=None)'

    Source:
        Hoffman, Gelman (2014), The No-U-Turn Sampler; Betancourt (2017), A conceptual introduction to Hamiltonian Monte
        Carlo; Dance, Glaser, Orbanz, Adams (2025), Efficiently vectorized MCMC on modern accelerators, for the machine;
        Gorinova, Moore, Hoffman (2020), Automatic reparameterisation of probabilistic programs, for the centring.
    """
    check_integer("nuts", "max_depth", max_depth)
    if max_depth > DEEPEST:
        raise ValueError(
            f"nuts: max_depth must be at most {DEEPEST}, got {max_depth}: 2**{max_depth} leapfrogs a draw."
        )
    first_step_size = step_size_of("nuts", step_size, initial_step_size, target_acceptance)
    check_metric("nuts", metric)
    centring = check_centring("nuts", centring)
    more = "" if centring is None else f", centring={centring!r}"
    return Kernel(
        name=f"nuts(max_depth={max_depth}, step_size={step_size}{more})",
        machine=Nuts(max_depth),
        tuning=Tuning(first_step_size, hyperparameter(max_depth), None),
        tuners=without_none(
            Metric(metric, early_bound=("max_depth", EARLY_DEPTH)),
            StepSize(target_acceptance, "max_depth", frees_chains=True) if step_size is None else None,
        ),
        statistics=Info._fields,
        relocates=relocate,
        centring=centring,
    )
