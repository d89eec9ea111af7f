"""`recover`: draws of the discrete variables that a model summed out, given the draws of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jax import Array

from phalanx.errors.model_errors import model_errors
from phalanx.marginals.marginalize import Marginal
from phalanx.mesh.agreement import check_same
from phalanx.mesh.compatibility.numpyro_internals import unvalidated
from phalanx.mesh.random_numbers import check_seed
from phalanx.posterior.over_draws import over_draws
from phalanx.posterior.posterior import Posterior

MOST_DRAWS = 100
"""Draws evaluated at a time; the tables of each take memory on the device."""


def recover(posterior: Posterior, *, seed: int = 0) -> dict[str, np.ndarray]:
    r"""Draw the discrete variables that `phx.marginalize` summed out: $z \sim p(z \mid \theta, y)$ at every draw.

    The values are exact draws from the joint posterior of all discrete variables, from the tables of the sum itself.

    Args:
        posterior: of a run or a fit of `phx.marginalize(model)`, with its draws.
        seed: a whole number. The values of a draw depend only on the seed, the chain and the draw.

    Returns:
        Arrays of shape `(chain, draw, ...)`: the discrete variables by name, and the deterministic values that depend
        on them.

    Raises:
        TypeError: when `posterior` is no `phx.Posterior`.
        ValueError: when its model is not marginalised or not known, or the draws of a variable were not kept.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions as dist, phalanx as phx
        >>> def model(y):
        ...     mean = phx.sample("mean", dist.Normal(jnp.array([-2.0, 2.0]), 1.0))
        ...     group = phx.sample("group", dist.Categorical(jnp.array([0.3, 0.7])).expand(y.shape))
        ...     phx.sample("y", dist.Normal(mean[group], 1.0), obs=y)
        >>> data = {"y": jnp.array([-2.5, 1.5, 2.5])}
        >>> posterior = phx.mcmc(phx.marginalize(model), data, num_warmup=100, num_samples=100, progress=False)
        >>> phx.recover(posterior)["group"].shape
        (4, 100, 3)
    """
    check_seed(seed)
    if not isinstance(posterior, Posterior):
        raise TypeError(f"phx.recover: expected a phx.Posterior; got {type(posterior).__name__}.")
    target = posterior.target
    if target is None:
        raise ValueError(
            "phx.recover: a posterior that was read from a file, or assembled by hand, has no model. Recover before "
            "saving; or use posterior.predict(lambda draw, key: phx.marginalize(model).recover(draw, key, **data))."
        )
    program = target.program
    if not isinstance(program, Marginal):
        raise ValueError(
            f"phx.recover: the model {getattr(program, '__name__', program)} is not one of "
            f"phx.marginalize, so no discrete variable was summed out. Run phx.mcmc(phx.marginalize(model), data)."
        )
    latents = [latent.name for latent in target.sites.latents]
    if posterior.held_draws is not None:
        check_same("phx.recover")
    posterior = posterior.of_all_chains
    if missing := [name for name in latents if name not in posterior.draws]:
        raise ValueError(
            f"phx.recover: the draws of {', '.join(map(repr, missing))} were not kept. Run with keep=None, or name "
            f"them in keep=."
        )
    draws = {name: posterior.draws[name] for name in latents}
    sizes = posterior.num_chains, posterior.num_draws
    if not sizes[0] * sizes[1]:
        raise ValueError(f"phx.recover: there are no draws: {sizes[0]} chains of {sizes[1]} draws.")

    def recovered(values: Mapping[str, Array], key: Array, arrays: Sequence[Array]) -> dict[str, Array]:
        data = target.arguments.join(arrays)
        with unvalidated(), model_errors(program.model, arguments=data):
            return target.alone(lambda: program.recover(values, key, **data))

    arrays = target.place_arrays()
    return over_draws(recovered, draws, sizes, seed=seed, batch_size=MOST_DRAWS, given=arrays, mesh=target.mesh)
