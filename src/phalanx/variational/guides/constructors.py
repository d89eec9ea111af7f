"""Contents of `phx.guides`: guides made from a model, objectives, and the classes that a guide of your own needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from phalanx.language.parameters import Parameter
from phalanx.variational.guides.flow import COUPLING, TRANSFORMS, Flow
from phalanx.variational.guides.gaussian import LAPLACE, USUAL_RANK, FullRank, LowRankNormal, MeanField
from phalanx.variational.guides.guide import Guide, Traits
from phalanx.variational.guides.pathfinder import Pathfinder
from phalanx.variational.guides.start import Beginning
from phalanx.variational.guides.structured import Structured
from phalanx.variational.objective import elbo, forward_kl, importance_weighted, objective

__all__ = [
    "Beginning",
    "Guide",
    "Parameter",
    "Traits",
    "elbo",
    "flow",
    "forward_kl",
    "full_rank",
    "importance_weighted",
    "laplace",
    "low_rank",
    "mean_field",
    "objective",
    "pathfinder",
    "structured",
]


def _check(model: object, **positive: float | None) -> None:
    if model is not None and not callable(model):
        raise TypeError(
            f"guides: the first argument is the model, a function; got {model!r}. Sizes are given by name, such as "
            f"phx.guides.low_rank(rank=10)."
        )
    for name, value in positive.items():
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < np.inf
        ):
            raise ValueError(f"guides: {name} must be a number above 0; got {value!r}.")


def mean_field(model: Callable[..., Any] | None = None, *, init_scale: float | None = None) -> MeanField:
    r"""Make a guide of independent normals on the unconstrained scale: $u_i \sim N(m_i, s_i^2)$, $x = T(u)$.

    Its variances are too small if variables are correlated: for a normal posterior of precision $\Lambda$ they are
    $1 / \Lambda_{ii}$. Local variables have their parameters on the devices of their rows.

    If the number of particles is even and at least four, the ELBO draws them in pairs of opposite noise. For a normal
    posterior the gradients of means are then exact, so that fits to correlated variables settle. The bound is as exact
    as with half as many independent particles, and its error accounts for that. Other objectives draw independent
    particles.

    Args:
        model: the model; may be left out, since `phx.fit` has it.
        init_scale: standard deviations to begin with, on the unconstrained scale; None estimates them from the
            curvature of the log density, after a short climb.

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
        Kucukelbir, Tran, Ranganath, Gelman, Blei (2017), Automatic differentiation variational inference; Hammersley,
        Morton (1956), A new Monte Carlo technique: antithetic variates.
    """
    _check(model, init_scale=init_scale)
    return MeanField(None if init_scale is None else float(init_scale))


def full_rank(model: Callable[..., Any] | None = None, *, init_scale: float | None = None) -> FullRank:
    r"""Make a guide of one normal with a full covariance: $u \sim N(m, L L^\top)$ unconstrained, $x = T(u)$.

    Args:
        model: the model; may be left out, since `phx.fit` has it.
        init_scale: standard deviations to begin with, on the unconstrained scale; None estimates them from the
            curvature of the log density, after a short climb.

    Returns:
        A guide for `phx.fit`, with parameters `loc` and `scale_tril`; variables follow one another by name.

    Raises:
        TypeError, ValueError: when an argument is out of range.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(1.0, 2.0).expand([3]))
        >>> phx.fit(model, phx.guides.full_rank(), progress=False).params["scale_tril"].shape
        (3, 3)

    Source:
        Kucukelbir, Tran, Ranganath, Gelman, Blei (2017), Automatic differentiation variational inference.
    """
    _check(model, init_scale=init_scale)
    return FullRank(None if init_scale is None else float(init_scale))


def low_rank(
    model: Callable[..., Any] | None = None, *, rank: int | None = None, init_scale: float | None = None
) -> LowRankNormal:
    r"""Make a guide of one normal, its covariance diagonal plus low rank: $u \sim N(m, D^2 + F F^\top)$, $x = T(u)$.

    Args:
        model: the model; may be left out, since `phx.fit` has it.
        rank: directions, columns of $F$, no more than the model has coordinates; None means 10, or as many as there
            are coordinates.
        init_scale: standard deviations to begin with, on the unconstrained scale; None estimates them from the
            curvature of the log density, after a short climb.

    Returns:
        A guide for `phx.fit`, with parameters `loc`, `scale` and `factor`.

    Raises:
        TypeError, ValueError: when an argument is out of range.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(1.0, 2.0).expand([3]))
        >>> phx.fit(model, phx.guides.low_rank(rank=2), progress=False).params["factor"].shape
        (3, 2)

    Source:
        Ong, Nott, Smith (2018), Gaussian variational approximation with a factor covariance structure.
    """
    _check(model, init_scale=init_scale, rank=rank)
    if rank is not None and not isinstance(rank, int | np.integer):
        raise ValueError(f"guides: rank must be a whole number; got {rank!r}.")
    scale = None if init_scale is None else float(init_scale)
    return LowRankNormal(None if rank is None else int(rank), scale, f"low_rank(rank={rank or USUAL_RANK})")


def laplace(model: Callable[..., Any] | None = None) -> FullRank:
    r"""Make a Laplace approximation: a normal about the maximum of the log density on the unconstrained scale.

    No steps are made: a climb finds the maximum, $m$, and $u \sim N(m, H^{-1})$ with $H$ the negative Hessian there.
    `phx.fit(...).params["loc"]` is the most probable position.

    Args:
        model: the model; may be left out, since `phx.fit` has it.

    Returns:
        A guide for `phx.fit`, with parameters `loc` and `scale_tril`. The fit is refused if there is no maximum.

    Raises:
        TypeError: when `model` is not a function.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(1.0, 2.0))
        >>> phx.fit(model, phx.guides.laplace(), progress=False).params["loc"].round(3)
        array([1.], dtype=float32)

    Source:
        Tierney, Kadane (1986), Accurate approximations for posterior moments and marginal densities.
    """
    _check(model)
    return FullRank(name="laplace()", traits=LAPLACE)


def pathfinder(model: Callable[..., Any] | None = None, *, num_paths: int = 8) -> Pathfinder:
    r"""Make a guide that mixes normals found along several climbs to maxima (Pathfinder).

    Each path climbs by L-BFGS, whose estimate of the curvature gives a normal at every step, and keeps the normal that
    comes closest to the density. The paths' normals are mixed with weights $\propto e^{\text{ELBO}}$, so that a path
    to a minor mode has little weight. Draws are resampled from a pool of the mixture's by their smoothed importance
    weights, so that they are draws of the posterior if the verdict is good. No steps are made: a path takes a few
    hundred gradients.

    Args:
        model: the model; may be left out, since `phx.fit` has it.
        num_paths: number of paths.

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
    return Pathfinder(int(num_paths), f"pathfinder(num_paths={num_paths})")


