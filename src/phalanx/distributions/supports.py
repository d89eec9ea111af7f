r"""Supports of distributions: the values that can be drawn, and densities that are zero elsewhere.

NumPyro takes the support of a mixture from its first component, and that of a transformed distribution from the domain
that the transform declares, which is the whole line unless the user names another. Here the support of a mixture is
that of any of its components, and that of a transformed distribution the image of its base's support. NumPyro's
densities outside of a support are often finite (2 under a uniform distribution on the unit interval has density 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from numpyro import distributions
from numpyro.distributions import (
    Delta,
    Distribution,
    ExpandedDistribution,
    FoldedDistribution,
    Independent,
    LeftTruncatedDistribution,
    MaskedDistribution,
    MixtureGeneral,
    MixtureSameFamily,
    RightTruncatedDistribution,
    TransformedDistribution,
    TwoSidedTruncatedDistribution,
    Unit,
    constraints,
)
from numpyro.distributions.constraints import Constraint
from numpyro.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    IdentityTransform,
    PowerTransform,
    SigmoidTransform,
    SoftplusTransform,
    Transform,
)

from phalanx.mesh.compatibility.numpyro_internals import components_of, mask_of, with_components
from phalanx.mesh.specs import PyTree

Bounds = tuple[Any, Any]
"""Lower and upper bound, elementwise; numbers of Python where they are known without the values of a trace."""

ROUNDING = 4
"""Units in the last place by which a transform and its inverse may change a value at a bound."""

REAL = (constraints.real, constraints.real_vector, constraints.real_matrix)
"""Supports of all real numbers, and arrays of them."""

POSITIVE = (constraints.positive, constraints.nonnegative, constraints.softplus_positive)
"""Supports of positive numbers, with zero or without."""

TRUNCATED = (LeftTruncatedDistribution, RightTruncatedDistribution, TwoSidedTruncatedDistribution)
"""Distributions whose bounds may be infinite, in some rows or all."""

CIRCLE = type(constraints.circular)
"""Class of the support of angles."""

HURDLES = tuple(filter(None, [getattr(distributions, "HurdleProbs", None)]))
"""Distributions of zero and other numbers; older releases of NumPyro have none."""

MONOTONE = (
    AffineTransform,
    ExpTransform,
    IdentityTransform,
    PowerTransform,
    SigmoidTransform,
    SoftplusTransform,
)
"""Transforms of numbers that map the ends of an interval to the ends of its image."""


def is_computed(constraint: Constraint) -> bool:
    """Return whether a constraint contains values that are computed while a program is traced, such as a bound."""
    return any(isinstance(leaf, Tracer) for leaf in _leaves(vars(constraint)))


def in_words(support: Constraint | None) -> str:
    """Return a support as text; if a bound is computed, its kind alone, such as "interval"."""
    if not isinstance(support, Constraint) or not is_computed(support):
        return str(support)
    while isinstance(base := getattr(support, "base_constraint", None), Constraint):
        support = base
    letters = (f" {letter.lower()}" if letter.isupper() else letter for letter in type(support).__name__.strip("_"))
    return "".join(letters).strip()


def _leaves(attributes: object) -> Iterator[object]:
    """Yield the leaves of attributes, for a user's constraint may lack the methods that flatten it."""
    for leaf in jax.tree.leaves(attributes, is_leaf=lambda node: isinstance(node, Constraint | Transform)):
        if isinstance(leaf, Constraint | Transform):
            yield from _leaves(vars(leaf))
        else:
            yield leaf


def kind_of(distribution: Any) -> str:
    """Return the class name of a distribution under `.to_event`, `.expand` and `.mask`."""
    while type(distribution).__name__ in ("Independent", "ExpandedDistribution", "MaskedDistribution"):
        distribution = distribution.base_dist
    return type(distribution).__name__


def entrywise(distribution: Distribution) -> Distribution:
    """Return the distribution of single entries: `.to_event`, which sums their log densities, is undone.

    `.expand`, `.mask` and elementwise transforms are kept. A distribution of dependent entries, such as a multivariate
    normal, is returned as it is.
    """
    if isinstance(distribution, Independent):
        return entrywise(distribution.base_dist)
    base = getattr(distribution, "base_dist", None)
    inner = entrywise(base) if isinstance(base, Distribution) else None
    if inner is None or inner is base:
        return distribution
    num_dims = len(distribution.event_shape) - len(inner.event_shape)
    if isinstance(distribution, ExpandedDistribution):
        return inner.expand((*distribution.batch_shape, *distribution.event_shape[:num_dims]))
    if isinstance(distribution, MaskedDistribution):
        mask = mask_of(distribution)
        return MaskedDistribution(
            inner, mask if isinstance(mask, bool) else _widened(mask, num_dims, inner.batch_shape)
        )
    if isinstance(distribution, TransformedDistribution):
        single = all(t.domain.event_dim == 0 == t.codomain.event_dim for t in distribution.transforms)
        return TransformedDistribution(inner, distribution.transforms) if single else distribution
    return distribution


