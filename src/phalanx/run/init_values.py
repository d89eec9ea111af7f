"""Initial values that a user gives: by variable, on the scale of the model.

They are arguments of the compiled program, so that other values do not recompile it. Variables without a value start at
random near zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.sharding import NamedSharding

from phalanx.density.target import Target
from phalanx.errors.names import hint
from phalanx.language.handlers import seed as seeded
from phalanx.language.handlers import tape
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.processes import to_devices, to_host
from phalanx.posterior.posterior import Posterior
from phalanx.programs.sites import Latent
from phalanx.run.find_finite_start import Given

if TYPE_CHECKING:
    from jaxtyping import Int, Key, Shaped

UNUSED_DRAW = 2**32 - 1
"""Draw number of the keys for initial values; no run has as many draws."""

PRIOR = "prior"

SIMPLEX = re.compile(r"Simplex\(\)|IndependentConstraint\(Simplex\(\), \d+\)")
"""Text of the support of variables that lie on a simplex."""


@dataclass(frozen=True)
class Superchains:
    """Groups of chains with a common initial position; see `phx.superchains`."""

    count: int
    init: Any


def superchains(count: int, init: object = None) -> Superchains:
    """Return initial values with which the chains of each group start at one point.

    R-hat requires every chain to be long. Nested R-hat compares groups of chains, so that many short chains suffice: it
    is near 1 once the groups do not depend on their starts any more.

    Args:
        count: number of groups of `num_chains // count` consecutive chains, at least 2.
        init: starts of the groups, as `init` of `phx.mcmc`; of values for each chain, the first of each group is used.

    Returns:
        A value for `init=` of `phx.mcmc`.

    Raises:
        TypeError, ValueError: when `count` is not a whole number of at least 2.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> from phalanx.diagnostics import nested_rhat
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))
        >>> posterior = phx.mcmc(model, num_chains=32, num_samples=20, init=phx.superchains(4), progress=False)
        >>> bool(nested_rhat(posterior.draws["x"], superchains=4) < 1.1)
        True

    Source: Margossian, Hoffman, Sountsov, Riou-Durand, Vehtari, Gelman (2024), Nested R-hat: assessing the convergence
    of Markov chain Monte Carlo when running many short chains.
    """
    if not isinstance(count, Integral) or isinstance(count, bool):
        raise TypeError(f"superchains: count must be a whole number; got {count!r}.")
    if count < 2:
        raise ValueError(f"superchains: count must be 2 or more, since R-hat compares the groups; got {count}.")
    return Superchains(int(count), init)


@dataclass(frozen=True)
class Initial:
    """Initial values of a run.

    Attributes:
        described: description for the record.
        values: given values `(chain, ...)` by variable, not sharded.
        superchains: number of groups of chains that start where their first does; 0 without groups.
    """

    described: str = "random"
    values: Mapping[str, Shaped[np.ndarray, "chains *shape"]] = field(default_factory=dict)
    superchains: int = 0

    def check_moves(self, of_one_chain: bool) -> None:
        """Raise if chains of a group cannot be moved to one position, since the kernel wraps one of a single chain."""
        if self.superchains and of_one_chain:
            raise ValueError(
                "init: phx.superchains moves chains to the positions of others, and this kernel wraps an algorithm for "
                "one chain, whose state Phalanx cannot move. Give values for each chain that are equal within a group."
            )

    def leaders(self, num_chains: int) -> Int[np.ndarray, "{num_chains}"]:
        """Return for each chain the number of the chain at whose initial position it starts."""
        members = num_chains // (self.superchains or num_chains)
        return np.arange(num_chains) if not self.superchains else np.arange(num_chains) // members * members

    def given(self, target: Target, num_chains: int) -> Given:
        """Return the values as arguments of compiled blocks: with padded rows, on the devices."""
        values = {}
        for latent in target.sites.latents:
            zeros = np.zeros((), latent.dtype)  # placeholder, not used by the program
            whole = self.values.get(latent.name, np.broadcast_to(zeros, (num_chains, *latent.whole_shape)))
            sharding = NamedSharding(target.mesh, latent.sharding.spec(CHAIN))
            rows = target.sites.layout.padded(latent, whole, leading=1)
            values[latent.name] = to_devices(rows.astype(latent.dtype), sharding)
        return Given(values, {name: np.bool_(name in self.values) for name in values})

    def check(self, misfits: Mapping[str, Array]) -> None:
        """Raise if a value is outside of its variable's support."""
        for name, misfit in misfits.items():
            if (chains := np.flatnonzero(to_host(misfit))).size:
                value = self.values[name][chains[0]]
                what = f"{value}" if value.ndim == 0 else f"of shape {value.shape}"
                raise ValueError(
                    f"init: the value {what} of variable {name!r} for chain {chains[0]} lies outside of its support, "
                    f"or on the boundary, which has no unconstrained position. Give a value inside."
                )


