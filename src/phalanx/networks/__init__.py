"""Networks as functions of their weights, written with any of three libraries, and as parts of programs.

In: a module of Flax NNX, Flax Linen or Equinox, or two functions. Out: a `Network`, whose weights are parameters of a
program (`phx.network`), random variables (`phx.random_network`) or a member of an ensemble (`phx.ensembles.learner`).
Read `network.py` first.
"""

from phalanx.networks.equinox import from_equinox as from_equinox
from phalanx.networks.linen import from_linen as from_linen
from phalanx.networks.network import Network as Network
from phalanx.networks.network import from_functions as from_functions
from phalanx.networks.nnx import from_nnx as from_nnx
from phalanx.networks.pixels import image_transformer as image_transformer
from phalanx.networks.pixels import levels as levels
from phalanx.networks.pixels import logistics as logistics
from phalanx.networks.pixels import pixel_sampler as pixel_sampler
