"""Likelihoods of pixels: continuous distributions rounded to whole numbers from 0 to 255."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, lax, random
from jax.nn import log_sigmoid, log_softmax, logsumexp
from jax.scipy.special import log_ndtr
from jax.typing import ArrayLike
from numpyro.distributions import constraints

if TYPE_CHECKING:
    from jaxtyping import Float

HIGHEST = 255

NARROW = 0.02
"""Width of a bin, in standard deviations, below which density and slope in its middle give its mass: to 2e-5 of it,
and a difference of distribution functions is no more exact."""


class _Quantized(dist.Distribution):
    """A distribution on the real line, rounded to 0, 1, ..., 255; the tails beyond belong to the ends."""

    # a plain attribute, as in NumPyro's distributions
    arg_constraints: Any = {"loc": constraints.real, "scale": constraints.positive}  # noqa: RUF012
    support: Any = constraints.integer_interval(0, HIGHEST)

    def __init__(self, loc: ArrayLike, scale: ArrayLike, *, validate_args: bool | None = None):
        shape = lax.broadcast_shapes(jnp.shape(loc), jnp.shape(scale))
        real = jnp.result_type(float, loc, scale)  # loc and scale may be whole numbers
        self.loc, self.scale = (jnp.broadcast_to(jnp.asarray(x, real), shape) for x in (loc, scale))
        super().__init__(batch_shape=shape, event_shape=(), validate_args=validate_args)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw whole numbers."""
        shape = (*sample_shape, *self.batch_shape)
        draws = jnp.broadcast_to(self.loc, shape) + jnp.broadcast_to(self.scale, shape) * self._standard(key, shape)
        return jnp.clip(jnp.round(draws), 0, HIGHEST).astype(jnp.result_type(int))

    def log_prob(self, value: ArrayLike) -> Array:
        """Return the log probability of whole numbers; minus infinity for other values."""
        shape = lax.broadcast_shapes(jnp.shape(value), self.batch_shape)
        value, loc, scale = (jnp.broadcast_to(x, shape) for x in (value, self.loc, self.scale))
        lower = (value - 0.5 - loc) / scale
        upper = (value + 0.5 - loc) / scale
        log_mass = self._log_between(lower, upper, 1.0 / scale)
        log_mass = jnp.where(value <= 0, self._log_below(upper), log_mass)
        log_mass = jnp.where(value >= HIGHEST, self._log_below(-lower), log_mass)
        possible = (value >= 0) & (value <= HIGHEST) & (value == jnp.round(value))
        return jnp.where(possible, log_mass, -jnp.inf)  # minus infinity for pixels from 0 to 1, for instance

    def _standard(self, key: Array, shape: tuple[int, ...]) -> Float[Array, "..."]:
        raise NotImplementedError

    def _log_below(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        raise NotImplementedError

    def _log_between(
        self, lower: Float[Array, "*shape"], upper: Float[Array, "*shape"], width: Float[Array, "*shape"]
    ) -> Float[Array, "*shape"]:
        raise NotImplementedError


class QuantizedLogistic(_Quantized):
    r"""$P(k) = \sigma((k + \frac12 - m) / s) - \sigma((k - \frac12 - m) / s)$ for $k$ = 0, 1, ..., 255, ends open.

    Args:
        loc: location $m$, on the scale of 0 to 255.
        scale: scale $s$, on the scale of 0 to 255.
        validate_args: as for any distribution.

    Example:
        >>> import jax.numpy as jnp, phalanx as phx
        >>> round(float(jnp.exp(phx.flows.QuantizedLogistic(100.0, 20.0).log_prob(jnp.arange(256))).sum()), 4)
        1.0

    Source:
        Kingma, Salimans, Jozefowicz, Chen, Sutskever, Welling (2016), Improved variational inference with inverse
        autoregressive flow.
    """

    def _standard(self, key: Array, shape: tuple[int, ...]) -> Float[Array, "..."]:
        return random.logistic(key, shape, self.loc.dtype)

    def _log_below(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return log_sigmoid(x)

    def _log_between(
        self, lower: Float[Array, "*shape"], upper: Float[Array, "*shape"], width: Float[Array, "*shape"]
    ) -> Float[Array, "*shape"]:
        # the difference of two sigmoids as a product, so that no digits cancel, however far out or wide the bin is
        return log_sigmoid(upper) + log_sigmoid(-lower) + jnp.log(-jnp.expm1(-width))


class QuantizedNormal(_Quantized):
    r"""$P(k) = \Phi((k + \frac12 - m) / s) - \Phi((k - \frac12 - m) / s)$ for $k$ = 0, 1, ..., 255, ends open.

    Args:
        loc: location $m$, on the scale of 0 to 255.
        scale: scale $s$, on the scale of 0 to 255.
        validate_args: as for any distribution.

    Example:
        >>> import jax.numpy as jnp, phalanx as phx
        >>> round(float(jnp.exp(phx.flows.QuantizedNormal(100.0, 20.0).log_prob(jnp.arange(256))).sum()), 4)
        1.0
    """

    def _standard(self, key: Array, shape: tuple[int, ...]) -> Float[Array, "..."]:
        return random.normal(key, shape, self.loc.dtype)

    def _log_below(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return log_ndtr(x)

    def _log_between(
        self, lower: Float[Array, "*shape"], upper: Float[Array, "*shape"], width: Float[Array, "*shape"]
    ) -> Float[Array, "*shape"]:
        middle = 0.5 * (lower + upper)
        # mirrored into the lower tail, where the distribution function keeps its digits
        high = jnp.where(middle > 0, -lower, upper)
        narrow = width < NARROW
        low = jnp.where(narrow, high - 1.0, high - width)  # the branch that is not chosen needs a finite gradient, too
        higher = log_ndtr(high)
        difference = higher + jnp.log(-jnp.expm1(jnp.minimum(log_ndtr(low) - higher, -1e-7)))
        fall = jnp.maximum(jnp.abs(middle) * width, 1e-6)  # change of the log density across the bin
        slope = 0.5 * fall + jnp.log(-jnp.expm1(-fall) / fall)
        density = -0.5 * middle**2 - 0.5 * math.log(2.0 * math.pi) + jnp.log(width) + slope
        return jnp.where(narrow, density, difference)


class QuantizedLogisticMixture(dist.Distribution):
    """A mixture of logistics, rounded to 0, 1, ..., 255.

    Args:
        logits: logits of the components, along the last axis: `(..., component)`.
        loc: locations on the scale of 0 to 255, `(..., component)`.
        scale: scales on the scale of 0 to 255, `(..., component)`.
        validate_args: as for any distribution.

    Example:
        >>> import jax.numpy as jnp, phalanx as phx
        >>> mixture = phx.flows.QuantizedLogisticMixture(jnp.zeros(2), jnp.array([0.0, 200.0]), jnp.array([1.0, 9.0]))
        >>> mixture.log_prob(jnp.arange(256)).shape
        (256,)

    Source:
        Salimans, Karpathy, Chen, Kingma (2017), PixelCNN++: improving the PixelCNN with discretized logistic mixture
        likelihood.
    """

    arg_constraints: Any = {  # noqa: RUF012  # as above
        "logits": constraints.real_vector,
        "loc": constraints.real_vector,
        "scale": constraints.independent(constraints.positive, 1),
    }
    support: Any = constraints.integer_interval(0, HIGHEST)

    def __init__(self, logits: ArrayLike, loc: ArrayLike, scale: ArrayLike, *, validate_args: bool | None = None):
        shape = lax.broadcast_shapes(jnp.shape(logits), jnp.shape(loc), jnp.shape(scale))
        self.logits, self.loc, self.scale = (jnp.broadcast_to(x, shape) for x in (logits, loc, scale))
        super().__init__(batch_shape=shape[:-1], event_shape=(), validate_args=validate_args)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw whole numbers."""
        of_component, of_value = random.split(key)
        shape = (*sample_shape, *self.batch_shape)
        which = random.categorical(of_component, jnp.broadcast_to(self.logits, (*shape, self.logits.shape[-1])))
        values = QuantizedLogistic(self.loc, self.scale, validate_args=False).sample(of_value, sample_shape)
        return jnp.take_along_axis(values, which[..., None], -1)[..., 0]

    def log_prob(self, value: ArrayLike) -> Array:
        """Return the log probability of whole numbers."""
        of_each = QuantizedLogistic(self.loc, self.scale, validate_args=False).log_prob(jnp.asarray(value)[..., None])
        return logsumexp(of_each + jnp.broadcast_to(log_softmax(self.logits, -1), of_each.shape), -1)
