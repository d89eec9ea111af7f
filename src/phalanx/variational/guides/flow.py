"""Normalizing flows as guides: standard normals through learned layers, then shifted and scaled.

Local variables are independent of the flow: normals whose parameters are on the devices of their rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro.distributions import constraints
from numpyro.distributions.transforms import ComposeTransform, Transform

from phalanx.flows import Couplings, InverseAutoregressive, digits
from phalanx.language.parameters import Parameter
from phalanx.mesh.specs import PyTree
from phalanx.variational.guides.coordinates import (
    Latents,
    by_name,
    dtype_of,
    globals_of,
    locals_of,
    of_vector,
    size_of,
    vector_of,
)
from phalanx.variational.guides.gaussian import MeanField, locs_and_scales, standard_log_prob
from phalanx.variational.guides.guide import Guide, Pushed, Traits
from phalanx.variational.guides.learned import Params
from phalanx.variational.guides.start import Beginning, ModelStart
from phalanx.variational.problem import Problem

if TYPE_CHECKING:
    from jaxtyping import Float

COUPLING = "coupling"
"""Name of a flow whose layers move one half of the coordinates, given the other half."""

INVERSE_AUTOREGRESSIVE = "inverse_autoregressive"
"""Name of a flow whose layers move each coordinate given those before it, in one order and then the other."""
TRANSFORMS = COUPLING, INVERSE_AUTOREGRESSIVE

STEP = 0.2
"""Factor on the optimiser's changes of network weights, which have no widths to measure changes by."""

WITHIN = 1
"""Number of halvings within a variable, for couplings."""

LOCALS = MeanField()


