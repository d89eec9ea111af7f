r"""A search for modes that a guide never draws from.

Importance weights cannot reveal a region without draws. Climbs from dispersed starts (draws of the prior, positions
near zero, positions far around the guide's draws) may end at other maxima, and exchangeable elements have other maxima
by symmetry. A mode counts by its mass where the guide has hardly any density,

$$ \int p(x)\, 1[p(x) > r\, Z q(x)]\, dx \,/\, Z , $$

estimated by draws of the Laplace approximation at a maximum, or by the symmetry's images of the guide's own draws. A
spike without mass, such as that of a hierarchy's joint density, does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, islice
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from phalanx.diagnostics.elements import Names
from phalanx.errors.model_errors import has_no_sampler
from phalanx.language.handlers import seed as seeded
from phalanx.language.handlers import tape
from phalanx.language.parameters import with_parameters
from phalanx.learning.ascent import Climb, LogDensity, climb, curvature, negative_hessian
from phalanx.programs.unconstrained import Evaluation, to_unconstrained
from phalanx.variational.drawing import STREAM, Drawing
from phalanx.variational.guides.coordinates import flat
from phalanx.variational.guides.guide_and_model import key_of, log_weight, position_of
from phalanx.variational.guides.learned import Params
from phalanx.variational.judging.moving import in_lanes, lanes_of
from phalanx.variational.problem import Values

if TYPE_CHECKING:
    from jaxtyping import Float, UInt32

PER_KIND = 8
"""Starts of each of the three kinds."""

STEPS = 100
"""Most steps of a climb."""

FARTHEST = 40.0
"""The farthest start, in standard deviations of the guide."""

UNSEEN = 100.0
"""The ratio of the posterior's density to the guide's above which a region counts as never drawn from: a mass of 2%
there has less than one of 4,000 draws."""

MASS = 0.01
"""The mass, in parts of the guide's evidence, from which a region is reported."""

LARGEST = 512
"""Number of coordinates up to which modes are searched for."""

WHOLE = 128
"""Number of coordinates up to which the whole Hessian at a maximum is computed; beyond, its diagonal."""

TOPS = 8
"""Most maxima whose mass is estimated."""

NEARBY = 256
"""Draws about a maximum that estimate its mass."""

TRIED = 32
"""Draws that test a symmetry."""

SWAPS = 4
"""For each size of an axis, most exchanges of two elements in all variables that have such an axis."""

SUBSETS = 16
"""For each size of an axis, most exchanges of two elements in some of these variables only."""


class Mode(NamedTuple):
    """A region that the guide never draws from.

    Attributes:
        where: the values at its maximum, or the symmetry that leads there, in words.
        mass: its mass in parts of the mass that the guide draws from.
        by_symmetry: whether a symmetry of the model leads there.
    """

    where: str
    mass: float
    by_symmetry: bool


class ModeSearch(NamedTuple):
    """Result of a search for other modes.

    Attributes:
        modes: the regions, the largest first.
        said: a sentence about the extent of the search.
    """

    modes: tuple[Mode, ...]
    said: str


