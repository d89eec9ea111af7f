"""Where chains are to begin, as the user says it: values by variable, on the scale that the model is written in.

They are arguments of the compiled run, so that other values compile nothing. What is not given is drawn near zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.sharding import NamedSharding

from phalanx.density.target import Target
from phalanx.errors.names import hint
from phalanx.language.handlers import seed as seeded
from phalanx.language.handlers import tape
from phalanx.mesh.devices import CHAIN, axes_but_chain
from phalanx.mesh.processes import to_devices, to_host
from phalanx.mesh.virtual_mesh import on_virtual_mesh
from phalanx.posterior.posterior import Posterior
from phalanx.run.find_finite_start import Given

UNUSED_DRAW = 2**32 - 1
"""The number under which keys of initial values are made: no draw ever has it."""

PRIOR = "prior"


@dataclass(frozen=True)
class Superchains:
    """Groups of chains that begin together; see `phx.superchains`."""

    count: int
    init: Any


def superchains(count: int, init: Any = None) -> Superchains:
    """Groups of chains that begin at one point each, and go their own ways from there.

    With many chains that are short, R-hat asks of each chain that it has drawn for long; nested R-hat compares groups,
    and asks of their members together that they have forgotten where they began.

    Args:
        count: how many groups there are, of `num_chains // count` consecutive chains: two at least.
        init: where they begin, as `init` of `phx.mcmc`; of values for each chain, those of a group's first are taken.

    Returns:
        A value for `init=` of `phx.mcmc`.

    Raises:
        TypeError, ValueError: when `count` is no whole number of at least 2.

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
        raise ValueError(f"superchains: count must be 2 or more, for groups to be compared; got {count}.")
    return Superchains(int(count), init)


@dataclass(frozen=True)
class Initial:
    """Initial values of a run.

    Attributes:
        described: what the record says of them.
        values: by variable, `(chain, ...)`, whole; of those variables that have any.
        superchains: groups of chains that begin where their first does; 0 where all begin apart.
    """

    described: str = "random"
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    superchains: int = 0

    def leaders(self, num_chains: int) -> np.ndarray:
        """The chain beside which each begins."""
        members = num_chains // (self.superchains or num_chains)
        return np.arange(num_chains) if not self.superchains else np.arange(num_chains) // members * members

    def given(self, target: Target, num_chains: int) -> Given:
        """As the compiled blocks take it: padded, on the devices."""
        values = {}
        for latent in target.shares.latents:
            zeros = np.zeros((), latent.dtype)  # where no value is given none is looked at
            whole = self.values.get(latent.name, np.broadcast_to(zeros, (num_chains, *latent.whole_shape)))
            sharding = NamedSharding(target.mesh, latent.sharding.spec(CHAIN))
            rows = target.shares.layout.padded(latent, whole, leading=1)
            values[latent.name] = to_devices(rows.astype(latent.dtype), sharding)
        return Given(values, {name: np.bool_(name in self.values) for name in values})

    def check(self, misfits: Mapping[str, Any]) -> None:
        """Refuse values that no position gives."""
        for name, found in misfits.items():
            if (chains := np.flatnonzero(to_host(found))).size:
                value = self.values[name][chains[0]]
                what = f"{value}" if value.ndim == 0 else f"of shape {value.shape}"
                raise ValueError(
                    f"init: the value {what} of variable {name!r} for chain {chains[0]} lies outside of its support, "
                    f"or on its edge, where chains cannot move. Give a value inside."
                )