def entries_of_support(support: Any) -> Any:
    """Return the support of one entry of a value whose support is an array of independent entries."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def _widened(mask: Array, dims: int, shape: tuple[int, ...]) -> Array:
    return jnp.broadcast_to(mask.reshape(*mask.shape, *(1,) * dims), shape)


def support_of(distribution: Any) -> Any:
    """Return the support of a distribution: the values that it can draw.

    Raises:
        NotImplementedError: when the support of a mixture is unknown; the message names the components.
    """
    if isinstance(distribution, ExpandedDistribution | MaskedDistribution):
        return support_of(distribution.base_dist)
    if isinstance(distribution, Independent):
        return _joined(support_of(distribution.base_dist), distribution.reinterpreted_batch_ndims)
    if isinstance(distribution, MixtureSameFamily | MixtureGeneral):
        return _of_mixture(distribution) if _has_support_of_its_class(distribution) else distribution.support
    if isinstance(distribution, FoldedDistribution):
        return _of_folded(distribution)
    if isinstance(distribution, TransformedDistribution) and _has_support_of_its_class(distribution):
        return _of_transformed(distribution)
    if isinstance(distribution, HURDLES) and not (base := support_of(distribution.base_dist)).is_discrete:
        zero = RealInterval(0.0, 0.0)
        return AnyOf([zero, base], ["a point at zero", kind_of(distribution.base_dist)], False, has_points=True)
    support = distribution.support
    if isinstance(distribution, TRUNCATED) and not _all_finite(bounds := bounds_of(support)):
        return RealInterval(*bounds)
    return support


def within_support(distribution: Any) -> Any:
    """Return a distribution whose density is zero where it draws no values.

    It is the same distribution if NumPyro knows its support: if it is no mixture of components with different supports,
    and no transform of a part of the transform's domain.
    """
    if isinstance(distribution, Independent | ExpandedDistribution | MaskedDistribution):
        return _with_base(distribution, within_support(distribution.base_dist))
    if isinstance(distribution, MixtureGeneral | MixtureSameFamily):
        return _within_components(distribution)
    if isinstance(distribution, FoldedDistribution) and support_of(distribution) is not distribution.support:
        return _unvalidated(_with_base(distribution, OnSupport(distribution.base_dist)))
    if isinstance(distribution, TransformedDistribution) and isinstance(_entry_support(distribution), Image):
        return _unvalidated(distribution)
    if isinstance(distribution, HURDLES) and isinstance(_entry_support(distribution), AnyOf):
        return _unvalidated(distribution)
    return distribution


def _within_components(mixture: MixtureGeneral | MixtureSameFamily) -> Distribution:
    before = components_of(mixture)
    inner = [within_support(component) for component in before]
    points = [component for component in inner if _is_point(component)]
    support = _entry_support(mixture)
    if points and len(points) < len(inner):
        inner = [part if _is_point(part) else OnSupport(part, points) for part in inner]
    elif isinstance(support, AnyOf) or (isinstance(mixture, MixtureSameFamily) and isinstance(support, RealInterval)):
        inner = [OnSupport(component) for component in inner]
    if all(a is b for a, b in zip(before, inner, strict=True)):
        return mixture
    return _unvalidated(with_components(mixture, inner))


def is_outside(distribution: Any, value: ArrayLike) -> Array:
    """Return which values are outside of a distribution's support; masked values never are."""
    if isinstance(distribution, MaskedDistribution):
        return is_outside(distribution.base_dist, value) & jnp.asarray(mask_of(distribution))
    if isinstance(distribution, ExpandedDistribution):
        return is_outside(distribution.base_dist, value)
    if isinstance(distribution, Independent):
        bad = is_outside(distribution.base_dist, value)
        return jnp.any(bad, axis=tuple(range(max(bad.ndim - distribution.reinterpreted_batch_ndims, 0), bad.ndim)))
    return jnp.logical_not(support_of(distribution)(value))


