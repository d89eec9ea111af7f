"""Two targets of Inference Gym with known moments, in NumPyro's language.

Source: Sountsov, Radul and contributors (2020), Inference Gym. The moments of the banana follow from its formula. Those
of the Brownian motion, with two unknown scales and ten missing observations in the middle, are computed by quadrature
over the scales, given which the path is normal. The gym's own, of 20,000 draws of Stan, differ: the noise has a mean of
.101 there, of .113 by quadrature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist


class Moments(NamedTuple):
    """Means and standard deviations `(element,)` of a variable."""

    mean: np.ndarray
    sd: np.ndarray


class Target(NamedTuple):
    """A model, its data, and the known moments of its variables by name."""

    program: Callable[..., None]
    arguments: dict[str, np.ndarray]
    known: dict[str, Moments]

    @property
    def names(self) -> tuple[str, ...]:
        """Variables with known moments."""
        return tuple(self.known)

    def data(self) -> dict[str, np.ndarray]:
        """The program's arguments."""
        return self.arguments


def _banana() -> None:
    x: Any = numpyro.sample("x", dist.Normal(0.0, 10.0))
    numpyro.sample("y", dist.Normal(0.03 * (x**2 - 100.0), 1.0))


def _brownian_motion(first: Any, last: Any) -> None:
    step: Any = numpyro.sample("step", dist.LogNormal(0.0, 2.0))
    noise: Any = numpyro.sample("noise", dist.LogNormal(0.0, 2.0))
    path: Any = numpyro.sample("path", dist.GaussianRandomWalk(step, num_steps=30))
    numpyro.sample("seen", dist.Normal(jnp.concatenate([path[:10], path[20:]]), noise), obs=jnp.append(first, last))


FIRST = (0.21592641, 0.118771404, -0.07945447, 0.037677474, -0.27885845, -0.1484156, -0.3250906, -0.22957903,
         -0.44110894, -0.09830782)  # fmt: skip
LAST = (-0.8786016, -0.83736074, -0.7384849, -0.8939254, -0.7774566, -0.70238715, -0.87771565, -0.51853573, -0.6948214,
        -0.6202789)  # fmt: skip


def _one(mean: float, sd: float) -> Moments:
    return Moments(np.array([mean]), np.array([sd]))


def _moments_of_brownian_motion(points: int = 200) -> dict[str, Moments]:
    """Return the moments of both scales and of the path, by quadrature over the logarithms of the scales."""
    seen, data, times = np.r_[0:10, 20:30], np.array([*FIRST, *LAST]), np.arange(1.0, 31.0)
    covariance = np.minimum.outer(times, times)  # of the path, for a step of one
    values, vectors = np.linalg.eigh(covariance[np.ix_(seen, seen)])
    rotated, of_path = vectors.T @ data, covariance[:, seen] @ vectors
    step, noise = (part.ravel() for part in np.meshgrid(np.linspace(-6, 2, points), np.linspace(-12, 2, points)))
    variance = np.exp(2 * step)[:, None] * values + np.exp(2 * noise)[:, None]
    log_density = -0.5 * (np.log(variance) + rotated**2 / variance).sum(1) - (step**2 + noise**2) / 8
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    gain = np.exp(2 * step)[:, None] / variance
    mean = (gain * rotated) @ of_path.T
    within = np.exp(2 * step)[:, None] * (times - gain @ np.square(of_path).T)

    def moments(mean: np.ndarray, within: Any = 0.0) -> Moments:
        middle = weights @ mean
        return Moments(middle, np.sqrt(weights @ (within + np.square(mean - middle))))

    scales = {name: np.exp(log)[:, None] for name, log in (("step", step), ("noise", noise))}
    return {**{name: moments(scale) for name, scale in scales.items()}, "path": moments(mean, within)}


TARGETS = {
    # the variance of y is 1 + .03**2 Var(x**2), with Var(x**2) = 2 * 10**4
    "banana": Target(_banana, {}, {"x": _one(0.0, 10.0), "y": _one(0.0, 19.0**0.5)}),
    "brownian_motion": Target(
        _brownian_motion,
        {"first": np.array(FIRST, np.float32), "last": np.array(LAST, np.float32)},
        _moments_of_brownian_motion(),
    ),
}  # fmt: skip
