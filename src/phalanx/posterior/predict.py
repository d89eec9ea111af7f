"""Evaluation of a user's function of one draw, and optionally of a key, at every draw."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from phalanx.errors.model_errors import model_errors
from phalanx.errors.names import hint
from phalanx.posterior.over_draws import over_draws


def predict(
    fn: Callable[..., Any], draws: Mapping[str, np.ndarray], *, seed: int, batch_size: int,
    not_kept: Sequence[str] = (), chains: np.ndarray | None = None,
) -> Any:  # fmt: skip
    """Evaluate `fn` at every draw; see `Posterior.predict`.

    Args:
        fn: maps the values of one draw, and optionally a key, to a pytree of arrays.
        draws: arrays of shape `(chain, draw, ...)` by name.
        seed: source of the draws' keys.
        batch_size: draws evaluated at a time.
        not_kept: variables of the model without draws, for the message about an unknown name.
        chains: numbers of these chains in the run; None for the first ones.

    Returns:
        The pytree with arrays of shape `(chain, draw, ...)`.
    """
    sizes = _check(fn, draws, batch_size)
    takes_key = _takes_key(fn)

    def of_draw(values: dict[str, Any], key: Array, _: Any) -> Any:
        return _evaluate(fn, values, (key,) if takes_key else (), not_kept)

    return over_draws(of_draw, draws, sizes, seed=seed, batch_size=batch_size, chain_numbers=chains)


def check_batch_size(what: str, batch_size: object) -> None:
    """Raise unless `batch_size` is a whole number, at least 1."""
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ValueError(f"{what}: batch_size must be at least 1; got {batch_size!r}.")


def _check(fn: object, draws: Mapping[str, np.ndarray], batch_size: int) -> tuple[int, int]:
    """Return the number of chains and of draws, after checking the arguments."""
    if not callable(fn):
        raise TypeError(f"predict: fn must be a function of a dict of one draw's values; got {type(fn).__name__}.")
    check_batch_size("predict", batch_size)
    if not draws:
        raise ValueError("predict: there are no variables to give to fn; keep some when running (keep=None).")
    chains, length = next(iter(draws.values())).shape[:2]
    if chains * length == 0:
        raise ValueError(f"predict: there are no draws to evaluate fn at: {chains} chains of {length} draws.")
    return chains, length


def _takes_key(fn: Callable[..., Any]) -> bool:
    """Return whether `fn` takes a key: a second argument without a default, or one called `key`."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # built-ins and some callables have no signature
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 and (positional[1].default is inspect.Parameter.empty or positional[1].name == "key")


class _NoSuchVariable(KeyError):
    """Lookup of a variable that a draw does not have."""


class _Draw(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        raise _NoSuchVariable(name)


def _evaluate(fn: Callable[..., Any], values: dict[str, Any], key: tuple[Array, ...], not_kept: Sequence[str]) -> Any:
    """Return what `fn` returns for one draw, after checking that it is a pytree of arrays."""
    try:
        with model_errors(fn, arguments=values):
            output = fn(values, *key)
    except KeyError as error:
        _check_asked(fn, values, key, error, not_kept)
        raise
    leaves = jax.tree.leaves(output)
    if not leaves:
        raise ValueError("predict: fn returned no value; it must return an array or a pytree of arrays.")
    for leaf in leaves:
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
            raise TypeError(
                f"predict: fn must return a pytree of arrays; one of its leaves is a {type(leaf).__name__}."
            )
    return output


def _check_asked(
    fn: Callable[..., Any], values: dict[str, Any], key: tuple[Array, ...], error: KeyError, not_kept: Sequence[str]
) -> None:
    """Raise if the missing key is a variable; a `KeyError` from a dict of the user's own is left as it is."""
    try:
        fn(_Draw(values), *key)
    except _NoSuchVariable as missing:
        known = ", ".join(map(repr, values))
        wrong = hint(map(str, missing.args), values, not_kept)
        message = f"predict: fn asks for {missing}, which is not among the draws; they hold: {known}.{wrong}"
        raise ValueError(message) from error
    except Exception:
        return
