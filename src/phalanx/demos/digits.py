"""Bayesian softmax regression on the 1,797 real 8 x 8 digits of scikit-learn."""

from __future__ import annotations

import jax

from phalanx.datasets import digits
from phalanx.demos.options import DemoOptions, Sizes, choose
from phalanx.demos.softmax_regression import run
from phalanx.kernels.hmc import hmc
from phalanx.posterior.posterior import Posterior

DEFAULT = Sizes(chains=4, warmup=300, draws=1000)
NUM_STEPS = 32


def main(options: DemoOptions) -> Posterior:
    """Run the demo: the data on two shards if the number of devices is even, the chains on the other axis."""
    shards = options.data_shards
    if shards is None:
        shards = 2 if jax.device_count() % 2 == 0 else 1
    return run(digits(), hmc(num_steps=NUM_STEPS), choose(options, DEFAULT), shards, options)