def zero_outside(distribution: Distribution, value: ArrayLike, log_prob: Array) -> Array:
    """Return the log density of real numbers with minus infinity for those that are outside of a bounded support.

    Bounds, and observed values, may be computed from latent variables, as in `obs=y - shift`.
    """
    support = _entry_support(distribution)
    if support is None or support.event_dim or support is constraints.real or support.is_discrete:
        return log_prob
    return jnp.where(is_outside(distribution, value), -jnp.inf, log_prob)


class OnSupport(Distribution):
    """Distribution whose log density is minus infinity outside of its support.

    Args:
        base_dist: the distribution.
        points: the other components of a mixture that are at one point each; at these points the density is zero, too.
    """

    def __init__(self, base_dist: Distribution, points: Sequence[Distribution] = ()) -> None:
        self.base_dist = base_dist
        self.points = points
        super().__init__(base_dist.batch_shape, base_dist.event_shape, validate_args=False)

    @property
    def support(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]  # numpyro declares an attribute
        """The support of the distribution."""
        return support_of(self.base_dist)

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw from the distribution."""
        return jnp.asarray(self.base_dist.sample(key, sample_shape))

    def log_prob(self, value: ArrayLike, intermediates: PyTree = None) -> Array:
        """Return the log density."""
        value = jnp.asarray(value)
        value = jnp.broadcast_to(value, jnp.broadcast_shapes(value.shape, (*self.batch_shape, *self.event_shape)))
        inside = jnp.asarray(self.support(value))
        for point in self.points:
            inside = inside & jnp.isneginf(jnp.asarray(point.log_prob(value)))
        # a value inside for the branch that is not taken: its derivatives would otherwise be NaN
        event = tuple(range(-len(self.event_shape), 0))
        safe = jnp.where(jnp.expand_dims(inside, event), value, self._some_value(value))
        return jnp.where(inside, jnp.asarray(self.base_dist.log_prob(safe)), -jnp.inf)

    def _some_value(self, value: Array) -> Array:
        try:
            return jnp.broadcast_to(jnp.asarray(self.support.feasible_like(value), value.dtype), value.shape)
        except NotImplementedError:
            return value


class RealInterval(constraints.interval):
    """Interval whose bounds, elementwise, may be infinite."""

    def __call__(self, x: Any) -> ArrayLike:
        """Return which values are between the bounds, elementwise."""
        return jnp.greater_equal(x, self.lower_bound) & jnp.less_equal(x, self.upper_bound)

    def __repr__(self) -> str:
        return f"Interval(lower_bound={self.lower_bound}, upper_bound={self.upper_bound})"

    def feasible_like(self, prototype: Any) -> Any:
        """Return values between the bounds."""
        lower = jnp.asarray(self.lower_bound, jnp.result_type(float))
        upper = self.upper_bound
        below = jnp.isfinite(lower)
        above = jnp.isfinite(upper)
        one_sided = jnp.where(below, lower + 1.0, jnp.where(above, upper - 1.0, 0.0))
        middle = jnp.where(below, lower, 0.0) / 2 + jnp.where(above, upper, 0.0) / 2
        return jnp.broadcast_to(jnp.where(below & above, middle, one_sided), jnp.shape(prototype))


class Image(Constraint):
    """Image of a support under transforms.

    Attributes:
        base: the support.
        transforms: the transforms, the first one first.
        event_dim: dimensions of an element of the image.
    """

    def __init__(self, base: Any, transforms: Sequence[Transform], event_dim: int) -> None:
        self.base = base
        self.transforms = tuple(transforms)
        self.event_dim = event_dim

    def __call__(self, x: Any) -> ArrayLike:
        """Return which values the transforms can give; values at a bound are inside in spite of rounding."""
        x = jnp.asarray(x, jnp.result_type(x, float))
        near = ROUNDING * jnp.finfo(x.dtype).eps
        inside = [self._inside(x * (1 + shift)) for shift in (0.0, near, -near)]
        return reduce(jnp.logical_or, inside)

    def _inside(self, x: Array) -> Array:
        for transform in reversed(self.transforms):
            x = jnp.asarray(transform.inv(x))
        return jnp.asarray(self.base(x))

    def __repr__(self) -> str:
        steps = ", ".join(type(transform).__name__ for transform in self.transforms)
        return f"Image(of {self.base} under {steps})"

    def feasible_like(self, prototype: Any) -> Any:
        """Return values of the image."""
        shape = jnp.shape(prototype)
        for transform in reversed(self.transforms):
            shape = transform.inverse_shape(shape)
        value = self.base.feasible_like(jnp.zeros(shape))
        for transform in self.transforms:
            value = transform(value)
        return value

    def tree_flatten(self) -> tuple[PyTree, PyTree]:
        """Return the support and the transforms, for JAX."""
        return (self.base, self.transforms), (("base", "transforms"), {"event_dim": self.event_dim})

    def eq(self, other: object, static: bool = False) -> ArrayLike:
        """Return whether another support is this one."""
        return isinstance(other, Image) and _equal(self, other)


class AnyOf(Constraint):
    """Union of the supports of a mixture's components, which differ.

    Attributes:
        supports: the supports.
        kinds: names of the components' distributions.
        is_discrete: True if all values are whole numbers.
        has_points: True if some of the components are at one point each.
    """

    def __init__(self, supports: Sequence[Any], kinds: Sequence[str], is_discrete: bool, has_points: bool) -> None:
        self.supports = tuple(supports)
        self.kinds = tuple(kinds)
        self.is_discrete = is_discrete
        self.has_points = has_points
        self.event_dim = self.supports[0].event_dim

    def __call__(self, x: Any) -> ArrayLike:
        """Return which values are in one of the supports."""
        return reduce(jnp.logical_or, (jnp.asarray(support(jnp.asarray(x))) for support in self.supports))

    def __repr__(self) -> str:
        return " or ".join(map(str, self.supports))

    @property
    def hull(self) -> Any:
        """The smallest interval, of each entry, that contains the supports.

        Raises:
            NotImplementedError: when one of them is no interval.
        """
        if self.has_points:
            raise NotImplementedError(
                f"it is a mixture of {_list(self.kinds)}: at single points it has probability, and elsewhere a density"
            )
        try:
            bounds = [bounds_of(entries_of_support(support)) for support in self.supports]
        except NotImplementedError:
            raise NotImplementedError(
                f"it is a mixture of {_list(self.kinds)}, with the supports {_list(map(in_words, self.supports))}, "
                f"which no interval contains"
            ) from None
        lower, upper = zip(*bounds, strict=True)
        hull = _interval(reduce(_least, lower), reduce(_greatest, upper))
        of_angles = any(isinstance(entries_of_support(support), CIRCLE) for support in self.supports)
        return _joined(constraints.circular if of_angles and _is_circle(hull) else hull, self.event_dim)

    def feasible_like(self, prototype: Any) -> Any:
        """Return values of the first support."""
        return self.supports[0].feasible_like(prototype)

    def tree_flatten(self) -> tuple[PyTree, PyTree]:
        """Return the supports, for JAX."""
        static_fields = {name: value for name, value in vars(self).items() if name != "supports"}
        return (self.supports,), (("supports",), static_fields)

    def eq(self, other: object, static: bool = False) -> ArrayLike:
        """Return whether another support is this one."""
        return isinstance(other, AnyOf) and _equal(self, other)


def bounds_of(support: Any) -> Bounds:
    """Return the bounds of a support of numbers.

    Raises:
        NotImplementedError: when it is no interval, or its bounds are unknown.
    """
    if support is constraints.real:
        return -math.inf, math.inf
    if support in POSITIVE:
        return 0.0, math.inf
    if isinstance(support, Image):
        return _bounds_of_image(support)
    if isinstance(support, AnyOf):
        return bounds_of(entries_of_support(support.hull))
    if isinstance(support, constraints.interval | constraints.greater_than | constraints.less_than):
        return getattr(support, "lower_bound", -math.inf), getattr(support, "upper_bound", math.inf)
    raise NotImplementedError(f"the bounds of {support} are unknown")


def _of_mixture(mixture: MixtureSameFamily | MixtureGeneral) -> Any:
    components = components_of(mixture)
    supports = [support_of(component) for component in components]
    if isinstance(mixture, MixtureSameFamily):
        return _over_components(mixture, supports[0])
    points = [_is_point(component) for component in components]
    if all(points) or _all_equal(supports):
        return supports[0]
    circles = [support for support in supports if isinstance(entries_of_support(support), CIRCLE)]
    if circles and all(map(_is_circle, supports)):
        return circles[0]
    discrete = [support.is_discrete for support in supports]
    if any(points) or any(discrete) != all(discrete):
        # a point is an interval from itself to itself
        supports = [_point(c) if is_point else s for c, s, is_point in zip(components, supports, points, strict=True)]
        return AnyOf(supports, [*map(kind_of, components)], is_discrete=False, has_points=True)
    return AnyOf(supports, [*map(kind_of, components)], is_discrete=all(discrete), has_points=False)


def _over_components(mixture: MixtureSameFamily, support: Any) -> Any:
    """Return the support of any of a mixture's components, which are the last batch dimension of one distribution."""
    if not any(np.ndim(leaf) for leaf in jax.tree.leaves(support)):
        return support
    component = mixture.component_distribution
    event_dim = len(mixture.event_shape)
    shape = (*component.batch_shape, *component.event_shape)
    lower, upper = bounds_of(entries_of_support(support))
    lower: Any = jnp.broadcast_to(lower, shape).min(-1 - event_dim)
    upper: Any = jnp.broadcast_to(upper, shape).max(-1 - event_dim)
    return _joined(RealInterval(lower, upper), event_dim)


