"""Neural transport: a model whose latent variables are standard normals, pushed through a fitted guide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import wraps

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions.transforms import Transform

from phalanx.language.messages import Forward
from phalanx.language.parameters import with_parameters
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program, deterministic, factor, sample, tracing
from phalanx.mesh.specs import PyTree
from phalanx.programs.unconstrained import transform_of
from phalanx.variational.guides.coordinates import globals_of, locals_of, size_of
from phalanx.variational.guides.gaussian import standard_log_prob
from phalanx.variational.guides.guide_and_model import Pair
from phalanx.variational.result import Fit

NOISE = "noise"
"""Name of the standard normals."""

TRANSPORT = "transport"
"""Name of the factor that corrects the noise density to the model's."""


def reparameterize(model: Program, fit: Fit) -> Program:
    r"""Return a model with the same posterior whose latent variables are close to standard normals, by a fitted guide.

    The guide is a transform $u = f(z)$ of standard normals onto the unconstrained values of the model's variables. In
    the new program $z$ is latent, under the name "noise", and its density is the model's own at $f(z)$ times
    $|\det f'(z)|$: the posterior is exactly the model's, for any guide. If the guide is good, the posterior of $z$ is
    close to standard normals, which are easy to sample.

    Args:
        model: the model that the guide was fitted to. It may be given other data.
        fit: a fit of `phx.guides.flow()`, `full_rank()`, `low_rank()`, `mean_field()`, `structured()` or `laplace()`.
            Parameters of the model have the values that it learned.

    Returns:
        A program with the model's arguments. The model's global variables are deterministic in it, under their own
        names, and runs store them beside "noise" by default. Its local variables stay latent. For predictions hide the
        factor, which cannot be drawn: `posterior.predictive(model=phx.block(program, ["transport"]))`.

    Raises:
        TypeError: when `model` is not a function, or `fit` not a fit.
        ValueError: when the guide is not a transform of standard normals, the model has a variable "noise" or one that
            the fit lacks, or the guide moves local variables together with others.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions as dist, phalanx as phx
        >>> def funnel():
        ...     omega = phx.sample("omega", dist.Normal(0.0, 3.0))
        ...     phx.sample("x", dist.Normal(0.0, jnp.exp(omega / 2)).expand([9]))
        >>> fit = phx.fit(funnel, phx.guides.flow(), num_steps=200, progress=False)
        >>> easy = phx.reparameterize(funnel, fit)
        >>> posterior = phx.mcmc(easy, num_warmup=100, num_samples=100, progress=False)
        >>> posterior.draws["omega"].shape
        (4, 100)

    Source:
        Parno, Marzouk (2018), Transport map accelerated Markov chain Monte Carlo; Hoffman, Sountsov, Dillon, Langmore,
        Tran, Vasudevan (2019), NeuTra-lizing bad geometry in Hamiltonian Monte Carlo using neural transport.
    """
    pair = _pair_of(model, fit)
    problem = pair.problem
    latents = pair.problem.latents
    guide_params = {name: value for name, value in fit.params.items() if name not in problem.parameters}
    push = pair.guide.transport(guide_params, latents)
    size = size_of(globals_of(latents))
    if not globals_of(latents):
        raise ValueError(
            f"reparameterize: all variables of the model, {', '.join(v.name for v in latents)}, have a row for each "
            f"row of sharded data, so there is no variable to reparameterize."
        )
    if reserved_names := {NOISE, TRANSPORT} & problem.whole.variables.keys():
        raise ValueError(
            f"reparameterize: the model has a variable {min(reserved_names)!r}, the name of "
            f"{_noun_of(min(reserved_names))}; rename it."
        )
    stay = {latent.name for latent in locals_of(latents)}
    inside = with_parameters(model, {name: fit.params[name] for name in problem.parameters})

    @wraps(model, updated=())  # the model's start values are of variables that are not latent here
    def reparameterized(*args: PyTree, **kwargs: PyTree) -> PyTree:
        noise = sample(NOISE, dist.Normal(0.0, 1.0).expand([size]))
        position, log_det = push(noise)
        terms = [log_det - standard_log_prob(noise)]

        def place(variable: RandomVariable, forward: Forward) -> RandomVariable:
            if variable.is_given or variable.distribution is None or variable.name in stay:
                return forward(variable)
            value, density = _place_variable(variable, position)
            terms.append(density)
            return replace(variable, distribution=None, value=deterministic(variable.name, value), observed=True)

        with tracing(place):
            returned = inside(*args, **kwargs)
        factor(TRANSPORT, jnp.sum(jnp.stack(terms)))
        return returned

    vars(reparameterized)["keep"] = (NOISE, *(latent.name for latent in latents))
    return reparameterized


def _place_variable(variable: RandomVariable, position: Mapping[str, Array]) -> tuple[Array, Array]:
    """Return the value of a latent variable, and its log density on the unconstrained scale."""
    transform = transform_of(variable)
    free = _of(position, variable, transform)
    value = jnp.asarray(transform(free))
    density = jnp.sum(replace(variable, value=value).complete().log_prob())
    return value, density + jnp.sum(jnp.asarray(transform.log_abs_det_jacobian(free, value)))


def _of(position: Mapping[str, Array], variable: RandomVariable, transform: Transform) -> Array:
    name = variable.name
    distribution = variable.distribution
    assert distribution is not None
    if name not in position:
        raise ValueError(
            f"reparameterize: variable {name!r} is not among those of the fit, {', '.join(map(repr, position))}: it "
            f"was made with another model."
        )
    shape = transform.inverse_shape((*distribution.batch_shape, *distribution.event_shape))
    if position[name].shape != shape:
        raise ValueError(
            f"reparameterize: variable {name!r} has unconstrained values of shape {position[name].shape} in the fit, "
            f"and {shape} here. Fit to data of the same shapes and, where it has a row for each row of sharded data, "
            f"on the same mesh."
        )
    return position[name]


def _pair_of(model: object, fit: object) -> Pair:
    if not callable(model):
        raise TypeError(f"reparameterize: the first argument is the model, a function; got {type(model).__name__}.")
    if not isinstance(fit, Fit):
        raise TypeError(f"reparameterize: the second argument is a fit, from phx.fit; got {type(fit).__name__}.")
    if fit.pair is None:
        raise ValueError(
            "reparameterize: this fit was read from a file, which holds no model and no guide. Continue it, "
            "phx.fit(model, guide, data, init=fit, num_steps=0)."
        )
    if fit.pair.program_guide:
        raise ValueError(
            f"reparameterize: the guide {fit.pair.guide.name} is a program, not a transform of "
            f"standard normals. Fit phx.guides.flow(), or full_rank(), low_rank(), mean_field() or structured()."
        )
    return fit.pair


def _noun_of(name: str) -> str:
    return "the standard normals" if name == NOISE else "the factor that corrects their density"
