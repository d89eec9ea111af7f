"""Distributions with a given log density."""

from __future__ import annotations

from typing import Any

from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, Unit
from numpyro.distributions.constraints import Constraint

from phalanx.distributions.supports import support_of


class Known(Distribution):
    """Distribution whose log density is known and does not depend on the value."""

    def __init__(self, distribution: Distribution, log_prob: Array) -> None:
        self._known, self._support = log_prob, support_of(distribution)
        super().__init__(distribution.batch_shape, distribution.event_shape, validate_args=False)

    @property
    def support(self) -> Constraint | None:
        """The support of the distribution."""
        return self._support

    def log_prob(self, value: ArrayLike, *_: Any, **__: Any) -> Array:
        """Return the known log density."""
        return self._known


class SharedTerm(Unit):
    """Term of the log density of all entries of observed variables, which share what is summed out.

    Attributes:
        of: names of these variables.
    """

    pytree_aux_fields = ("of",)

    def __init__(self, log_factor: Array, of: tuple[str, ...]) -> None:
        self.of = of
        super().__init__(log_factor)
