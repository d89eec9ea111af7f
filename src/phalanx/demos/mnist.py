"""Bayesian softmax regression on all 60,000 images of MNIST, sharded over every device, 100 leapfrogs a draw."""

from __future__ import annotations

import jax

from phalanx.datasets import mnist
from phalanx.demos.options import DemoOptions, Sizes, choose
from phalanx.demos.softmax_regression import run
from phalanx.kernels.hmc import hmc
from phalanx.posterior.posterior import Posterior

DEFAULT = Sizes(chains=4, warmup=1000, draws=1000)


def main(options: DemoOptions) -> Posterior:
    """Run the demo with 100 leapfrogs a draw; the first half of warm-up tunes the step size from 1e-2."""
    sizes = choose(options, DEFAULT)
    kernel = hmc(
        num_steps=100,
        initial_step_size=1e-2,
        target_acceptance=0.75,
        tuned_steps=sizes.warmup // 2,
        step_size_jitter=0.0,
        metric="identity",
    )
    shards = jax.device_count() if options.data_shards is None else options.data_shards
    return run(mnist(options.data), kernel, sizes, shards, options)
