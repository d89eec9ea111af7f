"""Fitted guides as transforms of standard normals: what noise becomes, and the logarithm of how it is stretched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from phalanx.programs.shares import Latent
from phalanx.variational.coordinates import globals_of, locals_of, of_vector
from phalanx.variational.family import by_name
from phalanx.variational.flow import Flow
from phalanx.variational.gaussian import FullRank, LowRank, MeanField, own_scale
from phalanx.variational.learned import Params
from phalanx.variational.structured import Structured


class Pushed(NamedTuple):
    """Where noise has gone.

    Attributes:
        position: unconstrained values by variable.
        log_det: logarithm of the determinant's absolute value.
    """

    position: dict[str, Array]
    log_det: Array


def moved_by(family: Any, latents: Sequence[Latent]) -> list[Latent]:
    """The variables that a guide moves as a transform of noise does.

    Those that live with rows of sharded data stay as the model has them: of a guide that holds them apart from the
    others nothing is lost.

    Raises:
        ValueError: when the guide is none, or does not hold such variables apart.
    """
    if not isinstance(family, MeanField | FullRank | LowRank | Structured | Flow):
        raise ValueError(
            f"reparameterize: the guide {family.name} is no transform of standard normals. Fit phx.guides.flow(), or "
            f"full_rank(), low_rank(), mean_field() or structured()."
        )
    if (local := locals_of(latents)) and isinstance(family, FullRank | LowRank):
        raise ValueError(
            f"reparameterize: variable {local[0].name!r} has its rows where the data's rows lie, on several devices, "
            f"and the guide {family.name} moves it together with all others. Fit phx.guides.flow() or "
            f"phx.guides.mean_field(), which hold it apart."
        )
    if isinstance(family, Structured):
        for latent in globals_of(latents):
            if before := [v.name for v in local if v.name in family.parents[latent.name]]:
                raise ValueError(
                    f"reparameterize: variable {latent.name!r} depends on {before[0]!r}, which has its rows where the "
                    f"data's rows lie, on several devices. Fit phx.guides.flow() or phx.guides.mean_field()."
                )
    return globals_of(latents)


def ready(family: Any, params: Params) -> Params:
    """What a guide has learned, with what does not depend on the noise worked out, once and not at every leapfrog."""
    if not isinstance(family, LowRank):
        return params
    own = own_scale(params)
    directions, lengths, _ = jnp.linalg.svd(params["factor"] / own[:, None], full_matrices=False)
    return {"loc": params["loc"], "own": own, "directions": directions, "longer": jnp.sqrt(1.0 + lengths**2)}


def push(family: Any, params: Params, noise: Array, moved: Sequence[Latent]) -> Pushed:
    """What a vector of standard normals becomes.

    Args:
        family: the guide, one that `moved_by` has found to be good.
        params: what it has learned, made `ready`.
        noise: an element for each coordinate.
        moved: the variables.
    """
    if isinstance(family, Flow):
        return _by_flow(family, params, noise, moved)
    if isinstance(family, LowRank):
        return _by_low_rank(params, noise, moved)
    if isinstance(family, FullRank):
        tril = params["scale_tril"]
        log_det = jnp.sum(jnp.log(jnp.diagonal(tril)))
        return Pushed(by_name(params["loc"] + tril @ noise, moved), log_det)
    scales = [jnp.ravel(params[f"{latent.name}.scale"]) for latent in moved]
    structured = family if isinstance(family, Structured) else Structured(parents=dict.fromkeys(_names(moved), ()))
    position = structured.draw(params, of_vector(noise, moved), moved)
    return Pushed(position, jnp.sum(jnp.log(jnp.concatenate(scales))))


def _names(latents: Sequence[Latent]) -> list[str]:
    return [latent.name for latent in latents]


def _by_flow(family: Flow, params: Params, noise: Array, moved: Sequence[Latent]) -> Pushed:
    bent, log_det = noise, jnp.sum(jnp.log(params["scale"]))
    if "weights" in params:
        layers = family.layers(params, moved)
        bent, between = layers.call_with_intermediates(noise)
        log_det += layers.log_abs_det_jacobian(noise, bent, between)
    return Pushed(of_vector(params["loc"] + params["scale"] * jnp.asarray(bent), moved), log_det)


def _by_low_rank(params: Params, noise: Array, moved: Sequence[Latent]) -> Pushed:
    """By the symmetric root of $I + W W^T$ in units of the own scales, which needs no more than the directions."""
    own, directions, longer = params["own"], params["directions"], params["longer"]
    stretched = noise + directions @ ((longer - 1.0) * (directions.T @ noise))
    log_det = jnp.sum(jnp.log(own)) + jnp.sum(jnp.log(longer))
    return Pushed(by_name(params["loc"] + own * stretched, moved), log_det)