def initial_of(init: Any, target: Target, num_chains: int, seed: int, prior: Callable[..., Any]) -> Initial:
    """What the user gave as `init`, looked at.

    Args:
        init: None, a dict of values by variable, a posterior, a fit, a function of a key that returns such a dict, or
            "prior".
        target: the model.
        num_chains: chains in all.
        seed: of the run.
        prior: draws a chain's variables from the prior, for keys `(chain,)`.

    Raises:
        TypeError: when it is none of these.
        ValueError: when a name, a shape or a value does not fit the model; the variable is named.
    """
    if init is None:
        return Initial()
    if isinstance(init, Superchains):
        return _together(init, initial_of(init.init, target, num_chains, seed, prior), num_chains)
    shapes = target.shares.whole_shapes
    if isinstance(init, Posterior):
        return _checked("draws of a posterior", _of_posterior(init, target, num_chains), shapes, num_chains)
    if hasattr(init, "starts"):
        return _checked("draws of a fit", _of_fit(init.starts(num_chains, seed), target), shapes, num_chains)
    if isinstance(init, Mapping):
        return _checked("values", init, shapes, num_chains, of_chains=False)
    keys = jax.vmap(lambda chain: random.fold_in(random.fold_in(random.key(seed), chain), UNUSED_DRAW))
    if isinstance(init, str) and init == PRIOR:
        return _checked("draws from the prior", prior(keys(np.arange(num_chains))), shapes, num_chains)
    if callable(init):
        name = getattr(init, "__name__", type(init).__name__)
        made = _of_function(init, keys(np.arange(num_chains)), target)
        return _checked(f"values of {name}", made, shapes, num_chains)
    raise _no_kind(init)


def check_kind(init: Any) -> None:
    """Raise unless `init` is of a kind that chains can begin from."""
    known = isinstance(init, Superchains | Posterior | Mapping) or hasattr(init, "starts") or callable(init)
    if not (init is None or known or (isinstance(init, str) and init == PRIOR)):
        raise _no_kind(init)


def check_values(init: Any, shapes: Mapping[str, tuple[int, ...]], num_chains: int) -> None:
    """Raise unless values given in a dict fit the latent variables, of these shapes."""
    if isinstance(init, Superchains):
        check_values(init.init, shapes, num_chains)
    elif isinstance(init, Mapping):
        _checked("values", init, shapes, num_chains, of_chains=False)


def _no_kind(init: Any) -> TypeError:
    return TypeError(
        f"init: expected a dict of values by variable, a posterior, a fit, a function of a key that returns such a "
        f"dict, {PRIOR!r}, or phx.superchains(...) of these; got {init!r}."
    )


def _together(init: Superchains, initial: Initial, num_chains: int) -> Initial:
    if initial.superchains:
        raise TypeError("init: superchains of superchains have no meaning; give phx.superchains once.")
    if num_chains % init.count:
        raise ValueError(
            f"init: {num_chains} chains cannot be parted into {init.count} superchains of one size; make num_chains a "
            f"multiple of {init.count}."
        )
    return replace(initial, described=f"{initial.described}, in {init.count} superchains", superchains=init.count)


def prior_of(target: Target) -> Callable[..., dict[str, Array]]:
    """Draws the latent variables of `target` from their prior: `(keys, arrays)` to values `(key, ...)`, compiled once.

    What the model observes is left alone.
    """
    names = [latent.name for latent in target.shares.latents]
    shardings, layout, program = target.arguments.shardings, target.layout, target.program

    def draws(keys: Array, arrays: Any) -> dict[str, Array]:
        whole = [a[: s.rows] if s.axes else a for a, s in zip(arrays, shardings, strict=True)]

        def one(key: Array) -> dict[str, Array]:
            with tape() as variables:
                seeded(program, key)(**layout.join(whole))
            return {name: jnp.asarray(variables[name].value) for name in names}

        return on_virtual_mesh(jax.vmap(one), dict.fromkeys(axes_but_chain(target.mesh), 1))(keys)

    return jax.jit(draws)


def _of_posterior(posterior: Posterior, target: Target, num_chains: int) -> dict[str, np.ndarray]:
    """The last draw of each chain or, of another number of chains, draws evenly chosen among all."""
    names = [name for name in target.shares.whole_shapes if name in posterior.draws]
    if not names or not posterior.num_draws:
        raise ValueError(
            f"init: the posterior has no draws of a variable of this model, which has "
            f"{', '.join(map(repr, target.shares.whole_shapes))}. Store one of them with keep=."
        )
    draws = {name: np.asarray(posterior.draws[name]) for name in names}
    if posterior.num_chains == num_chains:
        return {name: values[:, -1] for name, values in draws.items()}
    flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in draws.items()}
    chosen = np.linspace(0, len(flat[names[0]]) - 1, num_chains).round().astype(int)
    return {name: values[chosen] for name, values in flat.items()}


