r"""Batch and match: the normal whose scores are those of the posterior, without a gradient of the bound.

Draws $z_b$ of the guide and the scores there, $g_b = \nabla \log p(z_b)$, determine the normal whose scores are
closest, regularised towards the guide before, $q_t$; $\lambda$ weights the scores:

$$\min_q \; \tfrac{\lambda}{B} \sum_b \|\nabla\log q(z_b) - g_b\|^2_{\Sigma_q} + 2 \, \mathrm{KL}(q_t, q),$$

The solution has a closed form. In units of the guide before it takes the square root of one symmetric matrix. As many
draws as coordinates determine a normal posterior, in a few steps.

Source:
    Cai, Modi, Pillaud-Vivien, Margossian, Gower, Blei, Saul (2024), Batch and match: black-box variational inference
    with a score-based divergence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from phalanx.jaxprs.group_sums import with_group_sums
from phalanx.variational.guides.coordinates import by_name
from phalanx.variational.guides.gaussian import standard_log_prob
from phalanx.variational.guides.guide_and_model import Pair
from phalanx.variational.methods.step import FitState
from phalanx.variational.problem import Values

if TYPE_CHECKING:
    from jaxtyping import Float

FIRST_MATCHES = 50
"""Steps of the first window: a few determine a normal posterior."""


def match_scores(
    pair: Pair, state: FitState, noise: Float[Array, "particle coordinate"], data: Values, rate: ArrayLike
) -> tuple[Values, Float[Array, "particle"]]:
    """Make a step of a normal with a full covariance to the scores at its draws; return the bound of each, too.

    Noise comes in pairs of opposite signs: the scores of pairs determine the mean of a normal posterior without noise.
    """
    params = pair.learned.constrain(state.free)
    loc = params["loc"]
    tril = params["scale_tril"]

    def log_density(standard: Float[Array, "coordinate"]) -> Float[Array, ""]:
        position = by_name(loc + tril @ standard, pair.problem.latents)
        return jnp.asarray(sum(pair.log_model(params, position, data).values()))

    scored = with_group_sums(jax.value_and_grad(log_density))
    log_p, scores = pair.problem.alone(lambda: jax.vmap(scored)(noise))
    far = jnp.asarray(rate) * noise.size / (1.0 + state.step)
    shift, factor = match(noise, scores, far)
    bound = log_p - jax.vmap(standard_log_prob)(noise) + jnp.sum(jnp.log(jnp.diagonal(tril)))
    return pair.learned.free({"loc": loc + tril @ shift, "scale_tril": tril @ factor}), bound


def match(
    draws: Float[Array, "particle coordinate"], scores: Float[Array, "particle coordinate"], far: Float[Array, ""]
) -> tuple[Float[Array, "coordinate"], Float[Array, "coordinate coordinate"]]:
    r"""Return the normal that matches scores at draws of a standard normal.

    With $\bar z, \bar g, C, \Gamma$ the means and covariances of both, its covariance solves
    $\Sigma U \Sigma + \Sigma = V$, where $U = \lambda \Gamma + \frac{\lambda}{1 + \lambda} \bar g \bar g^\top$ and
    $V = I + \lambda C + \frac{\lambda}{1 + \lambda} \bar z \bar z^\top$. With $V = R R^\top$ it is
    $2 R (I + (I + 4 R^\top U R)^{1/2})^{-1} R^\top$.

    Args:
        draws: draws of a standard normal.
        scores: gradients of the log density there.
        far: weight of the scores relative to the standard normal, $\lambda$.

    Returns:
        The mean of the normal, and the Cholesky factor of its covariance.
    """
    size = draws.shape[1]
    part = far / (1.0 + far)
    mean = jnp.mean(draws, 0)
    slope = jnp.mean(scores, 0)
    # divided by 1 + far, so that numbers are of order one for any weight
    u = part * _covariance(scores, slope) + part / (1.0 + far) * jnp.outer(slope, slope)
    v = jnp.eye(size, dtype=draws.dtype) / (1.0 + far) + part * _covariance(draws, mean)
    v = v + part / (1.0 + far) * jnp.outer(mean, mean)
    root = jnp.linalg.cholesky(v)
    values, vectors = jnp.linalg.eigh(root.T @ u @ root)
    widths = 2.0 / (1.0 / (1.0 + far) + jnp.sqrt((1.0 + far) ** -2 + 4.0 * jnp.maximum(values, 0.0)))
    half = root @ vectors * jnp.sqrt(widths)[None]
    covariance = half @ half.T
    shift = part * (covariance @ slope + mean)
    return shift, jnp.linalg.cholesky(covariance)


def _covariance(
    x: Float[Array, "particle coordinate"], mean: Float[Array, "coordinate"]
) -> Float[Array, "coordinate coordinate"]:
    off = x - mean[None]
    return off.T @ off / len(x)
