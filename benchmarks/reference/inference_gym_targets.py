"""Two targets of Inference Gym with known moments, in NumPyro's language.

Source: Sountsov, Radul and contributors (2020), Inference Gym. The moments of the banana follow from its formula; those
of the Brownian motion, with two unknown scales and ten missing observations in the middle, are the gym's, of 20,000
draws of Stan.
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

PATH_MEAN = (
    0.10274, 0.06093, -0.03870, -0.04362, -0.19022, -0.18566, -0.26852, -0.26011, -0.33344, -0.21789, -0.27355,
    -0.33083, -0.38253, -0.43280, -0.49401, -0.54861, -0.60449, -0.65569, -0.70837, -0.76391, -0.81898, -0.81053,
    -0.77715, -0.82681, -0.77690, -0.73741, -0.77406, -0.62944, -0.67029, -0.64322,
)  # fmt: skip
PATH_SD = (
    0.08624, 0.07574, 0.06867, 0.07668, 0.07843, 0.06858, 0.07295, 0.06861, 0.08404, 0.09872, 0.15026, 0.18456, 0.20175,
    0.21100, 0.21375, 0.21556, 0.20996, 0.19723, 0.17964, 0.14308, 0.08746, 0.07333, 0.07029, 0.07571, 0.06773, 0.06852,
    0.08170, 0.08550, 0.07185, 0.08213,
)  # fmt: skip


def _one(mean: float, sd: float) -> Moments:
    return Moments(np.array([mean]), np.array([sd]))


TARGETS = {
    # the variance of y is 1 + .03**2 Var(x**2), with Var(x**2) = 2 * 10**4
    "banana": Target(_banana, {}, {"x": _one(0.0, 10.0), "y": _one(0.0, 19.0**0.5)}),
    "brownian_motion": Target(
        _brownian_motion,
        {"first": np.array(FIRST, np.float32), "last": np.array(LAST, np.float32)},
        {
            "step": _one(0.119848, 0.046682), "noise": _one(0.101053, 0.044427),
            "path": Moments(np.array(PATH_MEAN), np.array(PATH_SD)),
        },
    ),
}  # fmt: skip
