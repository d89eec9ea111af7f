r"""Objectives: what a fit makes small, as a function of the log densities of draws under model and guide.

An objective names the parts it is made of, which are evaluated for every particle. All are values of $\log p$ or
$\log q$, and differ in what they are differentiated by: the parameters, and the draws, which follow from the guide's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.nn import logsumexp, softmax

Parts = Mapping[str, Any]


@dataclass(frozen=True)
class Objective:
    """An objective.

    Attributes:
        name: how the user wrote it.
        parts: what it is made of, of `log_p` and `log_q`, differentiated by everything; `_path`, along the draws alone;
            `_fixed`, at draws that do not move; `_drawn`, as known from how draws were made; `score`, the log density
            of what cannot be differentiated through; and `draws`.
        loss: from the parts, `(particle,)` each, to a scalar whose gradient is followed.
        bound: from log weights `(particle,)` to what each says of the evidence: shown, and not differentiated.
        scores: whether variables that cannot be differentiated through are learned.
        multiple: particles come in multiples of this.
        averages: whether it is an average over particles, none of which sees another: then these may depend on each
            other.
        is_usual: whether it is the default, which methods follow that have no objective of their own.
    """

    name: str
    parts: tuple[str, ...]
    loss: Callable[[Parts], Array]
    bound: Callable[[Array], Array]
    scores: bool = False
    multiple: int = 1
    averages: bool = False
    is_usual: bool = False


def _each(log_weights: Array) -> Array:
    return log_weights


def _elbo(parts: Parts, log_q: str = "log_q_path") -> Array:
    # Along the path, and not by the entropy in closed form where there is one, as of normals: at the end of a fit the
    # noise of the path's gradient is 0 to 0.66 of the other's, 0.09 to 0.13 of it for logistic regressions (mean_field
    # and full_rank; a regression, a logistic one and the eight schools).
    gaps = parts[log_q] - parts["log_p"]
    if parts.get("score") is None:
        return jnp.mean(gaps)
    signal, count = lax.stop_gradient(gaps), gaps.size
    others = (jnp.sum(signal) - signal) / (count - 1)  # what the other particles say has no part in this one's draw
    return jnp.mean(gaps) + jnp.mean((signal - others) * parts["score"])


def _elbo_as_drawn(parts: Parts) -> Array:
    return _elbo(parts, "log_q_drawn")


def elbo(*, path: bool = True) -> Objective:
    r"""The evidence lower bound, $E_q[\log p(x, z) - \log q(z)]$.

    Its gradient runs along the path of the draws alone: what is left out has mean zero, and without it the gradient is
    free of noise where the guide is the posterior ("sticking the landing"). Variables of the guide that cannot be
    differentiated through, such as discrete ones, are learned by the score function: each particle's gap, less the mean
    of the others', times the gradient of their log density.

    Args:
        path: whether the gradient runs along the path alone. It needs the density of draws as a function of them, which
            of a transform that is slow to invert, such as `phx.flows.InverseAutoregressive`, takes a pass for each
            coordinate. False takes the density from how draws were made, in one pass, and follows all of it.

    Returns:
        The objective for `phx.fit(..., objective=)`; it is the default.

    Example:
        >>> import phalanx as phx
        >>> phx.guides.elbo().name
        'elbo()'

    Source:
        Roeder, Wu, Duvenaud (2017), Sticking the landing: simple, lower-variance gradient estimators for variational
        inference; Kool, van Hoof, Welling (2019), Buy 4 REINFORCE samples, get a baseline for free!
    """
    name, log_q, loss = ("elbo()", "log_q_path", _elbo) if path else ("elbo(path=False)", "log_q_drawn", _elbo_as_drawn)
    return Objective(name, ("log_p", log_q, "score"), loss, _each, scores=True, averages=True, is_usual=path)


def importance_weighted(count: int = 8) -> Objective:
    r"""The importance-weighted bound, $E[\log \frac1K \sum_k p(x, z_k) / q(z_k)]$: it rises to the evidence with $K$.

    The guide's gradient is the doubly reparameterised one: squared normalised weights along the paths of the draws.
    That of the model's parameters has the weights themselves.

    Args:
        count: $K$; particles come in multiples of it.

    Returns:
        The objective for `phx.fit(..., objective=)`.

    Raises:
        ValueError: when `count` is no whole number above zero.

    Example:
        >>> import phalanx as phx
        >>> phx.guides.importance_weighted(16).name
        'importance_weighted(16)'

    Source:
        Burda, Grosse, Salakhutdinov (2016), Importance weighted autoencoders; Tucker, Lawson, Gu, Maddison (2019),
        Doubly reparameterized gradient estimators for Monte Carlo objectives.
    """
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ValueError(f"importance_weighted: count must be a whole number, at least 1; got {count!r}.")

    def groups(values: Array) -> Array:
        return values.reshape(-1, count)

    def loss(parts: Parts) -> Array:
        path = groups(parts["log_p_path"] - parts["log_q_path"])
        weights = softmax(lax.stop_gradient(path), axis=1)
        of_guide = jnp.sum(weights**2 * path, 1)
        of_model = jnp.sum(weights * groups(parts["log_p_fixed"]), 1)
        return -jnp.mean(of_guide + of_model)

    def bound(log_weights: Array) -> Array:
        return logsumexp(groups(log_weights), axis=1) - jnp.log(count)

    name, parts = f"importance_weighted({count})", ("log_p_path", "log_p_fixed", "log_q_path")
    return Objective(name, parts, loss, bound, multiple=count)


def forward_kl() -> Objective:
    r"""The divergence $KL(p \| q)$ of the guide from the posterior, by self-normalised importance weights.

    It makes the guide cover what has mass, where the bound makes it stay where there is some. The gradient is
    $-\sum_s \tilde w_s \nabla \log q(z_s)$, off by what a few draws' weights are off: use many particles. The model's
    parameters follow the same weights. Draws need not be differentiable.

    Returns:
        The objective for `phx.fit(..., objective=)`.

    Example:
        >>> import phalanx as phx
        >>> phx.guides.forward_kl().name
        'forward_kl()'

    Source:
        Bornschein, Bengio (2015), Reweighted wake-sleep.
    """

    def loss(parts: Parts) -> Array:
        weights = softmax(lax.stop_gradient(parts["log_p_fixed"] - parts["log_q_fixed"]))
        return -jnp.sum(weights * (parts["log_q_fixed"] + parts["log_p_fixed"]))

    return Objective("forward_kl()", ("log_p_fixed", "log_q_fixed"), loss, _each, scores=True)


def _check_takes_three(fn: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # built-ins and some callables show none
        return
    try:
        signature.bind(None, None, None)
    except TypeError:
        raise TypeError(
            f"objective: the function must take three arguments, log_p, log_q and draws; "
            f"{getattr(fn, '__name__', type(fn).__name__)}{signature} does not. Write it as in "
            f"lambda log_p, log_q, draws: (log_q - log_p).mean()."
        ) from None


def objective(fn: Callable[[Array, Array, Any], Array], *, path: bool = False) -> Objective:
    """An objective of your own.

    Args:
        fn: from the log densities of the draws under model and guide, `(particle,)` each, and the draws, to a scalar
            that is made small. It is differentiated, and so are the draws.
        path: whether the guide's log density is differentiated along the draws alone.

    Returns:
        The objective for `phx.fit(..., objective=)`.

    Raises:
        TypeError: when `fn` is no function.

    Example:
        >>> import jax, phalanx as phx
        >>> chi = phx.guides.objective(lambda log_p, log_q, draws: jax.nn.logsumexp(2.0 * (log_p - log_q)))
    """
    if not callable(fn):
        raise TypeError(f"objective: expected a function of log_p, log_q and draws; got {type(fn).__name__}.")
    _check_takes_three(fn)
    log_q = "log_q_path" if path else "log_q"

    def loss(parts: Parts) -> Array:
        returned = fn(parts["log_p"], parts[log_q], parts["draws"])
        try:
            made = jnp.asarray(returned)
        except (TypeError, ValueError):
            raise TypeError(
                f"objective: the function must return a scalar, the number that is made small; got {returned!r}."
            ) from None
        if made.shape != ():
            raise ValueError(f"objective: the function must return a scalar; got an array of shape {made.shape}.")
        return made

    return Objective(f"objective({getattr(fn, '__name__', 'fn')})", ("log_p", log_q, "draws"), loss, _each)
