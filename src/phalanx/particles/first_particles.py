"""First particles: draws from the prior on the unconstrained scale, whose density must be that of the prior."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, ImproperUniform, MaskedDistribution

from phalanx.distributions.supports import kind_of
from phalanx.errors.message_text import count
from phalanx.mesh.processes import to_host
from phalanx.particles.programs import Position, Programs
from phalanx.programs.traced_program import TracedProgram
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
    target = programs.blocks.target
    number = programs.blocks.num_chains
    lacking = np.ones(number, bool)
    position = None
    for attempt in range(ATTEMPTS):
        draws = programs.drawn(seed, attempt, arrays[:-1])
        located = programs.locate(np.uint32(seed), arrays, Initial("", draws).given(target, number).values)
        if any(int(number) for number in located.invalid.values()):
            target_with_data = target.with_arrays(arrays[:-1])
            invalid = find_invalid(
                target_with_data.program, target_with_data.arguments, target_with_data.mesh, arrays[:-1]
            )
            for (name, parameter), wrong in invalid.items():
                raise ValueError(wrong.said(name, parameter, nan_hint(target_with_data.arguments.names, arrays[:-1])))
        parts = tuple(map(to_host, located.position.parts))
        fits = to_host(located.fits) & np.all([np.isfinite(part).all(0) for part in parts], axis=0)
        new = lacking & fits
        pairs = zip(parts, parts if position is None else position, strict=True)
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


INSTEAD = "Or draw from the posterior with phx.mcmc, which needs no draws from the prior"
"""Way out where a prior cannot be drawn from."""


def check_prior(whole: TracedProgram) -> None:
    """Raise unless every latent variable has a proper prior, and something is observed.

    Raises:
        ValueError: naming the variable, and what to do.
    """
    for name, variable in whole.variables.items():
        if not variable.is_latent:
            continue
        kinds = list(_bases(variable.distribution))
        if any(isinstance(kind, ImproperUniform) for kind in kinds):
            raise ValueError(
                f"Variable {name!r} has the prior {kind_of(variable.distribution)}, which is not a distribution, and "
                f"particles begin as draws from the prior; the evidence would not be defined, either. Give it a proper "
                f"prior, such as a wide normal. {INSTEAD}."
            )
        if any(isinstance(kind, MaskedDistribution) for kind in kinds):
            raise ValueError(
                f"Variable {name!r} has a masked prior ({kind_of(variable.distribution)}), whose draws do not have its "
                f"density. Give it a prior without a mask; if phx.marginalize has made it part of a sum, let its prior "
                f"not depend on the discrete variables. {INSTEAD}."
            )
        if not _is_one(variable.scale):
            raise ValueError(
                f"Variable {name!r} is latent and has a scaled log density (phx.scale, or a scale of NumPyro's), so "
                f"that draws from the prior do not have its density. Scale the observed variables alone."
            )
    if not whole.observes:
        raise ValueError(
            "phx.smc: the model observes no data, so that the posterior is the prior, and the evidence one. Draw from "
            "it with phx.predictive(model)."
        )


def _bases(distribution: Any) -> Iterator[Distribution]:
    while distribution is not None:
        yield distribution
        distribution = getattr(distribution, "base_dist", None)


def _is_one(scale: ArrayLike) -> bool:
    return isinstance(scale, int | float | np.number) and scale == 1
