r"""Objectives: functions of the log densities of draws under model and guide, which a fit minimises.

An objective names its parts, which are evaluated for every particle. All are values of $\log p$ or $\log q$, and differ
in their derivatives: by the parameters, and by the draws, which are functions of the guide's parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.nn import logsumexp, softmax

from phalanx.mesh.specs import PyTree
from phalanx.variational.guides.guide_and_model import Pair, log_score
from phalanx.variational.guides.learned import Params
from phalanx.variational.problem import Values

if TYPE_CHECKING:
    from jaxtyping import Float

Parts = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Objective:
    """An objective.

    Attributes:
        name: the objective as the user wrote it.
        parts: names of its parts: `log_p` and `log_q`, differentiated by everything; with `_path`, along the draws
            alone; with `_fixed`, at constant draws; with `_drawn`, computed from the noise of the draws; `score`, the
            log density of variables that cannot be differentiated through; and `draws`.
        loss: from the parts, `(particle,)` each, to a scalar whose gradient is followed.
        bound: from log weights `(particle,)` to estimates of the log evidence, which are shown.
        scores: whether variables that cannot be differentiated through are learned.
        multiple: particles come in multiples of this.
        averages: whether it is an average of independent terms of the particles, whose noise may then be correlated.
        is_usual: whether it is the default, which methods without an objective of their own follow.
    """

    name: str
    parts: tuple[str, ...]
    loss: Callable[[Parts], Float[Array, ""]]
    bound: Callable[[Float[Array, "particle"]], Float[Array, "estimate"]]
    scores: bool = False
    multiple: int = 1
    averages: bool = False
    is_usual: bool = False


def particles(pair: Pair, params: Params, noise: PyTree, data: Values, names: Sequence[str]) -> dict[str, Any]:
    """Return the parts of an objective, for draws from the guide: `(particle,)` each.

    Args:
        pair: guide and model.
        params: values of the parameters.
        noise: the noise of each draw.
        data: the model's arguments.
        names: names of the parts; see `Objective`.
    """
    fixed_params = lax.stop_gradient(params)

    def log_p(at: Params, draw: Mapping[str, Array]) -> Array:
        return jnp.asarray(sum(pair.log_model(at, draw, data).values()))

    def one(noise: PyTree) -> dict[str, Any]:
        log_q = None
        if "log_q_drawn" in names or "log_q_path" in names:
            draw, log_q = pair.draw_weighted(params, noise, data, is_constant="log_q_drawn" not in names)
        else:
            draw = pair.draw(params, noise, data)
        fixed_draw = lax.stop_gradient(draw)
        parts = {
            "log_p": lambda: log_p(params, draw),
            "log_p_path": lambda: log_p(fixed_params, draw),
            "log_p_fixed": lambda: log_p(params, fixed_draw),
            "log_q_drawn": lambda: log_q,
            "log_q": lambda: pair.log_guide(params, draw, data),
            "log_q_path": lambda: log_q,
            "log_q_fixed": lambda: pair.log_guide(params, fixed_draw, data),
            "score": lambda: log_score(pair, params, draw, data),
            "draws": lambda: draw,
        }
        return {name: parts[name]() for name in names}

    return pair.problem.alone(lambda: _map_particles(one, noise))


def _map_particles(one: Callable[[PyTree], T], noise: PyTree) -> T:
    """Map over noise; a single particle has no batch dimension, with which products of matrices take longer."""
    if len(jax.tree.leaves(noise)[0]) == 1:
        return jax.tree.map(lambda leaf: leaf[None], one(jax.tree.map(lambda leaf: leaf[0], noise)))
    return jax.vmap(one)(noise)


def log_weights(parts: Parts) -> Float[Array, "particle"]:
    """Return the particles' log weights, from whichever parts there are."""
    log_p, log_q = (
        next(value for name, value in parts.items() if name.startswith(kind)) for kind in ("log_p", "log_q")
    )
    return lax.stop_gradient(log_p - log_q)


def _each(log_weights: Float[Array, "particle"]) -> Float[Array, "particle"]:
    return log_weights


def _elbo(parts: Parts, log_q: str = "log_q_path") -> Float[Array, ""]:
    # Along the path, even where the entropy has a closed form, as of normals: at the end of a fit the noise of the
    # path's gradient is 0 to 0.66 of the other's, 0.09 to 0.13 of it for logistic regressions (mean_field and
    # full_rank; a regression, a logistic one and the eight schools).
    gaps = parts[log_q] - parts["log_p"]
    if parts.get("score") is None:
        return jnp.mean(gaps)
    signal = lax.stop_gradient(gaps)
    count = gaps.size
    others = (jnp.sum(signal) - signal) / (count - 1)  # a baseline that does not depend on this draw
    return jnp.mean(gaps) + jnp.mean((signal - others) * parts["score"])


def _elbo_as_drawn(parts: Parts) -> Float[Array, ""]:
    return _elbo(parts, "log_q_drawn")


