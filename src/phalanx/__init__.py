"""Phalanx: probabilistic programming for many chains, big data and big models, on JAX."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from phalanx import diagnostics as diagnostics
from phalanx import kernels as kernels
from phalanx import reducers as reducers
from phalanx.density.target import Target as Target
from phalanx.distributions.blocked import blocked as blocked
from phalanx.distributions.sharded import Sharded as Sharded
from phalanx.inputs.placement import shard as shard
from phalanx.kernels.blackjax import from_blackjax as from_blackjax
from phalanx.kernels.chees import chees as chees
from phalanx.kernels.hmc import hmc as hmc
from phalanx.kernels.laps import laps as laps
from phalanx.kernels.mams import mams as mams
from phalanx.kernels.nuts import nuts as nuts
from phalanx.kernels.protocol.kernel import Kernel as Kernel
from phalanx.kernels.protocol.whole_draw import from_draw as from_draw
from phalanx.kernels.rwmh import rwmh as rwmh
from phalanx.kernels.sghmc import sghmc as sghmc
from phalanx.kernels.sgld import sgld as sgld
from phalanx.language.adapters import Joint as Joint
from phalanx.language.adapters import from_logdensity as from_logdensity
from phalanx.language.adapters import from_numpyro as from_numpyro
from phalanx.language.adapters import log_joint as log_joint
from phalanx.language.handlers import block as block
from phalanx.language.handlers import condition as condition
from phalanx.language.handlers import do as do
from phalanx.language.handlers import scale as scale
from phalanx.language.handlers import seed as seed
from phalanx.language.handlers import substitute as substitute
from phalanx.language.handlers import tape as tape
from phalanx.language.handlers import trace as trace
from phalanx.language.parameters import param as param
from phalanx.language.random_variable import RandomVariable as RandomVariable
from phalanx.language.tracing import deterministic as deterministic
from phalanx.language.tracing import factor as factor
from phalanx.language.tracing import sample as sample
from phalanx.language.tracing import tracing as tracing
from phalanx.mesh.compatibility.jax_internals import prefer_fused_loops as _prefer_fused_loops
from phalanx.mesh.devices import make_mesh as make_mesh
from phalanx.mesh.devices import use_cpu_devices as use_cpu_devices
from phalanx.mesh.processes import initialize as initialize
from phalanx.mesh.spmd import spmd as spmd
from phalanx.mesh.spmd import take_rows as take_rows
from phalanx.posterior.posterior import Posterior as Posterior
from phalanx.reducers import reduce as reduce
from phalanx.run.init_values import superchains as superchains
from phalanx.run.mcmc import compile as compile
from phalanx.run.mcmc import mcmc as mcmc
from phalanx.run.mcmc import stream as stream
from phalanx.run.sampler import Sampler as Sampler
from phalanx.run.until import until as until
from phalanx.store.policy import checkpoint as checkpoint

if TYPE_CHECKING:  # a run of chains needs none of these: they are imported when first asked for
    from phalanx import datasets as datasets
    from phalanx import ensembles as ensembles
    from phalanx import flows as flows
    from phalanx import networks as networks
    from phalanx.ensembles import ensemble as ensemble
    from phalanx.learning.batches import batches as batches
    from phalanx.marginals.marginalize import marginalize as marginalize
    from phalanx.networks.parameters import network as network
    from phalanx.networks.parameters import random_network as random_network
    from phalanx.particles.result import Particles as Particles
    from phalanx.particles.smc import smc as smc
    from phalanx.posterior.calibrate import calibrate as calibrate
    from phalanx.posterior.criticism.compare import compare as compare
    from phalanx.posterior.each.posteriors import Posteriors as Posteriors
    from phalanx.posterior.opening import open as open
    from phalanx.posterior.prior import predictive as predictive
    from phalanx.posterior.recovery import recover as recover
    from phalanx.variational.each.fits import Fits as Fits
    from phalanx.variational.fit import fit as fit
    from phalanx.variational.guides import constructors as guides  # noqa: F401, public under this name
    from phalanx.variational.importance import importance as importance
    from phalanx.variational.maximum import maximize as maximize
    from phalanx.variational.methods.method import FitError as FitError
    from phalanx.variational.monitoring.options import training as training
    from phalanx.variational.reparameterize import reparameterize as reparameterize
    from phalanx.variational.result import Fit as Fit

_PACKAGES = {
    "datasets": "datasets",
    "ensembles": "ensembles",
    "flows": "flows",
    "networks": "networks",
    "guides": "variational.guides.constructors",
}
_LATER = {
    "Fit": "variational.result",
    "Fits": "variational.each.fits",
    "FitError": "variational.methods.method",
    "Particles": "particles.result",
    "Posteriors": "posterior.each.posteriors",
    "batches": "learning.batches",
    "calibrate": "posterior.calibrate",
    "compare": "posterior.criticism.compare",
    "ensemble": "ensembles",
    "fit": "variational.fit",
    "importance": "variational.importance",
    "marginalize": "marginals.marginalize",
    "maximize": "variational.maximum",
    "network": "networks.parameters",
    "open": "posterior.opening",
    "predictive": "posterior.prior",
    "random_network": "networks.parameters",
    "recover": "posterior.recovery",
    "reparameterize": "variational.reparameterize",
    "smc": "particles.smc",
    "training": "variational.monitoring.options",
}
"""Modules by public name, imported when the name is first used: those that the name is, and those that define it."""

__version__ = "0.2.0"

_prefer_fused_loops()  # here, since scripts may use JAX, which then starts, before they make a mesh

# Modules here that are not named are packages within, not a part of the public face.
__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    name
    for name, value in list(globals().items())
    if not (name.startswith("_") or name in ("Any", "ModuleType", "TYPE_CHECKING", "import_module"))
    and (not isinstance(value, ModuleType) or name in ("diagnostics", "kernels", "reducers"))
]
__all__ += [*_PACKAGES, *_LATER]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        attribute: Any = import_module(f"phalanx.{_PACKAGES[name]}")
    elif name in _LATER:
        attribute = getattr(import_module(f"phalanx.{_LATER[name]}"), name)
    else:
        raise AttributeError(f"module 'phalanx' has no attribute {name!r}")
    globals()[name] = attribute
    return attribute


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
