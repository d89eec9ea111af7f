"""Independent chains on every device: HMC on a Gaussian in the plane, compared with its mean and covariance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np
import numpyro.distributions as dist

import phalanx as phx
from phalanx.demos.options import DemoOptions, finish, introduce
from phalanx.report.plots import style

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.figure import Figure

MEAN = np.array([1.0, -1.0])
COVARIANCE = np.array([[1.0, 0.6], [0.6, 0.8]])
PER_DEVICE = 2


def model() -> None:
    """Model a point in the plane as Gaussian."""
    phx.sample("x", dist.MultivariateNormal(MEAN, covariance_matrix=COVARIANCE))


def main(options: DemoOptions) -> phx.Posterior:
    """Run the demo, and write its report to `options.out`."""
    mesh = options.mesh(1)
    introduce("Chains on every device", "\n    x ~ Normal([1, -1], [[1, 0.6], [0.6, 0.8]])\n", "none")
    posterior = phx.mcmc(
        model,
        kernel=phx.hmc(num_steps=10, step_size=0.1),
        **options.sizes(chains=PER_DEVICE * jax.device_count(), warmup=1000, draws=1000),
        seed=options.seed,
        mesh=mesh,
        matmul_precision=options.precision,
    )
    flat = posterior.draws["x"].reshape(-1, 2).astype(np.float64)
    mean = flat.mean(0)
    covariance = np.cov(flat.T)
    headline = {
        "mean": mean.tolist(),
        "exact_mean": MEAN.tolist(),
        "covariance": covariance.tolist(),
        "exact_covariance": COVARIANCE.tolist(),
    }
    text = (
        f"mean {np.round(mean, 3).tolist()} (exact {MEAN.tolist()}), covariance {np.round(covariance, 3).tolist()} "
        f"(exact {COVARIANCE.tolist()})"
    )
    finish(posterior, headline, text, {"draws": cloud(flat)}, options.out)
    return posterior


def cloud(draws: Float[np.ndarray, "draw 2"]) -> Figure:
    """Plot draws over ellipses of one, two and three standard deviations of the exact Gaussian."""
    figure = style.new_figure(5.2, 5.0)
    axes = figure.subplots()
    few = draws[:: max(1, len(draws) // 4000)]
    axes.plot(*few.T, ".", color=style.ACCENT, markersize=2, alpha=0.35, label="draws")
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.linalg.cholesky(COVARIANCE) @ np.stack([np.cos(angle), np.sin(angle)])
    for radius in (1, 2, 3):
        label = "1, 2, 3 standard deviations" if radius == 1 else None
        axes.plot(*(MEAN[:, None] + radius * circle), color=style.SECOND, linewidth=1.5, label=label)
    style.finish(axes, "", "first coordinate", "second coordinate", grid="both")
    style.explain(figure)
    return figure
