"""Learned transforms, as parts of guides and of models, and likelihoods of pixels: the public names of `phx.flows`.

In: a pytree of weights, which may be a `phx.param`, and events. Out: transforms, which are
`numpyro.distributions.transforms.Transform`s, and distributions of pixels. Read `coupling.py` first.
"""

from numpyro.distributions.transforms import PermuteTransform as Permutation

from phalanx.flows.autoregressive import InverseAutoregressive, MaskedAutoregressive
from phalanx.flows.coupling import Coupling, Couplings, channels, checkerboard, digits, halves
from phalanx.flows.images import MultiScale, Unsqueeze
from phalanx.flows.likelihoods import QuantizedLogistic, QuantizedLogisticMixture, QuantizedNormal

__all__ = [
    "Coupling",
    "Couplings",
    "InverseAutoregressive",
    "MaskedAutoregressive",
    "MultiScale",
    "Permutation",
    "QuantizedLogistic",
    "QuantizedLogisticMixture",
    "QuantizedNormal",
    "Unsqueeze",
    "channels",
    "checkerboard",
    "digits",
    "halves",
]
