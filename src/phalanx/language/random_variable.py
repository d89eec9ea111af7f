"""What tracing records: a named random variable with its distribution and value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import Distribution, Unit

from phalanx.distributions.bernoulli import mended
from phalanx.distributions.blocked import Blocked
from phalanx.distributions.independent_entries import entries
from phalanx.distributions.logit_density import at_logit
from phalanx.distributions.row_sums import total_of
from phalanx.inputs.dataframe_input import take
from phalanx.inputs.dtype_checks import fitted
from phalanx.mesh.space import only_rows
from phalanx.mesh.total import Total


@dataclass(frozen=True)
class RandomVariable:
    """A named random variable.

    Attributes:
        name: its name, unique in a program.
        distribution: its distribution; None for a value that counts nothing (deterministic, or cut off by `do`).
        value: its value, of shape sample + batch + event; None until drawn or given.
        observed: whether the value was given as data.
        axes: mesh axes its leading dimension was declared to be spread over.
        scale: factor on the log density, from `phx.scale`.
        key: what it is drawn with when it has no value.
        natural: of a value that `do` has set, the variable as it was before.
        parameter: of a parameter, what `phx.param` was told; a parameter has no distribution.
        suggested: whether the value is from a handler of NumPyro's, such as its `substitute`, and no data: inference
            moves the variable all the same, as NumPyro does.
        logit: of a latent variable on an interval, its unconstrained value, from which the density is computed.
    """

    name: str
    distribution: Distribution | None
    value: Any = None
    observed: bool = False
    axes: tuple[str, ...] = ()
    scale: Any = 1.0
    key: Array | None = None
    natural: RandomVariable | None = None
    parameter: Any = None
    suggested: bool = False
    logit: Any = None

    def log_prob(self) -> Array:
        """Log density of the value, elementwise: of shape sample + batch. Zero where there is no distribution."""
        if self.distribution is None:
            return jnp.zeros(())
        distribution = mended(self.distribution)
        if self.logit is not None:
            distribution = at_logit(distribution, self.logit, self.value)
        log_prob = jnp.asarray(distribution.log_prob(self.value))
        return log_prob if isinstance(self.scale, float) and self.scale == 1.0 else self.scale * log_prob

    def row_log_prob(self) -> Array:
        """Log density of the value, of the same sum, with events of independent entries apart.

        A device that holds padded rows can then leave out theirs, of `.to_event(1)` over rows as well.
        """
        if self.distribution is None or jnp.ndim(self.scale):
            return self.log_prob()
        return replace(self, distribution=entries(self.distribution)).log_prob()

    def total_log_prob(self, real: Array | None = None, lanes: int = 1) -> Total:
        """Log density of the value; of rows `real`, where not all of them are. See `Blocked.total`."""
        if isinstance(self.distribution, Blocked) and jnp.ndim(self.scale) == 0:
            return self.distribution.total(self.value, real, lanes, self.scale)
        log_prob = self.log_prob() if real is None else self.row_log_prob()
        return total_of(log_prob if real is None else only_rows(real, log_prob))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value: sample + batch + event."""
        return jnp.shape(self.value)

    @property
    def dtype(self) -> jnp.dtype:
        """Type of the value's elements."""
        return jnp.result_type(self.value)

    @property
    def is_latent(self) -> bool:
        """Whether inference is about this variable: it has a distribution and was not given as data."""
        return self.distribution is not None and not self.observed

    @property
    def is_given(self) -> bool:
        """Return whether it has a value that inference keeps."""
        return self.value is not None and not self.suggested

    @property
    def is_computed(self) -> bool:
        """Whether it is a deterministic value, or one that `do` has set: no random variable, and no parameter."""
        return self.distribution is None and self.parameter is None

    def complete(self) -> RandomVariable:
        """The variable with its value: given, or drawn with its key.

        Raises:
            ValueError: when a given value has the wrong shape, there is no key to draw with, or the distribution
                cannot be drawn from.
        """
        if self.parameter is not None:
            return self if self.value is not None else replace(self, value=self.parameter.start(self.name, self.key))
        if self.value is None:
            return replace(self, value=self._draw())
        value = jnp.asarray(self._given())
        if self.distribution is not None:
            self._check_shape(jnp.shape(value))
        return replace(self, value=value)

    def _given(self) -> Any:
        """The value, as an array where it is one of a table, a list or a tensor, checked as data are."""
        if self.distribution is None or isinstance(self.value, Array):
            return self.value
        where = f"Variable {self.name!r}: the value"
        value, _ = take(where, self.value)
        if isinstance(value, np.ndarray) and 0 in value.shape and not isinstance(self.distribution, Unit):
            raise ValueError(f"{where} has shape {value.shape}: it is empty, and would say nothing.")
        return fitted(where, value) if isinstance(value, np.ndarray) else value

    def _draw(self) -> Array:
        assert self.distribution is not None  # `deterministic` and `do` always carry a value
        if self.key is None:
            raise ValueError(
                f"Variable {self.name!r} has no value and no key to draw one with. Run the program under a seed, "
                f"phx.seed(program, 0)(...), or give the value with phx.condition or phx.substitute."
            )
        try:
            return jnp.asarray(self.distribution.sample(self.key))
        except NotImplementedError:
            raise ValueError(
                f"Variable {self.name!r}: {type(self.distribution).__name__} cannot be drawn from. "
                f"Give it a value with obs=, phx.condition or phx.substitute."
            ) from None

    def _check_shape(self, given: tuple[int, ...]) -> None:
        assert self.distribution is not None
        expected = (*self.distribution.batch_shape, *self.distribution.event_shape)
        if given[max(0, len(given) - len(expected)) :] != expected:
            raise ValueError(
                f"Variable {self.name!r}: the value has shape {given}, but its distribution "
                f"{type(self.distribution).__name__} needs shape {expected} (batch {self.distribution.batch_shape} + "
                f"event {self.distribution.event_shape}), or that with sample dimensions in front. "
                f"Reshape the value or the distribution's parameters."
            )
