r"""A normal that follows the model: each variable's mean is linear in the variables that its distribution depends on.

Who depends on whom is read off the model's jaxpr. $u_i = m_i + s_i (z_i + \sum_p A_{ip} (u_p - m_p) / s_p)$ with $z_i$
a standard normal, over parents $p$: the marginal mean is $m_i$ whatever the others are, and coefficients have no units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec
from numpyro.distributions import constraints

from phalanx.inputs.placement import partition_spec
from phalanx.jaxprs.dependence import varying_axes
from phalanx.language.parameters import Parameter
from phalanx.programs.shares import Latent
from phalanx.programs.traced_program import TracedProgram
from phalanx.variational.guides.coordinates import Latents, globals_of, is_local, locals_of, of_vector
from phalanx.variational.guides.gaussian import MeanField, log_scales, noise_by_coordinate, standard_log_prob
from phalanx.variational.guides.guide import Pushed, Traits
from phalanx.variational.guides.learned import Params
from phalanx.variational.guides.start import Beginning, Start
from phalanx.variational.problem import Problem

MOST = 4096
"""Coefficients of one variable on another up to which every coordinate may depend on every other."""

ALONE = MeanField()


@dataclass(frozen=True)
class Structured:
    """Normals along the model's dependence; see `phx.guides.structured`.

    Attributes:
        init_scale: standard deviations to begin with.
        parents: of each variable, those before it that its distribution depends on; known once there is a model.
    """

    init_scale: float | None = None
    parents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    name = "structured()"
    traits = Traits(is_linear=True)

    def following(self, problem: Problem) -> Structured:
        """Return the guide of this model."""
        return replace(self, parents=parents_of(problem.whole))

    def parameters(self, latents: Latents) -> dict[str, Parameter]:
        """Return a location and a scale for each coordinate, and coefficients: they lie where a variable's rows lie."""
        found = ALONE.parameters(latents)
        for child, parent in self._pairs(latents):
            found[_on(child, parent)] = Parameter(None, constraints.real, _spec(child, parent))
        return found

    def begin(self, start: Start) -> Beginning:
        """Begin about a place, where nothing depends on anything."""
        none = {_on(c, p): jnp.zeros(_shape(c, p), c.dtype) for c, p in self._pairs(start.latents)}
        return Beginning({**ALONE.about(start.place(self.init_scale), start.latents), **none})

    def moved(self, params: Params, change: Params, latents: Latents) -> dict[str, Array]:
        """Move locations by parts of the scales, scales by factors, coefficients as they are."""
        moved = ALONE.moved(params, change, latents)
        return {**moved, **{name: params[name] + change[name] for name in params if name not in moved}}

    def noise(self, key: Array, latents: Latents) -> dict[str, Array]:
        """Return standard normals."""
        return noise_by_coordinate(key, latents)

    def draw(self, params: Params, noise: Mapping[str, Array], latents: Latents) -> dict[str, Array]:
        """Return a position."""
        found: dict[str, Array] = {}
        for latent in latents:
            loc, scale = params[f"{latent.name}.loc"], params[f"{latent.name}.scale"]
            found[latent.name] = loc + scale * (noise[latent.name] + self._of_parents(params, latent, found, latents))
        return found

    def log_prob(self, params: Params, draw: Mapping[str, Array], latents: Latents) -> Array:
        """Return the log density of a position."""
        total = jnp.zeros(())
        for latent in latents:
            noise = _standard(params, latent, draw) - self._of_parents(params, latent, draw, latents)
            total = total + standard_log_prob(noise) - jnp.sum(jnp.log(params[f"{latent.name}.scale"]))
        return total

    def transport(self, params: Params, latents: Latents) -> Callable[[Array], Pushed]:
        """Return the transform by which draws are made."""
        mine, local = globals_of(latents), locals_of(latents)
        for latent in mine:
            if before := [v.name for v in local if v.name in self.parents[latent.name]]:
                raise ValueError(
                    f"reparameterize: variable {latent.name!r} depends on {before[0]!r}, which has its rows where the "
                    f"data's rows lie, on several devices. Fit phx.guides.flow() or phx.guides.mean_field()."
                )

        def push(noise: Array) -> Pushed:
            return Pushed(self.draw(params, of_vector(noise, mine), mine), log_scales(params, mine))

        return push

    def _of_parents(self, params: Params, child: Latent, position: Mapping[str, Array], latents: Latents) -> Array:
        """What its parents add to a variable, in its own scales."""
        total = jnp.zeros(child.unconstrained_shape, child.dtype)
        for parent in (p for c, p in self._pairs(latents) if c is child):
            total += _times(params[_on(child, parent)], _standard(params, parent, position), child, parent)
        return total

    def _pairs(self, latents: Latents) -> list[tuple[Latent, Latent]]:
        """Variables with coordinates, each with each of its parents."""
        known = {latent.name: latent for latent in latents if math.prod(latent.unconstrained_shape)}
        return [(v, known[name]) for v in known.values() for name in self.parents[v.name] if name in known]


def parents_of(whole: TracedProgram) -> dict[str, tuple[str, ...]]:
    """Of each latent variable, the latent ones before it on which its distribution depends, as the jaxpr tells."""
    latents = [latent.name for latent in whole.latents()]
    inputs = [frozenset({name}) for name in sorted(whole.position)]
    inputs += [frozenset()] * len(jax.tree.leaves(whole.shapes))
    depends = dict(zip(whole.outputs, varying_axes(whole.jaxpr, inputs), strict=True))
    return {
        name: tuple(before for before in latents[:number] if before in _of(depends, name))
        for number, name in enumerate(latents)
    }


def _of(depends: Mapping, name: str) -> frozenset[str]:
    return frozenset().union(*(depends.get((name, part), frozenset()) for part in ("density", "jacobian")))


def _on(child: Latent, parent: Latent) -> str:
    return f"{child.name}.on.{parent.name}"


def _is_by_row(child: Latent, parent: Latent) -> bool:
    """Whether a row of one depends on the same row of the other alone: of many rows, all of both would be too much."""
    shape, other = child.unconstrained_shape, parent.unconstrained_shape
    return math.prod(shape) * math.prod(other) > MOST and shape[:1] == other[:1] != ()


def _shape(child: Latent, parent: Latent) -> tuple[int, ...]:
    """Of the coefficients: the child's coordinates, and for each those of the parent."""
    other = parent.unconstrained_shape
    return (*child.unconstrained_shape, math.prod(other[1:] if _is_by_row(child, parent) else other))


def _standard(params: Params, latent: Latent, position: Mapping[str, Array]) -> Array:
    return (position[latent.name] - params[f"{latent.name}.loc"]) / params[f"{latent.name}.scale"]


def _times(coefficients: Array, standard: Array, child: Latent, parent: Latent) -> Array:
    if not _is_by_row(child, parent):
        return coefficients @ standard.ravel()
    rows, size = standard.shape[0], coefficients.shape[-1]
    return jnp.sum(coefficients * standard.reshape(rows, *(1,) * (coefficients.ndim - 2), size), -1)


def _spec(child: Latent, parent: Latent) -> PartitionSpec | None:
    """Coefficients lie with the child's rows, or else with the parent's."""
    shape = _shape(child, parent)
    if is_local(child) and shape[0] == child.sharding.rows:
        return partition_spec(child.sharding)
    if is_local(parent) and parent.unconstrained_shape == (parent.sharding.rows,):
        return partition_spec(parent.sharding, *(None,) * (len(shape) - 1))
    return None
