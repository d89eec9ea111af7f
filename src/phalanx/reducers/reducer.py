"""What a reducer is: four pure functions that fold draws into a state of constant size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array

Draw = Array
"""A value of every chain, `(chains, ...)`."""


@dataclass(frozen=True)
class Reducer:
    """A fold over draws whose state does not grow.

    A run keeps one state for the draws of a block, on the device, in the type of the draws; between blocks the states
    are merged on the host, in float64. So a billion draws in float32 are added up in float64, some thousands at a time.
    States are NamedTuples of arrays whose leading dimension is that of the chains, or one where chains are pooled; they
    can be saved and gone on with.

    Attributes:
        name: how the user wrote it.
        init: `init(example) -> state`, before the first draw; `example` is a draw `(chains, ...)`, of which only shape
            and type count.
        update: `update(state, draw, where) -> state`, traced; `where`, `(chains,)`, says which chains have drawn.
        merge: `merge(a, b) -> state` of both, in NumPy; `b` has later draws of the same chains.
        finalize: `finalize(state) -> result`, in NumPy, pooled over the leading dimension.
        tells: what a verdict reads in the result: "r_hat", "ess", or nothing.
        superchains: in how many groups chains must begin together, for what it tells to mean anything; 0 for any.
        begin: `begin(example, before) -> state`, traced, in place of `init` where a state depends on how many draws
            each chain has made before, `(chains,)`, as one that takes every tenth draw does; None where it does not.
        constant: `constant(state)`, in NumPy: which elements were the same in every draw, and finite. A verdict leaves
            them out.
    """

    name: str
    init: Callable[[Draw], Any]
    update: Callable[[Any, Draw, Array], Any]
    merge: Callable[[Any, Any], Any]
    finalize: Callable[[Any], Any]
    tells: str = ""
    superchains: int = 0
    constant: Callable[[Any], np.ndarray | np.bool_] | None = None
    begin: Callable[[Draw, Array], Any] | None = None

    def begun(self, example: Draw, before: Array | None) -> Any:
        """Return the state of no draws, of chains that have made so many before; None means none."""
        return self.init(example) if self.begin is None or before is None else self.begin(example, before)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Reduce:
    """A reducer of a function of the values of all variables; made by `phx.reduce`."""

    fn: Callable[[Mapping[str, Array]], Any]
    reducer: Reducer


def reduce(fn: Callable[[Mapping[str, Array]], Any], reducer: Reducer) -> Reduce:
    """Reduce any function of a draw, such as a posterior predictive mean.

    Args:
        fn: from the values of one draw, a dict by variable (deterministic ones included), to an array or a dict of
            arrays.
        reducer: what is to be learned of it.

    Where rows of a variable are sharded, the function sees those of one device. That its result is, row by row or as a
    whole, the one on all rows is proved from the function, or else tried on numbers with all of its branches; what does
    not agree is refused.

    Returns:
        An entry for `reducers=` of `phx.mcmc`. The result is that of the array, or a dict of results.

    Raises:
        TypeError: when `fn` is no function or `reducer` no reducer.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))
        >>> square = phx.reduce(lambda values: values["x"] ** 2, phx.reducers.moments())
        >>> posterior = phx.mcmc(model, keep=[], reducers={"square": square}, num_samples=500, progress=False)
        >>> bool(0.5 < posterior.reduced["square"].mean < 1.5)
        True
    """
    if not callable(fn):
        raise TypeError(f"phx.reduce: the first argument must be a function of a draw, got {type(fn).__name__}.")
    if not isinstance(reducer, Reducer):
        raise TypeError(
            f"phx.reduce: the second argument must be a reducer, such as phx.reducers.moments(); got "
            f"{type(reducer).__name__}."
        )
    return Reduce(fn, reducer)


def per_variable(names: tuple[str, ...], reducer: Reducer) -> Reduce:
    """A reducer applied to each of these variables."""
    return Reduce(_Selected(names), reducer)


def is_of_user(entry: Reduce) -> bool:
    """Return whether it reduces a function of the user's."""
    return not isinstance(entry.fn, _Selected)


@dataclass(frozen=True)
class _Selected:
    """The variables of these names; compared by value, so that equal runs compile to one program."""

    names: tuple[str, ...]

    def __call__(self, values: Mapping[str, Array]) -> dict[str, Array]:
        return {name: values[name] for name in self.names}


def on_host(state: Any) -> Any:
    """A state as NumPy's arrays, real numbers in float64 and counts in 64 bits."""

    def widen(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        if leaf.dtype.kind == "f":
            return leaf.astype(np.float64)
        return leaf.astype(np.int64) if leaf.dtype.kind in "iu" else leaf

    return jax.tree.map(widen, state)