def initial_of(init: Any, target: Target, num_chains: int, seed: int, prior: Callable[..., Any]) -> Initial:
    """Return the initial values that an argument `init` describes.

    Args:
        init: None, a dict of values by variable, a posterior, a fit, a function of a key that returns such a dict,
            "prior", or superchains of these.
        target: the model.
        num_chains: chains in all.
        seed: seed of the run.
        prior: function from keys `(chain,)` to draws from the prior.

    Raises:
        TypeError: when `init` has another type.
        ValueError: when a name, a shape or a value does not fit the model; the message names the variable.
    """
    if init is None:
        return Initial()
    if isinstance(init, Superchains):
        return _together(init, initial_of(init.init, target, num_chains, seed, prior), num_chains)
    shapes = target.sites.whole_shapes
    if isinstance(init, Posterior):
        return _check_values("draws of a posterior", _of_posterior(init, target, num_chains), shapes, num_chains)
    if hasattr(init, "starts"):
        return _check_values("draws of a fit", _of_fit(init.starts(num_chains, seed), target), shapes, num_chains)
    if isinstance(init, Mapping):
        initial = _check_values("values", init, shapes, num_chains, of_chains=False)
        check_inside_simplex(init, target.sites.latents)
        return initial
    keys = jax.vmap(lambda chain: random.fold_in(random.fold_in(random.key(seed), chain), UNUSED_DRAW))
    if isinstance(init, str) and init == PRIOR:
        return _check_values("draws from the prior", prior(keys(np.arange(num_chains))), shapes, num_chains)
    if callable(init):
        name = getattr(init, "__name__", type(init).__name__)
        starts = _of_function(init, keys(np.arange(num_chains)), target)
        check_inside_simplex(starts, target.sites.latents)
        return _check_values(f"values of {name}", starts, shapes, num_chains)
    raise _no_kind(init)


def check_kind(init: object) -> None:
    """Raise unless `init` has a type that `phx.mcmc` takes."""
    is_init = isinstance(init, Superchains | Posterior | Mapping) or hasattr(init, "starts") or callable(init)
    if not (init is None or is_init or (isinstance(init, str) and init == PRIOR)):
        raise _no_kind(init)


def check_inside_simplex(values: Mapping[str, Any], latents: Sequence[Latent]) -> None:
    """Raise if the value of a variable on a simplex has a zero.

    Draws of a sparse Dirichlet round to zero, so that the bijection takes zeros for the smallest positive number; a
    chain would start where the density is flat.
    """
    for latent in latents:
        if latent.name not in values or not SIMPLEX.fullmatch(latent.support):
            continue
        value = np.ma.getdata(values[latent.name])
        if len(zeros := np.argwhere(value == 0)) and value.shape[-1:] == latent.shape[-1:]:
            entry = ", ".join(map(str, zeros[0]))
            raise ValueError(
                f"init: entry [{entry}] of the value of variable {latent.name!r} is 0, which is on the boundary of the "
                f"simplex and has no unconstrained position. Give positive numbers that sum to 1."
            )


def check_values(init: object, latents: Sequence[Latent], num_chains: int) -> None:
    """Raise unless the values of a dict fit the latent variables."""
    if isinstance(init, Superchains):
        check_values(init.init, latents, num_chains)
    elif isinstance(init, Mapping):
        _check_values("values", init, {latent.name: latent.shape for latent in latents}, num_chains, of_chains=False)
        check_inside_simplex(init, latents)


def _no_kind(init: object) -> TypeError:
    return TypeError(
        f"init: expected a dict of values by variable, a posterior, a fit, a function of a key that returns such a "
        f"dict, {PRIOR!r}, or phx.superchains(...) of these; got {init!r}."
    )


def _together(init: Superchains, initial: Initial, num_chains: int) -> Initial:
    if initial.superchains:
        raise TypeError("init: superchains of superchains are not defined; give phx.superchains once.")
    if num_chains % init.count:
        raise ValueError(
            f"init: {num_chains} chains cannot be divided into {init.count} superchains of equal size; make "
            f"num_chains a multiple of {init.count}."
        )
    return replace(initial, described=f"{initial.described}, in {init.count} superchains", superchains=init.count)


def prior_of(target: Target) -> Callable[..., dict[str, Array]]:
    """Return a compiled function from keys and data to draws `(key, ...)` of the latent variables from their prior."""
    names = [latent.name for latent in target.sites.latents]

    def draws(keys: Array, arrays: Any) -> dict[str, Array]:
        data = target.arguments.join(arrays)

        def one(key: Array) -> dict[str, Array]:
            with tape() as variables:
                seeded(target.program, key)(**data)
            return {name: jnp.asarray(variables[name].value) for name in names}

        return target.alone(lambda: jax.vmap(one)(keys))

    return jax.jit(draws)


