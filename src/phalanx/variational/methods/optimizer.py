"""Optimisers of stochastic steps: the default, whose gradients are cut and whose rate may fall, or one of optax's."""

from __future__ import annotations

import math
from typing import Any

from phalanx.extras import require
from phalanx.variational import checks
from phalanx.variational.guides.coordinates import size_of
from phalanx.variational.guides.guide_and_model import Pair
from phalanx.variational.methods.step import Steps
from phalanx.variational.objective import Objective

RATE = 0.05
"""Rate of the default optimiser, Adam."""

LONGEST_GRADIENT = 10.0
"""Gradient in units of a guide's widths, in nats, from which on the default optimiser cuts it."""

LONGEST_PER_COORDINATE = 1.0
"""The same for each coordinate, whose squares add up: with many coordinates it allows more than `LONGEST_GRADIENT`."""


def steps_of(
    pair: Pair, objective: Objective, optimizer: Any, num_particles: int, num_steps: int, shapes: dict[str, Any]
) -> tuple[Steps, float, bool]:
    """Return the steps of an optimiser of optax, the factor on its changes, and whether its rate falls to zero."""
    if not _is_default(optimizer):
        checks.check_update(optimizer, shapes)
        rate, transform = optimizer_of(optimizer, None, None)
        return Steps(pair, objective, transform, num_particles), rate, False
    falls = pair.guide.traits.rate_falls
    by_widths = max(LONGEST_GRADIENT, LONGEST_PER_COORDINATE * math.sqrt(size_of(pair.problem.latents)))
    longest = by_widths if pair.guide.traits.by_widths else None
    rate, transform = optimizer_of(optimizer, longest, num_steps if falls else None)
    return Steps(pair, objective, transform, num_particles), rate, falls


def optimizer_of(optimizer: Any, longest: float | None, falls_for: int | None) -> tuple[float, Any]:
    """Return a factor on changes, and an optimiser of optax; another rate of the default one does not recompile.

    Gradients in units of a guide's widths are cut to the `longest`: if a guide begins too wide, one draw may have a
    gradient of thousands of nats, whose square Adam forgets in thousands of steps, and hardly moves meanwhile.

    The rate of a flow falls for `falls_for` steps. Each of its many weights moves at random by about the rate: in a
    funnel of 100 dimensions that costs tenths of a nat, and a thousandth at the end of a cosine.
    """
    optax = require("optax")
    if not _is_default(optimizer):
        return 1.0, optax.with_extra_args_support(optimizer)
    default = optax.scale_by_adam()
    if longest is not None:
        default = optax.chain(optax.clip_by_global_norm(longest), default)
    if falls_for is not None:
        falling = optax.scale_by_schedule(optax.cosine_decay_schedule(1.0, falls_for))
        default = optax.chain(default, falling)
    return -float(RATE if optimizer is None else optimizer), default


def _is_default(optimizer: object) -> bool:
    return optimizer is None or isinstance(optimizer, float)
