r"""Langevin and Hamiltonian dynamics on gradients of minibatches: an ensemble of chains that draw from a posterior.

The gradient of the log density is estimated from $B$ of $N$ rows: terms that add up over the rows count $N/B$ times,
and those that see no rows once; a term that does neither is refused, see `ensembles/minibatch.py`. Step sizes fall from
their first value to zero along half a cosine, and begin anew: chains explore while steps are large, and draw while they
are small. A chain's state is its last draw; for more of each chain take `ensemble.members` whenever a cycle ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, random

from phalanx.ensembles.checks import count_rows
from phalanx.ensembles.learner import Learner
from phalanx.ensembles.minibatch import terms_of_rows
from phalanx.kernels.options import positive, whole
from phalanx.programs.handlers import seed as seeded
from phalanx.programs.handlers import trace
from phalanx.programs.tracing import Program
from phalanx.programs.unconstrained import run_unconstrained, to_unconstrained


class Chain(NamedTuple):
    """Where a chain is, on the unconstrained scale, how fast, and the number of its step."""

    position: Any
    momentum: Any
    step: Array


def sgld(
    model: Program, example: Mapping[str, Any], num_rows: int, *, step_size: float, cycle: int | None = None,
    temperature: float = 1.0, apply: Callable[..., Any] | None = None,
) -> Learner:  # fmt: skip
    r"""Stochastic gradient Langevin dynamics: $x \leftarrow x + \tfrac\epsilon2 \hat g + \sqrt{\epsilon T}\, z$.

    Args:
        model: a program whose keyword arguments are a batch of the data, rows first.
        example: a batch, which shapes are read from.
        num_rows: rows of the whole data.
        step_size: $\epsilon$, at the beginning of a cycle.
        cycle: steps from one beginning to the next; None means steps of one size.
        temperature: $T$; 1 draws from the posterior, 0 climbs.
        apply: `apply(values, inputs)`, outputs given the variables' values, for `ensemble.predict`.

    Returns:
        `init`, `update` and `apply`. A state has the variables at `position`, unconstrained, of which
        `values_of(model, example)` makes values. Members of the ensemble are chains, begun at draws from the prior.

    Raises:
        ValueError: when a hyperparameter is out of range, the example has other than one number of rows, or a
            term of the log density neither adds up over rows nor is the same for any of them.

    Example:
        >>> import jax.numpy as jnp, numpy as np, numpyro.distributions as dist, phalanx as phx
        >>> def model(y):
        ...     mean = phx.sample("mean", dist.Normal(0.0, 1.0))
        ...     phx.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> y = np.ones(100, np.float32)
        >>> chains = phx.ensembles.sgld(model, {"y": y[:10]}, num_rows=100, step_size=1e-3)
        >>> ensemble = phx.ensemble(chains.init, chains.update, num_members=4)
        >>> for measured in ensemble.train({"y": y}, batch_size=10, num_epochs=2):
        ...     pass
        >>> ensemble.members.position["mean"].shape
        (4,)

    Source:
        Welling, Teh (2011), Bayesian learning via stochastic gradient Langevin dynamics; Zhang et al. (2020), Cyclical
        stochastic gradient MCMC.
    """
    _check(step_size, cycle, temperature, num_rows)

    def move(chain: Chain, size: Array, gradient: Any, noise: Any) -> tuple[Any, Any]:
        scale = jnp.sqrt(size * temperature)
        position = jax.tree.map(lambda x, g, z: x + 0.5 * size * g + scale * z, chain.position, gradient, noise)
        return position, chain.momentum

    return _learner(model, example, num_rows, step_size, cycle, move, apply)


def sghmc(
    model: Program, example: Mapping[str, Any], num_rows: int, *, step_size: float, friction: float = 0.1,
    cycle: int | None = None, temperature: float = 1.0, apply: Callable[..., Any] | None = None,
) -> Learner:  # fmt: skip
    r"""Stochastic gradient HMC: $p \leftarrow (1-\alpha) p + \sqrt\epsilon\, \hat g + \sqrt{2\alpha T}\, z$.

    The position moves by $\sqrt\epsilon\, p$. Arguments are those of `sgld`, and `friction` is $\alpha$, between 0 and
    1: the share of the momentum that is lost in a step.

    Raises:
        ValueError: when a hyperparameter is out of range, or the example has other than one number of rows.

    Example:
        >>> import numpy as np, numpyro.distributions as dist, phalanx as phx
        >>> def model(y):
        ...     phx.sample("y", dist.Normal(phx.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=y)
        >>> y = np.ones(100, np.float32)
        >>> phx.ensembles.sghmc(model, {"y": y[:10]}, num_rows=100, step_size=1e-4).init is not None
        True

    Source:
        Chen, Fox, Guestrin (2014), Stochastic gradient Hamiltonian Monte Carlo.
    """
    _check(step_size, cycle, temperature, num_rows)
    if not 0 < friction <= 1:
        raise ValueError(f"sghmc: friction must lie between 0 and 1, got {friction!r}.")

    def move(chain: Chain, size: Array, gradient: Any, noise: Any) -> tuple[Any, Any]:
        # With sqrt(step) * p for a momentum chains would heat up where steps fall: p's distribution depends on no step.
        step, scale = jnp.sqrt(size), jnp.sqrt(2 * friction * temperature)
        momentum = jax.tree.map(
            lambda p, g, z: (1 - friction) * p + step * g + scale * z, chain.momentum, gradient, noise
        )
        return jax.tree.map(lambda x, p: x + step * p, chain.position, momentum), momentum

    return _learner(model, example, num_rows, step_size, cycle, move, apply)


def values_of(model: Program, example: Mapping[str, Any]) -> Callable[[Chain], dict[str, Array]]:
    """From the state of a chain to the values of its variables."""
    return lambda chain: run_unconstrained(model, chain.position, dict(example)).values()


def _learner(
    model: Program, example: Mapping[str, Any], num_rows: int, step_size: float, cycle: int | None,
    move: Callable[..., tuple[Any, Any]], apply: Callable[..., Any] | None,
) -> Learner:  # fmt: skip
    example = dict(example)
    of_rows = terms_of_rows(model, example)

    def init(key: Array) -> Chain:
        drawn = trace(seeded(model, key))(**example)
        values = {name: variable.value for name, variable in drawn.items() if variable.is_latent}
        position = to_unconstrained(model, values, example)
        return Chain(position, jax.tree.map(jnp.zeros_like, position), jnp.zeros((), jnp.int32))

    def update(chain: Chain, batch: Mapping[str, Any], key: Array) -> tuple[Chain, dict[str, Array]]:
        weight = num_rows / count_rows("sgld, sghmc: a batch", batch)

        def log_density(position: Any) -> Array:
            terms = run_unconstrained(model, position, dict(batch)).terms()
            weighed = ((weight if name in of_rows else 1.0) * jnp.sum(term) for name, term in terms.items())
            return sum(weighed, start=jnp.zeros(()))

        value, gradient = jax.value_and_grad(log_density)(chain.position)
        leaves, tree = jax.tree.flatten(chain.position)
        keys = tree.unflatten(list(random.split(key, len(leaves))))
        noise = jax.tree.map(lambda k, x: random.normal(k, x.shape, x.dtype), keys, chain.position)
        position, momentum = move(chain, _size(step_size, cycle, chain.step), gradient, noise)
        return Chain(position, momentum, chain.step + 1), {"log_density": value}

    def predict(chain: Chain, inputs: Any) -> Any:
        if apply is None:
            raise ValueError(
                "sgld, sghmc: give apply=, from values of the variables and inputs to outputs, to predict."
            )
        return apply(values_of(model, example)(chain), inputs)

    return Learner(init, update, predict)


def _size(step_size: float, cycle: int | None, step: Array) -> Array:
    if cycle is None:
        return jnp.float32(step_size)
    return jnp.float32(0.5 * step_size) * (1 + jnp.cos(jnp.pi * (step % cycle) / cycle))


def _check(step_size: Any, cycle: Any, temperature: Any, num_rows: Any) -> None:
    positive("sgld, sghmc", "step_size", step_size)
    if cycle is not None:
        whole("sgld, sghmc", "cycle", cycle)
    if not isinstance(temperature, int | float) or not 0 <= temperature < float("inf"):
        raise ValueError(f"sgld, sghmc: temperature must be a number that is not negative, got {temperature!r}.")
    whole("sgld, sghmc", "num_rows", num_rows)
