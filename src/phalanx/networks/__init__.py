"""Networks as functions of their weights, written with any of three libraries, and as parts of programs.

In: a module of Flax NNX, Flax Linen or Equinox, or two functions. Out: a `Network`, whose weights are parameters of a
program (`phx.network`), random variables (`phx.random_network`) or a member of an ensemble (`phx.ensembles.learner`).
Read `network.py` first.
"""

from phalanx.networks.frameworks import from_equinox, from_linen, from_nnx
from phalanx.networks.network import Network, from_functions
from phalanx.networks.pixels import image_transformer, levels, logistics, pixel_sampler

__all__ = [
    "Network",
    "from_equinox",
    "from_functions",
    "from_linen",
    "from_nnx",
    "image_transformer",
    "levels",
    "logistics",
    "pixel_sampler",
]