def _of_fit(draws: Mapping[str, Any], target: Target) -> dict[str, Any]:
    """Draws from a guide, of the variables that this model has."""
    names = [latent.name for latent in target.shares.latents]
    found = {name: draws[name] for name in names if name in draws}
    if not found:
        raise ValueError(
            f"init: the fit has no variable of this model, which has {', '.join(map(repr, names))}; it "
            f"has {', '.join(map(repr, draws))}."
        )
    return found


def _of_function(init: Callable[[Array], Any], keys: Array, target: Target) -> dict[str, np.ndarray]:
    """What a function of a key returns for every chain's key."""
    first = init(keys[0])
    if not isinstance(first, Mapping):
        raise TypeError(f"init: the function must return a dict of values by variable, got {type(first).__name__}.")
    found = _for_all(init, keys, first)
    chains, shapes = np.arange(len(keys)), target.shares.whole_shapes
    # of a function that returns values for all chains, each chain takes its own of those made with its key
    return {
        name: value[chains, chains] if value.shape == (*chains.shape * 2, *shapes.get(name, (0,))) else value
        for name, value in ((name, np.asarray(value)) for name, value in found.items())
    }


def _for_all(init: Callable[[Array], Any], keys: Array, first: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        found = jax.vmap(init)(keys)
        last = init(keys[-1])  # one alone may agree by chance
        ends = [(found[name][i], one[name]) for i, one in ((0, first), (-1, last)) for name in first]
        if all(np.allclose(*pair, rtol=1e-5, equal_nan=True) for pair in ends):
            return found
    except jax.errors.JAXTypeError:
        pass
    made = [first, *map(init, keys[1:])]  # it computes with NumPy, or has random numbers of its own: one by one
    return jax.tree.map(lambda *values: np.stack(values), *made)


def _checked(
    described: str,
    values: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    num_chains: int,
    of_chains: bool = True,
) -> Initial:
    """Values that fit the model: `of_chains` have one for each chain, others may have one for all."""
    found = {}
    if unknown := [name for name in values if name not in shapes]:
        raise ValueError(
            f"init: the model has no latent variable {', '.join(map(repr, unknown))}; it has "
            f"{', '.join(map(repr, shapes))}.{hint(unknown, shapes)}"
        )
    for name, value in values.items():
        value = _numbers(name, value)
        shape, each = shapes[name], (num_chains, *shapes[name])
        if value.shape != each and (of_chains or value.shape != shape):
            one = value.shape[1:] if of_chains else value.shape
            raise ValueError(
                f"init: the value of variable {name!r} has shape {one}; expected {shape}, or {each} with a value for "
                f"each chain."
            )
        found[name] = np.broadcast_to(value, each)
    return Initial(f"{described} ({', '.join(found)})" if found else "random", found)


def _numbers(name: str, value: Any) -> np.ndarray:
    if np.ma.is_masked(value):
        count = int(np.ma.getmaskarray(value).sum())
        raise ValueError(
            f"init: {count} of the values of variable {name!r} are masked, and a mask has no meaning here. Give every "
            f"value, as value.filled(...) does, or leave the variable out: it then begins at random."
        )
    try:
        value = np.asarray(value).astype(np.float64, casting="same_kind")
    except (TypeError, ValueError):
        raise TypeError(f"init: the value of variable {name!r} is no array of numbers: {value!r}.") from None
    if not np.isfinite(value).all():
        count = int((~np.isfinite(value)).sum())
        raise ValueError(f"init: {count} of the values of variable {name!r} are not finite.")
    return value
