"""Independent chains on every device: HMC on a Gaussian in the plane, compared with its mean and covariance."""

from __future__ import annotations

import jax
import numpy as np
import numpyro.distributions as dist

from phalanx.demos.options import DemoOptions, Sizes, choose, mesh_with
from phalanx.demos.pictures.softmax import cloud
from phalanx.demos.show import finish, introduce
from phalanx.kernels.hmc import hmc
from phalanx.language.tracing import sample
from phalanx.posterior.posterior import Posterior
from phalanx.run.mcmc import mcmc

MEAN = np.array([1.0, -1.0])
COVARIANCE = np.array([[1.0, 0.6], [0.6, 0.8]])
PER_DEVICE = 2


def model() -> None:
    """Model a point in the plane as Gaussian."""
    sample("x", dist.MultivariateNormal(MEAN, covariance_matrix=COVARIANCE))


def main(options: DemoOptions) -> Posterior:
    """Run the demo, and write its report to `options.out`."""
    mesh = mesh_with(options.data_shards or 1)
    sizes = choose(options, Sizes(chains=PER_DEVICE * jax.device_count(), warmup=1000, draws=1000))
    introduce("Chains on every device", "\n    x ~ Normal([1, -1], [[1, 0.6], [0.6, 0.8]])\n", "none")
    posterior = mcmc(
        model,
        kernel=hmc(num_steps=10, step_size=0.1),
        num_chains=sizes.chains,
        num_warmup=sizes.warmup,
        num_samples=sizes.draws,
        seed=options.seed,
        mesh=mesh,
        matmul_precision=options.precision,
    )
    flat = posterior.draws["x"].reshape(-1, 2).astype(np.float64)
    mean, covariance = flat.mean(0), np.cov(flat.T)
    headline = {
        "mean": mean.tolist(),
        "exact_mean": MEAN.tolist(),
        "covariance": covariance.tolist(),
        "exact_covariance": COVARIANCE.tolist(),
    }
    words = (
        f"mean {np.round(mean, 3).tolist()} (exact {MEAN.tolist()}), covariance {np.round(covariance, 3).tolist()} "
        f"(exact {COVARIANCE.tolist()})"
    )
    finish(posterior, headline, words, {"draws": cloud(posterior.draws["x"], MEAN, COVARIANCE)}, options.out)
    return posterior
