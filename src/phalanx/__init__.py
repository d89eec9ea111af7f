"""Phalanx: probabilistic programming for many chains, big data and big models, on JAX."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from phalanx import datasets as datasets
from phalanx import ensembles as ensembles
from phalanx import flows as flows
from phalanx import networks as networks
from phalanx import reducers as reducers
from phalanx.ensembles import ensemble as ensemble
from phalanx.kernels.blackjax import from_blackjax as from_blackjax
from phalanx.kernels.chees import chees as chees
from phalanx.kernels.hmc import hmc as hmc
from phalanx.kernels.kernel import Kernel as Kernel
from phalanx.kernels.lock_step import from_draw as from_draw
from phalanx.kernels.mams import mams as mams
from phalanx.kernels.nuts import nuts as nuts
from phalanx.kernels.rwmh import rwmh as rwmh
from phalanx.kernels.sghmc import sghmc as sghmc
from phalanx.kernels.sgld import sgld as sgld
from phalanx.mesh.devices import make_mesh as make_mesh
from phalanx.mesh.devices import use_cpu_devices as use_cpu_devices
from phalanx.mesh.placement import shard as shard
from phalanx.mesh.processes import initialize as initialize
from phalanx.mesh.space import Space as Space
from phalanx.mesh.spmd import spmd as spmd
from phalanx.mesh.take_rows import take_rows as take_rows
from phalanx.networks.parameters import network as network
from phalanx.networks.random_network import random_network as random_network
from phalanx.posterior.calibrate import calibrate as calibrate
from phalanx.posterior.posterior import Posterior as Posterior
from phalanx.posterior.prior import predictive as predictive
from phalanx.programs.adapters import from_logdensity as from_logdensity
from phalanx.programs.adapters import from_numpyro as from_numpyro
from phalanx.programs.blocked import blocked as blocked
from phalanx.programs.handlers import block as block
from phalanx.programs.handlers import condition as condition
from phalanx.programs.handlers import do as do
from phalanx.programs.handlers import scale as scale
from phalanx.programs.handlers import seed as seed
from phalanx.programs.handlers import substitute as substitute
from phalanx.programs.handlers import tape as tape
from phalanx.programs.handlers import trace as trace
from phalanx.programs.joint import Joint as Joint
from phalanx.programs.joint import log_joint as log_joint
from phalanx.programs.parameters import param as param
from phalanx.programs.random_variable import RandomVariable as RandomVariable
from phalanx.programs.sharded import Sharded as Sharded
from phalanx.programs.target import Target as Target
from phalanx.programs.tracing import deterministic as deterministic
from phalanx.programs.tracing import factor as factor
from phalanx.programs.tracing import sample as sample
from phalanx.programs.tracing import tracing as tracing
from phalanx.reducers import reduce as reduce
from phalanx.run.initial import superchains as superchains
from phalanx.run.mcmc import compile as compile
from phalanx.run.mcmc import mcmc as mcmc
from phalanx.run.mcmc import stream as stream
from phalanx.run.sampler import Sampler as Sampler
from phalanx.run.until import until as until

if TYPE_CHECKING:  # a run of chains needs none of these: they are imported when first asked for
    from phalanx.variational import guides as guides
    from phalanx.variational.batches import batches as batches
    from phalanx.variational.fit import fit as fit
    from phalanx.variational.importance import importance as importance
    from phalanx.variational.learning import FitError as FitError
    from phalanx.variational.maximum import maximize as maximize
    from phalanx.variational.reparameterize import reparameterize as reparameterize
    from phalanx.variational.result import Fit as Fit
    from phalanx.variational.training import training as training

_LEARNING = {
    "Fit": "result",
    "FitError": "learning",
    "batches": "batches",
    "fit": "fit",
    "guides": "guides",
    "importance": "importance",
    "maximize": "maximum",
    "reparameterize": "reparameterize",
    "training": "training",
}
"""The module of `phalanx.variational` that each of those is in."""

__version__ = "0.1.0"

# What is a module here and not named is a package within, not a part of the public face.
__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    name
    for name, value in list(globals().items())
    if not (name.startswith("_") or name in ("Any", "TYPE_CHECKING", "import_module"))
    and (not isinstance(value, type(datasets)) or name in ("datasets", "ensembles", "flows", "networks", "reducers"))
]
__all__ += list(_LEARNING)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _LEARNING:
        raise AttributeError(f"module 'phalanx' has no attribute {name!r}")
    module = import_module(f"phalanx.variational.{_LEARNING[name]}")
    globals()[name] = module if name == "guides" else getattr(module, name)
    return globals()[name]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