def _of_posterior(
    posterior: Posterior, target: Target, num_chains: int
) -> dict[str, Shaped[np.ndarray, "{num_chains} *shape"]]:
    """Return the last draw of each chain; for another number of chains, draws evenly chosen among all."""
    names = [name for name in target.sites.whole_shapes if name in posterior.draws]
    if not names or not posterior.num_draws:
        raise ValueError(
            f"init: the posterior has no draws of this model's variables "
            f"{', '.join(map(repr, target.sites.whole_shapes))}. Store one of them with keep=."
        )
    draws, (chains, length) = posterior.of_all_chains.draws, (posterior.num_chains, posterior.num_draws)
    if chains == num_chains:
        return {name: np.asarray(draws[name][:, length - 1 :])[:, 0] for name in names}
    draw_numbers = np.linspace(0, chains * length - 1, num_chains).round().astype(int)
    return {name: np.asarray(draws[name]).reshape(-1, *draws[name].shape[2:])[draw_numbers] for name in names}


def _of_fit(draws: Mapping[str, Any], target: Target) -> dict[str, Any]:
    """Return a guide's draws of the variables that this model has."""
    names = [latent.name for latent in target.sites.latents]
    values = {name: draws[name] for name in names if name in draws}
    if not values:
        raise ValueError(
            f"init: the fit has none of this model's variables {', '.join(map(repr, names))}; it has "
            f"{', '.join(map(repr, draws))}. Give a fit of this model."
        )
    return values


def _of_function(
    init: Callable[[Array], Any], keys: Key[Array, "chains"], target: Target
) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Return the values of a user's function of a key for the keys of all chains."""
    first = init(keys[0])
    if not isinstance(first, Mapping):
        raise TypeError(f"init: the function must return a dict of values by variable, got {type(first).__name__}.")
    values = _for_all(init, keys, first)
    chains = np.arange(len(keys))
    shapes = target.sites.whole_shapes
    # if the function returns values for all chains, each chain uses its own entry of those made with its key
    return {
        name: value[chains, chains] if value.shape == (*chains.shape * 2, *shapes.get(name, (0,))) else value
        for name, value in ((name, np.asarray(value)) for name, value in values.items())
    }


def _for_all(init: Callable[[Array], Any], keys: Array, first: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        of_all = jax.vmap(init)(keys)
        last = init(keys[-1])  # a single comparison may agree by chance
        ends = [(of_all[name][i], one[name]) for i, one in ((0, first), (-1, last)) for name in first]
        if all(np.allclose(*pair, rtol=1e-5, equal_nan=True) for pair in ends):
            return of_all
    except jax.errors.JAXTypeError:
        pass
    of_chains = [
        first,
        *map(init, keys[1:]),
    ]  # the function uses NumPy or its own random numbers: call it chain by chain
    return jax.tree.map(lambda *values: np.stack(values), *of_chains)


def _check_values(
    description: str,
    values: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    num_chains: int,
    of_chains: bool = True,
) -> Initial:
    """Return values that fit the model, broadcast over chains; `of_chains` means that they have one for each chain."""
    values_by_name = {}
    if unknown := [name for name in values if name not in shapes]:
        raise ValueError(
            f"init: the model has no latent variable {', '.join(map(repr, unknown))}; it has "
            f"{', '.join(map(repr, shapes))}.{hint(unknown, shapes)}"
        )
    for name, value in values.items():
        value = _numbers(name, value)
        shape = shapes[name]
        each = (num_chains, *shapes[name])
        if value.shape != each and (of_chains or value.shape != shape):
            one = value.shape[1:] if of_chains else value.shape
            raise ValueError(
                f"init: the value of variable {name!r} has shape {one}; expected {shape}, or {each} with a value for "
                f"each chain."
            )
        values_by_name[name] = np.broadcast_to(value, each)
    return Initial(f"{description} ({', '.join(values_by_name)})" if values_by_name else "random", values_by_name)


def _numbers(name: str, value: Any) -> Shaped[np.ndarray, "..."]:
    if np.ma.is_masked(value):
        count = int(np.ma.getmaskarray(value).sum())
        raise ValueError(
            f"init: {count} of the values of variable {name!r} are masked, which initial values cannot be. Give every "
            f"value, as value.filled(...) does, or omit the variable, which then starts at random."
        )
    try:
        value = np.asarray(value).astype(np.float64, casting="same_kind")
    except (TypeError, ValueError):
        raise TypeError(f"init: the value of variable {name!r} is not an array of numbers: {value!r}.") from None
    if not np.isfinite(value).all():
        count = int((~np.isfinite(value)).sum())
        raise ValueError(f"init: {count} of the values of variable {name!r} are not finite; give finite numbers.")
    return value