@dataclass(frozen=True)
class Modes:
    """Search for modes that a guide never draws from.

    Attributes:
        drawing: the guide, the model and the data.
        latents: names of the latent variables.
        labels: labels of the entries of variables, by variable and axis.
    """

    drawing: Drawing
    latents: tuple[str, ...]
    labels: Names = field(default_factory=dict)

    def search(
        self, values: Mapping[str, np.ndarray], weights: Float[np.ndarray, "draw"], log_evidence: float
    ) -> ModeSearch:
        """Search for modes, given draws of the guide, their normalised weights and the evidence by these."""
        blind = "Importance weights cannot reveal regions that the guide never samples"
        if self.drawing.pair.problem.whole.without_bijection:
            return ModeSearch((), f"{blind}; with discrete variables other modes were not searched for.")
        if self._size > LARGEST:
            return ModeSearch((), f"{blind}; with more than {LARGEST} coordinates other modes were not searched for.")
        draw_numbers = np.random.default_rng(STREAM).choice(len(weights), TRIED, p=weights)
        draws = {name: np.asarray(values[name])[draw_numbers] for name in self.latents}
        images = list(_images(draws, self.labels))
        modes = [*self._climbed(draw_numbers, log_evidence), *self._exchanged(draws, images, log_evidence)]
        tries = f"{3 * PER_KIND} climbs from dispersed starts"
        if images:
            tries += f" and {len(images)} exchanges of elements or signs"
        sentence = f"{tries} led to no other mode. {blind}, and climbs find only the modes where they end."
        return ModeSearch(tuple(sorted(modes, key=lambda mode: -mode.mass)), sentence)

    @property
    def _size(self) -> int:
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.drawing.pair.problem.whole.position))

    @cached_property
    def _lanes(self) -> int:
        return lanes_of(self.drawing)

    def _climbed(self, numbers: np.ndarray, log_evidence: float) -> list[Mode]:
        """Return the regions about maxima that climbs ended at."""
        drawing = self.drawing
        given_to = drawing.free, np.uint32(0), numbers.astype(np.uint32), drawing.arrays
        climbed = drawing.compiler(self._climbs, *given_to, identity=key_of(drawing.pair, "climbs"), rarely=True)
        tops, log_weights = map(np.asarray, climbed(*given_to))
        unseen = np.flatnonzero(log_weights - log_evidence > math.log(UNSEEN))
        best: list[int] = []
        for i in unseen[np.argsort(-log_weights[unseen])]:
            if all(np.abs(tops[i] - tops[j]).max() > 0.05 * (1.0 + np.abs(tops[j]).max()) for j in best):
                best.append(int(i))
        if not best:
            return []
        best = best[:TOPS]
        resized = np.resize(tops[best], (TOPS, tops.shape[1]))
        weighted_at = drawing.free, resized, np.float32(log_evidence), drawing.arrays
        weigh = drawing.compiler(self._weighted, *weighted_at, identity=key_of(drawing.pair, "tops"), rarely=True)
        values, masses = jax.tree.map(np.asarray, weigh(*weighted_at))
        return [
            Mode(_words({name: values[name][i] for name in self.latents}), float(masses[i]), False)
            for i in range(len(best))
            if masses[i] >= MASS
        ]

    def _exchanged(
        self, draws: dict[str, np.ndarray], images: list[tuple[str, dict[str, np.ndarray]]], log_evidence: float
    ) -> list[Mode]:
        """Return the regions that symmetries of the model lead to."""
        if not images:
            return []
        drawing = self.drawing
        first = (self.drawing.free, draws, self.drawing.arrays)
        program = drawing.compiler(self._at_values, *first, identity=key_of(drawing.pair, "at values"), rarely=True)
        log_p, _ = map(np.asarray, program(*first))
        modes = []
        for text, image in images:
            density, log_weights = map(np.asarray, program(drawing.free, image, drawing.arrays))
            with np.errstate(invalid="ignore"):
                unseen = log_weights - log_evidence > math.log(UNSEEN)
                ratio = np.where(unseen, np.exp(np.minimum(density - log_p, 0.0)), 0.0)
            if float(np.mean(ratio)) >= MASS and np.sum(ratio > MASS) > 2:
                modes.append(Mode(text, float(np.mean(ratio)), True))
        return modes

    def _densities(self, params: Params, data: Values) -> tuple[Callable[[Array], Evaluation], LogDensity]:
        """Return the model, and its log density, as functions of a position as a vector."""
        problem = self.drawing.pair.problem
        _, back = flat(problem.at_position(params, None, data).position)

        def at(vector: Float[Array, "coordinate"]) -> Evaluation:
            return problem.at_position(params, back(vector), data)

        return at, lambda vector: at(vector).log_density()

    def _climbs(
        self, free: Params, seed: Array, numbers: UInt32[Array, "draw"], arrays: Sequence[Array]
    ) -> tuple[Float[Array, "start coordinate"], Float[Array, "start"]]:
        """Return the ends of climbs, and the log importance weight at each."""
        pair = self.drawing.pair
        problem = pair.problem
        data = pair.problem.arguments.join(arrays)
        key = random.key(seed)

        def run() -> tuple[Array, Array]:
            params = pair.learned.constrain(free)
            base = random.fold_in(random.key(np.uint32(2**32 - 1)), STREAM)

            def position(number: Array) -> Array:
                draw = pair.draw(params, pair.noise(random.fold_in(base, number)), data)
                return flat(position_of(pair, params, draw, data))[0]

            positions = jax.vmap(position)(numbers)
            at, log_density = self._densities(params, data)
            size = positions.shape[1]
            dtype = positions.dtype
            near, far, of_prior = random.split(key, 3)
            about = jnp.mean(positions, 0, keepdims=True)
            sd = jnp.std(positions, 0, keepdims=True) + 1e-6
            radii = 3.0 * (FARTHEST / 3.0) ** (jnp.arange(PER_KIND) / (PER_KIND - 1))
            wide = about + radii[:, None].astype(dtype) * sd * random.normal(far, (PER_KIND, size), dtype)
            starts = [random.uniform(near, (PER_KIND, size), dtype, -2.0, 2.0), wide]
            prior = self._of_prior(params, data, of_prior)
            starts.append(about + 5.0 * (wide - about) / radii[:, None] if prior is None else prior.astype(dtype))
            start_positions = jnp.concatenate(starts)
            start_positions = jnp.where(jnp.isfinite(start_positions).all(1, keepdims=True), start_positions, about)

            def top(vector: Array) -> tuple[Array, Array]:
                summit = climb(log_density, Climb.begin(log_density, vector), STEPS).position
                weight = log_weight(pair, params, at(summit), data)
                return summit, jnp.where(jnp.isfinite(weight), weight, -jnp.inf)

            return in_lanes(top, start_positions, min(self._lanes, PER_KIND))

        return problem.alone(run)

    def _of_prior(self, params: Params, data: Values, key: Array) -> Float[Array, "start coordinate"] | None:
        """Return positions of draws from the prior; None if it cannot be drawn from."""
        model = with_parameters(self.drawing.pair.problem.program, params)

        def one(key: Array) -> Array:
            with tape() as variables:
                seeded(model, key)(**data)
            values = {name: variables[name].value for name in self.latents}
            return flat(to_unconstrained(model, values, data))[0]

        try:
            return jax.vmap(one)(random.split(key, PER_KIND))
        except Exception as error:
            if has_no_sampler(error):
                return None
            raise

    def _weighted(
        self, free: Params, tops: Float[Array, "top coordinate"], log_evidence: Array, arrays: Sequence[Array]
    ) -> tuple[dict[str, Array], Float[Array, "top"]]:
        """Return the values at maxima, and the mass about each where the guide has hardly any density."""
        pair = self.drawing.pair
        data = pair.problem.arguments.join(arrays)

        def run() -> tuple[dict[str, Array], Array]:
            params = pair.learned.constrain(free)
            at, log_density = self._densities(params, data)
            noise = random.normal(random.key(1), (NEARBY, tops.shape[1]), tops.dtype)

            def about(top: Array) -> tuple[dict[str, Array], Array]:
                scale, log_det = _laplace(log_density, top)

                def gain(noise: Array) -> Array:
                    run = at(top + scale(noise))
                    log_p = run.log_density()
                    unseen = log_weight(pair, params, run, data) - log_evidence > math.log(UNSEEN)
                    log_normal = -0.5 * jnp.sum(noise**2) - log_det - 0.5 * tops.shape[1] * math.log(2.0 * math.pi)
                    return jnp.where(unseen, jnp.exp(log_p - log_normal - log_evidence), 0.0)

                mass = jnp.mean(jnp.nan_to_num(in_lanes(gain, noise, self._lanes)))
                return at(top).values(), mass

            return lax.map(about, tops)

        return pair.problem.alone(run)

    def _at_values(
        self, free: Params, values: Mapping[str, Array], arrays: Sequence[Array]
    ) -> tuple[Float[Array, "draw"], Float[Array, "draw"]]:
        """Return the log density, without Jacobians, and the log importance weight of the latent variables' values."""
        pair = self.drawing.pair
        data = pair.problem.arguments.join(arrays)

        def run() -> tuple[Array, Array]:
            params = pair.learned.constrain(free)

            def one(values: Mapping[str, Array]) -> tuple[Array, Array]:
                position = to_unconstrained(with_parameters(pair.problem.program, params), values, data)
                run = pair.problem.at_position(params, position, data)
                return run.log_density(jacobian=False), log_weight(pair, params, run, data)

            return in_lanes(one, values, min(self._lanes, TRIED))

        return pair.problem.alone(run)


