"""The main job: Bayesian softmax regression on the 1,797 real 8 x 8 digits that come with scikit-learn."""

from __future__ import annotations

import jax

from phalanx.datasets import digits
from phalanx.demos.options import Options, Sizes, choose
from phalanx.demos.softmax_regression import run
from phalanx.kernels.hmc import hmc
from phalanx.posterior.posterior import Posterior

DEFAULT = Sizes(chains=4, warmup=300, draws=1000)
NUM_STEPS = 32


def main(options: Options) -> Posterior:
    """Run the demo: chains over half of the devices, data over the others where there are four or more."""
    shards = options.data_shards
    if shards is None:
        shards = 2 if jax.device_count() % 2 == 0 else 1
    return run(digits(), hmc(num_steps=NUM_STEPS), choose(options, DEFAULT), shards, options)
