"""Bayesian softmax regression on all 60,000 images of MNIST, sharded over every device, 100 leapfrogs a draw."""

from __future__ import annotations

import jax

import phalanx as phx
from phalanx.demos.digits import run
from phalanx.demos.options import DemoOptions


def main(options: DemoOptions) -> phx.Posterior:
    """Run the demo with 100 leapfrogs a draw; the first half of warm-up tunes the step size from 1e-2."""
    sizes = options.sizes(chains=4, warmup=1000, draws=1000)
    kernel = phx.hmc(
        num_steps=100,
        initial_step_size=1e-2,
        target_acceptance=0.75,
        tuned_steps=sizes["num_warmup"] // 2,
        step_size_jitter=0.0,
        metric="identity",
    )
    return run(phx.datasets.mnist(options.data), kernel, sizes, jax.device_count(), options)
