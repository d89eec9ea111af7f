"""Networks as functions of their weights, whichever library they were written with, and as parts of programs.

One adapter makes a `Network` of a module of Flax NNX, Flax Linen or Equinox, or of two functions. Its weights are
parameters of a program (`phx.network`), random variables (`phx.random_network`) or a member of an ensemble
(`phx.ensembles.learner`).
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
