"""First particles: draws from the prior, on the unconstrained scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import Array

from phalanx.errors.words import count
from phalanx.mesh.processes import to_host
from phalanx.particles.programs import Position, Programs, to_host_vector
from phalanx.programs.validity import find_invalid, nan_hint
from phalanx.run.init_values import Initial

if TYPE_CHECKING:
    from jaxtyping import Float

ATTEMPTS = 10
"""Times that draws from the prior are made, if some of them have no position."""

MOST_LACKING = 0.005
"""The largest fraction of draws from the prior without a position that are made again: the log evidence is that of a
prior without them, and so wrong by this fraction in nats at most."""


def from_prior(programs: Programs, arrays: tuple[Any, ...], seed: int) -> Position:
    """Return positions of draws from the prior; a draw is a function of the seed and the particle's number.

    Args:
        programs: the compiled programs.
        arrays: the data on the devices, and a power of the likelihood.
        seed: seed of the run.

    Raises:
        ValueError: when observations are outside of their support, or too many draws have no position.
    """
    target, number = programs.blocks.target, programs.blocks.num_chains
    lacking, position = np.ones(number, bool), None
    for attempt in range(ATTEMPTS):
        drawn = programs.drawn(seed, attempt, arrays[:-1])
        located = programs.locate(np.uint32(seed), arrays, Initial("", drawn).given(target, number).values)
        if any(int(number) for number in located.invalid.values()):
            refuse_invalid(programs, arrays[:-1])
        found = to_host_vector(located.position)
        fits = to_host(located.fits) & np.all([np.isfinite(part).all(0) for part in found], axis=0)
        new = lacking & fits
        pairs = zip(found, found if position is None else position, strict=True)
        position = tuple(np.where(new, *pair) for pair in pairs)
        lacking &= ~fits
        if not lacking.any():
            return position
        if lacking.sum() > max(1, MOST_LACKING * number):
            break
    names = ", ".join(map(repr, target.sites.whole_shapes))
    raise ValueError(
        f"phx.smc: {count(int(lacking.sum()), 'draw')} of {number:,} from the prior of {names} had no position on the "
        f"unconstrained scale: values overflow, or round to the boundary of their support. Without them the evidence "
        f"would be wrong. Give priors with less mass there."
    )


def check_likelihoods(
    log_likelihood: Float[np.ndarray, "particle"], programs: Programs, arrays: Sequence[Array]
) -> None:
    """Raise if the likelihood is zero at every particle, or infinite at one."""
    target = programs.blocks.target.with_arrays(arrays)
    names = ", ".join(dict.fromkeys(repr(name) for name, _ in target.sites.of_likelihood))
    hint = nan_hint(target.arguments.names, arrays)
    if np.isposinf(log_likelihood).any():
        raise ValueError(
            f"phx.smc: the likelihood is infinite at draw {int(np.argmax(log_likelihood))} from the prior, and so is "
            f"the evidence. Check the densities of {names}, such as a scale of zero{hint}."
        )
    if not np.isfinite(log_likelihood).any():
        raise ValueError(
            f"phx.smc: the likelihood is zero, or not a number, at each of {len(log_likelihood):,} draws from the "
            f"prior, so that no weight is positive. Check the data of {names}, and priors that contradict them{hint}; "
            f"or draw from the posterior with phx.mcmc, whose chains may start elsewhere (init=)."
        )


def refuse_invalid(programs: Programs, arrays: Sequence[Array]) -> None:
    """Raise, naming the first observed value or parameter that is invalid."""
    target = programs.blocks.target.with_arrays(arrays)
    for (name, parameter), wrong in find_invalid(target.program, target.arguments, target.mesh, arrays).items():
        raise ValueError(wrong.said(name, parameter, nan_hint(target.arguments.names, arrays)))
