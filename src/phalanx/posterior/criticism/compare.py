"""Comparison of models by leave-one-out cross-validation on the same observations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import minimize

from phalanx.errors.message_text import count
from phalanx.posterior.criticism.loo import Loo

if TYPE_CHECKING:
    from jaxtyping import Float64
    from pandas import DataFrame

    from phalanx.posterior.posterior import Posterior


def compare(models: Mapping[str, Posterior | Loo], *, names: str | Sequence[str] | None = None) -> DataFrame:
    r"""Compare models of the same observations by how well they predict an observation that is left out.

    The difference to the best model has the standard error $\sqrt{n}$ times the standard deviation of the differences
    $d_i$ of the observations. Weights are those of stacking: the mixture of the models' predictions
    $\sum_k w_k p_k(y_i \mid y_{-i})$ has the largest log density.

    Args:
        models: posteriors by name, or their `posterior.loo()`.
        names: names of the observed variables to compare by, or one name; None for all. See `Posterior.loo`.

    Returns:
        A table with one row for each model, the best first, and the columns elpd, se, elpd_diff (below the best), dse
        (its standard error), p_loo, weight, bad_k (observations with a large Pareto k) and warning, in words: empty if
        the row is good to use. It prints all columns.

    Raises:
        TypeError: if `models` is not a dict of posteriors.
        ValueError: if there are fewer than two, one does not observe a variable in `names`, or their observations
            differ: in number, names, masks, order or values.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions as dist, phalanx as phx
        >>> def model(y, width):
        ...     mean = phx.sample("mean", dist.Normal(0.0, 10.0))
        ...     phx.sample("y", dist.Normal(mean, width), obs=y)
        >>> run = lambda width: phx.mcmc(model, {"y": jnp.arange(9.0), "width": width}, num_samples=300, progress=False)
        >>> phx.compare({"narrow": run(0.5), "wide": run(3.0)}).index[0]
        'wide'

    Source: Yao, Vehtari, Simpson, Gelman (2018), Using stacking to average Bayesian predictive distributions.
    """
    loos = {name: _loo_of(name, one, names) for name, one in _check_models(models).items()}
    _check_same_data(loos)
    terms = _terms(loos)
    elpd = {name: float(one.sum()) for name, one in terms.items()}
    order = sorted(loos, key=lambda name: -elpd[name] if math.isfinite(elpd[name]) else math.inf)
    weights = dict(zip(order, stacking_weights(np.stack([terms[name] for name in order], axis=1)), strict=True))
    best = terms[order[0]]
    from phalanx.diagnostics.table import SummaryTable  # imports pandas, as slow as all of Phalanx

    rows = [_row(loos[name], terms[name] - best, weights[name]) for name in order]
    return SummaryTable(rows, index=order)


def stacking_weights(terms: Float64[np.ndarray, "observation model"]) -> Float64[np.ndarray, "model"]:
    """Return the weights of the mixture of predictions with the largest log density.

    Densities are relative to those of the best model of each observation. ArviZ's own are not: if an observation is
    unlikely under all models, they are 0 and the weights NaN. An observation that is impossible under some models
    counts against them; one that is impossible under all, or has no number, favours none.
    """
    usable = terms[np.isfinite(terms.max(1))]
    models = terms.shape[1]
    if not len(usable):
        return np.full(models, np.nan)
    densities = np.exp(usable - usable.max(1, keepdims=True))

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        mixture = np.maximum(densities @ weights, np.finfo(float).tiny)
        return -float(np.log(mixture).mean()), -(densities / mixture[:, None]).mean(0)

    sum_is_one = {"type": "eq", "fun": lambda weights: weights.sum() - 1, "jac": lambda weights: np.ones(models)}
    optimum = minimize(
        loss,
        np.full(models, 1 / models),
        jac=True,
        bounds=[(0, 1)] * models,
        constraints=sum_is_one,
        method="SLSQP",
        options={"ftol": 1e-10, "maxiter": 1000},
    )
    return np.clip(optimum.x, 0.0, 1.0)


def _check_models(models: Any) -> Mapping[str, Any]:
    if not isinstance(models, Mapping) or not all(isinstance(name, str) for name in models):
        raise TypeError(
            f"phx.compare: expected a dict of posteriors by name, such as {{'a': posterior}}; got "
            f"{type(models).__name__}."
        )
    if len(models) < 2:
        raise ValueError(f"phx.compare: give two models at least; got {', '.join(map(repr, models)) or 'none'}.")
    return models


def _loo_of(name: str, model: Any, names: str | Sequence[str] | None) -> Loo:
    if isinstance(model, Loo):
        wanted_names = list(model.pointwise) if names is None else [names] if isinstance(names, str) else list(names)
        if set(wanted_names) != set(model.pointwise):
            raise ValueError(
                f"phx.compare: {name!r} is a loo() of {', '.join(map(repr, model.pointwise))}, and names has "
                f"{', '.join(map(repr, wanted_names)) or 'none'}. Give the posterior, or its "
                f"loo(names={wanted_names!r})."
            )
        return model
    if not hasattr(model, "loo"):
        raise TypeError(f"phx.compare: {name!r} must be a posterior or its loo(); got {type(model).__name__}.")
    try:
        return model.loo(names=names)
    except ValueError as error:
        raise ValueError(f"phx.compare: {name!r}: {error}") from error


def _check_same_data(loos: Mapping[str, Loo]) -> None:
    """Raise if the observations of two models differ, where their values are known."""
    fingerprints = {name: loo.fingerprint for name, loo in loos.items() if loo.fingerprint}
    for name, values in fingerprints.items():
        first, others = next(iter(fingerprints.items()))
        alone = len(values) == len(others) == 1
        pairs = zip(values, others, strict=True) if alone else ((n, n) for n in values if n in others)
        for mine, theirs in pairs:
            a = values[mine].ravel()
            b = others[theirs].ravel()
            if a.shape == b.shape and not _are_equal(a, b):
                same = _are_equal(np.sort(a), np.sort(b))
                differ = f"values of {mine!r} in another order" if same else f"different values of {mine!r}"
                raise ValueError(
                    f"phx.compare: {first!r} and {name!r} observe {differ}: they predict different data. "
                    f"Run all models on the same observations, in the same order and units; "
                    f"a transformed outcome has another density, so transform the distribution instead, as LogNormal "
                    f"does for log(y)."
                )


def _are_equal(a: Float64[np.ndarray, "observation"], b: Float64[np.ndarray, "observation"]) -> bool:
    """Return whether values are equal but for rounding in 32 bits, where both are known."""
    are_finite = np.isfinite(a) & np.isfinite(b)
    a = a[are_finite]
    b = b[are_finite]
    is_whole = not ((a % 1).any() or (b % 1).any())
    most = max(np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0))
    return bool((np.abs(a - b) <= (0.0 if is_whole else 4 * np.finfo(np.float32).eps * most)).all())


def _terms(loos: Mapping[str, Loo]) -> dict[str, Float64[np.ndarray, "observation"]]:
    """Return the terms of every model, of the same observations in the same order."""
    first, one = next(iter(loos.items()))
    names = list(one.pointwise)
    for name, other in loos.items():
        if other.num_observations != one.num_observations:
            raise ValueError(
                f"phx.compare: {first!r} has {count(one.num_observations, 'observation')} and {name!r} has "
                f"{other.num_observations}. Run all models on the same data."
            )
        if set(other.pointwise) != set(names) and not len(names) == len(other.pointwise) == 1:
            raise ValueError(
                f"phx.compare: {first!r} observes {', '.join(map(repr, names))} and {name!r} observes "
                f"{', '.join(map(repr, other.pointwise))}. Models are compared by the same observed variables."
            )
    terms = {}
    for name, other in loos.items():
        parts = list(other.pointwise.values()) if len(names) == 1 else [other.pointwise[n] for n in names]
        terms[name] = np.concatenate([np.ravel(part) for part in parts])
    there = ~np.isnan(terms[first])
    for name, values in terms.items():
        if values.shape != there.shape or not np.array_equal(~np.isnan(values), there):
            raise ValueError(
                f"phx.compare: {first!r} and {name!r} leave out different observations by a mask. Give both the same."
            )
    return {name: values[there] for name, values in terms.items()}


def _row(loo: Loo, difference: Float64[np.ndarray, "observation"], weight: float) -> dict[str, Any]:
    with np.errstate(invalid="ignore"):
        dse = math.sqrt(len(difference)) * float(difference.std())
    many = f"{count(loo.num_bad, 'observation')} with a Pareto k above {loo.good_k:.2f}" if loo.num_bad else ""
    others = [one.topic for one in loo.findings if one.topic != "large Pareto k"]
    problems = [*others, many if math.isfinite(loo.elpd) else "elpd is not finite"]
    warning = ", ".join(problem for problem in problems if problem)
    return {
        "elpd": loo.elpd,
        "se": loo.se,
        "elpd_diff": float(difference.sum()),
        "dse": dse,
        "p_loo": loo.p_loo,
        "weight": float(weight),
        "bad_k": loo.num_bad,
        "warning": warning,
    }