def elbo(*, path: bool = True) -> Objective:
    r"""Make the objective of the evidence lower bound, $E_q[\log p(x, z) - \log q(z)]$.

    Its gradient runs along the path of the draws alone: the omitted part has mean zero, and without it the gradient has
    no noise where the guide is the posterior ("sticking the landing"). Variables of the guide that cannot be
    differentiated through, such as discrete ones, are learned by the score function: each particle's gap, less the mean
    of the others', times the gradient of their log density.

    Args:
        path: whether the gradient runs along the path alone. It needs the density as a function of the draws: for a
            transform that is slow to invert, such as `phx.flows.InverseAutoregressive`, that is a pass for each
            coordinate. False computes the density from the noise, in one pass, and follows the whole gradient.

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
    r"""Make the objective of the importance-weighted bound, $E[\log \frac1K \sum_k p(x, z_k) / q(z_k)]$.

    The bound rises to the log evidence with $K$. The guide's gradient is the doubly reparameterised one: squared
    normalised weights along the paths of the draws. That of the model's parameters has the weights themselves.

    Args:
        count: $K$; particles come in multiples of it.

    Returns:
        The objective for `phx.fit(..., objective=)`.

    Raises:
        ValueError: when `count` is not a whole number above zero.

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

    def groups(values: Float[Array, "particle"]) -> Float[Array, "group member"]:
        return values.reshape(-1, count)

    def loss(parts: Parts) -> Float[Array, ""]:
        path = groups(parts["log_p_path"] - parts["log_q_path"])
        weights = softmax(lax.stop_gradient(path), axis=1)
        of_guide = jnp.sum(weights**2 * path, 1)
        of_model = jnp.sum(weights * groups(parts["log_p_fixed"]), 1)
        return -jnp.mean(of_guide + of_model)

    def bound(log_weights: Float[Array, "particle"]) -> Float[Array, "group"]:
        return logsumexp(groups(log_weights), axis=1) - jnp.log(count)

    name = f"importance_weighted({count})"
    parts = ("log_p_path", "log_p_fixed", "log_q_path")
    return Objective(name, parts, loss, bound, multiple=count)


def forward_kl() -> Objective:
    r"""Make the objective of the divergence $KL(p \| q)$, by self-normalised importance weights.

    It makes the guide cover all of the posterior's mass, while the bound makes it avoid regions without mass. The
    gradient is $-\sum_s \tilde w_s \nabla \log q(z_s)$, biased by the weights of a few draws: use many particles. The
    model's parameters follow the same weights. Draws need not be differentiable.

    Returns:
        The objective for `phx.fit(..., objective=)`.

    Example:
        >>> import phalanx as phx
        >>> phx.guides.forward_kl().name
        'forward_kl()'

    Source:
        Bornschein, Bengio (2015), Reweighted wake-sleep.
    """

    def loss(parts: Parts) -> Float[Array, ""]:
        weights = softmax(lax.stop_gradient(parts["log_p_fixed"] - parts["log_q_fixed"]))
        return -jnp.sum(weights * (parts["log_q_fixed"] + parts["log_p_fixed"]))

    return Objective("forward_kl()", ("log_p_fixed", "log_q_fixed"), loss, _each, scores=True)


def _check_takes_three(fn: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # built-ins and some callables have no signature
        return
    try:
        signature.bind(None, None, None)
    except TypeError:
        raise TypeError(
            f"objective: the function must take three arguments, log_p, log_q and draws; "
            f"{getattr(fn, '__name__', type(fn).__name__)}{signature} does not. Write it as in "
            f"lambda log_p, log_q, draws: (log_q - log_p).mean()."
        ) from None


def objective(fn: Callable[[Array, Array, PyTree], Array], *, path: bool = False) -> Objective:
    """Make an objective of your own.

    Args:
        fn: from the log densities of the draws under model and guide, `(particle,)` each, and the draws, to a scalar
            that the fit minimises. It is differentiated, and so are the draws.
        path: whether the guide's log density is differentiated along the draws alone.

    Returns:
        The objective for `phx.fit(..., objective=)`.

    Raises:
        TypeError: when `fn` is not a function.

    Example:
        >>> import jax, phalanx as phx
        >>> chi = phx.guides.objective(lambda log_p, log_q, draws: jax.nn.logsumexp(2.0 * (log_p - log_q)))
        >>> chi.name
        'objective(<lambda>)'
    """
    if not callable(fn):
        raise TypeError(f"objective: expected a function of log_p, log_q and draws; got {type(fn).__name__}.")
    _check_takes_three(fn)
    log_q = "log_q_path" if path else "log_q"

    def loss(parts: Parts) -> Float[Array, ""]:
        returned = fn(parts["log_p"], parts[log_q], parts["draws"])
        try:
            value = jnp.asarray(returned)
        except (TypeError, ValueError):
            raise TypeError(
                f"objective: the function must return a scalar, the number to minimise; got {returned!r}."
            ) from None
        if value.shape != ():
            raise ValueError(f"objective: the function must return a scalar; got an array of shape {value.shape}.")
        return value

    return Objective(f"objective({getattr(fn, '__name__', 'fn')})", ("log_p", log_q, "draws"), loss, _each)
