r"""Log density of a variable on an interval at its logit, which keeps the digits that a value near the upper end loses.

A latent variable on $(a, b)$ is $x = a + (b - a) \sigma(u)$. In float32 the largest $x < 1$ is $1 - 6 \cdot 10^{-8}$,
beyond which Beta(.1, .1) has a tenth of its mass: a density computed from $x$ is constant there, and that mass is lost.
$\log x = \log \sigma(u)$ and $\log(1 - x) = \log \sigma(-u)$ are exact for every $u$.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.nn import log_sigmoid
from numpyro.distributions import (
    Beta,
    Distribution,
    ExpandedDistribution,
    Independent,
    Kumaraswamy,
    MaskedDistribution,
    MixtureGeneral,
    MixtureSameFamily,
    TransformedDistribution,
)
from numpyro.distributions.transforms import AffineTransform, ComposeTransform, SigmoidTransform, Transform

from phalanx.distributions.precise import log_prob_of_beta_at_logit, precise
from phalanx.distributions.supports import PrecomputedDensity
from phalanx.mesh.compatibility.numpyro_internals import components_of, with_components


def at_logit(distribution: Distribution, logit: Array, value: Array) -> Distribution:
    """Return the distribution with its log density fixed at that of `logit`, or the same one if no rule applies.

    Rules exist for distributions whose density is singular, or computed from the logit, at the ends of an interval:
    Beta, Kumaraswamy, sigmoids of other variables (logit-normal, relaxed Bernoulli), mixtures of these and affine
    transforms of them, also under `.to_event`, `.expand` and `.mask`.

    Args:
        distribution: of a latent variable on an interval.
        logit: the variable's unconstrained value, elementwise.
        value: the variable's value, for components of mixtures that have no rule.
    """
    if isinstance(distribution, Independent | ExpandedDistribution | MaskedDistribution):
        base = at_logit(distribution.base_dist, logit, value)
        if base is distribution.base_dist:
            return distribution
        distribution = copy(distribution)
        distribution.base_dist = base
        return distribution
    log_prob = _log_prob(distribution, logit, value)
    return distribution if log_prob is None else PrecomputedDensity(distribution, log_prob)


def logit_of(transform: Transform, unconstrained: Array) -> Array | None:
    """Return the logit from the lower end of an interval to the upper; None if the bijection onto it is no sigmoid."""
    first, *others = _flat([transform])
    if not isinstance(first, SigmoidTransform) or not all(isinstance(part, AffineTransform) for part in others):
        return None
    turns = sum(_turns(part) for part in others if isinstance(part, AffineTransform))
    return -unconstrained if turns % 2 else unconstrained


def _log_prob(distribution: Distribution, logit: Array, value: Array) -> Array | None:
    """Return the log density of a variable with this logit, or None without a rule."""
    if isinstance(distribution, Beta):
        a = jnp.asarray(distribution.concentration1)
        b = jnp.asarray(distribution.concentration0)
        return log_prob_of_beta_at_logit(a, b, logit)
    if isinstance(distribution, Kumaraswamy):
        a = jnp.asarray(distribution.concentration1)
        b = jnp.asarray(distribution.concentration0)
        return jnp.log(a * b) + (a - 1.0) * log_sigmoid(logit) + (b - 1.0) * _log_rest(a, logit)
    if isinstance(distribution, TransformedDistribution):
        return _of_transformed(distribution.base_dist, _flat(distribution.transforms), logit, value)
    if isinstance(distribution, MixtureSameFamily | MixtureGeneral):
        return _of_mixture(distribution, logit, value)
    return None


def _log_rest(power: Array, logit: Array) -> Array:
    r"""Return $\log(1 - x^a)$; far out, where $x$ is nearly 1, it is $\log a - u$."""
    far = logit > -0.6 * jnp.log(jnp.finfo(logit.dtype).eps)
    return jnp.where(far, jnp.log(power) - logit, jnp.log(-jnp.expm1(power * log_sigmoid(jnp.where(far, 0.0, logit)))))


def _of_transformed(base: Distribution, transforms: list[Transform], logit: Array, value: Array) -> Array | None:
    if not transforms:
        log_density = at_logit(base, logit, value)
        return None if log_density is base else jnp.asarray(log_density.log_prob(value))
    last = transforms[-1]
    rest = transforms[:-1]
    inner = TransformedDistribution(base, rest) if rest else base
    if isinstance(last, SigmoidTransform):
        return jnp.asarray(precise(inner).log_prob(logit)) - _joined(log_sigmoid(logit) + log_sigmoid(-logit), inner)
    if isinstance(last, AffineTransform):
        log_density = _of_transformed(base, rest, -logit if _turns(last) else logit, jnp.asarray(last.inv(value)))
        return None if log_density is None else log_density - _joined(last.log_abs_det_jacobian(value, value), inner)
    return None


def _joined(terms: Any, distribution: Distribution) -> Array:
    """Sum elementwise terms over the dimensions of an event."""
    return jnp.sum(terms, axis=tuple(range(-distribution.event_dim, 0)))


def _turns(transform: AffineTransform) -> bool:
    """Return whether the transform swaps the ends of the interval; NumPyro assumes traced scales to be positive."""
    return not isinstance(transform.scale, Tracer) and bool(np.all(np.less(transform.scale, 0)))


def _of_mixture(distribution: MixtureSameFamily | MixtureGeneral, logit: Array, value: Array) -> Array | None:
    before = components_of(distribution)
    at = (logit, value)
    if isinstance(distribution, MixtureSameFamily):
        at = tuple(jnp.expand_dims(array, distribution.mixture_dim) for array in at)
    after = [at_logit(component, *at) for component in before]
    if all(a is b for a, b in zip(before, after, strict=True)):
        return None
    return jnp.asarray(precise(with_components(distribution, after)).log_prob(value))


def _flat(transforms: Any) -> list[Transform]:
    return [
        part
        for transform in transforms
        for part in (_flat(transform.parts) if isinstance(transform, ComposeTransform) else [transform])
    ]
