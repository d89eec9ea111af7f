"""Maxima that no Hessian describes: kinks, edges of a support, and plateaus, which are none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from numpyro.distributions.transforms import IdentityTransform

from phalanx.errors.words import element_names
from phalanx.learning.ascent import AT_TOP, LogDensity, Top, negative_hessian
from phalanx.learning.compiled import Compiler
from phalanx.learning.hessian_products import Summit
from phalanx.programs.unconstrained import transform_of
from phalanx.variational.guides.coordinates import Latents, by_name, dtype_of, named, size_of
from phalanx.variational.guides.coverage import bounds_of
from phalanx.variational.guides.pair import Pair
from phalanx.variational.guides.start import Start

FEW = 256
"""Coordinates up to which neighbours are looked at one by one."""

FALLS = 0.05
"""The least fall of the log density, in nats, one standard deviation away from a smooth maximum; of a normal, 0.5."""

SOFTEST = 32
"""Principal directions along which the fall is looked at, those of the least curvature."""

LEVEL = 1e-3
"""Curvature, in the units of the diagonal, that products with a Hessian cannot tell from zero."""

LONGEST, WANDERS = 30.0, 10.0
"""How far a transformed coordinate is followed, and how far a search may lead before the density is said to rise on."""

FAR, PUSHED = (8.0, 16.0, 32.0), 40.0
"""How far out a coordinate is tried that may run away, and put where its variable is at the edge of its support."""

ROUNDS, FIRST_STEP, LAST_STEP = 300, 0.25, 1e-4
"""Rounds of the search among neighbours at most, and its steps."""

BESIDE, ROWS = (0.02, 0.2), 64
"""Distances at which neighbours must be lower, and random directions, or positions, that are looked at together."""


def is_summit(log_density: LogDensity, top: Top, height: Array, longest: Array) -> Array:
    """Return whether the density falls on both sides along each coordinate and each soft principal direction.

    `longest` is how far each coordinate is followed at most: of a logarithm, 30 is next to the edge of the support.

    A plateau that is approached far out has a gradient of zero and a curvature of any small positive number.
    """
    hessian = negative_hessian(log_density, top.position)
    unit = lax.rsqrt(jnp.maximum(jnp.abs(jnp.diagonal(hessian)), 1e-30))
    values, vectors = jnp.linalg.eigh(unit[:, None] * hessian * unit[None])
    soft = min(SOFTEST, unit.size)
    scales = lax.rsqrt(jnp.maximum(values[:soft], 1e-7))
    directions = jnp.concatenate([jnp.diag(unit), (unit[:, None] * vectors[:, :soft] * scales[None]).T])
    return top.reached & jnp.isfinite(height) & _falls(log_density, top.position, height, directions, longest)


def is_summit_of_many(log_density: LogDensity, summit: Summit, height: Array, longest: Array) -> Array:
    """Return the same of many coordinates, along the softest directions that were found.

    A level direction is none of a maximum's where the density does not fall far along it either; where it does, as
    along the rotations of a matrix factorisation, it is one of many maxima side by side.
    """
    scales = lax.rsqrt(jnp.maximum(summit.curvatures[:SOFTEST], 1e-7))
    directions = summit.directions[:SOFTEST] * scales[:, None]
    rounding = 4.0 * jnp.finfo(height.dtype).eps * jnp.abs(height)
    reached = (summit.promised < AT_TOP + rounding) & (jnp.min(summit.curvatures) > -LEVEL)
    return reached & jnp.isfinite(height) & _falls(log_density, summit.position, height, directions, longest)


def _falls(log_density: LogDensity, position: Array, height: Array, directions: Array, longest: Array) -> Array:
    directions = directions / jnp.maximum(1.0, jnp.max(jnp.abs(directions) / longest[None], 1, keepdims=True))

    def fall(direction: Array) -> Array:
        ends = jnp.stack([log_density(position + direction), log_density(position - direction)])
        return height - jnp.max(jnp.where(jnp.isfinite(ends), ends, -jnp.inf))

    falls = lax.map(fall, directions)
    is_sharp = jnp.abs(height) * jnp.finfo(height.dtype).eps < FALLS / 4  # digits left to see a fall with
    return ~is_sharp | jnp.all((falls > FALLS) | ~jnp.any(directions, 1))


def longest_of(pair: Pair) -> Array:
    """Return how far each coordinate is followed at most: without end where it is the variable itself."""
    parts = []
    for latent in named(pair.latents):
        is_itself = isinstance(transform_of(pair.problem.whole.variables[latent.name]), IdentityTransform)
        parts.append(np.full(math.prod(latent.unconstrained_shape), np.inf if is_itself else LONGEST))
    return jnp.asarray(np.concatenate(parts), dtype_of(pair.latents))


@dataclass(frozen=True)
class Ground:
    """The log density about a position, without Jacobians, as the host looks at it: a few positions at a time."""

    pair: Pair
    compiler: Compiler
    arrays: tuple[Array, ...]

    @cached_property
    def _size(self) -> int:
        return size_of(self.pair.latents)

    @cached_property
    def _compiled(self) -> Any:
        def heights(vectors: Array, arrays: Any) -> tuple[Array, Any]:
            data = self.pair.problem.data(arrays)
            start = Start(self.pair.problem, data, random.key(0))

            def one(vector: Array) -> tuple[Array, Any]:
                position = by_name(vector, self.pair.latents)
                values = self.pair.problem.at_position({}, position, data).values()
                return start.log_density(position, jacobian=False)(vector), values

            return self.pair.problem.alone(lambda: jax.vmap(one)(vectors))

        return self.compiler(heights, self._row(np.zeros((ROWS, self._size))), self.arrays, rarely=True)

    def _row(self, vectors: np.ndarray) -> np.ndarray:
        return vectors.astype(dtype_of(self.pair.latents))

    def heights(self, vectors: np.ndarray) -> np.ndarray:
        """Log densities at positions; minus infinity where there is none."""
        found = []
        for first in range(0, len(vectors), ROWS):
            part = vectors[first : first + ROWS]
            filled = self._row(np.resize(part, (ROWS, self._size)))
            found.append(np.asarray(self._compiled(filled, self.arrays)[0], np.float64)[: len(part)])
        heights = np.concatenate(found)
        return np.where(np.isfinite(heights), heights, -np.inf)

    def height(self, vector: np.ndarray) -> float:
        """The log density at a position."""
        return float(self.heights(vector[None])[0])

    def values(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """The values at a position; those next to the end of their support are put there."""
        filled = self._row(np.resize(vector, (ROWS, self._size)))
        found = {name: np.array(v)[0] for name, v in self._compiled(filled, self.arrays)[1].items()}
        for latent in self.pair.latents:
            variable = self.pair.problem.whole.variables[latent.name]
            for end in bounds_of(getattr(variable.distribution, "support", None)) or ():
                if end is not None and math.isfinite(end):
                    value = found[latent.name]
                    found[latent.name] = np.where(np.abs(value - end) < 1e-6, np.asarray(end, value.dtype), value)
        return found

    def labels(self) -> list[str]:
        """Names of the coordinates."""
        return [label for v in named(self.pair.latents) for label in element_names(v.name, v.unconstrained_shape)]

    def noise(self, height: float) -> float:
        """Return the rounding error of a log density."""
        return 1e-4 + 4.0 * float(np.finfo(dtype_of(self.pair.latents)).eps) * abs(height)

    def polished(self, vector: np.ndarray) -> np.ndarray:
        """The position that a search among neighbours along coordinates ends at; gradients do not lead to kinks."""
        at, step, height = vector.astype(np.float64), FIRST_STEP, self.height(vector)
        eye = np.eye(self._size)
        for _ in range(ROUNDS):
            steps = step * np.concatenate([eye, -eye])
            heights = self.heights(at + steps)
            gains = heights - height
            ups, downs = gains[: self._size], gains[self._size :]
            # all that rise at once, and else the best one
            rises, sinks = ups > np.maximum(downs, 0.0), downs > np.maximum(ups, 0.0)
            jointly = step * (np.where(rises, 1.0, 0.0) - np.where(sinks, 1.0, 0.0))
            together = self.height(at + jointly)
            best = int(np.argmax(heights))
            move, reached = (jointly, together) if together >= heights[best] else (steps[best], heights[best])
            if reached > height + self.noise(height) * step:
                at, height = at + move, float(reached)
            else:
                step *= 0.5
            if step < LAST_STEP or np.abs(at - vector).max() > WANDERS:
                break
        return at

    def flat_directions(self, vector: np.ndarray) -> np.ndarray:
        """Return, by coordinate, 1 or -1 for the direction in which the density never falls, or 0."""
        height, signs = self.height(vector), np.zeros(self._size)
        for way in (1.0, -1.0):
            heights = [self.heights(vector + way * far * np.eye(self._size)) for far in FAR]
            signs[np.min(heights, 0) >= height - 10.0 * self.noise(height)] = way
        return signs

    def at_edges(self, vector: np.ndarray, signs: np.ndarray) -> list[str]:
        """Coordinates that the climb has left at the edge of their support although the density still changes there."""
        values, edges, first = self.values(vector), [], 0
        for latent in named(self.pair.latents):
            size = math.prod(latent.unconstrained_shape)
            moving, first = signs[first : first + size] == 0, first + size
            support = getattr(self.pair.problem.whole.variables[latent.name].distribution, "support", None)
            ends = [end for end in bounds_of(support) or () if end is not None and math.isfinite(end)]
            if values[latent.name].shape == latent.unconstrained_shape:
                edges.append(np.isin(values[latent.name], np.asarray(ends, np.float32)).ravel() & moving)
            else:
                edges.append(np.zeros(size, bool))
        labels = self.labels()
        return [labels[i] for i in np.flatnonzero(np.concatenate(edges))]

    def runaway(self, vector: np.ndarray, signs: np.ndarray) -> list[str]:
        """Coordinates whose variables go to infinity where the density does not fall, with the values on the way."""
        near, far = (self.values(vector + 0.5 * part * PUSHED * signs) for part in (1.0, 2.0))
        found = _where(lambda a, b: not abs(a - b) <= 1e-3 * (1.0 + abs(a)), near, far, self.pair.latents)
        size = float(np.abs(vector).max())
        if not found and size > FAR[0]:  # several together, as the coefficients that separate classes
            heights = self.heights(np.stack([vector * far for far in (2.0, 4.0)]))
            if heights.min() >= self.height(vector) - 10.0 * self.noise(self.height(vector)):
                values, twice = self.values(vector), self.values(2.0 * vector)
                found = _where(lambda a, b: abs(a - b) > 1.0, values, twice, self.pair.latents)
        return found

    def rising(self, vector: np.ndarray) -> list[str]:
        """Coordinates along which the density rises, the steepest first."""
        beside = (self.heights(vector + way * np.eye(self._size)) for way in (1.0, -1.0))
        gains = np.maximum(*beside) - self.height(vector)
        labels = self.labels()
        return [labels[i] for i in np.argsort(-gains) if gains[i] > 0] or [labels[int(np.argmax(np.abs(vector)))]]

    def is_top(self, vector: np.ndarray, signs: np.ndarray) -> bool:
        """Return whether all neighbours are lower, apart from those along coordinates that are at the edge."""
        height, inner = self.height(vector), np.flatnonzero(signs == 0)
        if not math.isfinite(height) or not len(inner):
            return math.isfinite(height)
        around = np.random.default_rng(0).normal(size=(ROWS, self._size))
        around[:, signs != 0] = 0.0
        around /= np.linalg.norm(around, axis=1, keepdims=True)
        for distance in BESIDE:
            beside = distance * np.concatenate([np.eye(self._size)[inner], -np.eye(self._size)[inner]])
            beside = self.heights(vector + beside)
            # next to a cliff, such as where numbers underflow, the density rises up to it and has no maximum
            if not (np.isfinite(beside) & (beside < height - 0.1 * self.noise(height))).all():
                return False
            if not (self.heights(vector + distance * around) < height + self.noise(height)).all():
                return False
        return True


def _where(differ: Any, near: dict[str, np.ndarray], far: dict[str, np.ndarray], latents: Latents) -> list[str]:
    """Return the names of the elements of which two values differ, in the sense of `differ`."""
    names = [v.name for v in latents]
    return [
        label
        for name in names
        for label, a, b in zip(element_names(name, near[name].shape), near[name].flat, far[name].flat, strict=True)
        if differ(float(a), float(b))
    ]