def _point(distribution: Any) -> Any:
    """Return the support of a distribution at one point."""
    while not isinstance(distribution, Delta):
        distribution = distribution.base_dist
    point: Any = distribution.v
    return _joined(RealInterval(point, point), distribution.event_dim)


def _of_transformed(distribution: TransformedDistribution) -> Any:
    before: Any = support_of(distribution.base_dist)
    transforms = _flat(distribution.transforms)
    codomain = before
    for transform in transforms:
        if not _covers(codomain, transform):
            break
        codomain = transform.codomain
    else:
        return distribution.support
    of_entry = entries_of_support(before)
    if of_entry.event_dim == 0 and all(t.domain.event_dim == 0 == t.codomain.event_dim for t in transforms):
        return _joined(Image(of_entry, transforms, 0), before.event_dim)
    return Image(before, transforms, distribution.event_dim)


def _covers(support: Any, transform: Transform) -> bool:
    """Return whether a support is all of a transform's domain, so that its image is all of the codomain."""
    try:
        domain = entries_of_support(transform.domain)
        _ = transform.codomain.event_dim
    except (AttributeError, NotImplementedError):  # NumPyro's UnpackTransform has no codomain
        return True
    support = entries_of_support(support)
    if domain in REAL:
        return support in REAL
    if isinstance(transform, AffineTransform) and isinstance(transform.scale, Tracer):
        return False  # NumPyro takes its sign to be positive
    return _equal(support, domain) or (support in POSITIVE and domain in POSITIVE)


