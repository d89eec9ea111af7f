r"""A normal that follows the model: each variable's mean is linear in the variables that its distribution depends on.

The dependence is read off the model's jaxpr. $u_i = m_i + s_i (z_i + \sum_p A_{ip} (u_p - m_p) / s_p)$ with $z_i$ a
standard normal, over parents $p$: the marginal mean is $m_i$ whatever the others are, and coefficients have no units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec
from numpyro.distributions import constraints

from phalanx.jaxprs.dependence import varying_axes
from phalanx.language.parameters import Parameter
from phalanx.programs.sites import Latent
from phalanx.programs.traced_program import TracedProgram
from phalanx.variational.guides.coordinates import Latents, globals_of, is_local, locals_of
from phalanx.variational.guides.gaussian import (
    MeanField,
    locs_and_scales,
    noise_by_coordinate,
    placed,
    standard_log_prob,
    standardized,
    transport_of_draws,
)
from phalanx.variational.guides.guide import Guide, Pushed, Traits
from phalanx.variational.guides.learned import Params
from phalanx.variational.guides.start import Beginning, ModelStart
from phalanx.variational.problem import Problem

if TYPE_CHECKING:
    from jaxtyping import Float

MOST_COEFFICIENTS = 4096
"""Most coefficients of a variable on another; with more, a row depends only on the same row."""

ALONE = MeanField()


@dataclass(frozen=True)
class Structured(Guide):
    """Normals along the model's dependence; see `phx.guides.structured`.

    The names of the coefficients, `child.on.parent`, say which variables depend on which.
    """

    init_scale: float | None = None

    name = "structured()"
    traits = Traits(is_linear=True, by_widths=True)

    def parameters(self, problem: Problem) -> dict[str, Parameter]:
        """Return a location and a scale for each coordinate, and coefficients, sharded as a variable's rows are."""
        parameters = locs_and_scales(problem.latents)
        for child, parent in _dependent(problem):
            parameters[_on(child, parent)] = Parameter(None, constraints.real, _spec(child, parent))
        return parameters

    def begin(self, start: ModelStart) -> Beginning:
        """Return independent normals about a point of high density."""
        zeros = {_on(c, p): jnp.zeros(_shape(c, p), c.dtype) for c, p in _dependent(start.problem)}
        return Beginning({**ALONE.about(start.point(self.init_scale), start.latents), **zeros})

    def moved(self, params: Params, change: Params, latents: Latents) -> dict[str, Array]:
        """Move locations by parts of the scales, scales by factors, coefficients as they are."""
        new_params = ALONE.moved(params, change, latents)
        return {**new_params, **{name: params[name] + change[name] for name in params if name not in new_params}}

    def noise(self, key: Array, latents: Latents) -> dict[str, Array]:
        """Return standard normals."""
        return noise_by_coordinate(key, latents)

    def draw(self, params: Params, noise: Mapping[str, Array], latents: Latents) -> dict[str, Array]:
        """Return a position."""
        values: dict[str, Array] = {}
        for latent in latents:
            standard = noise[latent.name] + _of_parents(params, latent, values, latents)
            values[latent.name] = placed(params, latent, standard)
        return values

    def log_prob(self, params: Params, draw: Mapping[str, Array], latents: Latents) -> Array:
        """Return the log density of a position."""
        total = jnp.zeros(())
        for latent in latents:
            noise = standardized(params, latent, draw[latent.name]) - _of_parents(params, latent, draw, latents)
            total = total + standard_log_prob(noise) - jnp.sum(jnp.log(params[f"{latent.name}.scale"]))
        return total

    def transport(self, params: Params, latents: Latents) -> Callable[[Array], Pushed]:
        """Return the transform by which draws are made."""
        for latent in globals_of(latents):
            if before := [v.name for v in locals_of(latents) if _on(latent, v) in params]:
                raise ValueError(
                    f"reparameterize: variable {latent.name!r} depends on {before[0]!r}, which has its rows where the "
                    f"data's rows lie, on several devices. Fit phx.guides.flow() or phx.guides.mean_field()."
                )
        return transport_of_draws(self, params, latents)


def parents_of(whole: TracedProgram) -> dict[str, tuple[str, ...]]:
    """Return the parents of each latent variable: those before it on which its distribution depends."""
    latents = [latent.name for latent in whole.latents()]
    inputs = [frozenset({name}) for name in sorted(whole.position)]
    inputs += [frozenset()] * len(jax.tree.leaves(whole.shapes))
    depends = dict(zip(whole.outputs, varying_axes(whole.jaxpr, inputs), strict=True))
    return {
        name: tuple(before for before in latents[:number] if before in _of(depends, name))
        for number, name in enumerate(latents)
    }


def _dependent(problem: Problem) -> list[tuple[Latent, Latent]]:
    """Return variables with coordinates, each with each of its parents."""
    by_name = {latent.name: latent for latent in problem.latents if math.prod(latent.unconstrained_shape)}
    parents = parents_of(problem.whole)
    return [(child, by_name[name]) for child in by_name.values() for name in parents[child.name] if name in by_name]


def _of_parents(params: Params, child: Latent, position: Mapping[str, Array], latents: Latents) -> Float[Array, "..."]:
    """Return the sum that parents add to a variable, in its own scales."""
    total = jnp.zeros(child.unconstrained_shape, child.dtype)
    for parent in latents:
        if (name := _on(child, parent)) in params:
            standard = standardized(params, parent, position[parent.name])
            total += _times(params[name], standard, child, parent)
    return total


def _of(depends: Mapping[tuple[str, str], frozenset[str]], name: str) -> frozenset[str]:
    return frozenset().union(*(depends.get((name, part), frozenset()) for part in ("density", "jacobian")))


def _on(child: Latent, parent: Latent) -> str:
    return f"{child.name}.on.{parent.name}"


def _is_by_row(child: Latent, parent: Latent) -> bool:
    """Return whether a row of the child depends on the same row of the parent alone, as where both have many rows."""
    shape = child.unconstrained_shape
    other = parent.unconstrained_shape
    return math.prod(shape) * math.prod(other) > MOST_COEFFICIENTS and shape[:1] == other[:1] != ()


def _shape(child: Latent, parent: Latent) -> tuple[int, ...]:
    """Return the shape of the coefficients: the child's coordinates, and for each those of the parent."""
    other = parent.unconstrained_shape
    return (*child.unconstrained_shape, math.prod(other[1:] if _is_by_row(child, parent) else other))


def _times(
    coefficients: Float[Array, "..."], standard: Float[Array, "..."], child: Latent, parent: Latent
) -> Float[Array, "..."]:
    if not _is_by_row(child, parent):
        return coefficients @ standard.ravel()
    rows = standard.shape[0]
    size = coefficients.shape[-1]
    return jnp.sum(coefficients * standard.reshape(rows, *(1,) * (coefficients.ndim - 2), size), -1)


def _spec(child: Latent, parent: Latent) -> PartitionSpec | None:
    """Return the layout of coefficients, which are sharded with the child's rows, or else with the parent's."""
    shape = _shape(child, parent)
    if is_local(child) and shape[0] == child.sharding.rows:
        return child.sharding.spec()
    if is_local(parent) and parent.unconstrained_shape == (parent.sharding.rows,):
        return parent.sharding.spec(*(None,) * (len(shape) - 1))
    return None
