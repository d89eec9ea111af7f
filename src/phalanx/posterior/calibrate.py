"""Simulation-based calibration: a check that inference recovers the values that data were simulated from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from phalanx.diagnostics.ranks import Ranks, rank_of
from phalanx.errors.message_text import count as said
from phalanx.inputs.arguments import by_keyword
from phalanx.inputs.dataframe_input import UserData, in_form_of
from phalanx.language.tracing import Program
from phalanx.mesh.random_numbers import check_seed
from phalanx.posterior.criticism.model_at_draws import RunDraws
from phalanx.posterior.predictive import predictive


def calibrate(
    model: Program,
    infer: Callable[[dict[str, Any], int], object],
    data: UserData | None = None,
    *,
    num_simulations: int = 200,
    num_draws: int = 63,
    seed: int = 0,
    on_simulation: Callable[[int], object] | None = None,
) -> Ranks:
    r"""Simulate data from the model repeatedly, infer, and rank the true values among the draws.

    With $\theta \sim p(\theta)$, $y \sim p(y \mid \theta)$ and draws from $p(\theta \mid y)$, the rank of $\theta$ is
    uniform over simulations. This holds for every method that draws: chains, fits and your own programs.
    The check cannot detect errors that cancel over the prior, or a model that is wrong.

    Args:
        model: the program. Each observed variable that is named after an argument of the model is simulated.
        infer: `infer(data, seed)`, which returns a posterior or a fit of simulated data, such as
            `lambda data, seed: phx.mcmc(model, data, seed=seed, progress=False)`. All simulations have data of the same
            shapes, so that programs compile once, and keep the names of levels and columns.
        data: keyword arguments of the model. Only the shapes of simulated ones are used.
        num_simulations: number of simulated data sets.
        num_draws: draws that a true value is ranked among, evenly spaced over all draws: few enough to be independent.
        seed: a whole number.
        on_simulation: called with the number of finished simulations, after each.

    Returns:
        The ranks, with `.verdict()`, `.summary()` and `.histogram(name)`.

    Raises:
        TypeError: if `infer` returns neither a posterior nor a fit.
        ValueError: if no variable can be simulated or compared, or there are too few draws.

    Example:
        >>> import numpy as np, numpyro.distributions as dist, phalanx as phx
        >>> def model(y):
        ...     mean = phx.sample("mean", dist.Normal(0.0, 1.0))
        ...     phx.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> infer = lambda data, seed: phx.fit(model, phx.guides.laplace(), data, seed=seed, progress=False)
        >>> ranks = phx.calibrate(model, infer, {"y": np.zeros(3)}, num_simulations=20)
        >>> ranks.ranks["mean"].shape
        (20,)

    Source:
        Talts, Betancourt, Simpson, Vehtari, Gelman (2018), Validating Bayesian inference algorithms with
        simulation-based calibration.
    """
    _check(model, infer, num_simulations, num_draws, seed)
    model_arguments = dict(by_keyword(model, {} if data is None else data))
    from_prior = predictive(model, model_arguments, "prior", RunDraws(sizes=(1, num_simulations)), seed=seed)
    simulated = {name: values[0] for name, values in from_prior.items()}
    replaced = [name for name in model_arguments if name in simulated]
    if not replaced:
        raise ValueError(
            f"calibrate: none of the data ({', '.join(map(repr, model_arguments)) or 'none'}) has the name of a "
            f"variable that the model draws ({', '.join(map(repr, simulated))}). Name an observed variable after its "
            f"argument, as in phx.sample('y', ..., obs=y)."
        )
    generator = np.random.default_rng(seed)
    ranks = []
    posterior = None
    for number in range(num_simulations):
        arguments = {
            **model_arguments,
            **{name: in_form_of(model_arguments[name], simulated[name][number]) for name in replaced},
        }
        posterior = _posterior_of(infer(arguments, number + 1), num_draws, number + 1)
        draws = posterior.draws
        truths = {name: simulated[name][number] for name in draws if name in simulated and name not in replaced}
        if not truths:
            raise ValueError(
                f"calibrate: the draws hold {', '.join(map(repr, draws)) or 'no variable'}, and the model simulates "
                f"other variables; keep the draws of the latent ones."
            )
        for name, true in truths.items():
            _check_shape(name, true, draws[name])
        ranks.append({name: rank_of(true, _spaced(draws[name], num_draws), generator) for name, true in truths.items()})
        if on_simulation is not None:
            on_simulation(number + 1)
    labels = getattr(getattr(posterior, "record", None), "labels", {})
    return Ranks({name: np.stack([each[name] for each in ranks]) for name in ranks[0]}, num_draws, labels)


def _check(model: object, infer: object, num_simulations: object, num_draws: object, seed: int) -> None:
    check_seed(seed)
    for name, function in (("model", model), ("infer", infer)):
        if not callable(function):
            raise TypeError(f"calibrate: {name} must be a function; got {type(function).__name__}.")
    for name, number in (("num_simulations", num_simulations), ("num_draws", num_draws)):
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
            raise ValueError(f"calibrate: {name} must be a whole number, at least 1; got {number!r}.")


def _posterior_of(posterior: Any, num_draws: int, seed: int) -> Any:
    """Return a posterior, or draws from a fit as one, with `draws` `(chain, draw, ...)` by name."""
    if callable(getattr(posterior, "sample", None)):  # a fit
        posterior = posterior.posterior(num_draws, seed=seed)  # with one seed, ranks would depend on one another
    if not isinstance(getattr(posterior, "draws", None), Mapping):
        raise TypeError(f"calibrate: infer must give a posterior or a fit; got {type(posterior).__name__}.")
    return getattr(posterior, "of_all_chains", posterior)  # of several processes, which all call this together


def _spaced(draws: np.ndarray, num_draws: int) -> np.ndarray:
    """Return so many draws, evenly spaced over those of all chains, `(draw, ...)`."""
    count = draws.shape[0] * draws.shape[1]
    if count < num_draws:
        are = "is" if count == 1 else "are"
        raise ValueError(
            f"calibrate: there {are} {said(count, 'draw')}, and num_draws={num_draws}: draw more, or compare with "
            f"fewer."
        )
    return draws.reshape(count, *draws.shape[2:])[(np.arange(num_draws) * count) // num_draws]


def _check_shape(name: str, true: np.ndarray, draws: np.ndarray) -> None:
    if draws.shape[2:] != true.shape:
        raise ValueError(
            f"calibrate: the draws of {name!r} have shape {draws.shape[2:]}, and the model simulates {true.shape}. "
            f"Infer with the same model, on the data that `infer` receives."
        )
