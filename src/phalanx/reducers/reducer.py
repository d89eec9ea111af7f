"""Protocol of a reducer: four pure functions that accumulate draws into a state of constant size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax
import numpy as np
from jax import Array

from phalanx.mesh.specs import PyTree

Draw = Array
"""Value of every chain, `(chains, ...)`."""


@dataclass(frozen=True)
class Reducer:
    """Statistic of draws whose state does not grow.

    A run keeps one state for a batch of draws, on the device, in the type of the draws; between batches the states are
    merged on the host, in float64. A billion draws in float32 are thus added up in float64, some thousands at a time.
    States are NamedTuples of arrays whose leading dimension is that of the chains, or one where chains are pooled; a
    saved state can be continued.

    Attributes:
        name: the call that made it, such as `quantiles([0.5])`.
        init: `init(example) -> state`, before the first draw; only shape and type of `example`, a draw
            `(chains, ...)`, matter.
        update: `update(state, draw, where) -> state`, traced; `where`, `(chains,)`, is true for chains that have drawn.
        merge: `merge(a, b) -> state` of both, in NumPy; `b` has later draws of the same chains.
        finalize: `finalize(state) -> result`, in NumPy, pooled over the leading dimension.
        statistic: the statistic that a verdict reads in the result, "r_hat" or "ess"; empty for all others.
        superchains: the number of groups of chains that must begin together for the result to be valid; 0 for any
            chains.
        constant: `constant(state)`, in NumPy: true for elements that were the same in every draw, and finite. A verdict
            leaves them out.
        begin: `begin(example, before, chain) -> state`, traced, in place of `init` where a state depends on the number
            of draws that each chain has made `before`, `(chains,)`, as for every tenth draw, or on the number of each
            chain in the run, `chain`; None where it does not.
        of_observations: true if, without a function, it reduces the log densities of the model's observations instead
            of the values of variables.

    Example:
        >>> import numpy as np, phalanx as phx
        >>> largest = phx.reducers.Reducer(
        ...     "largest", init=lambda draw: draw, update=lambda state, draw, where: np.maximum(state, draw),
        ...     merge=np.maximum, finalize=lambda state: state.max(0),
        ... )
        >>> float(largest.finalize(largest.merge(np.array([1.0, 4.0]), np.array([3.0, 2.0]))))
        4.0
    """

    name: str
    init: Callable[[Draw], Any]
    update: Callable[[Any, Draw, Array], Any]
    merge: Callable[[Any, Any], Any]
    finalize: Callable[[Any], Any]
    _: KW_ONLY
    statistic: str = ""
    superchains: int = 0
    constant: Callable[[Any], np.ndarray | np.bool_] | None = None
    begin: Callable[[Draw, Array, Array], Any] | None = None
    of_observations: bool = False

    def begun(self, example: Draw, before: Array, chain: Array) -> PyTree:
        """Return the first state of these chains, which have made `before` draws."""
        return self.init(example) if self.begin is None else self.begin(example, before, chain)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Partial:
    """Function with its first arguments given, compared by value, so that equal reducers compile to one program."""

    fn: Callable[..., Any]
    given: tuple[Any, ...]

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        return self.fn(*self.given, *arguments)


@dataclass(frozen=True)
class Reduce:
    """Reducer of a function of the values of all variables; made by `phx.reduce`."""

    fn: Callable[[Mapping[str, Array]], Any]
    reducer: Reducer


def reduce(fn: Callable[[Mapping[str, Array]], Any], reducer: Reducer) -> Reduce:
    """Reduce any function of a draw, such as a posterior predictive mean.

    Args:
        fn: from the values of one draw, a dict by variable (deterministic ones included), to an array or a dict of
            arrays.
        reducer: the statistic of its result.

    The function sees all rows of a variable, also of one whose rows are sharded over devices: it is evaluated on each
    device's rows by the rules of placement, with messages where it combines rows.

    Returns:
        An entry for `reducers=` of `phx.mcmc`. The result is that of the array, or a dict of results.

    Raises:
        TypeError: when `fn` is not a function or `reducer` not a reducer.

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


def density_name(observed: str) -> str:
    """Return the name, among the values of a draw, of the log densities of an observed variable's observations."""
    return f"log p({observed})"


def on_host(state: PyTree) -> PyTree:
    """Return a state as arrays of NumPy, real numbers in float64 and counts in 64 bits."""

    def widen(leaf: Array | np.ndarray) -> np.ndarray:
        leaf = np.asarray(leaf)
        if leaf.dtype.kind == "f":
            return leaf.astype(np.float64)
        return leaf.astype(np.int64) if leaf.dtype.kind in "iu" else leaf

    return jax.tree.map(widen, state)
