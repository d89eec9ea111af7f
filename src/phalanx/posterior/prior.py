"""Prior predictive draws from a model alone, without a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.inputs.dataframe_input import UserData
from phalanx.language.tracing import Program
from phalanx.mesh.random_numbers import check_seed
from phalanx.posterior.criticism.model_at_draws import RunDraws
from phalanx.posterior.predictive import PredictiveDraws, check_num_draws
from phalanx.posterior.predictive import predictive as draw
from phalanx.reducers.reducer import Reduce, Reducer


def predictive(
    model: Program,
    data: UserData | None = None,
    *,
    given: str | Sequence[str] | None = None,
    num_draws: int = 1000,
    kind: str = "prior",
    keep: str | Sequence[str] | None = None,
    reducers: Mapping[str, Reducer | Reduce] | None = None,
    seed: int = 0,
) -> PredictiveDraws:
    r"""Draw every variable of a model from the prior: $\theta \sim p(\theta)$, $y \sim p(y \mid \theta, x)$.

    No run is needed. For a posterior, `posterior.predictive(kind="prior")` does the same. An observed variable on which
    others depend, such as a covariate that the model imputes, is held at its data.

    Args:
        model: the program.
        data: its keyword arguments, as for `phx.mcmc`. An argument that is only observed may be None, or left out if it
            has a default: its variable then has the shape of its distribution. Only the shape of a given one is used,
            unless its variable is held.
        given: names of the observed variables to hold at their data, or one name; None for those on which others
            depend, and `[]` for none.
        num_draws: number of draws.
        kind: "prior", the only kind without a posterior.
        keep: names of variables to return, or one name; None for all, and `[]` with `reducers` alone.
        reducers: reducers of the draws by name, as for `phx.mcmc`, whose results are `reduced` of what is returned.
        seed: a whole number. A draw depends only on the seed and its own number.

    Returns:
        Arrays of shape `(num_draws, ...)` by variable: latent, observed and deterministic ones.

    Raises:
        TypeError: if the data do not fit the model.
        ValueError: if `kind` or `num_draws` is something else, `given` names a variable that the data do not observe,
            or a variable cannot be drawn; the message names it.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> def model(y=None):
        ...     mean = phx.sample("mean", dist.Normal(0.0, 1.0))
        ...     phx.sample("y", dist.Normal(mean, 1.0).expand([3]), obs=y)
        >>> phx.predictive(model, num_draws=10)["y"].shape
        (10, 3)

    Source: A. Gelman, X.-L. Meng, H. Stern (1996), Posterior predictive assessment of model fitness via realized
    discrepancies.
    """
    check_seed(seed)
    if not callable(model):
        raise TypeError(f"predictive: model must be a function; got {type(model).__name__}.")
    if kind != "prior":
        raise ValueError(
            f"predictive: kind must be 'prior'; got {kind!r}. Draws from a posterior come from its own method, "
            f"phx.mcmc(model, data).predictive(new_data)."
        )
    check_num_draws(num_draws)
    run = RunDraws(sizes=(1, int(num_draws)))
    draws = draw(model, data, "prior", run, seed=seed, given=given, keep=keep, reducers=reducers)
    return PredictiveDraws({n: values[0] for n, values in draws.items()}, draws.reduced, lambda: draws.labels)