def _laplace(
    log_density: LogDensity, top: Float[Array, "coordinate"]
) -> tuple[Callable[[Array], Array], Float[Array, ""]]:
    """Return the map from standard normals to deviations of the Laplace approximation, and its log determinant."""
    if top.size <= WHOLE:
        hessian = negative_hessian(log_density, top)
        values, vectors = jnp.linalg.eigh(jnp.where(jnp.isfinite(hessian), hessian, 0.0))
        scales = lax.rsqrt(jnp.maximum(jnp.abs(values), 1e-4))
        return lambda noise: vectors @ (scales * noise), jnp.sum(jnp.log(scales))
    scales = lax.rsqrt(jnp.maximum(jnp.abs(curvature(log_density, top, random.key(0))), 1e-4))
    return lambda noise: scales * noise, jnp.sum(jnp.log(scales))


def _images(draws: Mapping[str, np.ndarray], labels: Names) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yield images of draws under exchanges of elements and changes of sign, each after its description."""
    sizes = sorted({size for v in draws.values() for size in v.shape[1:] if size > 1})
    for size in sizes[:4]:
        every = [name for name, v in draws.items() if size in v.shape[1:]]
        pairs = [(i, j) for i in range(min(size, 4)) for j in range(i)][:SWAPS]
        # other variables may have an axis of this size by chance
        fewer = islice((names for k in range(len(every) - 1, 0, -1) for names in combinations(every, k)), SUBSETS)
        for names, (i, j) in [*((every, pair) for pair in pairs), *((names, pairs[0]) for names in fewer)]:
            order = np.arange(size)
            order[[i, j]] = order[[j, i]]
            exchanged = {name: _reorder(v, size, order) if name in names else v for name, v in draws.items()}
            labels_of_size = [
                entries for name in names for entries in labels.get(name, ()) if entries and len(entries) == size
            ]
            a, b = (labels_of_size[0][j], labels_of_size[0][i]) if labels_of_size else (j, i)
            yield f"elements {a} and {b} of {', '.join(names)} exchanged", exchanged
    floats = [name for name, v in draws.items() if np.issubdtype(v.dtype, np.floating) and (v < 0).any()]
    for names in [[name] for name in floats[:4]] + ([floats] if len(floats) > 1 else []):
        yield f"{', '.join(names)} with the opposite sign", {n: -v if n in names else v for n, v in draws.items()}


def _reorder(values: np.ndarray, size: int, order: np.ndarray) -> np.ndarray:
    for axis in range(1, values.ndim):
        if values.shape[axis] == size:
            values = np.take(values, order, axis)
    return values


def _words(values: Mapping[str, np.ndarray | np.generic]) -> str:
    """Return the first few values, in words."""
    parts = []
    for name, value in list(values.items())[:4]:
        numbers = ", ".join(f"{x:.3g}" for x in np.ravel(value)[:4])
        more = ", ..." if value.size > 4 else ""
        parts.append(f"{name} = {numbers}" if value.ndim == 0 else f"{name} = [{numbers}{more}]")
    return "; ".join(parts) + ("; ..." if len(values) > 4 else "")
