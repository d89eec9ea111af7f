"""Checks that the end of a climb is a maximum, also where no Hessian shows it: kinks, edges of a support, plateaus."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from phalanx.diagnostics.elements import Names, element_names
from phalanx.learning.ascent import AT_TOP, Densities, LogDensity, Top, negative_hessian
from phalanx.learning.compiled import Compiled, Compiler
from phalanx.learning.hessian_products import Summit
from phalanx.variational.guides.coordinates import by_name, dtype_of, named, size_of
from phalanx.variational.guides.coverage import bounds_of
from phalanx.variational.guides.start import ModelStart
from phalanx.variational.problem import Problem

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float64

FEW = 256
"""Coordinates up to which neighbours are evaluated one by one."""

FALLS = 0.05
"""The least fall of the log density, in nats, one standard deviation away from a smooth maximum; of a normal, 0.5."""

ROUNDED = 2.0**-8
"""Fraction of the rounding errors of rows that remains in a difference of totals; most cancel."""

SOFTEST = 32
"""Principal directions, those of the least curvature, along which the fall is checked."""

LEVEL = 1e-3
"""Curvature, in the units of the diagonal, that products with a Hessian cannot distinguish from zero."""

FARTHEST = 30.0
"""Distance from a maximum to which a transformed coordinate is followed."""

WANDERS = 10.0
"""Distance along a coordinate at which the search among neighbours is given up."""

FAR = (8.0, 16.0, 32.0)
"""Distances at which the density must not have fallen along a coordinate that counts as flat."""

PUSHED = 40.0
"""Distance along a flat coordinate at which its variable is at its bound, or keeps growing."""

ROUNDS = 300
"""Most rounds of the search among neighbours."""

FIRST_STEP = 0.25
"""First step of the search among neighbours."""

LAST_STEP = 1e-4
"""Step below which the search among neighbours ends."""

BESIDE = (0.02, 0.2)
"""Distances at which all neighbours of a maximum must be lower."""

EVALUATED_AT_ONCE = 64
"""Positions that are evaluated together, and random directions in which neighbours are compared."""


def is_summit(
    log_density: LogDensity,
    densities: Densities,
    top: Top,
    log_p: Float[Array, ""],
    longest: Float[Array, "coordinate"],
) -> Bool[Array, ""]:
    """Return whether the density falls on both sides along each coordinate and each soft principal direction.

    `longest` is the farthest that each coordinate is followed: a logarithm of 30 is next to the edge of the support. At
    a far point of a plateau the gradient is zero and the curvature may be any small positive number. If rounding hides
    falls (see `is_resolved`), only the gradient and the curvature are checked.
    """
    hessian = negative_hessian(log_density, top.position)
    unit = lax.rsqrt(jnp.maximum(jnp.abs(jnp.diagonal(hessian)), 1e-30))
    values, vectors = jnp.linalg.eigh(unit[:, None] * hessian * unit[None])
    soft = min(SOFTEST, unit.size)
    scales = lax.rsqrt(jnp.maximum(values[:soft], 1e-7))
    directions = jnp.concatenate([jnp.diag(unit), (unit[:, None] * vectors[:, :soft] * scales[None]).T])
    return top.reached & jnp.isfinite(log_p) & _falls(densities, top.position, log_p, directions, longest)


def is_summit_of_many(
    densities: Densities, summit: Summit, log_p: Float[Array, ""], longest: Float[Array, "coordinate"]
) -> Bool[Array, ""]:
    """Return whether the density of many coordinates falls along the softest directions that were found.

    Along a level direction it must fall at a distance. It does along the rotations of a matrix factorisation, which
    connect maxima. If rounding hides falls (see `is_resolved`), only the gradient and the curvature are checked.
    """
    scales = lax.rsqrt(jnp.maximum(summit.curvatures[:SOFTEST], 1e-7))
    directions = summit.directions[:SOFTEST] * scales[:, None]
    rounding = 4.0 * jnp.finfo(log_p.dtype).eps * jnp.abs(log_p)
    is_at_top = (summit.predicted_gain < AT_TOP + rounding) & (jnp.min(summit.curvatures) > -LEVEL)
    return is_at_top & jnp.isfinite(log_p) & _falls(densities, summit.position, log_p, directions, longest)


def _falls(
    densities: Densities,
    position: Float[Array, "coordinate"],
    log_p: Float[Array, ""],
    directions: Float[Array, "direction coordinate"],
    longest: Float[Array, "coordinate"],
) -> Bool[Array, ""]:
    directions = directions / jnp.maximum(1.0, jnp.max(jnp.abs(directions) / longest[None], 1, keepdims=True))
    top = densities(position)

    def fall_to(end: Array) -> Array:
        fall = sum((here - there for here, there in zip(top, densities(end), strict=True)), jnp.zeros(()))
        return jnp.where(jnp.isfinite(fall), fall, jnp.inf)

    falls = lax.map(lambda by: jnp.minimum(fall_to(position + by), fall_to(position - by)), directions)
    return ~is_resolved(log_p) | jnp.all((falls > FALLS) | ~jnp.any(directions, 1))


def is_resolved(log_p: Any) -> Array:
    """Return whether rounding errors of a log density of this size are small beside a fall."""
    return abs(log_p) * np.finfo(log_p.dtype).eps * ROUNDED < FALLS / 4


def longest_of(problem: Problem) -> Float[Array, "coordinate"]:
    """Return the farthest that each coordinate is followed: infinity if it is the variable itself."""
    parts = []
    for latent in named(problem.latents):
        is_itself = latent.name in problem.whole.at_position
        parts.append(np.full(math.prod(latent.unconstrained_shape), np.inf if is_itself else FARTHEST))
    return jnp.asarray(np.concatenate(parts), dtype_of(problem.latents))


@dataclass(frozen=True)
class HostLogDensity:
    """The log density about a position, without Jacobians, evaluated from the host for a few positions at a time.

    Attributes:
        problem, compiler, arrays: the model and its data, the compiler, and the data on the devices.
        labels: labels of the entries of variables, by variable and axis.
    """

    problem: Problem
    compiler: Compiler
    arrays: tuple[Array, ...]
    labels: Names

    @cached_property
    def _size(self) -> int:
        return size_of(self.problem.latents)

    @cached_property
    def _compiled(self) -> Compiled:
        def log_densities(vectors: Array, arrays: Sequence[Array]) -> tuple[Array, dict[str, Array]]:
            data = self.problem.arguments.join(arrays)
            start = ModelStart(self.problem, data, random.key(0))

            def one(vector: Array) -> tuple[Array, dict[str, Array]]:
                position = by_name(vector, self.problem.latents)
                values = self.problem.at_position({}, position, data).values()
                return start.log_density(position, jacobian=False)(vector), values

            return self.problem.alone(lambda: jax.vmap(one)(vectors))

        return self.compiler(
            log_densities, self._cast(np.zeros((EVALUATED_AT_ONCE, self._size))), self.arrays, rarely=True
        )

    def _cast(self, vectors: np.ndarray) -> np.ndarray:
        return vectors.astype(dtype_of(self.problem.latents))

    def log_densities(self, vectors: Float[np.ndarray, "position coordinate"]) -> Float64[np.ndarray, "position"]:
        """Return log densities at positions; minus infinity in place of NaN."""
        log_densities = []
        for first in range(0, len(vectors), EVALUATED_AT_ONCE):
            part = vectors[first : first + EVALUATED_AT_ONCE]
            full_batch = self._cast(np.resize(part, (EVALUATED_AT_ONCE, self._size)))
            log_densities.append(np.asarray(self._compiled(full_batch, self.arrays)[0], np.float64)[: len(part)])
        log_ps = np.concatenate(log_densities)
        return np.where(np.isfinite(log_ps), log_ps, -np.inf)

    def log_density(self, vector: Float[np.ndarray, "coordinate"]) -> float:
        """Return the log density at a position."""
        return float(self.log_densities(vector[None])[0])

    def values(self, vector: Float[np.ndarray, "coordinate"]) -> dict[str, np.ndarray]:
        """Return the values at a position; those next to the end of their support are rounded to it."""
        full_batch = self._cast(np.resize(vector, (EVALUATED_AT_ONCE, self._size)))
        values = {name: np.array(v)[0] for name, v in self._compiled(full_batch, self.arrays)[1].items()}
        for latent in self.problem.latents:
            variable = self.problem.whole.variables[latent.name]
            for end in bounds_of(getattr(variable.distribution, "support", None)) or ():
                if end is not None and math.isfinite(end):
                    value = values[latent.name]
                    values[latent.name] = np.where(np.abs(value - end) < 1e-6, np.asarray(end, value.dtype), value)
        return values

    @property
    def coordinates(self) -> list[str]:
        """Names of the coordinates."""
        latents = named(self.problem.latents)
        return [name for v in latents for name in element_names(v.name, v.unconstrained_shape, self.labels)]

    def noise(self, log_p: float) -> float:
        """Return the rounding error of a log density."""
        return 1e-4 + 4.0 * float(np.finfo(dtype_of(self.problem.latents)).eps) * abs(log_p)

    def polished(self, vector: Float[np.ndarray, "coordinate"]) -> Float64[np.ndarray, "coordinate"]:
        """Return the end of a search among neighbours along coordinates, since gradients do not lead to kinks."""
        at = vector.astype(np.float64)
        step = FIRST_STEP
        log_p = self.log_density(vector)
        eye = np.eye(self._size)
        for _ in range(ROUNDS):
            steps = step * np.concatenate([eye, -eye])
            log_ps = self.log_densities(at + steps)
            gains = log_ps - log_p
            ups = gains[: self._size]
            downs = gains[self._size :]
            # move all that rise at once, or else the best one
            rises = ups > np.maximum(downs, 0.0)
            sinks = downs > np.maximum(ups, 0.0)
            jointly = step * (np.where(rises, 1.0, 0.0) - np.where(sinks, 1.0, 0.0))
            together = self.log_density(at + jointly)
            best = int(np.argmax(log_ps))
            move, best_log_p = (jointly, together) if together >= log_ps[best] else (steps[best], log_ps[best])
            if best_log_p > log_p + self.noise(log_p) * step:
                at = at + move
                log_p = float(best_log_p)
            else:
                step *= 0.5
            if step < LAST_STEP or np.abs(at - vector).max() > WANDERS:
                break
        return at

    def flat_directions(self, vector: Float[np.ndarray, "coordinate"]) -> Float64[np.ndarray, "coordinate"]:
        """Return the direction, 1 or -1, in which the density never falls, for each coordinate; 0 without one."""
        log_p = self.log_density(vector)
        signs = np.zeros(self._size)
        for way in (1.0, -1.0):
            log_ps = [self.log_densities(vector + way * far * np.eye(self._size)) for far in FAR]
            signs[np.min(log_ps, 0) >= log_p - 10.0 * self.noise(log_p)] = way
        return signs

    def at_bounds(self, vector: Float[np.ndarray, "coordinate"], signs: Float[np.ndarray, "coordinate"]) -> list[str]:
        """Return the names of coordinates whose value is at a bound although the density still changes along them."""
        values = self.values(vector)
        edges = []
        first = 0
        for latent in named(self.problem.latents):
            size = math.prod(latent.unconstrained_shape)
            moving = signs[first : first + size] == 0
            first = first + size
            support = getattr(self.problem.whole.variables[latent.name].distribution, "support", None)
            ends = [end for end in bounds_of(support) or () if end is not None and math.isfinite(end)]
            if values[latent.name].shape == latent.unconstrained_shape:
                value = values[latent.name]
                edges.append(np.isin(value, np.asarray(ends, value.dtype)).ravel() & moving)
            else:
                edges.append(np.zeros(size, bool))
        names = self.coordinates
        return [names[i] for i in np.flatnonzero(np.concatenate(edges))]

    def runaway(self, vector: Float[np.ndarray, "coordinate"], signs: Float[np.ndarray, "coordinate"]) -> list[str]:
        """Return the names of elements that go to infinity without a fall of the density."""
        near, far = (self.values(vector + 0.5 * part * PUSHED * signs) for part in (1.0, 2.0))
        differs = self._where(lambda a, b: not abs(a - b) <= 1e-3 * (1.0 + abs(a)), near, far)
        size = float(np.abs(vector).max())
        if not differs and size > FAR[0]:  # several together, as the coefficients that separate classes
            log_ps = self.log_densities(np.stack([vector * far for far in (2.0, 4.0)]))
            if log_ps.min() >= self.log_density(vector) - 10.0 * self.noise(self.log_density(vector)):
                values = self.values(vector)
                twice = self.values(2.0 * vector)
                differs = self._where(lambda a, b: abs(a - b) > 1.0, values, twice)
        return differs

    def rising(self, vector: Float[np.ndarray, "coordinate"]) -> list[str]:
        """Return the names of coordinates along which the density rises, the steepest first; if none, the largest."""
        beside = (self.log_densities(vector + way * np.eye(self._size)) for way in (1.0, -1.0))
        gains = np.maximum(*beside) - self.log_density(vector)
        names = self.coordinates
        return [names[i] for i in np.argsort(-gains) if gains[i] > 0] or [names[int(np.argmax(np.abs(vector)))]]

    def is_top(self, vector: Float[np.ndarray, "coordinate"], signs: Float[np.ndarray, "coordinate"]) -> bool:
        """Return whether all neighbours are lower, except along flat coordinates, whose `signs` are not 0."""
        log_p = self.log_density(vector)
        inner = np.flatnonzero(signs == 0)
        if not math.isfinite(log_p) or not len(inner):
            return math.isfinite(log_p)
        around = np.random.default_rng(0).normal(size=(EVALUATED_AT_ONCE, self._size))
        around[:, signs != 0] = 0.0
        around /= np.linalg.norm(around, axis=1, keepdims=True)
        for distance in BESIDE:
            beside = distance * np.concatenate([np.eye(self._size)[inner], -np.eye(self._size)[inner]])
            beside = self.log_densities(vector + beside)
            # next to a cliff, as where numbers underflow, the density rises and has no maximum
            if not (np.isfinite(beside) & (beside < log_p - 0.1 * self.noise(log_p))).all():
                return False
            if not (self.log_densities(vector + distance * around) < log_p + self.noise(log_p)).all():
                return False
        return True

    def _where(
        self, differ: Callable[[float, float], bool], near: dict[str, np.ndarray], far: dict[str, np.ndarray]
    ) -> list[str]:
        """Return the names of the elements whose two values differ, by the function `differ`."""
        return [
            label
            for name in [v.name for v in self.problem.latents]
            for label, a, b in zip(
                element_names(name, near[name].shape, self.labels), near[name].flat, far[name].flat, strict=True
            )
            if differ(float(a), float(b))
        ]