@dataclass(frozen=True)
class Flow(Guide):
    """Standard normals through learned layers; see `phx.guides.flow`."""

    transform: str = COUPLING
    hidden: tuple[int, ...] = (32,)
    init_scale: float | None = None
    name: str = "flow()"

    traits = Traits(by_widths=True, rate_falls=True)

    def parameters(self, problem: Problem) -> dict[str, Parameter]:
        """Return a location and a scale for each coordinate, and the layers' weights."""
        mine = {"loc": constraints.real, "scale": constraints.positive, "weights": constraints.real}
        parameters = {name: Parameter(None, constraint) for name, constraint in mine.items()}
        if size_of(globals_of(problem.latents)) < 2:
            del parameters["weights"]  # a layer transforms one coordinate given others
        return {**parameters, **locs_and_scales(locals_of(problem.latents))}

    def begin(self, start: ModelStart) -> Beginning:
        """Return a flow about a point of high density, whose layers are the identity."""
        point = start.point(self.init_scale)
        latents = start.latents
        locs = by_name(point.position, latents)
        scales = by_name(point.scale, latents)
        mine = globals_of(latents)
        of_locals = locs_and_scales(locals_of(latents))
        first: dict[str, Any] = {"loc": vector_of(locs, mine), "scale": vector_of(scales, mine)}
        if size_of(mine) > 1:
            first["weights"] = self._initial_weights(mine)
        first |= {name: v for name, v in LOCALS.about(point, latents).items() if name in of_locals}
        return Beginning(first)

    def moved(self, params: Params, change: Params, latents: Latents) -> dict[str, Any]:
        """Move locations by parts of the scales, scales by factors, weights as they are."""
        new_params = {
            **LOCALS.moved(params, change, locals_of(latents)),
            "loc": params["loc"] + params["scale"] * change["loc"],
            "scale": params["scale"] * jnp.exp(change["scale"]),
        }
        if "weights" in params:
            steps = self._steps(params["weights"], globals_of(latents))
            new_params["weights"] = jax.tree.map(lambda w, d, s: w + s * d, params["weights"], change["weights"], steps)
        return new_params

    def noise(self, key: Array, latents: Latents) -> tuple[Array, dict[str, Array]]:
        """Return standard normals, of the layers and of local variables."""
        of_layers, of_locals = random.split(key)
        mine = globals_of(latents)
        normals = random.normal(of_layers, (size_of(mine),), dtype_of(mine))
        return normals, LOCALS.noise(of_locals, locals_of(latents))

    def draw(self, params: Params, noise: tuple[Array, Mapping[str, Array]], latents: Latents) -> dict[str, Array]:
        """Return a position."""
        mine, (straight, of_locals) = globals_of(latents), noise
        bent = self.layers(params, mine)(straight) if "weights" in params else straight
        vector = params["loc"] + params["scale"] * jnp.asarray(bent)
        return {**of_vector(vector, mine), **LOCALS.draw(params, of_locals, locals_of(latents))}

    def log_prob(self, params: Params, draw: Mapping[str, Array], latents: Latents) -> Array:
        """Return the log density of a position."""
        mine = globals_of(latents)
        noise = (vector_of(draw, mine) - params["loc"]) / params["scale"]
        log_det = jnp.log(params["scale"]).sum()
        if "weights" in params:
            layers = self.layers(params, mine)
            bent = noise
            noise = jnp.asarray(layers.inv(bent))
            log_det += layers.log_abs_det_jacobian(noise, bent)
        return standard_log_prob(noise) - log_det + LOCALS.log_prob(params, draw, locals_of(latents))

    def transport(self, params: Params, latents: Latents) -> Callable[[Array], Pushed]:
        """Return the transform: the layers, then a shift and a scale."""
        mine = globals_of(latents)

        def push(noise: Float[Array, "coordinate"]) -> Pushed:
            bent = noise
            log_det = jnp.sum(jnp.log(params["scale"]))
            if "weights" in params:
                layers = self.layers(params, mine)
                bent, between = layers.call_with_intermediates(noise)
                log_det += layers.log_abs_det_jacobian(noise, bent, between)
            return Pushed(of_vector(params["loc"] + params["scale"] * jnp.asarray(bent), mine), log_det)

        return push

    def layers(self, params: Params, mine: Latents) -> Transform:
        """Return the layers as a transform of a vector in program order."""
        if self.transform == COUPLING:
            return Couplings(params["weights"], _stays(mine))
        forward = tuple(range(size_of(mine)))
        first, second = params["weights"]
        return ComposeTransform([InverseAutoregressive(first, forward[::-1]), InverseAutoregressive(second, forward)])

    def _steps(self, weights: PyTree, mine: Latents) -> Any:
        if self.transform == COUPLING:
            stay = _stays(mine).sum(1)[:, None, None]
            return _steps(weights, stay, stay)
        before = np.maximum(np.tile(np.arange(size_of(mine)), 2), 1)[None, :]
        after = np.tile(before[:, ::-1][:, : size_of(mine)], 2)
        return [_steps(w, size_of(mine), heard) for w, heard in zip(weights, (after, before), strict=True)]

    def _initial_weights(self, mine: Latents) -> PyTree:
        keys = random.split(random.key(0))
        if self.transform == COUPLING:
            return Couplings.init(keys[0], _stays(mine), self.hidden)
        return [InverseAutoregressive.init(key, size_of(mine), self.hidden) for key in keys]


def _stays(mine: Latents) -> np.ndarray:
    return digits([math.prod(latent.unconstrained_shape) for latent in mine], WITHIN)


def _steps(weights: PyTree, to_hidden: int | np.ndarray, to_outputs: int | np.ndarray) -> dict[str, Any]:
    """Return the factor on the change of each weight, given the number of coordinates that the network's layers read.

    Weights have no widths to measure changes by. A term of a sum of n terms changes by 1/n as much, so that all sums
    change equally fast, also one that depends on a single coordinate.
    """
    steps = [STEP / to_hidden, *(STEP / kernel.shape[-2] for kernel, _ in weights["layers"][1:])]
    return {"layers": [(part, STEP) for part in steps], "linear": STEP / to_outputs}
