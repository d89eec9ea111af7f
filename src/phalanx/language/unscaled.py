"""Check that log densities of observations are not scaled: leave-one-out validation divides by them."""

from __future__ import annotations

from collections.abc import Mapping

from jax.typing import ArrayLike

from phalanx.language.random_variable import RandomVariable


def check_unscaled(observed: Mapping[str, RandomVariable], what: str) -> None:
    """Raise if an observed variable's log density is scaled; `what` begins the message."""
    if scaled := [name for name, variable in observed.items() if not _is_one(variable.scale)]:
        raise ValueError(
            f"{what}: {', '.join(map(repr, scaled))} has a scaled log density (phx.scale, or a scale of NumPyro's), so "
            f"dividing by the density of an observation does not leave it out. Run the model without the scale; or "
            f"compute with posterior.log_likelihood(), whose terms are not scaled."
        )


def _is_one(scale: ArrayLike) -> bool:
    return isinstance(scale, int | float) and scale == 1
