"""Posteriors of many data sets, of one run: draws with a leading dimension of data sets, and a verdict on each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np

from phalanx.density.target import Target
from phalanx.diagnostics import judge
from phalanx.diagnostics.elements import element_names, measure
from phalanx.diagnostics.summary import COLUMNS, check_fraction, row_of, row_of_angles
from phalanx.errors.message_text import first_few
from phalanx.errors.names import UnknownVariable, hint
from phalanx.posterior.draw_tables import angles_among
from phalanx.posterior.each.stored_sets import blanked
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import RunRecord, Timing
from phalanx.store.lazy_array import LazyArray
from phalanx.store.pickles import Pickled

if TYPE_CHECKING:
    from jaxtyping import Float64
    from pandas import DataFrame

NUMBERS = 2**26
"""Numbers to summarise at once."""

_PROB = 0.94
"""Default fraction of the draws inside a summary's interval."""


@dataclass(frozen=True, repr=False, eq=False)
class Posteriors(Pickled):
    """Draws from the posterior of each of many data sets, from `phx.mcmc(model, data, each=...)`.

    Attributes:
        draws: arrays of shape `(set, chain, draw, ...)` by variable name; with `store=` they are read when they are
            used.
        stats: arrays of shape `(set, chain, draw)`, as those of `phx.Posterior`.
        sets: names of the data sets: the values of the column that divides the rows, or numbers from 0.
        failed: data sets that could not be sampled, with the reason. Their draws, statistics and results of reducers
            are NaN, flags are False, and whole numbers are zero.
        reduced: results of the reducers, with a leading dimension of data sets, by reducer name, and by variable.
        timing: seconds of each phase of the whole run, and gradient evaluations.
        record: model, kernel, sizes, devices and versions; the data are those of the first data set.
        target_of: returns the model with the data of a data set, given its number; None if they were read from a store
            or a pickle.

    Example:
        >>> import numpy as np, numpyro.distributions as dist, phalanx as phx
        >>> def model(y):
        ...     mean = phx.sample("mean", dist.Normal(0.0, 10.0))
        ...     phx.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> data = {"subject": ["a", "a", "b"], "y": np.array([1.0, 2.0, 7.0])}
        >>> posteriors = phx.mcmc(model, data, each="subject", num_warmup=200, num_samples=200, progress=False)
        >>> posteriors["mean"].shape
        (2, 4, 200)
        >>> posteriors.of("b").num_draws
        200
    """

    draws: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]
    sets: tuple[Any, ...]
    failed: dict[Any, str]
    reduced: dict[str, Any]
    timing: Timing
    record: RunRecord
    target_of: Callable[[int], Target] | None = field(default=None, repr=False)

    of_process: ClassVar[dict[str, Any]] = {"target_of": None}

    def __post_init__(self) -> None:
        failed_numbers = [self.sets.index(name) for name in self.failed]
        for of in (self.draws, self.stats, self.reduced) if failed_numbers else ():
            # the data of another set took the place of those that failed
            of.update(jax.tree.map(lambda v: v if isinstance(v, LazyArray) else blanked(v, failed_numbers), of))

    def __len__(self) -> int:
        return len(self.sets)

    def __iter__(self) -> Iterator[str]:
        return iter(self.draws)

    def __contains__(self, name: object) -> bool:
        return name in self.draws

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the draws of one variable, `(set, chain, draw, ...)`."""
        if name not in self.draws:
            raise UnknownVariable(
                f"posteriors[{name!r}]: there is no variable {name!r} among the draws; they are: "
                f"{', '.join(map(repr, self.draws))}.{hint(str(name), self.draws)} The posterior of a data set is "
                f"posteriors.of(name)."
            )
        return self.draws[name]

    def __repr__(self) -> str:
        _, chains, draws = next(iter(self.stats.values())).shape if self.stats else (0, self.record.num_chains, 0)
        note = f", {len(self.failed)} of which failed" if self.failed else ""
        return (
            f"<Posteriors of {len(self):,} data sets{note}: {', '.join(self.draws)}; {chains} chains of {draws} "
            f"draws each; {self.timing.total:.1f} s>"
        )

    def of(self, name: Any) -> Posterior:
        """Return the posterior of one data set: that of a run on it alone with the seed of this run plus its number.

        Args:
            name: name of the data set, one of `sets`.

        Raises:
            ValueError: if no data set has this name, or it failed.
        """
        number = number_of_set("posteriors", name, self.sets, self.failed, "sampled")
        target = None if self.target_of is None else self.target_of(number)
        return replace(self._posterior(number), target=target)

    def summary(self, names: Iterable[str] | None = None, *, prob: float = _PROB) -> DataFrame:
        """Summarise every scalar element of every variable, of each data set.

        Args:
            names: variables, in this order; None for all.
            prob: fraction of the draws between `hdi_low` and `hdi_high`, the narrowest interval with so many.

        Returns:
            A table with the columns of `Posterior.summary`, and rows by data set and quantity.

        Raises:
            UnknownVariable: if a name is unknown.
            ValueError: if `prob` is not between 0 and 1.

        Example:
            >>> posteriors.summary().loc["b"].loc["mean"]  # doctest: +SKIP
        """
        from pandas import DataFrame, MultiIndex  # as slow to import as all of Phalanx

        check_fraction("summary: prob", prob)
        names = [names] if isinstance(names, str) else list(self.draws if names is None else names)
        draws = {name: self[name] for name in names}
        values = self._summarize(draws, prob)
        index = MultiIndex.from_product([self.sets, self._rows(draws)], names=["set", "quantity"])
        return DataFrame(values.reshape(-1, len(COLUMNS)), index=index, columns=COLUMNS)

    def verdicts(self) -> DataFrame:
        """Judge the draws of each data set, as `Posterior.verdict` does.

        Returns:
            A table with a row for each data set: grade ("good", "usable" or "not good"), the largest r_hat, the least
            ess, divergences, and the first problem that was found.
        """
        return self._verdicts.copy()

    @cached_property
    def _verdicts(self) -> DataFrame:
        if not self.stats:
            raise ValueError("verdicts: this run stored no draws. Read posteriors.reduced, or keep variables.")
        from pandas import DataFrame

        step = _batch([*self.draws.values(), *self.stats.values()])
        verdicts = [one for first in range(0, len(self), step) for one in self._verdicts_of(first, first + step)]
        return DataFrame(verdicts, index=list(self.sets))

    def _verdicts_of(self, first: int, last: int) -> list[dict[str, Any]]:
        """Return a row for each of some data sets, whose draws are in memory at once."""
        from phalanx.diagnostics.table import SummaryTable

        arrays_of_sets = (
            {name: np.asarray(v[first:last, :]) for name, v in of.items()} for of in (self.draws, self.stats)
        )
        draws, stats = arrays_of_sets
        diverging = stats["diverging"].sum((1, 2))
        figures = np.concatenate([_figures(stats["log_density"], _PROB, False), self._summarize(draws, _PROB)], axis=1)
        rows = ["log_density", *self._rows(self.draws)]
        verdicts = []
        least = COLUMNS.index("ess_bulk")
        largest = COLUMNS.index("r_hat")
        for number, name in enumerate(self.sets[first:last]):
            worst = {
                "r_hat": np.max(figures[number, :, largest]),
                "ess": np.min(figures[number, :, least : least + 2]),
                "divergences": int(diverging[number]),
            }
            if name in self.failed:
                worst = dict.fromkeys(worst, np.nan)
                verdicts.append({"grade": "not good", **worst, "problem": self.failed[name]})
                continue
            table = SummaryTable(figures[number], index=rows, columns=COLUMNS)
            table.num_heads = 1
            mine = [{name: values[number] for name, values in of.items()} for of in (stats, draws)]
            verdict = judge(table, mine[0], draws=mine[1], labels=self.record.labels)
            problem = verdict.findings[0].problem if verdict.findings else ""
            verdicts.append({"grade": verdict.grade, **worst, "problem": problem})
        return verdicts

    def _summarize(self, draws: Mapping[str, np.ndarray], prob: float) -> Float64[np.ndarray, "sets elements columns"]:
        angles = angles_among(self.record.latents)
        return np.concatenate([_figures(v, prob, name in angles) for name, v in draws.items()], axis=1)

    def _posterior(self, number: int) -> Posterior:
        """Return the posterior of a data set without its data."""
        draws, stats = (
            {name: values[number : number + 1, :][0] for name, values in of.items()} for of in (self.draws, self.stats)
        )
        record = replace(self.record, seed=(self.record.seed + number) % 2**32)
        return Posterior(draws, stats, self.timing, record)

    def _rows(self, variables: Mapping[str, np.ndarray]) -> list[str]:
        return [row for name, v in variables.items() for row in element_names(name, v.shape[3:], self.record.labels)]


def number_of_set(result: str, name: Any, sets: tuple[Any, ...], reasons: Mapping[Any, str], verb: str) -> int:
    """Return the number of a data set; `result` and `verb` are words for the message.

    Raises:
        ValueError: if no data set has this name, or it failed.
    """
    if name not in sets:
        raise ValueError(
            f"{result}.of({name!r}): no data set has this name; there are {first_few(list(map(repr, sets)))}."
        )
    if name in reasons:
        raise ValueError(f"{result}.of({name!r}): this data set was not {verb}: {reasons[name].rstrip('.')}.")
    return sets.index(name)


def _batch(arrays: Sequence[Any]) -> int:
    """Return the number of data sets whose part of arrays `(set, ...)` is in memory at once."""
    return max(1, NUMBERS * len(arrays[0]) // max(sum(values.size for values in arrays), 1))


def _figures(values: np.ndarray, prob: float, is_angle: bool) -> Float64[np.ndarray, "sets elements columns"]:
    """Return the summary of every element of draws `(set, chain, draw, ...)`, of each data set."""
    step = _batch([values])
    parts = []
    for first in range(0, len(values), step):
        by_element = np.moveaxis(np.asarray(values[first : first + step, :]), 0, 2)
        parts.append(measure(partial(row_of_angles if is_angle else row_of, prob=prob), by_element))
    return np.concatenate(parts).reshape(len(values), -1, len(COLUMNS))