def _of_folded(distribution: FoldedDistribution) -> Any:
    try:
        lower, upper = bounds_of(support_of(distribution.base_dist))
    except NotImplementedError:
        return distribution.support
    if _is_infinite(lower) and _is_infinite(upper):
        return distribution.support
    nearest = _greatest(0.0, _greatest(lower, -upper))
    return _interval(nearest, _greatest(abs(lower), abs(upper)))


def _bounds_of_image(image: Image) -> Bounds:
    lower, upper = bounds_of(image.base)
    for transform in image.transforms:
        if not isinstance(transform, MONOTONE):
            raise NotImplementedError(f"the bounds of an image under {type(transform).__name__} are unknown")
        ends = _end(transform, lower), _end(transform, upper)
        lower = _least(*ends)
        upper = _greatest(*ends)
    return lower, upper


def _end(transform: Transform, bound: Any) -> Any:
    """Return a transform's value at an end of an interval: a number of NumPy's if its parameters are numbers."""
    if isinstance(transform, SigmoidTransform) and _is_infinite(bound):
        return float(np.asarray(bound) > 0)  # NumPyro's value is a little inside of the interval
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((transform, bound))):
        return transform(jnp.asarray(bound))
    with jax.ensure_compile_time_eval():
        return np.asarray(transform(jnp.asarray(bound)))


def _interval(lower: Any, upper: Any) -> Any:
    """Return the interval between bounds, as one of NumPyro's constraints where that is known to be right."""
    ends = _is_infinite(lower), _is_infinite(upper)
    if ends == (True, True):
        return constraints.real
    if not _all_finite([bound for bound, is_end in zip((lower, upper), ends, strict=True) if not is_end]):
        return RealInterval(lower, upper)
    if ends == (False, True):
        is_zero = np.ndim(lower) == 0 and float(np.asarray(lower)) == 0.0
        return constraints.positive if is_zero else constraints.greater_than(lower)
    return constraints.less_than(upper) if ends == (True, False) else constraints.interval(lower, upper)


