"""Fits of many data sets, of one call: parameters with a leading dimension of data sets, and a verdict on each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from phalanx.diagnostics.elements import element_names, measure
from phalanx.diagnostics.summary import check_fraction
from phalanx.errors.message_text import first_few
from phalanx.errors.names import UnknownVariable, hint
from phalanx.mesh.random_numbers import check_seed
from phalanx.posterior.each.posteriors import number_of_set
from phalanx.posterior.record import RunRecord, Timing
from phalanx.store.pickles import LEFT_OUT, Pickled
from phalanx.variational.result import Fit, check_number

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from pandas import DataFrame

COLUMNS = ("mean", "sd", "hdi_low", "hdi_high")


def _without_model(*_: Any) -> NoReturn:
    raise ValueError(
        f"Fits: this result {LEFT_OUT} and no guide. Take fits.of(...).posterior() or fits.sample() before it is "
        f"pickled, or fit again."
    )


@dataclass(frozen=True, repr=False, eq=False)
class Fits(Pickled):
    """Fits of a guide to each of many data sets, from `phx.fit(model, guide, data, each=...)`.

    Attributes:
        params: values by parameter, with a leading dimension of data sets; NaN of those that failed.
        elbo: the bound of each data set, on average over the last steps, in nats.
        error: its Monte-Carlo error.
        steps: steps made for each data set.
        sets: names of the data sets: the values of the column that divides the rows, or numbers from 0.
        failed: data sets that could not be fitted, with the reason.
        unsettled: data sets whose learning may not have ended, with the reason.
        timing: seconds of compiling and of learning (`sampling`), gradients, programs compiled.
        record: model, guide, sizes, devices and versions; the data are those of the first data set.
        fit_of: returns the fit of a data set, given its number.
        draws_of: returns draws of each data set, given a seed, a number of draws and names.

    Example:
        >>> import numpy as np, numpyro.distributions as dist, phalanx as phx
        >>> def model(y):
        ...     mean = phx.sample("mean", dist.Normal(0.0, 10.0))
        ...     phx.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> data = {"subject": ["a", "a", "b"], "y": np.array([1.0, 2.0, 7.0])}
        >>> fits = phx.fit(model, phx.guides.mean_field(), data, each="subject", progress=False)
        >>> fits.params["mean.loc"].shape
        (2,)
        >>> fits.sample(n=100)["mean"].shape
        (2, 100)
        >>> bool(fits.of("b").verdict().good)
        True
    """

    params: dict[str, Any]
    elbo: Float[np.ndarray, "sets"]
    error: Float[np.ndarray, "sets"]
    steps: Int[np.ndarray, "sets"]
    sets: tuple[Any, ...]
    failed: dict[Any, str]
    unsettled: dict[Any, str]
    timing: Timing
    record: RunRecord
    fit_of: Callable[[int], Fit] = field(repr=False)
    draws_of: Callable[[int, int, Sequence[str] | None], dict[str, np.ndarray]] = field(repr=False)

    of_process: ClassVar[dict[str, Any]] = {"fit_of": _without_model, "draws_of": _without_model}

    def __len__(self) -> int:
        return len(self.sets)

    def __repr__(self) -> str:
        facts = [f"{len(self.unsettled):,} of them not settled"] if self.unsettled else []
        facts += [f"{len(self.failed):,} failed"] if self.failed else []
        return (
            f"<Fits of {self.record.kernel} to {len(self):,} data sets{', ' if facts else ''}{', '.join(facts)}; "
            f"{int(self.steps.max()):,} steps; {self.timing.total:.1f} s>"
        )

    def of(self, name: Hashable) -> Fit:
        """Return the fit of one data set: that of `phx.fit` on it alone with the seed of this call plus its number.

        Args:
            name: name of the data set, one of `sets`.

        Raises:
            ValueError: if no data set has this name, or it failed.
        """
        return self.fit_of(number_of_set("fits", name, self.sets, self.failed, "fitted"))

    def sample(
        self, seed: int = 0, n: int = 1000, *, names: Sequence[str] | str | None = None
    ) -> dict[str, np.ndarray]:
        """Draw from the guide of each data set.

        Args:
            seed: a whole number. The draws of data set number `i` are those of its own fit with `seed + i`.
            n: number of draws.
            names: names of variables, also of deterministic ones of the model; None for all that have one shape in all
                data sets.

        Returns:
            Arrays of shape `(set, n, ...)` by variable; NaN, or zero for whole numbers, of data sets that failed.

        Raises:
            UnknownVariable: if a name is unknown.
            ValueError: when `n` or the seed is not a whole number, or the fits are of maximum likelihood.
        """
        check_seed(seed)
        check_number(n)
        return self.draws_of(seed, n, [names] if isinstance(names, str) else names)

    def summary(
        self, names: Iterable[str] | str | None = None, *, prob: float = 0.94, n: int = 1000, seed: int = 0
    ) -> DataFrame:
        """Summarise draws from the guides: every scalar element of every variable, of each data set.

        Args:
            names: variables, in this order; None for all.
            prob: fraction of the draws between `hdi_low` and `hdi_high`, the narrowest interval with so many.
            n: number of draws.
            seed: their seed.

        Returns:
            A table with the columns mean, sd, hdi_low and hdi_high, and rows by data set and quantity.
        """
        from pandas import DataFrame, MultiIndex  # as slow to import as all of Phalanx

        check_fraction("summary: prob", prob)
        variables = [names] if isinstance(names, str) else None if names is None else list(names)
        draws = self.sample(seed=seed, n=n, names=variables)
        rows = [row for name, v in draws.items() for row in element_names(name, v.shape[2:], self.record.labels)]
        figures = np.concatenate([_figures(values, prob) for values in draws.values()], axis=1)
        index = MultiIndex.from_product([self.sets, rows], names=["set", "quantity"])
        return DataFrame(figures.reshape(-1, len(COLUMNS)), index=index, columns=list(COLUMNS))

    def verdicts(self, names: Iterable[Hashable] | None = None) -> DataFrame:
        """Judge the fit of each data set, as `Fit.verdict` does, one after the other.

        Args:
            names: names of data sets; None for all.

        Returns:
            A table with a row for each data set: grade ("good", "usable" or "not good") and the first problem found.
        """
        from pandas import DataFrame

        set_names = list(self.sets) if names is None else list(names)
        verdicts = []
        for name in set_names:
            if name in self.failed:
                verdicts.append({"grade": "not good", "problem": self.failed[name]})
                continue
            verdict = self.of(name).verdict()
            problem = verdict.findings[0].problem if verdict.findings else ""
            verdicts.append({"grade": verdict.grade, "problem": problem})
        return DataFrame(verdicts, index=set_names, columns=["grade", "problem"])


def chosen_names(names: Sequence[str] | None, available: Sequence[str], default: Sequence[str]) -> list[str]:
    """Return the names of the variables to draw.

    Raises:
        UnknownVariable: if a name is unknown.
    """
    if unknown := [name for name in names or () if name not in available]:
        raise UnknownVariable(
            f"sample: there is no variable {first_few(list(map(repr, unknown)))}; there are "
            f"{', '.join(map(repr, available))}.{hint(unknown[0], available)}"
        )
    return list(default if names is None else names)


def _figures(draws: np.ndarray, prob: float) -> Float[np.ndarray, "sets elements columns"]:
    """Return mean, standard deviation and interval of every element of draws `(set, draw, ...)`, of each data set."""
    by_element = np.moveaxis(draws, 0, 1)[None]  # one chain: (chain, draw, set, ...)
    interval = measure(lambda elements: elements.hdi(prob), by_element)
    mean = draws.mean(1)
    sd = draws.std(1, ddof=1)
    parts = np.stack([mean, sd, interval[..., 0], interval[..., 1]], -1)
    return parts.reshape(len(draws), -1, len(COLUMNS))
