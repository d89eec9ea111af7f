"""Named random variable with its distribution and value, as tracing records it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import Distribution, ExpandedDistribution, Independent, MaskedDistribution, Unit

from phalanx.distributions.blocked import Blocked
from phalanx.distributions.location_scale import at_residual
from phalanx.distributions.logit_density import at_logit
from phalanx.distributions.precise import precise
from phalanx.distributions.row_sums import total_of
from phalanx.distributions.supports import entrywise, kind_of, within_support, zero_outside
from phalanx.inputs.dataframe_input import as_named_array
from phalanx.inputs.dtype_checks import to_jax_dtype
from phalanx.mesh.compatibility.numpyro_internals import mask_of
from phalanx.mesh.total import Total


@dataclass(frozen=True)
class RandomVariable:
    """A named random variable.

    Attributes:
        name: its name, unique in a program.
        distribution: its distribution; None for a value without density (deterministic, or cut off by `do`).
        value: its value, of shape sample + batch + event; None until drawn or given.
        observed: whether the value was given as data.
        axes: mesh axes that its leading dimension was declared to be sharded over.
        scale: factor on the log density, from `phx.scale`.
        key: key to draw it with when it has no value.
        natural: the original variable, if `do` has set the value.
        set_to: the value that the rest of the program sees in place of this one, if `do` has set it.
        parameter: the declaration by `phx.param`, if this is a parameter, which has no distribution.
        suggested: whether a handler of NumPyro's, such as its `substitute`, gave the value: it is not data, and
            inference moves the variable, as NumPyro does.
        logit: unconstrained value of a latent variable on an interval, from which the density is computed.
        centring: weight and unit of a latent variable's partial centring, see `PartlyCentred`; None without.
        residual: value of a partially centred variable minus its location, from which the density is computed.
        plates: NumPyro's plates around it: name, batch dimension (counted from the last, -1) and size of each.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> variable = phx.RandomVariable("x", dist.Normal(0.0, 1.0), 0.0)
        >>> round(variable.log_prob().item(), 4)
        -0.9189
    """

    name: str
    distribution: Distribution | None
    value: Any = None
    _: KW_ONLY
    observed: bool = False
    axes: tuple[str, ...] = ()
    scale: Any = 1.0
    key: Array | None = None
    natural: RandomVariable | None = None
    set_to: Any = None
    parameter: Any = None
    suggested: bool = False
    logit: Any = None
    centring: Any = None
    residual: Any = None
    plates: tuple[tuple[str, int, int], ...] = ()

    def log_prob(self) -> Array:
        """Return the log density of the value by element, of shape sample + batch; zero without a distribution."""
        if self.distribution is None:
            return jnp.zeros(())
        distribution = within_support(self.distribution)
        if self.logit is not None:
            distribution = at_logit(distribution, self.logit, self.value)
        if self.residual is not None:
            distribution = at_residual(distribution, self.residual)
        try:
            log_prob = jnp.asarray(precise(distribution).log_prob(self.value))
        except NotImplementedError as error:
            kind = type(distribution).__name__
            raise ValueError(
                f"Variable {self.name!r}: its distribution, {kind}, has no log density: {kind}.log_prob is not "
                f"implemented. It can be drawn, but inference and phx.log_joint need a density. "
                f"Implement log_prob, or sample the noise that it is computed from and compute it with "
                f"phx.deterministic."
            ) from error
        if self.observed and not isinstance(self.distribution, Unit | Blocked):
            log_prob = zero_outside(self.distribution, self.value, log_prob)
        return log_prob if isinstance(self.scale, float) and self.scale == 1.0 else self.scale * log_prob

    def row_log_prob(self) -> Array:
        """Return the log density of the value with a term for each independent entry of an event.

        The sum is that of `log_prob`. A device that holds padded rows can leave out their terms, also under
        `.to_event(1)` over rows.
        """
        if self.distribution is None:
            return self.log_prob()
        single = entrywise(self.distribution)
        num_dims = len(self.distribution.event_shape) - len(single.event_shape)
        scale = jnp.expand_dims(self.scale, [-1 - n for n in range(num_dims)]) if jnp.ndim(self.scale) else self.scale
        return replace(self, distribution=single, scale=scale).log_prob()

    def total_log_prob(self, lanes: int = 1) -> Total:
        """Return the log density of the value, for one of so many chains; see `Blocked.total`."""
        if isinstance(self.distribution, Blocked) and jnp.ndim(self.scale) == 0:
            return self.distribution.total(self.value, lanes, self.scale)
        return total_of(self.log_prob())

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value: sample + batch + event; before there is a value, the shape that it will have."""
        return jnp.shape(self._some_value)

    @property
    def dtype(self) -> jnp.dtype:
        """Type of the value's elements; before there is a value, the type that it will have."""
        return jnp.result_type(self._some_value)

    @property
    def _some_value(self) -> Any:
        """The value; before there is one, the shape and type of a draw."""
        distribution = self.distribution
        parameter = self.parameter
        if self.value is not None or (distribution is None and parameter is None):
            return self.value
        if distribution is None:
            return jax.eval_shape(lambda: parameter.start(self.name, jax.random.key(0)))
        shape = (*distribution.batch_shape, *distribution.event_shape)
        try:
            return jax.eval_shape(lambda: jnp.asarray(distribution.sample(jax.random.key(0))))
        except NotImplementedError:  # a distribution that cannot be drawn from
            return jax.ShapeDtypeStruct(shape, jnp.result_type(float))

    @property
    def is_latent(self) -> bool:
        """True if inference is about this variable: it has a distribution and was not given as data."""
        return self.distribution is not None and not self.observed

    @property
    def is_given(self) -> bool:
        """True if it has a value that inference keeps."""
        return self.value is not None and not self.suggested

    @property
    def is_computed(self) -> bool:
        """True for a deterministic value, or one that `do` has set: neither a random variable nor a parameter."""
        return self.distribution is None and self.parameter is None

    def complete(self) -> RandomVariable:
        """Return the variable with its value: given, or drawn with its key.

        Raises:
            ValueError: when a given value has the wrong shape, there is no key to draw with, or the distribution
                cannot be drawn from.
        """
        if self.parameter is not None:
            return self if self.value is not None else replace(self, value=self.parameter.start(self.name, self.key))
        if self.value is None:
            return replace(self, value=self._draw())
        value = jnp.asarray(self._given())
        if self.distribution is None:
            return replace(self, value=value)
        distribution = self._distribution_of(jnp.shape(value))
        self._check_scale(jnp.shape(value)[: jnp.ndim(value) - len(distribution.event_shape)])
        return replace(self, value=value, distribution=distribution)

    def _given(self) -> Any:
        """Return the value; a table, list or tensor becomes an array and is checked like data."""
        if self.distribution is None or isinstance(self.value, Array):
            return self.value
        where = f"Variable {self.name!r}: the value"
        value, _ = as_named_array(where, self.value)
        if isinstance(value, np.ndarray) and 0 in value.shape and not isinstance(self.distribution, Unit):
            raise ValueError(f"{where} has shape {value.shape}: it is empty, and carries no information.")
        return to_jax_dtype(where, value) if isinstance(value, np.ndarray) else value

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

    def _distribution_of(self, value_shape: tuple[int, ...]) -> Distribution:
        """Return the distribution of a given value: of data, batch dimensions of size one take the value's size."""
        assert self.distribution is not None
        batch = tuple(self.distribution.batch_shape)
        event = tuple(self.distribution.event_shape)
        ends = len(value_shape) - len(event)
        batch_dims = value_shape[max(0, ends - len(batch)) : max(0, ends)]
        stretched = tuple(n if m == 1 and self.observed else m for m, n in zip(batch, batch_dims, strict=False))
        if value_shape[max(0, ends) :] != event or batch_dims != stretched or len(batch_dims) != len(batch):
            raise ValueError(
                f"Variable {self.name!r}: the value has shape {value_shape}, but its distribution "
                f"{kind_of(self.distribution)} needs shape {(*batch, *event)} (batch {batch} + event {event}"
                f"{self._widened(batch)}), or that with sample dimensions in front. Reshape the value or the "
                f"distribution's parameters."
            )
        return self.distribution if batch_dims == batch else self.distribution.expand(batch_dims)

    def _widened(self, batch: tuple[int, ...]) -> str:
        """Return words about masks and plates that widen the distribution to `batch`; empty if none does."""
        inner: Any = self.distribution
        widening: list[str] = []
        while isinstance(inner, Independent | ExpandedDistribution | MaskedDistribution):
            if isinstance(inner, MaskedDistribution) and jnp.ndim(mask := mask_of(inner)):
                widening.append(f"a mask of shape {jnp.shape(mask)}")
            inner = inner.base_dist
        assert self.distribution is not None
        whole = (*inner.batch_shape, *inner.event_shape)
        mine = tuple(whole[: len(whole) - len(self.distribution.event_shape)])
        widening += [f"the plate {name!r} of size {size} at dim {dim}" for name, dim, size in self.plates]
        if not widening or mine == batch:
            return ""
        return f"; it has {mine} by itself, and is widened by {' and '.join(widening)}"

    def _check_scale(self, terms: tuple[int, ...]) -> None:
        """Raise if the scale has more elements than the log density, whose terms it would repeat."""
        shape = jnp.shape(self.scale)
        pairs = zip(reversed(shape), reversed(terms), strict=False)
        if len(shape) > len(terms) or any(mine not in (1, term) for mine, term in pairs):
            raise ValueError(
                f"Variable {self.name!r}: its log density, of shape {terms}, is scaled by factors of shape {shape}, "
                f"which would repeat its terms. Give one number, or one for each term."
            )