def _is_circle(support: Any) -> bool:
    """Return whether a support is known to be all angles between -pi and pi, whatever it is called."""
    support = entries_of_support(support)
    if not isinstance(support, constraints.interval) or not _all_finite(bounds := bounds_of(support)):
        return False
    return all(np.allclose(bound, end, rtol=1e-6) for bound, end in zip(bounds, (-np.pi, np.pi), strict=True))


def _least(x: ArrayLike, y: ArrayLike) -> Any:
    return (jnp if isinstance(x, Tracer) or isinstance(y, Tracer) else np).minimum(x, y)


def _greatest(x: ArrayLike, y: ArrayLike) -> Any:
    return (jnp if isinstance(x, Tracer) or isinstance(y, Tracer) else np).maximum(x, y)


def _is_infinite(bound: ArrayLike) -> bool:
    """Return whether a bound is known to be infinite, for all elements."""
    return not isinstance(bound, Tracer) and np.ndim(bound) == 0 and bool(np.isinf(np.asarray(bound)))


def _all_finite(bounds: Iterable[ArrayLike]) -> bool:
    """Return whether bounds are known to be finite."""
    return all(not isinstance(bound, Tracer) and bool(np.isfinite(np.asarray(bound)).all()) for bound in bounds)


def _all_equal(supports: Sequence[Any]) -> bool:
    first, *others = supports
    return all(_equal(first, other) or (first in POSITIVE and other in POSITIVE) for other in others)


def _equal(support: Any, other: Any) -> bool:
    """Return whether two supports are known to be equal."""
    try:
        (leaves, tree), (others, of_other) = jax.tree.flatten(support), jax.tree.flatten(other)
    except NotImplementedError:  # a user's constraint or transform may lack the methods that flatten it
        return support is other
    return tree == of_other and all(
        a is b or (not isinstance(a, Tracer) and not isinstance(b, Tracer) and np.array_equal(a, b))
        for a, b in zip(leaves, others, strict=True)
    )


def _is_point(distribution: Any) -> bool:
    return kind_of(distribution) == "Delta"


def _has_support_of_its_class(distribution: Any) -> bool:
    """Return whether the support is computed as NumPyro's class does, and not as a subclass or a user declares it."""
    for family in (MixtureSameFamily, MixtureGeneral, TransformedDistribution):
        if isinstance(distribution, family):
            return type(distribution).support is family.support
    return False


def _entry_support(distribution: Any) -> Any:
    """Return the support of one entry of a distribution's values; see `entries_of_support`."""
    return entries_of_support(support_of(distribution))


def _unvalidated(distribution: Any) -> Any:
    """Return a distribution without NumPyro's check of values, which would be against NumPyro's own support."""
    distribution = copy(distribution)
    distribution._validate_args = False
    if isinstance(base := getattr(distribution, "base_dist", None), Distribution):
        distribution.base_dist = _unvalidated(base)
    return distribution


def _with_base(distribution: Any, base: Distribution) -> Distribution:
    if base is distribution.base_dist:
        return distribution
    distribution = copy(distribution)
    distribution.base_dist = base
    return distribution


def _joined(support: Any, dims: int) -> Any:
    """Return the support of arrays of elements, each in `support`."""
    return constraints.independent(support, dims) if dims and support is not None else support


def _flat(transforms: Iterable[Any]) -> list[Transform]:
    """Return transforms without those that are made of others."""
    parts: list[Transform] = []
    for transform in transforms:
        inner = transform.parts if isinstance(transform, ComposeTransform) else ()
        parts += _flat(inner) if inner else [transform]
    return parts


def _list(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


class PrecomputedDensity(Distribution):
    """Distribution with a given log density, which its caller has computed at the variable's value already.

    It replaces the distribution of a variable whose density has a more precise formula, or includes a sum over other
    variables. Its support is that of the replaced distribution; it cannot be drawn from.
    """

    def __init__(self, distribution: Distribution, log_prob: Array) -> None:
        self._log_density = log_prob
        self._support = support_of(distribution)
        super().__init__(distribution.batch_shape, distribution.event_shape, validate_args=False)

    @property
    def support(self) -> Constraint | None:
        """The support of the distribution."""
        return self._support

    def log_prob(self, value: ArrayLike, *_: Any, **__: Any) -> Array:
        """Return the given log density; `value` is not read."""
        return self._log_density


class SharedTerm(Unit):
    """Term of the log density of all entries of observed variables, which share what is summed out.

    Attributes:
        of: names of these variables.
    """

    pytree_aux_fields = ("of",)

    def __init__(self, log_factor: Array, of: tuple[str, ...]) -> None:
        self.of = of
        super().__init__(log_factor)