def flow(
    model: Callable[..., Any] | None = None,
    *,
    transform: str = COUPLING,
    hidden: Sequence[int] = (32,),
    init_scale: float | None = None,
) -> Flow:
    r"""Make a normalizing flow, learned layers of standard normals: $u = m + s \odot f_L(\dots f_1(z))$, $x = T(u)$.

    Coordinates are in the order in which the model samples its variables. There are two coupling layers for each binary
    digit of a coordinate's number, so that every coordinate conditions every other in one of them. Local variables are
    independent normals, as in `mean_field`.

    Args:
        model: the model; may be left out, since `phx.fit` has it.
        transform: "coupling"; or "inverse_autoregressive", two more flexible layers for few coordinates: the density
            takes a pass for each coordinate.
        hidden: widths of the layers' networks.
        init_scale: standard deviations to begin with, on the unconstrained scale; None estimates them from the
            curvature of the log density, after a short climb.

    Returns:
        A guide for `phx.fit`, with parameters `loc`, `scale` and `weights`; and `x.loc` and `x.scale` for each local
        variable `x`.

    Raises:
        TypeError, ValueError: when an argument is out of range.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(1.0, 2.0).expand([3]))
        >>> fit = phx.fit(model, phx.guides.flow(), num_steps=200, progress=False)
        >>> sorted(fit.params)
        ['loc', 'scale', 'weights']

    Source:
        Dinh, Sohl-Dickstein, Bengio (2017), Density estimation using Real NVP; Kingma, Salimans, Jozefowicz, Chen,
        Sutskever, Welling (2016), Improved variational inference with inverse autoregressive flow; Agrawal, Domke
        (2024), Disentangling impact of capacity, objective, batchsize, estimators, and step-size on flow VI.
    """
    _check(model, init_scale=init_scale)
    if transform not in TRANSFORMS:
        raise ValueError(f"guides: transform must be {' or '.join(map(repr, TRANSFORMS))}; got {transform!r}.")
    widths = hidden if isinstance(hidden, Sequence | np.ndarray) else ()
    if not len(widths) or not all(
        isinstance(n, int | np.integer) and not isinstance(n, bool) and n > 0 for n in widths
    ):
        raise ValueError(f"guides: hidden must be whole numbers above 0, a layer each; got {hidden!r}.")
    name = "flow()" if transform == COUPLING else f"flow(transform={transform!r})"
    return Flow(transform, tuple(map(int, hidden)), None if init_scale is None else float(init_scale), name)


def structured(model: Callable[..., Any] | None = None, *, init_scale: float | None = None) -> Structured:
    r"""Make normals that follow the model's dependence: $u_i = m_i + s_i (z_i + \sum_p A_{ip} (u_p - m_p) / s_p)$.

    The sum is over the parents of a variable: earlier variables on which its distribution depends in the model. If both
    have many rows, a row depends on the same row of its parent. Local variables have their parameters, including the
    coefficients on global variables, on the devices of their rows.

    Args:
        model: the model; may be left out, since `phx.fit` has it.
        init_scale: standard deviations to begin with, on the unconstrained scale; None estimates them from the
            curvature of the log density, after a short climb.

    Returns:
        A guide for `phx.fit`, with parameters `x.loc` and `x.scale` for each variable `x`, and `x.on.p` for each of its
        parents `p`.

    Raises:
        TypeError, ValueError: when an argument is out of range.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(phx.sample("level", dist.Normal(0.0, 5.0)), 1.0))
        >>> fit = phx.fit(model, phx.guides.structured(), progress=False)
        >>> sorted(fit.params)
        ['level.loc', 'level.scale', 'x.loc', 'x.on.level', 'x.scale']

    Source:
        Hoffman, Blei (2015), Structured stochastic variational inference; Ambrogioni, Lin, Fertig, Vikram, Hinne,
        Moore, van Gerven (2021), Automatic structured variational inference.
    """
    _check(model, init_scale=init_scale)
    return Structured(None if init_scale is None else float(init_scale))


MAKERS = (mean_field, full_rank, low_rank, laplace, pathfinder, flow, structured)
"""Functions that make a guide; `phx.fit` calls one that is passed uncalled, without arguments."""
