"""Guides made from a model, and objectives: what `phx.guides` has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from phalanx.variational.gaussian import FullRank, Laplace, LowRank, MeanField
from phalanx.variational.objective import elbo, forward_kl, importance_weighted, objective
from phalanx.variational.pathfinder import Pathfinder

__all__ = [
    "elbo", "forward_kl", "full_rank", "importance_weighted", "laplace", "low_rank", "mean_field", "objective",
    "pathfinder",
]  # fmt: skip


def _check(model: Any, **positive: float | None) -> None:
    if model is not None and not callable(model):
        raise TypeError(f"guides: the first argument is the model, a function; got {type(model).__name__}.")
    for name, value in positive.items():
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float | np.number) or not value > 0
        ):
            raise ValueError(f"guides: {name} must be a number above 0; got {value!r}.")


def mean_field(model: Callable[..., Any] | None = None, *, init_scale: float | None = None) -> MeanField:
    r"""Independent normals on the unconstrained scale: $u_i \sim N(m_i, s_i^2)$, $x = T(u)$.

    Its variances are too small where variables are correlated: for a normal posterior of precision $\Lambda$ they are
    $1 / \Lambda_{ii}$. What is local to the rows of sharded data has its parameters on their devices.

    Args:
        model: the model, which `phx.fit` knows anyway.
        init_scale: standard deviations to begin with, on the unconstrained scale; None climbs a little first, and takes
            those that the curvature of the log density tells.

    Returns:
        A guide for `phx.fit`, with parameters `x.loc` and `x.scale` for each variable `x`.

    Raises:
        TypeError, ValueError: when an argument is out of range.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(1.0, 2.0))
        >>> fit = phx.fit(model, phx.guides.mean_field(), progress=False)
        >>> sorted(fit.params)
        ['x.loc', 'x.scale']

    Source:
        Kucukelbir, Tran, Ranganath, Gelman, Blei (2017), Automatic differentiation variational inference.
    """
    _check(model, init_scale=init_scale)
    return MeanField(None if init_scale is None else float(init_scale))


def full_rank(model: Callable[..., Any] | None = None, *, init_scale: float | None = None) -> FullRank:
    r"""One normal with a full covariance on the unconstrained scale: $u \sim N(m, L L^\top)$, $x = T(u)$.

    Args:
        model: the model, which `phx.fit` knows anyway.
        init_scale: standard deviations to begin with, on the unconstrained scale; None climbs a little first, and takes
            those that the curvature of the log density tells.

    Returns:
        A guide for `phx.fit`, with parameters `loc` and `scale_tril`; variables follow one another by name.

    Raises:
        TypeError, ValueError: when an argument is out of range.

    Source:
        Kucukelbir, Tran, Ranganath, Gelman, Blei (2017), Automatic differentiation variational inference.
    """
    _check(model, init_scale=init_scale)
    return FullRank(None if init_scale is None else float(init_scale))


def low_rank(model: Callable[..., Any] | None = None, *, rank: int = 10, init_scale: float | None = None) -> LowRank:
    r"""A normal whose covariance is diagonal but for a few directions: $u \sim N(m, D^2 + F F^\top)$, $x = T(u)$.

    Args:
        model: the model, which `phx.fit` knows anyway.
        rank: directions, columns of $F$.
        init_scale: standard deviations to begin with, on the unconstrained scale; None climbs a little first, and takes
            those that the curvature of the log density tells.

    Returns:
        A guide for `phx.fit`, with parameters `loc`, `scale` and `factor`.

    Raises:
        TypeError, ValueError: when an argument is out of range.

    Source:
        Ong, Nott, Smith (2018), Gaussian variational approximation with a factor covariance structure.
    """
    _check(model, init_scale=init_scale, rank=rank)
    if not isinstance(rank, int | np.integer):
        raise ValueError(f"guides: rank must be a whole number; got {rank!r}.")
    return LowRank(int(rank), None if init_scale is None else float(init_scale))


def laplace(model: Callable[..., Any] | None = None) -> Laplace:
    r"""The normal about the top of the log density on the unconstrained scale, with its curvature for a precision.

    Nothing is learned by steps: it is climbed to the top, $m$, and $u \sim N(m, H^{-1})$ with $H$ the negative Hessian
    there. `phx.fit(...).params["loc"]` is the most probable position.

    Args:
        model: the model, which `phx.fit` knows anyway.

    Returns:
        A guide for `phx.fit`, with parameters `loc` and `scale_tril`. The fit is refused where there is no top.

    Raises:
        TypeError: when the model is none.

    Source:
        Tierney, Kadane (1986), Accurate approximations for posterior moments and marginal densities.
    """
    _check(model)
    return Laplace()


def pathfinder(model: Callable[..., Any] | None = None, *, num_paths: int = 8) -> Pathfinder:
    r"""A mixture of normals met on the way up, by several paths at once.

    Each path climbs by L-BFGS, whose estimate of the curvature is a covariance at every step; the normal about the
    place that comes closest to the density is kept, and not that about the top. The paths' normals are mixed with
    weights $\propto e^{	ext{ELBO}}$, so that a path which ends in a minor mode counts for little. Nothing is learned
    by steps: a few hundred gradients for each path.

    Args:
        model: the model, which `phx.fit` knows anyway.
        num_paths: how many paths.

    Returns:
        A guide for `phx.fit`.

    Raises:
        TypeError, ValueError: when an argument is out of range.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(1.0, 2.0).expand([3]))
        >>> fit = phx.fit(model, phx.guides.pathfinder(), progress=False)
        >>> bool(fit.verdict().good)
        True

    Source:
        Zhang, Carpenter, Gelman, Vehtari (2022), Pathfinder: parallel quasi-Newton variational inference.
    """
    _check(model, num_paths=num_paths)
    if not isinstance(num_paths, int | np.integer):
        raise ValueError(f"guides: num_paths must be a whole number; got {num_paths!r}.")
    return Pathfinder(int(num_paths))


MAKERS = (mean_field, full_rank, low_rank, laplace, pathfinder)
"""What makes a guide; given to `phx.fit` uncalled, it is called without arguments."""
